# mypy: disallow-untyped-decorators=False
"""The order of rows in each table, by numbers only: sort, compare neighbours, compare across."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maar.block.format.dictionary import codes_of
from maar.block.format.hashing import Int
from maar.pprof.kernel import allocating_kernel

RUN_ROWS_MIN = 128  # of all runs on average: to write many short ones costs more than a copy
_NULL = (0, 0)  # comes before all values


def sorted_table(table: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """The rows in the order of some columns."""
    if table.num_rows < 2:
        return table.combine_chunks()
    table = table.combine_chunks()
    keys = [numbers for column in key for numbers in _sort_keys(_only(table[column]))]
    keys = [numbers for numbers in keys if (numbers != numbers[0]).any()]
    if not keys:
        return table
    return _take(table, pa.array(_order(keys)))


def merge_sorted(parts: Sequence[pa.Table], key: tuple[str, ...]) -> pa.Table:
    """The rows of several tables, each of which is in order, in order.

    Rows that are equal in all of the key but its last column are a run, and runs are moved whole:
    if they are long, as those of samples are, no row is copied. Where two tables have rows of one
    run, or runs are short, rows are sorted.
    """
    whole = pa.concat_tables(parts)
    before = key[:-1]
    starts = [np.flatnonzero(~same_as_before(part.select(before))) for part in parts]
    base = np.cumsum([0, *(part.num_rows for part in parts)])
    start = np.concatenate([own + first for own, first in zip(starts, base, strict=False)])
    if start.size > whole.num_rows // RUN_ROWS_MIN:
        return sorted_table(whole, key)
    heads = pa.concat_tables(
        [part.select(before).take(pa.array(own)) for part, own in zip(parts, starts, strict=True)]
    )
    keys = [numbers for column in before for numbers in _sort_keys(_only(heads[column]))]
    runs = np.lexsort(keys[::-1])
    if np.logical_and.reduce([each[runs[1:]] == each[runs[:-1]] for each in keys]).any():
        return sorted_table(whole, key)
    end = np.append(start[1:], whole.num_rows)
    follows = end[runs[:-1]] == start[runs[1:]]
    first, last = runs[np.append(True, ~follows)], runs[np.append(~follows, True)]
    return pa.concat_tables(
        [
            whole.slice(begin, until - begin)
            for begin, until in zip(start[first].tolist(), end[last].tolist(), strict=True)
        ]
    )


def _take(table: pa.Table, rows: pa.Array) -> pa.Table:
    """All rows in another order; columns that have nothing stay as they are."""
    columns = [
        column
        if column.null_count == len(column)
        else pc.take(column, rows, boundscheck=False)  # there are as many rows as places
        for column in table.columns
    ]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _order(keys: list[Int]) -> Int:
    """The rows by their keys, the most significant first; equal rows stay as they are.

    Rows that came in order are moved together: of samples, those of one profile and type. Only
    where such runs meet in all keys but the last are rows compared.
    """
    *before, last = keys
    fresh = np.ones(last.size, np.bool_)
    fresh[1:] = last[1:] < last[:-1]
    for key in before:
        fresh[1:] |= key[1:] != key[:-1]
    starts = np.flatnonzero(fresh)
    if not before or starts.size * 4 > last.size:  # hardly any runs
        return np.lexsort(keys[::-1])
    heads = [key[starts] for key in before]
    runs = np.lexsort(heads[::-1])
    met = np.zeros(runs.size + 1, np.bool_)  # is the run's key that of the run before?
    met[1:-1] = np.logical_and.reduce([key[runs[1:]] == key[runs[:-1]] for key in heads])
    sizes = np.diff(starts, append=last.size)[runs]
    ends = np.cumsum(sizes)
    order = np.repeat(starts[runs] - (ends - sizes), sizes) + np.arange(last.size)
    shared = met[:-1] | met[1:]
    if shared.any():
        places = np.flatnonzero(np.repeat(shared, sizes))
        part = np.repeat(np.cumsum(~met[:-1]), sizes)[places]
        rows = order[places]
        order[places] = rows[np.lexsort((last[rows], part))]
    return order


def row_key(table: pa.Table, key: tuple[str, ...], row: int) -> tuple[Any, ...]:
    """One row's place in the order, comparable with rows of other tables."""
    return tuple(_comparable(table[column][row]) for column in key)


def count_until(table: pa.Table, key: tuple[str, ...], place: tuple[Any, ...]) -> int:
    """How many rows of a table that is in the order of `key` come no later than a place in it."""
    low, high = 0, int(table.num_rows)  # where rows are that equal the place, as far as was looked
    for column, wanted in zip(key, place, strict=True):
        if low == high:
            break
        low, high = _where_equal(_only(table[column]), wanted, low, high)
    return high


def _where_equal(array: pa.Array, wanted: tuple[int, Any], low: int, high: int) -> tuple[int, int]:
    """Where the rows are that equal one, among rows in order."""
    is_number = pa.types.is_int64(array.type) or pa.types.is_timestamp(array.type)
    if is_number and not array.null_count and wanted != _NULL:
        numbers = array.view(pa.int64()).to_numpy()[low:high]
        first, end = (int(np.searchsorted(numbers, wanted[1], side)) for side in ("left", "right"))
        return low + first, low + end

    def value(row: int) -> tuple[int, Any]:
        return _comparable(array[row])

    first = bisect_left(range(high), wanted, low, key=value)
    return first, bisect_right(range(high), wanted, first, key=value)


