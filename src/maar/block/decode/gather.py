"""Decoded profiles of one tenant's day on their way to tables, kept as numbers.

Strings, functions, locations and stacks are interned once for all profiles, so that what profiles
repeat is hashed, sorted and written once, and a profile costs little more than its samples. Nothing
of a profile's bytes is kept. The rows are those that `to_tables` makes of the same profiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from maar.block.decode import interning
from maar.block.decode.batch import Batch, Strings
from maar.block.decode.frames import Frames, coded_text, frames_of
from maar.block.decode.interning import HEAD, LINE, Pool, hash_keys
from maar.block.decode.profile_rows import profiles_of
from maar.block.decode.sample_labels import Labelled, split_labels
from maar.block.decode.sample_rows import explode, types_of
from maar.block.decode.stack_rows import stacks_of_samples
from maar.block.format import hashing
from maar.block.format.hashing import ALL_BITS, Int
from maar.block.format.order import sorted_table
from maar.block.format.tables import LAYOUTS, SAMPLES
from maar.block.format.writer import ROW_GROUP_ROWS
from maar.model.profile import RawProfile
from maar.pprof.columns import Columns

SAMPLE_ROWS = ROW_GROUP_ROWS  # of the samples that are made into a table at a time
_ROOMS = ("string", "function", "mapping", "location", "words")
_KEYS_PER_ROW = 4  # beyond that, sorting costs less than counting
_NOTHING = np.zeros(0, np.int64)
_OFFSETS = np.zeros(1, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptProfile:
    """A profile without its bytes; strings are numbers of all profiles' strings."""

    raw: RawProfile  # without its payload
    stack: Any  # int32, of each sample
    value: Int  # shape (samples, value columns)
    label_offset: Int
    labels: Int  # key, str, num and num_unit, a row each
    mappings: Int  # start, limit, offset, file, build id and flags, a row each
    sample_type: Int
    sample_unit: Int
    comment: Int
    default_sample_type: int
    drop_frames: int
    keep_frames: int
    doc_url: int
    period_type: int
    period_unit: int
    period: int
    time_ns: int
    duration_ns: int
    text: Callable[[int], str]

    @property
    def samples(self) -> int:
        return int(self.value.shape[0])

    @property
    def nbytes(self) -> int:
        arrays = (self.stack, self.value, self.label_offset, self.labels, self.mappings)
        return sum(int(array.nbytes) for array in arrays) + 1_000


class _Room:
    """Memory for what is needed of one profile only; the next one takes it over."""

    def __init__(self) -> None:
        self._words = _NOTHING

    def take(self, size: int) -> Int:
        if size > self._words.size:
            self._words = np.empty(2 * size, np.int64)
        return self._words[:size]


class _Texts:
    """Strings of a pool as text, each decoded once."""

    def __init__(self, strings: Pool) -> None:
        self._strings = strings
        self._known: dict[int, str] = {}

    def text(self, number: int) -> str:
        known = self._known.get(number)
        if known is None:
            first, end = self._strings.offset[number : number + 2].tolist()
            known = self._known[number] = bytes(self._strings.arrays.words[first:end]).decode()
        return known


