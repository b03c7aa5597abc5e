"""Decoded profiles of one tenant's day on their way to tables, kept as numbers.

Strings, functions, locations and stacks are interned once for all profiles, so that what profiles
repeat is hashed, sorted and written once, and a profile costs little more than its samples. Nothing
of a profile's bytes is kept. The rows are those that `to_tables` makes of the same profiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import gt
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from maar.block.decode import interning
from maar.block.decode.batch import Batch, Strings, strings_of
from maar.block.decode.frames import Frames, frames_of
from maar.block.decode.gathered_rows import ServiceSamples, sample_tables
from maar.block.decode.interning import (
    FUNCTION,
    HEAD,
    LINE,
    MAPPING,
    Pool,
    Pools,
    ProfileNumbers,
    hash_keys,
)
from maar.block.decode.kept import KeptProfile
from maar.block.decode.profile_rows import profiles_of
from maar.block.decode.sample_labels import Labelled, SampleSeries, split_labels
from maar.block.decode.stack_rows import stacks_of_samples
from maar.block.format.hashing import ALL_BITS, Int
from maar.block.format.order import sorted_table
from maar.block.format.tables import LAYOUTS
from maar.model.profile import RawProfile
from maar.pprof.wire import Tables

_NOTHING = np.zeros(0, np.int64)


class _Room:
    """Memory for the numbers of one profile; those of the next one take it over."""

    def __init__(self) -> None:
        self._sizes = [0] * 5
        self._numbers: ProfileNumbers | None = None

    def take(self, *sizes: int) -> ProfileNumbers:
        """At least so much for each."""
        if self._numbers is None or any(map(gt, sizes, self._sizes)):
            self._sizes = [
                2 * size if size > had else had
                for size, had in zip(sizes, self._sizes, strict=True)
            ]
            parts = [np.empty(size, np.int64) for size in self._sizes]
            self._numbers = ProfileNumbers._make([*parts, parts[-1].view(np.int32)])
        return self._numbers


class Gather:
    """Profiles of one tenant's day, until they are written."""

    def __init__(self, *, seed: str, mask: int = ALL_BITS) -> None:
        keys = hash_keys(seed)
        self._mask = mask
        self._kept: list[KeptProfile] = []
        self._kept_bytes = 0
        self._services: dict[str, int] = {}
        self._strings = Pool(np.uint8, keys)  # each profile's first is empty: it is number 0
        self._functions = Pool(np.int64, keys)
        self._mappings = Pool(np.int64, keys)
        self._locations = Pool(np.int64, keys)
        self._stacks = Pool(np.int32, keys)
        self._pools = (
            self._strings,
            self._functions,
            self._mappings,
            self._locations,
            self._stacks,
        )
        self._known = np.zeros(2 * len(self._pools) + 1, np.int64)
        self._room = _Room()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def held_bytes(self) -> int:
        """About the memory that it takes to write them; symbols are copied several times."""
        swelled = int(self._known[-1])
        return self._kept_bytes + swelled + 3 * sum(pool.nbytes for pool in self._pools)

    @property
    def size(self) -> int:
        """About how many bytes they will have as a block."""
        rows = sum(int(np.count_nonzero(each.value)) for each in self._kept)
        return 8 * rows + (self._strings.nbytes + self._stacks.nbytes) // 4

    def add(self, profile: RawProfile, raw: bytes, tables: Tables) -> None:
        """Keep what is new of a profile; nothing of its tables, which are of no use afterwards."""
        stack = self._number(profile.service, raw, tables)
        labelled = tables.labels.shape[1] > 0
        kept = KeptProfile(
            raw=msgspec.structs.replace(profile, payload=b""),
            stack=stack,
            value=tables.values.reshape(stack.size, tables.types.shape[1]).copy(),
            label_offset=tables.samples[1].copy() if labelled else _NOTHING,
            labels=tables.labels.copy(),
            mappings=tables.mappings[1:7].copy(),
            types=tables.types.copy(),
            comment=tables.comments.copy(),
            period_types=tables.period_type[:, 0].copy(),
            scalars=tables.scalars.copy(),
        )
        self._kept.append(kept)
        self._kept_bytes += kept.nbytes

    def tables(self) -> GatheredTables:
        """What was gathered, in order; nothing may be added afterwards."""
        return GatheredTables(self, mask=self._mask)

    def _number(self, service: str, raw: bytes, tables: Tables) -> Any:
        """The number of each sample's stack; the tables have numbers for strings afterwards."""
        samples, refs = tables.samples.shape[1] - 1, tables.refs.size
        functions, mappings = tables.functions.shape[1], tables.mappings.shape[1]
        locations, lines = tables.locations.shape[1] - 1, tables.lines.shape[1]
        texts = tables.strings.shape[1]
        pools = Pools(
            self._strings.reserve(texts, len(raw)),  # to add up their bytes would cost more
            self._functions.reserve(functions, FUNCTION * functions),
            self._mappings.reserve(mappings, MAPPING * mappings),
            self._locations.reserve(locations, HEAD * locations + LINE * lines),
            self._stacks.reserve(samples, samples + refs),
        )
        words = max(FUNCTION, HEAD + LINE * lines, 1 + refs)
        stack = np.empty(samples, np.int32)
        interning.number_profile(
            pools,
            self._known,
            self._services.setdefault(service, len(self._services)),
            np.frombuffer(raw, np.uint8),
            tables,
            self._room.take(texts, functions, mappings, locations, words),
            stack,
        )
        known = self._known.tolist()
        for place, pool in enumerate(self._pools):
            pool.count, pool.size = known[place], known[len(self._pools) + place]
        return stack


