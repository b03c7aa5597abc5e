# mypy: disallow-untyped-decorators=False
"""Locations become frames: one row per line, inlined ones too, each named by its content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maar.block.decode.batch import Batch
from maar.block.decode.interning import intern_rows
from maar.block.format import hashing
from maar.block.format.hashing import Int
from maar.block.format.tables import LAYOUTS
from maar.pprof.columns import NONE
from maar.pprof.kernel import allocating_kernel

INLINED = 1  # called from the next frame towards the root, with which it shares the address
FOLDED = 2
HAS_LINE = 4  # a location may have no line at all
HAS_FUNCTION = 8  # a line may have no function
HAS_MAPPING = 16
HAS_ADDRESS = 32

UNKNOWN = "[unknown]"  # a frame without name, mapping and address


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """The different frames of a batch, and which of them each location stands for."""

    ids: Int  # the content's id
    offset: Int  # frames of a location begin here in `number`, innermost first
    number: Int  # row of `ids`
    names: pa.Array  # what people read, one per different name
    name: Int  # row of `names` for each different frame
    locations: Callable[[], pa.Table]  # made when it is wanted: sums do without it
    collisions: int


def frames_of(batch: Batch, *, mask: int) -> Frames:
    """Intern functions, mappings and frames; hash only what is different."""
    function_number, function_first = intern_rows(
        [
            batch.function_name,
            batch.function_system_name,
            batch.function_file,
            batch.function_start_line,
        ]
    )
    mapping_number, mapping_first = intern_rows([batch.mapping_file, batch.mapping_build_id])
    offset, function, line, column, flags, mapping, address = _expand(
        batch.location_address,
        batch.location_mapping,
        batch.location_is_folded,
        batch.line_offset,
        _line_functions(batch),
        batch.line_number,
        batch.line_column,
        batch.mapping_start,
        batch.mapping_offset,
        function_number,
        mapping_number,
    )
    number, first = intern_rows([function, line, column, flags, mapping, address])
    different = _Different(
        function=_through(function_first, function[first]),
        mapping=_through(mapping_first, mapping[first]),
        line=line[first],
        column=column[first],
        flags=flags[first],
        address=address[first],
    )
    ids, collisions = _ids(batch, different, mask=mask)
    names, name = _names(batch, different)
    return Frames(
        ids=ids,
        offset=offset,
        number=number,
        names=names,
        name=name,
        locations=partial(_table, batch, different, ids),
        collisions=collisions,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Different:
    function: Int  # row of the batch's functions, or NONE
    mapping: Int  # row of the batch's mappings, or NONE
    line: Int
    column: Int
    flags: Int
    address: Int

    def has(self, flag: int) -> Any:
        return (self.flags & flag) != 0


def _line_functions(batch: Batch) -> Int:
    """The function of each line; one that says nothing is no function."""
    said = [batch.function_name, batch.function_system_name, batch.function_file]
    empty = np.logical_and.reduce([*(column == 0 for column in said)]) & (
        batch.function_start_line == 0
    )
    if not empty.any():
        return batch.line_function
    return np.where(
        (batch.line_function != NONE) & empty[batch.line_function], NONE, batch.line_function
    )


def _through(first: Int, number: Int) -> Int:
    """Interned numbers back to the row in which the content was met first."""
    if not first.size:
        return number
    return np.where(number == NONE, NONE, first[number])


@allocating_kernel
def _expand(
    address: Any,
    mapping: Any,
    folded: Any,
    line_offset: Any,
    line_function: Any,
    line_number: Any,
    line_column: Any,
    mapping_start: Any,
    mapping_offset: Any,
    function_number: Any,
    mapping_number: Any,
) -> Any:
    """One row per frame, in the order of locations and their lines."""
    locations = address.size
    offset = np.zeros(locations + 1, np.int64)
    for row in range(locations):
        offset[row + 1] = offset[row] + max(line_offset[row + 1] - line_offset[row], 1)
    frames = offset[locations]
    out_function = np.full(frames, NONE, np.int64)
    out_line = np.zeros(frames, np.int64)
    out_column = np.zeros(frames, np.int64)
    out_flags = np.zeros(frames, np.int64)
    out_mapping = np.full(frames, NONE, np.int64)
    out_address = np.zeros(frames, np.int64)
    for row in range(locations):
        first, last = line_offset[row], line_offset[row + 1]
        shared = FOLDED if folded[row] else 0
        symbol = False
        for line in range(first, last):
            symbol = symbol or line_function[line] != NONE
        place = np.int64(0)
        owner = mapping[row]
        if owner != NONE:
            shared |= HAS_MAPPING | HAS_ADDRESS
            place = np.int64(address[row] - mapping_start[owner] + mapping_offset[owner])
        elif not symbol:
            shared |= HAS_ADDRESS
            place = np.int64(address[row])
        for at in range(offset[row], offset[row + 1]):
            flags = shared
            if first < last:
                line = first + at - offset[row]
                flags |= HAS_LINE
                out_line[at] = line_number[line]
                out_column[at] = line_column[line]
                if line_function[line] != NONE:
                    flags |= HAS_FUNCTION
                    out_function[at] = function_number[line_function[line]]
                if line + 1 < last:
                    flags |= INLINED
            out_flags[at] = flags
            out_address[at] = place
            if owner != NONE:
                out_mapping[at] = mapping_number[owner]
    return offset, out_function, out_line, out_column, out_flags, out_mapping, out_address


def _ids(batch: Batch, frames: _Different, *, mask: int) -> tuple[Int, int]:
    """The id: XXH64 over (function, line, column, flags, mapping, address), see the format."""
    hashes = batch.strings.hashes
    function = _pick(
        hashing.hash_rows(
            [
                hashes[batch.function_name],
                hashes[batch.function_system_name],
                hashes[batch.function_file],
                batch.function_start_line.view(np.uint64),
            ]
        ),
        frames.function,
    )
    mapping = _pick(
        hashing.hash_rows([hashes[batch.mapping_file], hashes[batch.mapping_build_id]]),
        frames.mapping,
    )
    words = [frames.line, frames.column, frames.flags, frames.address]
    line, column, flags, address = [word.view(np.uint64) for word in words]
    return hashing.distinct_ids(
        hashing.hash_rows([function, line, column, flags, mapping, address]), mask=mask
    )


def _pick(values: Any, rows: Int) -> Any:
    """values[row], and 0 where there is no row."""
    if not values.size:
        return np.zeros(rows.size, values.dtype)
    return np.where(rows == NONE, values.dtype.type(0), values[rows])


def _names(batch: Batch, frames: _Different) -> tuple[pa.Array, Int]:
    """What people read: the function, else its system name, else where it is."""
    name = _pick(batch.function_name, frames.function)
    name = np.where(name == 0, _pick(batch.function_system_name, frames.function), name)
    text = batch.strings.text.take(pa.array(name))
    nameless = name == 0
    if nameless.any():
        text = pc.replace_with_mask(text, pa.array(nameless), _places(batch, frames, nameless))
    coded = text.dictionary_encode()
    return coded.dictionary, coded.indices.to_numpy().astype(np.int64)


def _places(batch: Batch, frames: _Different, rows: Any) -> pa.Array:
    """libfoo.so!0x1234 with a mapping's file, 0x1234 without, [unknown] without an address."""
    files = _pick(batch.mapping_file, frames.mapping[rows])
    different, which = np.unique(files, return_inverse=True)
    paths = batch.strings.text.take(pa.array(different)).to_pylist()
    short = [path.replace("\\", "/").rsplit("/", 1)[-1] for path in paths]
    before = pa.array([f"{file}!" if file else "" for file in short], pa.string())
    digits = hashing.hexadecimal(frames.address[rows].view(np.uint64))
    where = pc.binary_join_element_wise(
        before.take(pa.array(which)), _text(*digits), pa.scalar("0x")
    )
    return pc.if_else(pa.array(frames.has(HAS_ADDRESS)[rows]), where, UNKNOWN)