class Gather:
    """Profiles of one tenant's day, until they are written."""

    def __init__(self, *, seed: str, mask: int = ALL_BITS) -> None:
        keys = hash_keys(seed)
        self._mask = mask
        self._kept: list[KeptProfile] = []
        self._kept_bytes = 0
        self._services: dict[str, int] = {}
        self._strings = Pool(np.uint8, keys)
        self._functions = Pool(np.int64, keys)
        self._mappings = Pool(np.int64, keys)
        self._locations = Pool(np.int64, keys)
        self._stacks = Pool(np.int32, keys)
        self._rooms = {name: _Room() for name in _ROOMS}
        self._texts = _Texts(self._strings)
        self._number_strings(b"\0", _OFFSETS, _OFFSETS)  # the empty string is number 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def held_bytes(self) -> int:
        """About the memory that it takes to write them; symbols are copied several times."""
        pools = (self._strings, self._functions, self._mappings, self._locations, self._stacks)
        return self._kept_bytes + 3 * sum(pool.nbytes for pool in pools)

    @property
    def size(self) -> int:
        """About how many bytes they will have as a block."""
        rows = sum(int(np.count_nonzero(each.value)) for each in self._kept)
        return 8 * rows + (self._strings.nbytes + self._stacks.nbytes) // 4

    def add(self, profile: RawProfile, columns: Columns) -> None:
        """Keep what is new of a profile; nothing of the columns themselves."""
        string = self._number_strings(columns.raw, columns.string_start, columns.string_length)
        location = self._number_locations(columns, string)
        stack = self._number_stacks(profile.service, columns, location)
        labels = np.empty((4, 0), np.int64)
        if columns.label_key.size:
            texts = (columns.label_key, columns.label_str, columns.label_num_unit)
            key, text, unit = (string[each] for each in texts)
            labels = np.stack([key, text, columns.label_num, unit])
        mappings = np.empty((6, columns.mapping_start.size), np.int64)
        mappings[0] = columns.mapping_start.view(np.int64)
        mappings[1] = columns.mapping_limit.view(np.int64)
        mappings[2] = columns.mapping_offset.view(np.int64)
        mappings[3] = string[columns.mapping_file]
        mappings[4] = string[columns.mapping_build_id]
        mappings[5] = columns.mapping_flags
        kept = KeptProfile(
            raw=msgspec.structs.replace(profile, payload=b""),
            stack=stack,
            value=columns.value.copy(),
            label_offset=columns.sample_label_offset.copy() if labels.size else _NOTHING,
            labels=labels,
            mappings=mappings,
            sample_type=string[columns.sample_type],
            sample_unit=string[columns.sample_unit],
            comment=string[columns.comment],
            default_sample_type=int(string[columns.default_sample_type]),
            drop_frames=int(string[columns.drop_frames]),
            keep_frames=int(string[columns.keep_frames]),
            doc_url=int(string[columns.doc_url]),
            period_type=int(string[columns.period_type]),
            period_unit=int(string[columns.period_unit]),
            period=columns.period,
            time_ns=columns.time_ns,
            duration_ns=columns.duration_ns,
            text=self._texts.text,  # not a method of this: who is in a circle is freed late
        )
        self._kept.append(kept)
        self._kept_bytes += kept.nbytes

    def tables(self) -> GatheredTables:
        """What was gathered, in order; nothing may be added afterwards."""
        return GatheredTables(self, mask=self._mask)

    def _number_strings(self, raw: bytes, start: Int, length: Int) -> Int:
        pool, number = self._strings, self._rooms["string"].take(start.size)
        arrays = pool.reserve(start.size, int(length.sum()))
        data = np.frombuffer(raw, np.uint8)
        pool.count = interning.number_strings(arrays, pool.count, data, start, length, number)
        return number

    def _number_rows(
        self, pool: Pool, room: str, string: Int, columns: tuple[Int, Int, Int, Int]
    ) -> Int:
        count = columns[0].size
        number, words = self._rooms[room].take(count), self._rooms["words"].take(4)
        arrays = pool.reserve(count, 4 * count)
        pool.count = interning.number_rows(arrays, pool.count, string, *columns, words, number)
        return number

    def _number_locations(self, columns: Columns, string: Int) -> Int:
        function = self._number_rows(
            self._functions,
            "function",
            string,
            (
                columns.function_name,
                columns.function_system_name,
                columns.function_file,
                columns.function_start_line,
            ),
        )
        none = np.zeros(columns.mapping_file.size, np.int64)
        files = columns.mapping_file, columns.mapping_build_id, none, none
        mapping = self._number_rows(self._mappings, "mapping", string, files)
        count, lines = columns.location_address.size, columns.line_function.size
        number = self._rooms["location"].take(count)
        words = self._rooms["words"].take(HEAD + LINE * lines)
        pool = self._locations
        arrays = pool.reserve(count, HEAD * count + LINE * lines)
        pool.count = interning.number_locations(
            arrays,
            pool.count,
            columns.location_address,
            columns.location_mapping,
            columns.location_is_folded,
            columns.line_offset,
            columns.line_function,
            columns.line_number,
            columns.line_column,
            columns.mapping_start,
            columns.mapping_offset,
            mapping,
            self._functions.arrays,
            function,
            words,
            number,
        )
        return number

    def _number_stacks(self, service: str, columns: Columns, location: Int) -> Any:
        owner = self._services.setdefault(service, len(self._services))
        references = columns.sample_location.size
        number = np.empty(columns.samples, np.int32)
        words = self._rooms["words"].take(1 + references).view(np.int32)
        pool = self._stacks
        arrays = pool.reserve(columns.samples, columns.samples + references)
        pool.count = interning.number_stacks(
            arrays,
            pool.count,
            owner,
            columns.sample_location_offset,
            columns.sample_location,
            location,
            words,
            number,
        )
        return number


