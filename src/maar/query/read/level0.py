"""Raw segments, decoded when a query needs them and kept, within a bound, for the next one."""

from __future__ import annotations

import threading
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from maar.block.decode.to_tables import decode_in_batches
from maar.block.format import segment
from maar.block.format.tables import LAYOUTS
from maar.block.read.copies import read_copy
from maar.block.read.damage import wrong
from maar.model.block import SEGMENT_TABLE, BlockMeta, Damage, Dataset
from maar.model.errors import Corrupt, Overloaded
from maar.model.profile import RawProfile
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores, stores_of
from maar.query.metrics import Metrics
from maar.query.read.part_cache import PartCache
from maar.query.read.raw_runs import RAW_ROW_BYTES, RawRuns, raw_runs

RAW_BYTES_MAX = 256 << 20  # of profiles that are decoded together
WEIGHT_MAX = 256 << 20  # of frames and text, however few bytes they were
TOGETHER_MAX = 16 << 20  # gzip bytes of datasets of one segment that are decoded together

EVERY = ""  # in place of a service: all of a tenant's in the segment
Key = tuple[str, str, str]  # block, tenant, service

# What queries ask for, of blocks and of level 0; the rest is for restoring single profiles.
COLUMNS = {
    "samples": ["service", "profile_type", "series_id", "time", "profile_id", "stack_id", "value"],
    "profiles": ["service", "profile_id", "time", "time_nanos"],
    "stacks": ["service", "stack_id", "functions"],
    "series": ["series_id", "labels"],
}


class TooMuch(Overloaded):
    """More than can be decoded at once."""


@dataclass(frozen=True)
class DecodedPart:
    """The tables of one or all datasets of a tenant in a segment, each of its profiles once."""

    tables: dict[str, pa.Table]
    profiles: int
    size: int  # of the tables and of what is made of them
    left_out: int = 0  # profiles that could not be decoded

    @cached_property
    def runs(self) -> RawRuns:
        """Made when it is first asked for, and kept as long as the tables are."""
        return raw_runs(self.tables)