def _text(data: Any, offset: Any) -> pa.Array:
    buffers = [None, pa.py_buffer(offset.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), offset.size - 1, buffers)


def _table(batch: Batch, frames: _Different, ids: Int) -> pa.Table:
    function = frames.has(HAS_FUNCTION)
    line = frames.has(HAS_LINE)
    mapping = frames.has(HAS_MAPPING)

    def text(column: Int, rows: Int, there: Any) -> pa.Array:
        return batch.strings.text.take(pa.array(_pick(column, rows), mask=~there))

    def encode_column(column: Int, rows: Int, there: Any) -> pa.Array:
        return coded_text(batch.strings.text, _pick(column, rows), there)

    start_line = _pick(batch.function_start_line, frames.function)
    return pa.Table.from_arrays(
        [
            pa.array(ids),
            text(batch.function_name, frames.function, function),
            text(batch.function_system_name, frames.function, function),
            text(batch.function_file, frames.function, function),
            pa.array(start_line, mask=~function),
            pa.array(frames.line, mask=~line),
            pa.array(frames.column, mask=~line),
            pa.array(frames.has(INLINED)),
            pa.array(frames.has(FOLDED)),
            encode_column(batch.mapping_file, frames.mapping, mapping),
            encode_column(batch.mapping_build_id, frames.mapping, mapping),
            pa.array(frames.address, mask=~frames.has(HAS_ADDRESS)),
        ],
        schema=LAYOUTS["locations"].working,
    )


def coded_text(text: pa.Array, number: Int, there: Any | None = None) -> pa.Array:
    """Strings by number as a dictionary array that holds only what is used."""
    used, codes = np.unique(number, return_inverse=True)
    mask = None if there is None else ~there
    return pa.DictionaryArray.from_arrays(
        pa.array(codes.astype(np.int32), mask=mask), text.take(pa.array(used))
    )
