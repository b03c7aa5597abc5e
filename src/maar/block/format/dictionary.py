"""Trims dictionaries to the entries in use: slices and filters keep the whole dictionary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

_SHORT = 16  # entries of a dictionary that nobody minds to drag along


def trim(table: pa.Table) -> pa.Table:
    """The same rows in one chunk, each long dictionary cut down to what its column uses."""
    columns = [_trim(column.chunk(0), short=_SHORT) for column in table.combine_chunks().columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def trim_coded(table: pa.Table) -> pa.Table:
    """The same rows; each dictionary is one, cut down to what its column uses. Other columns stay
    in the chunks that they have: to join them would be a copy.
    """
    columns = [
        _trim(column.combine_chunks()) if _is_coded(column.type) else column
        for column in table.columns
    ]
    return pa.Table.from_arrays(columns, schema=table.schema)


def plain_bytes(table: pa.Table) -> int:
    """Bytes of the columns without dictionaries: only there may a long text be repeated."""
    return sum(column.nbytes for column in table.columns if not _is_coded(column.type))


def text_bytes(table: pa.Table) -> int:
    """The same with the dictionaries, which may hold long texts for few rows; one that several
    chunks have is there once.
    """
    size = plain_bytes(table)
    for column in table.columns:
        if _is_coded(column.type):
            found = [_dictionary(chunk) for chunk in column.chunks]
            size += sum({_place(each): each.nbytes for each in found}.values())
    return size


def _dictionary(array: Any) -> Any:
    return (array.values if pa.types.is_list(array.type) else array).dictionary


def _place(array: Any) -> tuple[int, ...]:
    """Where its bytes are: arrays with the same ones are the same."""
    buffers = [0 if buffer is None else buffer.address for buffer in array.buffers()]
    return (*buffers, array.offset, len(array))


def _is_coded(kind: Any) -> bool:
    return bool(pa.types.is_dictionary(kind.value_type if pa.types.is_list(kind) else kind))


def codes_of(array: pa.DictionaryArray) -> Any:
    """The place of each row's value in the dictionary, or -1 for a null."""
    codes = array.indices
    return (codes.fill_null(-1) if codes.null_count else codes).to_numpy()


def _trim(array: Any, *, short: int = 0) -> Any:
    if pa.types.is_list(array.type) and _is_coded(array.type):
        offsets = array.offsets.to_numpy()
        moved = pa.array(offsets - offsets[0])
        return pa.ListArray.from_arrays(moved, _trim(array.flatten(), short=short), type=array.type)
    if not pa.types.is_dictionary(array.type) or len(array.dictionary) <= short:
        return array
    codes = codes_of(array)
    if len(array.dictionary) > codes.size:
        return _take_few(array.dictionary, codes)
    used = np.zeros(len(array.dictionary) + 1, np.bool_)
    used[codes] = True  # nulls mark the last, which is no entry
    used = used[:-1]
    if used.all():
        return array
    fresh = np.cumsum(used, dtype=np.int32) - 1
    indices = fresh[codes] if fresh.size else codes
    entries = array.dictionary.filter(pa.array(used))
    return pa.DictionaryArray.from_arrays(pa.array(indices, mask=codes < 0), entries)


def _take_few(dictionary: Any, codes: Any) -> Any:
    """The same for few rows, at no cost for each entry of a dictionary that many others use."""
    used = np.unique(codes[codes >= 0])
    indices = np.searchsorted(used, codes).astype(np.int32)
    entries = dictionary.take(pa.array(used))
    return pa.DictionaryArray.from_arrays(pa.array(indices, mask=codes < 0), entries)
