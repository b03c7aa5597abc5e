"""Many decoded profiles as one set of columns, so that later steps loop over none of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from maar.block.decode.interning import KEYS, Pool, number_strings
from maar.block.format import hashing
from maar.block.format.hashing import Int, Words
from maar.model.profile import RawProfile
from maar.pprof.columns import NONE, Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Strings:
    """The different strings of a batch; number 0 is the empty one."""

    text: pa.Array  # string
    hashes: Words  # XXH64 of the bytes as they came


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Profiles side by side. All strings are numbers of `strings`; rows count over the batch."""

    profiles: list[RawProfile]
    columns: list[Columns]
    strings: Strings
    string_base: Int  # where each profile's strings begin in `string_number`
    string_number: Int

    sample_base: Int  # first sample of each profile, and one element more
    sample_location_offset: Int
    sample_location: Int
    sample_label_offset: Int
    label_key: Int
    label_str: Int
    label_num: Int
    label_num_unit: Int

    location_address: Words
    location_mapping: Int
    location_is_folded: Int
    line_offset: Int
    line_function: Int
    line_number: Int
    line_column: Int

    function_name: Int
    function_system_name: Int
    function_file: Int
    function_start_line: Int

    mapping_base: Int
    mapping_start: Words
    mapping_limit: Words
    mapping_offset: Words
    mapping_file: Int
    mapping_build_id: Int
    mapping_flags: Int

    def text(self, index: Int, each: Int | int = 1) -> pa.Array:
        """Strings by their profiles' own indexes, of which every profile has `each`."""
        base = np.repeat(self.string_base[: len(self.profiles)], each)
        return self.strings.text.take(pa.array(self.string_number[base + index]))

    def services(self) -> tuple[list[str], Int]:
        """The different services, sorted, and each profile's place among them."""
        names = sorted({profile.service for profile in self.profiles})
        place = {name: row for row, name in enumerate(names)}
        return names, np.array([place[profile.service] for profile in self.profiles], np.int64)

    @property
    def profile_of_sample(self) -> Int:
        counts = np.diff(self.sample_base)
        return np.repeat(np.arange(len(self.profiles), dtype=np.int64), counts)


def batch_of(profiles: list[RawProfile], columns: list[Columns]) -> Batch:
    """Join the columns of at least one profile, each string table interned into one."""
    strings, number, string_base = _strings(columns)

    def join(pick: Callable[[Columns], Int]) -> Int:
        return np.concatenate([pick(each) for each in columns])

    def text(pick: Callable[[Columns], Int]) -> Int:
        return number[_shift([pick(each) for each in columns], string_base)]

    def rows(pick: Callable[[Columns], Int], base: Int) -> Int:
        return _shift([pick(each) for each in columns], base)

    locations = _base([each.location_address.size for each in columns])
    functions = _base([each.function_name.size for each in columns])
    mappings = _base([each.mapping_start.size for each in columns])
    return Batch(
        profiles=profiles,
        columns=columns,
        strings=strings,
        string_base=string_base,
        string_number=number,
        sample_base=_base([each.samples for each in columns]),
        sample_location_offset=_offsets([each.sample_location_offset for each in columns]),
        sample_location=rows(lambda each: each.sample_location, locations),
        sample_label_offset=_offsets([each.sample_label_offset for each in columns]),
        label_key=text(lambda each: each.label_key),
        label_str=text(lambda each: each.label_str),
        label_num=join(lambda each: each.label_num),
        label_num_unit=text(lambda each: each.label_num_unit),
        location_address=np.concatenate([each.location_address for each in columns]),
        location_mapping=rows(lambda each: each.location_mapping, mappings),
        location_is_folded=join(lambda each: each.location_is_folded.astype(np.int64)),
        line_offset=_offsets([each.line_offset for each in columns]),
        line_function=rows(lambda each: each.line_function, functions),
        line_number=join(lambda each: each.line_number),
        line_column=join(lambda each: each.line_column),
        function_name=text(lambda each: each.function_name),
        function_system_name=text(lambda each: each.function_system_name),
        function_file=text(lambda each: each.function_file),
        function_start_line=join(lambda each: each.function_start_line),
        mapping_base=mappings,
        mapping_start=np.concatenate([each.mapping_start for each in columns]),
        mapping_limit=np.concatenate([each.mapping_limit for each in columns]),
        mapping_offset=np.concatenate([each.mapping_offset for each in columns]),
        mapping_file=text(lambda each: each.mapping_file),
        mapping_build_id=text(lambda each: each.mapping_build_id),
        mapping_flags=join(lambda each: each.mapping_flags),
    )


def _strings(columns: list[Columns]) -> tuple[Strings, Int, Int]:
    raw = np.frombuffer(b"".join([each.raw for each in columns]), np.uint8)
    raw_base = _base([len(each.raw) for each in columns])
    nothing = np.zeros(1, np.int64)  # the empty string comes first and is number 0
    start = np.concatenate([nothing, _shift([each.string_start for each in columns], raw_base)])
    length = np.concatenate([nothing, *[each.string_length for each in columns]])
    pool = Pool(np.uint8, KEYS)
    arrays = pool.reserve(start.size, int(length.sum()))
    number = np.empty(start.size, np.int64)
    pool.count = int(number_strings(arrays, 0, raw, np.stack([start, length]), number))
    pool.size = int(arrays.offset[pool.count])
    base = _base([each.string_start.size for each in columns])
    return strings_of(pool), number[1:], base


def strings_of(pool: Pool) -> Strings:
    offset, data = pool.offset, pool.words
    buffers = [None, pa.py_buffer(offset), pa.py_buffer(data)]
    text = pa.Array.from_buffers(pa.large_binary(), pool.count, buffers).cast(pa.string())
    return Strings(text=text, hashes=hashing.hash_spans(data, offset[:-1], np.diff(offset)))


def _base(sizes: list[int]) -> Int:
    base = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(np.array(sizes, np.int64), out=base[1:])
    return base


def _shift(parts: list[Int], base: Int) -> Int:
    """Row numbers of each profile as row numbers of the batch; NONE stays NONE."""
    whole = np.concatenate(parts)
    missing = whole == NONE if whole.size and whole.min() == NONE else None
    at = 0
    for part, first in zip(parts, base.tolist(), strict=False):
        whole[at : at + part.size] += first
        at += part.size
    if missing is not None:
        whole[missing] = NONE
    return whole


def _offsets(parts: list[Int]) -> Int:
    """Offsets of each profile as one column of offsets."""
    base = _base([int(part[-1]) - int(part[0]) for part in parts])
    moved = [part[:-1] - part[0] + base[place] for place, part in enumerate(parts)]
    return np.concatenate([*moved, base[-1:]])