def same_as_before(table: pa.Table) -> Any:
    """Flags: is the row equal, in all columns, to the one before it?"""
    same = np.ones(table.num_rows, np.bool_)
    same[:1] = False
    for column in table.columns:
        for numbers, offset in _numbers(_only(column)):
            if offset is None:
                same[1:] &= numbers[1:] == numbers[:-1]
            else:
                _compare_lists(numbers, offset, same)
    return same


def _only(column: Any) -> pa.Array:
    """A column as one array with one dictionary."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks() if column.num_chunks else pa.array([], column.type)


def _comparable(scalar: Any) -> tuple[int, Any]:
    if not scalar.is_valid:
        return _NULL
    if pa.types.is_timestamp(scalar.type):
        return (1, scalar.value)
    if pa.types.is_list(scalar.type) and pa.types.is_dictionary(scalar.type.value_type):
        return (1, _texts(scalar.values))
    return (1, scalar.as_py())


def _texts(array: pa.DictionaryArray) -> list[str]:
    """Each text once in memory, however often it is said: a stack may be one function, called by
    itself thousands of times.
    """
    used, places = np.unique(codes_of(array), return_inverse=True)
    texts = array.dictionary.take(pa.array(used)).to_pylist()
    return [texts[place] for place in places.tolist()]


def _sort_keys(array: pa.Array) -> list[Int]:
    """Numbers, most significant first, that order as the column's values do."""
    kind = array.type
    if pa.types.is_list(kind):
        return [_list_rank(array)]
    if pa.types.is_fixed_size_binary(kind):
        words = _fixed_words(array).byteswap()
        return [words[0::2].view(np.uint64), words[1::2].view(np.uint64)]
    if pa.types.is_string(kind):
        array = array.dictionary_encode()
    if pa.types.is_dictionary(array.type):
        return [_ranks(array)]
    return [numbers for numbers, _ in _numbers(array)]


def _ranks(array: pa.DictionaryArray) -> Int:
    if not len(array.dictionary):
        return np.full(len(array), -1, np.int64)
    rank = pc.rank(array.dictionary, tiebreaker="dense").to_numpy().astype(np.int64)
    codes = _codes(array)
    return np.where(codes < 0, -1, rank[codes])


def _list_rank(array: pa.ListArray) -> Int:
    """Rank of lists of text: item ranks as big-endian words order like the lists."""
    offset = array.offsets.to_numpy()
    ranks = _ranks(array.values)[offset[0] : offset[-1]].astype(">u4")
    ends = (offset.astype(np.int64) - offset[0]) * 4
    keys = pa.Array.from_buffers(
        pa.large_binary(), len(array), [None, pa.py_buffer(ends), pa.py_buffer(ranks.tobytes())]
    )
    ranked: Int = pc.rank(keys, tiebreaker="dense").to_numpy().astype(np.int64)
    return ranked


def _numbers(array: pa.Array) -> list[tuple[Int, Int | None]]:
    """A column as numbers that are equal where values are; lists come with offsets."""
    kind = array.type
    if pa.types.is_list(kind):
        offset = array.offsets.to_numpy().astype(np.int64)
        return [(numbers, offset) for numbers, _ in _numbers(array.values)]
    if pa.types.is_map(kind):
        offset = array.offsets.to_numpy().astype(np.int64)
        parts = [array.keys, array.items]
        return [(numbers, offset) for part in parts for numbers, _ in _numbers(part)]
    if pa.types.is_struct(kind):
        return [numbers for child in array.flatten() for numbers in _numbers(child)]
    if pa.types.is_fixed_size_binary(kind):
        words = _fixed_words(array)
        return [(words[0::2], None), (words[1::2], None)]
    if pa.types.is_string(kind):
        array = array.dictionary_encode()
    if pa.types.is_dictionary(array.type):
        return [(_codes(array), None)]
    if pa.types.is_boolean(kind):
        array = array.cast(pa.int8())
    if pa.types.is_timestamp(kind):
        array = array.cast(pa.int64())
    if not array.null_count and pa.types.is_int64(array.type):
        return [(array.to_numpy(), None)]
    there = array.is_valid().cast(pa.int8()).cast(pa.int64()).to_numpy()  # nulls come first
    return [(there, None), (array.cast(pa.int64()).fill_null(0).to_numpy(), None)]


def _codes(array: pa.DictionaryArray) -> Int:
    codes: Int = codes_of(array).astype(np.int64)
    return codes


def _fixed_words(array: pa.Array) -> Int:
    data = np.frombuffer(array.buffers()[1], np.int64)
    return data[2 * array.offset : 2 * (array.offset + len(array))]


@allocating_kernel
def _compare_lists(numbers: Any, offset: Any, same: Any) -> None:
    for row in range(1, same.size):
        if not same[row]:
            continue
        first, last, count = offset[row - 1], offset[row], offset[row + 1] - offset[row]
        if last - first != count:
            same[row] = False
            continue
        for item in range(count):
            if numbers[first + item] != numbers[last + item]:
                same[row] = False
                break