class GatheredTables:
    """The tables of what was gathered, each in its order; samples a part at a time."""

    def __init__(self, gather: Gather, *, mask: int) -> None:
        self._kept = sorted(gather._kept, key=lambda each: each.raw.service)
        self._sample_base = _base([each.samples for each in self._kept])
        strings = _strings(gather._strings)
        symbols = _symbols(gather, strings)
        frames = frames_of(symbols, mask=mask)
        stacks, self._stack_id, clashes = _stacks(gather, symbols, frames, mask=mask)
        batch = self._batch(strings)
        self._labels = split_labels(batch, mask=mask)
        self.collisions = frames.collisions + self._labels.collisions + clashes
        self.tables = {
            "stacks": stacks,
            "locations": _sort("locations", frames.locations()),
            "series": _sort("series", self._labels.series),
            "profiles": _sort("profiles", _profiles(batch, self._labels)),
        }
        self._stack_rank = np.empty(self._stack_id.size, np.int64)
        self._stack_rank[np.argsort(self._stack_id)] = np.arange(self._stack_id.size)

    def samples(self) -> Iterator[pa.Table]:
        """Service by service, so that one service's rows are in memory at a time."""
        services = [each.raw.service for each in self._kept]
        first = 0
        while first < len(services):
            end = first
            while end < len(services) and services[end] == services[first]:
                end += 1
            yield from self._samples_of(services[first], first, end)
            first = end

    def _samples_of(self, service: str, first: int, end: int) -> Iterator[pa.Table]:
        """The rows of one service, ordered by counting: by stack, then by type, series and time."""
        kept = self._kept[first:end]
        base = self._sample_base[first : end + 1]
        part = slice(int(base[0]), int(base[-1]))
        base = base - base[0]
        width = np.array([each.sample_type.size for each in kept], np.int64)
        values = np.concatenate([each.value.reshape(-1) for each in kept])
        profile, sample, column, value = explode(base, width, values)
        if not value.size:
            return
        kind = (np.cumsum(width) - width)[profile] + column
        types, repeats = types_of([each.raw for each in kept])
        names, name = np.unique(np.array(types, object), return_inverse=True)
        times = np.array([each.raw.time_ns // 1000 for each in kept], np.int64)
        series = self._labels.sample_series[part]
        stack = np.concatenate([each.stack for each in kept])
        if any(each.labels.size for each in kept):
            different, which = np.unique(series, return_inverse=True)
            its_series = which[sample]
        else:  # all samples of a profile are of one series
            mine = self._labels.profile_series[first:end]
            different, which = np.unique(mine, return_inverse=True)
            its_series = which[profile]
        owner_of_kind = np.repeat(np.arange(len(kept)), width)
        group, groups = _groups(name, times[owner_of_kind], kind, its_series, different.size)
        order = _order(self._stack_rank[stack[sample]], self._stack_id.size)
        order = _order(group, groups, order)
        ids = np.frombuffer(b"".join(each.raw.id for each in kept), "V16")
        ordinal = sample - base[profile] + repeats[kind] * np.diff(base)[profile]
        spans = _of_samples(self._labels.span_id, part)
        labels = _of_samples(self._labels.sample_labels, part)
        text = pa.array(names.tolist(), pa.string())
        owner = pa.array([service], pa.string())
        for at in range(0, order.size, SAMPLE_ROWS):
            rows = order[at : at + SAMPLE_ROWS]
            its_profile, its_sample = profile[rows], sample[rows]
            arrays = [
                pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows.size, np.int32)), owner),
                coded_text(text, name[kind[rows]]),
                pa.array(series[its_sample]),
                pa.array(times[its_profile]).cast(SAMPLES.field("time").type),
                _to_array(ids[its_profile]),
                pa.array(self._stack_id[stack[its_sample]]),
                pa.array(value[rows]),
                pa.array(ordinal[rows].astype(np.int32), mask=width[its_profile] == 1),
                _take(spans, its_sample, "span_id"),
                _take(labels, its_sample, "sample_labels"),
            ]
            yield pa.Table.from_arrays(arrays, schema=LAYOUTS["samples"].working)

    def _batch(self, strings: Strings) -> Batch:
        """The profiles as those see them who make tables of profiles and of labels."""
        kept = self._kept
        labels = np.concatenate([each.labels for each in kept], axis=1)
        mappings = np.concatenate([each.mappings for each in kept], axis=1)
        counts = [
            np.diff(each.label_offset) if each.labels.size else np.zeros(each.samples, np.int64)
            for each in kept
        ]
        start, limit, offset = (mappings[row].view(np.uint64) for row in range(3))
        return _batch(
            strings,
            profiles=[each.raw for each in kept],
            columns=kept,
            sample_base=self._sample_base,
            sample_label_offset=_base(np.concatenate(counts)),
            label_key=labels[0],
            label_str=labels[1],
            label_num=labels[2],
            label_num_unit=labels[3],
            mapping_base=_base([each.mappings.shape[1] for each in kept]),
            mapping_start=start,
            mapping_limit=limit,
            mapping_offset=offset,
            mapping_file=mappings[3],
            mapping_build_id=mappings[4],
            mapping_flags=mappings[5],
        )


