"""Which blocks are live: packed, immutable partitions, replaced by the fold and never edited.

A block is kept as its msgpack bytes, in chunks sorted by id, one partition per (day, tenant,
shard). A reader that took partitions at one moment may decode them later, in a thread, while the
fold goes on (S10, S15).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from maar.metastore.marks import with_mark, without_mark
from maar.model.block import NO_DAY, BlockMeta, Kind
from maar.model.ids import BlockId, Shard, TenantId
from maar.model.time import TimeRange, utc_day

CHUNK_MAX = 64

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(BlockMeta).decode


def pack(meta: BlockMeta) -> bytes:
    return _encode(meta)


def unpack(packed: bytes) -> BlockMeta:
    return _decode(packed)


def essence(meta: BlockMeta) -> object:
    """What makes a block what it is; a field that is added to the record later is not in it."""
    files = [(file.table, file.size, file.checksum) for file in meta.files]
    return meta.id, meta.kind, meta.level, meta.size, meta.profiles, files


class PartitionKey(NamedTuple):
    day: int
    tenant: TenantId
    shard: Shard


def partition_of(meta: BlockMeta) -> PartitionKey:
    """Segments have no day of their own: they go by their oldest profile."""
    day = utc_day(meta.min_time_ns) if meta.day == NO_DAY else meta.day
    return PartitionKey(day, meta.tenant, meta.shard)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some blocks, sorted by id, with the bounds that let a reader skip them all."""

    ids: tuple[BlockId, ...]
    levels: bytes
    packed: tuple[bytes, ...]
    min_time_ns: int
    max_time_ns: int

    def find(self, block: BlockId) -> int:
        at = bisect_left(self.ids, block)
        return at if at < len(self.ids) and self.ids[at] == block else -1

    def overlaps(self, range_: TimeRange) -> bool:
        return range_.overlaps(self.min_time_ns, self.max_time_ns)

    def added(self, meta: BlockMeta) -> Chunk:
        at = bisect_left(self.ids, meta.id)
        level = bytes((min(meta.level, 255),))
        return Chunk(
            (*self.ids[:at], meta.id, *self.ids[at:]),
            self.levels[:at] + level + self.levels[at:],
            (*self.packed[:at], pack(meta), *self.packed[at:]),
            min(self.min_time_ns, meta.min_time_ns),
            max(self.max_time_ns, meta.max_time_ns),
        )

    def removed(self, at: int) -> Chunk:
        return Chunk(
            self.ids[:at] + self.ids[at + 1 :],
            self.levels[:at] + self.levels[at + 1 :],
            self.packed[:at] + self.packed[at + 1 :],
            self.min_time_ns,
            self.max_time_ns,
        )

    def halves(self) -> tuple[Chunk, Chunk]:
        half = len(self.ids) // 2
        low, high = slice(None, half), slice(half, None)
        return (
            Chunk(
                self.ids[low],
                self.levels[low],
                self.packed[low],
                self.min_time_ns,
                self.max_time_ns,
            ),
            Chunk(
                self.ids[high],
                self.levels[high],
                self.packed[high],
                self.min_time_ns,
                self.max_time_ns,
            ),
        )


def _first_id(chunk: Chunk) -> BlockId:
    return chunk.ids[0]


@dataclass(frozen=True, slots=True)
class Partition:
    key: PartitionKey
    chunks: tuple[Chunk, ...] = ()

    def chunk_of(self, block: BlockId) -> int:
        return max(0, bisect_right(self.chunks, block, key=_first_id) - 1)

    def packed(self, block: BlockId) -> bytes | None:
        if not self.chunks:
            return None
        chunk = self.chunks[self.chunk_of(block)]
        at = chunk.find(block)
        return chunk.packed[at] if at >= 0 else None

    def added(self, meta: BlockMeta) -> Partition:
        if not self.chunks:
            bounds = (meta.min_time_ns, meta.max_time_ns)
            return Partition(self.key, (Chunk((), b"", (), *bounds).added(meta),))
        at = self.chunk_of(meta.id)
        chunk = self.chunks[at].added(meta)
        new = chunk.halves() if len(chunk.ids) > CHUNK_MAX else (chunk,)
        return Partition(self.key, (*self.chunks[:at], *new, *self.chunks[at + 1 :]))

    def removed(self, block: BlockId) -> Partition:
        at = self.chunk_of(block)
        chunk = self.chunks[at].removed(self.chunks[at].find(block))
        new = (chunk,) if chunk.ids else ()
        return Partition(self.key, (*self.chunks[:at], *new, *self.chunks[at + 1 :]))


@dataclass(slots=True)
class Total:
    """What a level holds, kept as blocks come and go."""

    blocks: int = 0
    bytes: int = 0
    profiles: int = 0

    def count(self, meta: BlockMeta, sign: int) -> None:
        self.blocks += sign
        self.bytes += sign * meta.size
        self.profiles += sign * meta.profiles


@dataclass(slots=True)
class Index:
    """The live blocks. `where` finds the partition of an id."""

    where: dict[BlockId, PartitionKey] = field(default_factory=dict)
    tenants: dict[TenantId, dict[PartitionKey, Partition]] = field(default_factory=dict)
    totals: dict[tuple[int, Kind], Total] = field(default_factory=dict)
    hash: int = 0

    def __len__(self) -> int:
        return len(self.where)

    def __contains__(self, block: BlockId) -> bool:
        return block in self.where

    def add(self, meta: BlockMeta) -> None:
        key = partition_of(meta)
        partitions = self.tenants.setdefault(meta.tenant, {})
        partition = partitions.get(key) or Partition(key)
        partitions[key] = partition.added(meta)
        self.where[meta.id] = partition.key  # the one key object is shared by all its blocks
        self.totals.setdefault((meta.level, meta.kind), Total()).count(meta, +1)
        self.hash = with_mark(self.hash, essence(meta))

    def remove(self, block: BlockId) -> BlockMeta:
        meta = self.get(block)
        key = self.where.pop(block)
        partitions = self.tenants[key.tenant]
        partition = partitions[key].removed(block)
        if partition.chunks:
            partitions[key] = partition
        else:
            del partitions[key]
        if not partitions:
            del self.tenants[key.tenant]
        total = self.totals[(meta.level, meta.kind)]
        total.count(meta, -1)
        self.hash = without_mark(self.hash, essence(meta))
        if not total.blocks:
            del self.totals[(meta.level, meta.kind)]
        return meta

    def get(self, block: BlockId) -> BlockMeta:
        """A live block; the caller has checked that it is."""
        key = self.where[block]
        packed = self.tenants[key.tenant][key].packed(block)
        assert packed is not None
        return unpack(packed)

    def chunks(self, tenant: TenantId, range_: TimeRange) -> list[Chunk]:
        """The immutable chunks of a tenant that may hold profiles of a time range."""
        return [
            chunk
            for partition in self.tenants.get(tenant, {}).values()
            for chunk in partition.chunks
            if chunk.overlaps(range_)
        ]

    def partitions(self) -> list[Partition]:
        """All partitions, in the order of their keys."""
        found = (part for parts in self.tenants.values() for part in parts.values())
        return sorted(found, key=lambda partition: partition.key)


def blocks_in(chunks: Iterable[Chunk]) -> Iterator[BlockMeta]:
    for chunk in chunks:
        for packed in chunk.packed:
            yield unpack(packed)
