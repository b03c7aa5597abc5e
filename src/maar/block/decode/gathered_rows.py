# mypy: disallow-untyped-decorators=False
"""The rows of `samples` of one service's gathered profiles, in their order, a part at a time.

Rows of one profile, value column and series are a group, and lie together. So the samples of a
profile are put in order once, for all its columns, and then groups are, as a whole. Only where
several groups are of one type, series and time are rows compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from maar.block.decode.kept import KeptProfile
from maar.block.decode.sample_labels import SampleSeries
from maar.block.decode.sample_rows import types_of
from maar.block.format.hashing import Int
from maar.block.format.tables import LAYOUTS, SAMPLES
from maar.block.format.writer import ROW_GROUP_ROWS
from maar.pprof.kernel import inline, kernel

SAMPLE_ROWS = ROW_GROUP_ROWS  # that are made into a table at a time
_KEYS_PER_ROW = 4  # beyond that, sorting costs less than counting


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSamples:
    """The profiles of a service, and what is known of their samples, one after the other."""

    service: str
    kept: list[KeptProfile]
    series: SampleSeries
    series_rank: Any  # int32, of each series
    stack_id: Int  # of each stack
    stack_rank: Any  # int32, of each stack
    span_id: pa.Array | None  # None when no sample has any
    sample_labels: pa.Array | None


class _Groups(NamedTuple):
    """Groups of rows: the samples `order[first:end]` of a profile with one of its value columns."""

    first: Int
    end: Int
    column: Int
    width: Int  # value columns of the profile
    value_base: Int  # a sample's first value is so far behind `width` times its number
    code: Any  # int32, of the type
    series_rank: Any  # int32
    series: Int
    time: Int
    id_first: Int  # half of the profile's id
    id_last: Int
    ordinal: Int  # by how much a sample's ordinal is more than its number

    def take(self, rows: Int) -> _Groups:
        return _Groups(*(column[rows] for column in self))


class _Made(NamedTuple):
    """Columns of some rows."""

    code: Any
    series: Int
    time: Int
    profile_id: Int
    stack: Int
    value: Int
    ordinal: Any
    alone: Any  # the profile has no other value column, and so needs no ordinals

    @classmethod
    def of(cls, rows: int) -> _Made:
        int32, words = np.empty((2, rows), np.int32), np.empty((6, rows), np.int64)
        return cls(
            code=int32[0],
            series=words[0],
            time=words[1],
            profile_id=words[2:4].reshape(-1),
            stack=words[4],
            value=words[5],
            ordinal=int32[1],
            alone=np.empty(rows, np.bool_),
        )


def sample_tables(of: ServiceSamples) -> Iterator[pa.Table]:
    """The rows of a service by type, series, time and stack; what is equal stays as it came."""
    base = np.cumsum([0, *(each.samples for each in of.kept)])
    if not base[-1]:
        return
    width = np.array([each.sample_type.size for each in of.kept], np.int64)
    profile = np.repeat(np.arange(width.size, dtype=np.int32), np.diff(base))
    value = np.concatenate([each.value.reshape(-1) for each in of.kept])
    stack = np.concatenate([each.stack for each in of.kept])
    stack_rank = of.stack_rank[stack]
    order = _samples_in_order(of, profile, stack_rank)
    names, groups = _groups(of, base, width, profile, order)
    counts = np.zeros(groups.first.size, np.int64)
    count_rows(value, order, groups, counts)
    used = np.flatnonzero(counts)
    used = used[np.lexsort((groups.time[used], groups.series_rank[used], groups.code[used]))]
    groups, counts = groups.take(used), counts[used]
    rows = int(counts.sum())
    sample, group = np.empty(rows, np.int32), np.empty(rows, np.int32)
    list_rows(value, order, groups, sample, group)
    _compare_where_groups_meet(groups, counts, stack_rank, sample, group)
    types = pa.array(names, pa.string())
    for at in range(0, rows, SAMPLE_ROWS):
        part = sample[at : at + SAMPLE_ROWS]
        made = _Made.of(part.size)
        pick_rows(part, group[at : at + SAMPLE_ROWS], groups, value, stack, of.stack_id, made)
        yield _table(of, types, part, made)


def _samples_in_order(of: ServiceSamples, profile: Any, stack_rank: Any) -> Any:
    """Those of each profile by series and stack."""
    order = _order(stack_rank, of.stack_rank.size)
    if any(each.labels.size for each in of.kept):  # else all samples of a profile are of one series
        order = _order(of.series_rank[of.series.number], of.series_rank.size, order)
    return _order(profile, len(of.kept), order)


def _groups(
    of: ServiceSamples, base: Int, width: Int, profile: Any, order: Any
) -> tuple[list[str], _Groups]:
    """The different types, and all groups: for each run of samples one for each value column."""
    rank = of.series_rank[of.series.number[order]]
    fresh = np.ones(order.size, np.bool_)
    fresh[1:] = (profile[1:] != profile[:-1]) | (rank[1:] != rank[:-1])
    starts = np.flatnonzero(fresh)
    run = np.repeat(np.arange(starts.size), width[profile[starts]])
    first = starts[run]
    end = np.append(starts[1:], order.size)[run]
    owner = profile[first].astype(np.int64)
    column = np.arange(run.size) - np.searchsorted(run, run)
    kind = (np.cumsum(width) - width)[owner] + column
    types, repeats = types_of([each.raw for each in of.kept])
    names = sorted(set(types))
    code = {name: place for place, name in enumerate(names)}
    times = np.array([each.raw.time_ns // 1000 for each in of.kept], np.int64)
    ids = np.frombuffer(b"".join(each.raw.id for each in of.kept), np.int64).reshape(-1, 2)
    samples = np.diff(base)
    value_base = np.cumsum(samples * width) - base[1:] * width
    return names, _Groups(
        first=first,
        end=end,
        column=column,
        width=width[owner],
        value_base=value_base[owner],
        code=np.array([code[name] for name in types], np.int32)[kind],
        series_rank=rank[first],
        series=of.series.ids[of.series.number[order[first]]],
        time=times[owner],
        id_first=ids[owner, 0],
        id_last=ids[owner, 1],
        ordinal=repeats[kind] * samples[owner] - base[owner],
    )


def _order(key: Any, keys: int, before: Any | None = None) -> Any:
    """Rows by their key below `keys`; those that are equal stay as they were before."""
    if keys > _KEYS_PER_ROW * key.size:  # a small service: not a count for each stack of all others
        found = np.argsort(key if before is None else key[before], kind="stable").astype(np.int32)
        return found if before is None else before[found]
    if before is None:
        before = np.arange(key.size, dtype=np.int32)
    order = np.empty(key.size, np.int32)
    order_by_counting(key, before, np.zeros(keys, np.int64), order)
    return order


def _compare_where_groups_meet(
    groups: _Groups, counts: Int, stack_rank: Any, sample: Any, group: Any
) -> None:
    """Put rows in order where several groups are of one type, series and time."""
    met = np.zeros(counts.size + 1, np.bool_)  # is a group's place that of the group before?
    met[1:-1] = True
    for column in (groups.code, groups.series_rank, groups.time):
        met[1:-1] &= column[1:] == column[:-1]
    if not met.any():
        return
    places = np.flatnonzero(np.repeat(met[:-1] | met[1:], counts))
    samples, its_group = sample[places], group[places]
    part = np.cumsum(~met[:-1])[its_group]
    keys = (groups.column[its_group], samples, stack_rank[samples], part)
    order = np.lexsort(keys)  # the least significant first
    sample[places], group[places] = samples[order], its_group[order]


def _table(of: ServiceSamples, types: pa.Array, sample: Any, made: _Made) -> pa.Table:
    owner = pa.array(np.zeros(sample.size, np.int32))
    arrays = [
        pa.DictionaryArray.from_arrays(owner, pa.array([of.service], pa.string())),
        pa.DictionaryArray.from_arrays(pa.array(made.code), types),
        pa.array(made.series),
        pa.array(made.time).view(SAMPLES.field("time").type),
        pa.Array.from_buffers(pa.binary(16), sample.size, [None, pa.py_buffer(made.profile_id)]),
        pa.array(made.stack),
        pa.array(made.value),
        pa.array(made.ordinal, mask=made.alone),
        _take(of.span_id, sample, "span_id"),
        _take(of.sample_labels, sample, "sample_labels"),
    ]
    return pa.Table.from_arrays(arrays, schema=LAYOUTS["samples"].working)


def _take(column: pa.Array | None, rows: Any, name: str) -> pa.Array:
    if column is None:
        return pa.nulls(rows.size, SAMPLES.field(name).type)
    return column.take(pa.array(rows))


@kernel
def order_by_counting(key: Any, before: Any, starts: Any, order: Any) -> None:
    """Rows by their key, which is below `starts.size`; those that are equal stay as `before` has
    them. `starts` comes as zeros.
    """
    for row in range(key.shape[0]):
        if key[row] + 1 < starts.shape[0]:
            starts[key[row] + 1] += 1
    for at in range(1, starts.shape[0]):
        starts[at] += starts[at - 1]
    for at in range(before.shape[0]):
        row = before[at]
        order[starts[key[row]]] = row
        starts[key[row]] += 1


@inline
def _is_row(value: Any, first: Any, column: Any, width: Any) -> Any:
    """Zeros are no rows, except the last value of a sample that has nothing else."""
    if value[np.uint64(first + column)] != 0:
        return True
    if column + 1 < width:
        return False
    bits = np.int64(0)
    for other in range(width):
        bits |= value[np.uint64(first + other)]
    return bits == 0


@kernel
def count_rows(value: Any, order: Any, groups: Any, counts: Any) -> None:
    """How many rows each group has."""
    for group in range(counts.shape[0]):
        base, column, width = groups.value_base[group], groups.column[group], groups.width[group]
        rows = 0
        for at in range(groups.first[group], groups.end[group]):
            rows += _is_row(value, base + width * order[np.uint64(at)], column, width)
        counts[group] = rows


@kernel
def list_rows(value: Any, order: Any, groups: Any, sample: Any, group_of_row: Any) -> None:
    """The sample and the group of each row, group after group."""
    row = 0
    for group in range(groups.first.shape[0]):
        base, column, width = groups.value_base[group], groups.column[group], groups.width[group]
        for at in range(groups.first[group], groups.end[group]):
            one = order[np.uint64(at)]
            if _is_row(value, base + width * one, column, width):
                sample[np.uint64(row)] = one
                group_of_row[np.uint64(row)] = group
                row += 1


@kernel
def pick_rows(
    sample: Any, group_of_row: Any, groups: Any, value: Any, stack: Any, stack_id: Any, made: Any
) -> None:
    """The columns of some rows; what a group has in common is filled in for all of it at once."""
    end = 0
    while end < sample.shape[0]:
        first, group = end, group_of_row[end]
        while end < sample.shape[0] and group_of_row[end] == group:
            end += 1
        made.code[first:end] = groups.code[group]
        made.series[first:end] = groups.series[group]
        made.time[first:end] = groups.time[group]
        made.alone[first:end] = groups.width[group] == 1
        id_first, id_last = groups.id_first[group], groups.id_last[group]
        base = groups.value_base[group] + groups.column[group]
        width, ordinal = groups.width[group], groups.ordinal[group]
        for at in range(first, end):
            row = np.uint64(at)
            one = sample[row]
            made.profile_id[row + row] = id_first
            made.profile_id[row + row + np.uint64(1)] = id_last
            made.stack[row] = stack_id[np.uint64(stack[np.uint64(one)])]
            made.value[row] = value[np.uint64(base + width * one)]
            made.ordinal[row] = one + ordinal