class GatheredTables:
    """The tables of what was gathered, each in its order; samples a part at a time."""

    def __init__(self, gather: Gather, *, mask: int) -> None:
        self._kept = sorted(gather._kept, key=lambda each: each.raw.service)
        self._sample_base = _base([each.samples for each in self._kept])
        strings = strings_of(gather._strings)
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
        self._stack_rank = _ranks(self._stack_id)
        self._series_rank = _ranks(self._labels.sample_series.ids)

    def samples(self) -> Iterator[pa.Table]:
        """Service by service, so that one service's rows are in memory at a time."""
        first = 0
        for service, profiles in groupby(self._kept, key=lambda each: each.raw.service):
            kept = list(profiles)
            yield from sample_tables(self._of_service(service, kept, first))
            first += len(kept)

    def _of_service(self, service: str, kept: list[KeptProfile], first: int) -> ServiceSamples:
        base = self._sample_base
        part = slice(int(base[first]), int(base[first + len(kept)]))
        ids, number = self._labels.sample_series
        return ServiceSamples(
            service=service,
            kept=kept,
            series=SampleSeries(ids, number[part]),
            series_rank=self._series_rank,
            stack_id=self._stack_id,
            stack_rank=self._stack_rank,
            span_id=_of_samples(self._labels.span_id, part),
            sample_labels=_of_samples(self._labels.sample_labels, part),
        )

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
            string_base=np.zeros(len(kept), np.int64),  # they have numbers of strings already
            string_number=np.arange(len(strings.text)),
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


def _symbols(gather: Gather, strings: Strings) -> Batch:
    """The different functions, mappings and locations as a batch, and the stacks as its samples."""
    functions = gather._functions.words.reshape(-1, FUNCTION)
    mappings = gather._mappings.words.reshape(-1, MAPPING)
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


def _ranks(ids: Int) -> Any:
    """The place of each id among all of them."""
    ranks = np.empty(ids.size, np.int32)
    ranks[np.argsort(ids)] = np.arange(ids.size)
    return ranks


def _of_samples(column: pa.Array | None, part: slice) -> pa.Array | None:
    """What a column of all samples has for some; None when it has nothing."""
    if column is None:
        return None
    some = column.slice(part.start, part.stop - part.start)
    return None if some.null_count == len(some) else some