def _base(sizes: Any) -> Int:
    base = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(np.asarray(sizes, np.int64), out=base[1:])
    return base


def _batch(strings: Strings, **columns: Any) -> Batch:
    """A batch of which only some columns are asked for."""
    empty = dict.fromkeys((field for field in Batch.__slots__), _NOTHING)
    return Batch(**{**empty, "strings": strings, "profiles": [], "columns": [], **columns})


def _strings(pool: Pool) -> Strings:
    offset, data = pool.offset, pool.words
    buffers = [None, pa.py_buffer(offset), pa.py_buffer(data)]
    text = pa.Array.from_buffers(pa.large_binary(), pool.count, buffers).cast(pa.string())
    hashes = hashing.hash_spans(data, offset[:-1], np.diff(offset))
    return Strings(text=text, hashes=hashes)


def _symbols(gather: Gather, strings: Strings) -> Batch:
    """The different functions, mappings and locations as a batch, and the stacks as its samples."""
    functions = gather._functions.words.reshape(-1, 4)
    mappings = gather._mappings.words.reshape(-1, 4)
    words, offset = gather._locations.words, gather._locations.offset
    head = offset[:-1]
    is_line = np.ones(words.size, np.bool_)
    for word in range(HEAD):
        is_line[head + word] = False
    lines = words[is_line].reshape(-1, LINE)
    stacks, stack_offset = gather._stacks.words, gather._stacks.offset
    is_location = np.ones(stacks.size, np.bool_)
    is_location[stack_offset[:-1]] = False
    nowhere = np.zeros(len(mappings), np.uint64)  # addresses are in the mapped file already
    return _batch(
        strings,
        sample_location_offset=stack_offset - np.arange(stack_offset.size),
        sample_location=stacks[is_location].astype(np.int64),
        location_address=words[head + 2].view(np.uint64),
        location_mapping=words[head],
        location_is_folded=words[head + 1],
        line_offset=(offset - HEAD * np.arange(offset.size)) // LINE,
        line_function=np.ascontiguousarray(lines[:, 0]),
        line_number=np.ascontiguousarray(lines[:, 1]),
        line_column=np.ascontiguousarray(lines[:, 2]),
        function_name=np.ascontiguousarray(functions[:, 0]),
        function_system_name=np.ascontiguousarray(functions[:, 1]),
        function_file=np.ascontiguousarray(functions[:, 2]),
        function_start_line=np.ascontiguousarray(functions[:, 3]),
        mapping_start=nowhere,
        mapping_offset=nowhere,
        mapping_file=np.ascontiguousarray(mappings[:, 0]),
        mapping_build_id=np.ascontiguousarray(mappings[:, 1]),
    )