class Level0:
    """Safe to use from many threads; a dataset is decoded by one of them only."""

    def __init__(
        self,
        store: ObjectStore | Stores,
        *,
        bytes_max: int,
        metrics: Metrics,
        raw_bytes_max: int = RAW_BYTES_MAX,
        weight_max: int = WEIGHT_MAX,
    ) -> None:
        self._stores = stores_of(store)
        self.raw_bytes_max = raw_bytes_max
        self.weight_max = weight_max
        self._metrics = metrics
        self._cache = PartCache(bytes_max, count=self._count)
        # One at a time: it is work for one core anyway, and what it needs meanwhile is bounded so.
        self._decoding = threading.Lock()

    @property
    def bytes(self) -> int:
        return self._cache.bytes

    def parts(self, meta: BlockMeta, datasets: Sequence[Dataset]) -> list[DecodedPart]:
        """The tables of some datasets of one tenant, and maybe of others in the same segment.

        NotFound when its object is gone, Corrupt when it is broken.
        """
        if (whole := self._whole(meta, datasets[0].tenant)) is not None:
            return [whole]
        every = [each for each in meta.datasets if each.tenant == datasets[0].tenant]
        if is_cheaper_together(datasets, every):
            with suppress(TooMuch):  # together, but not each by itself
                return [self._part(meta, EVERY, every)]
        return [self._part(meta, dataset.service, [dataset]) for dataset in datasets]

    def _whole(self, meta: BlockMeta, tenant: str) -> DecodedPart | None:
        kept: DecodedPart | None = self._cache.peek((meta.id, tenant, EVERY))
        if kept is not None:
            self._count("hit")
        return kept

    def _part(self, meta: BlockMeta, service: str, datasets: list[Dataset]) -> DecodedPart:
        key = (meta.id, datasets[0].tenant, service)
        return self._cache.get(key, lambda: self._decode(meta, datasets))

    def _count(self, result: str) -> None:
        self._metrics.level0_lookups.labels(result).inc()

    def forget(self, names: Container[str]) -> None:
        """What was decoded of some segments: a copy that was read is damaged."""
        self._cache.forget(names)

    def pieces(self, meta: BlockMeta, datasets: Sequence[Dataset]) -> Iterator[DecodedPart]:
        """The same, a bounded part at a time, and not kept: for segments that were joined. Each of
        those that they were made of could be decoded at once, and together they may be too much.
        """
        checked = False
        for dataset in datasets:
            for some in _batches(self._read(meta, [dataset]), self.raw_bytes_max):
                decoding = self._decode_some(some)
                while (part := self._next(decoding)) is not None:
                    if part.left_out and not checked:
                        self.check_bytes(meta)
                        checked = True
                    yield part

    def _next(self, decoding: Iterator[DecodedPart]) -> DecodedPart | None:
        with self._decoding:
            return next(decoding, None)

    def _decode(self, meta: BlockMeta, datasets: list[Dataset]) -> DecodedPart:
        profiles = self._read(meta, datasets)
        if sum(profile.raw_size for profile in profiles) > self.raw_bytes_max:
            raise _too_much(datasets)
        with self._decoding:
            parts = self._decode_some(profiles)
            whole = next(parts)
            if next(parts, None) is not None:
                raise _too_much(datasets)
        if whole.left_out:
            self.check_bytes(meta)
        return whole

    def check_bytes(self, meta: BlockMeta) -> None:
        """Corrupt, when a profile could not be decoded because its bytes are not those that were
        pushed: then it is not left out, but read from another copy.
        """
        file = meta.file(SEGMENT_TABLE)
        at = self._stores.choose(meta.id, file.locations)
        if what := wrong(self._stores.open(at.store), file, at, compare=True):
            raise Corrupt(str(Damage(meta.id, at.key, what)))

    def _read(self, meta: BlockMeta, datasets: list[Dataset]) -> list[RawProfile]:
        def read(file: Any) -> list[RawProfile]:
            once: dict[bytes, RawProfile] = {}  # a push sent twice may sit in one segment twice
            for profile in segment.read_datasets(file, datasets):
                once.setdefault(profile.id, profile)
            return list(once.values())

        return read_copy(self._stores, meta, SEGMENT_TABLE, read)

    def _decode_some(self, profiles: Sequence[RawProfile]) -> Iterator[DecodedPart]:
        """What cannot be decoded is left out: compaction will put it into quarantine."""
        for decoded in decode_in_batches(profiles, batch_weight=self.weight_max, only=COLUMNS):
            tables = {
                table: decoded.tables[table].select(columns) for table, columns in COLUMNS.items()
            }
            tables["stacks"] = _scannable(tables["stacks"])
            count = tables["profiles"].num_rows
            self._metrics.level0_decoded.inc(count + len(decoded.quarantined))
            made = RAW_ROW_BYTES * tables["samples"].num_rows
            size = sum(table.nbytes for table in tables.values()) + made
            yield DecodedPart(tables, count, size, len(decoded.quarantined))


def is_cheaper_together(wanted: Sequence[Dataset], every: Sequence[Dataset]) -> bool:
    """Whether one decoding of a tenant's whole segment is cheaper than one for each dataset.

    Every decoding costs some 3 ms before its first profile, and small services have only one.
    """
    size = sum(dataset.size for dataset in every)
    return len(wanted) * 2 > len(every) > 1 and size <= TOGETHER_MAX


def _batches(profiles: Sequence[RawProfile], raw_bytes_max: int) -> Iterator[list[RawProfile]]:
    """In their order, as many at a time as can be decoded at once."""
    some: list[RawProfile] = []
    held = 0
    for profile in profiles:
        if some and held + profile.raw_size > raw_bytes_max:
            yield some
            some, held = [], 0
        some.append(profile)
        held += profile.raw_size
    if some:
        yield some


def _too_much(datasets: Sequence[Dataset]) -> TooMuch:
    """A segment is bounded as gzip, which may swell to a thousand times as much."""
    of = datasets[0].service if len(datasets) == 1 else f"{len(datasets)} services"
    return TooMuch(
        f"a segment with {sum(each.profiles for each in datasets)} profiles of {of} is not yet "
        "compacted, and they are more than can be decoded at once; ask for one service or another "
        "time range, or wait for compaction"
    )


def _scannable(stacks: pa.Table) -> pa.Table:
    """Names stay codes of a dictionary, a sixth of the size, unless DuckDB would refuse them.

    It does when all lists of a chunk are empty.
    """
    if all(len(chunk.flatten()) for chunk in stacks["functions"].chunks):
        return stacks
    return stacks.cast(
        pa.schema([LAYOUTS["stacks"].schema.field(name) for name in stacks.schema.names])
    )