def _stacks(
    gather: Gather, symbols: Batch, frames: Frames, *, mask: int
) -> tuple[pa.Table, Int, int]:
    service = gather._stacks.words[gather._stacks.offset[:-1]].astype(np.int64)
    makers, ids, clashes = stacks_of_samples(
        symbols, frames, list(gather._services), service, mask=mask
    )
    schema = LAYOUTS["stacks"].working
    table = pa.Table.from_arrays([makers[name]() for name in schema.names], schema=schema)
    return _sort("stacks", table), ids, clashes


def _profiles(batch: Batch, labels: Labelled) -> pa.Table:
    schema, makers = LAYOUTS["profiles"].working, profiles_of(batch, labels)
    return pa.Table.from_arrays([makers[name]() for name in schema.names], schema=schema)


def _sort(name: str, table: pa.Table) -> pa.Table:
    return sorted_table(table, LAYOUTS[name].key)


def _groups(name: Int, times: Int, kind: Int, series: Int, different: int) -> tuple[Int, int]:
    """For each row the rank of its (type, series, time), and how many ranks there are.

    `name` and `times` are the type and the time of each value column, `kind` the value column of
    each row and `series` the rank of its series, of so many different ones.
    """
    pair = kind * different + series
    if name.size * different <= 4 * pair.size:
        found = np.zeros(name.size * different, np.bool_)
        found[pair] = True
        pairs = np.flatnonzero(found)
        place = (np.cumsum(found) - 1)[pair]
    else:
        pairs, place = np.unique(pair, return_inverse=True)
    column = pairs // different
    keys = (times[column], pairs % different, name[column])  # the least significant first
    order = np.lexsort(keys)
    fresh = np.zeros(order.size, np.bool_)
    for key in keys:
        fresh[1:] |= key[order][1:] != key[order][:-1]
    rank = np.empty(order.size, np.int64)
    rank[order] = np.cumsum(fresh)
    return rank[place], int(fresh.sum()) + 1


def _order(key: Int, keys: int, before: Int | None = None) -> Int:
    """Rows by their key below `keys`; those that are equal stay as they were before."""
    if keys > _KEYS_PER_ROW * key.size:  # a small service: not a count for each stack of all others
        if before is None:
            return np.argsort(key, kind="stable")
        return before[np.argsort(key[before], kind="stable")]
    before = np.arange(key.size, dtype=np.int64) if before is None else before
    order = np.empty(key.size, np.int64)
    interning.order_by_counting(key, before, np.zeros(keys, np.int64), order)
    return order


def _to_array(ids: Any) -> pa.Array:
    """16-byte items as an Arrow array, without a look at each."""
    return pa.Array.from_buffers(pa.binary(16), ids.size, [None, pa.py_buffer(ids.tobytes())])


def _of_samples(column: pa.Array | None, part: slice) -> pa.Array | None:
    """What a column of all samples has for some; None when it has nothing."""
    if column is None:
        return None
    some = column.slice(part.start, part.stop - part.start)
    return None if some.null_count == len(some) else some


def _take(column: pa.Array | None, rows: Int, name: str) -> pa.Array:
    if column is None:
        return pa.nulls(rows.size, SAMPLES.field(name).type)
    return column.take(pa.array(rows))
