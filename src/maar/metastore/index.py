"""Which blocks are live: packed, immutable chunks, replaced by the fold and never edited.

A chunk holds some blocks of one partition (day, tenant, shard), sorted by id: most of them in one
compressed pack, the newest few beside it. A reader that took chunks at one moment may decode them
later, in a thread, while the fold goes on (S10, S15).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import msgspec

from maar.metastore.marks import with_mark, without_mark
from maar.metastore.packs import Pack, content, opened, pack, sealed, unpack
from maar.metastore.rows import ID_BYTES, Numbers, Rows, block_id, raw_id
from maar.model.block import NO_DAY, BlockMeta, Kind
from maar.model.ids import BlockId, Shard, TenantId
from maar.model.time import TimeRange, utc_day

PACKED_MAX = 64  # blocks; a chunk with more is divided
LOOSE_MAX = 16  # blocks of a chunk that are not in its pack
LOOSE_LEAST = 8  # so few are not worth a pack

_IN_PACK = b""


class _Extent(msgspec.Struct, frozen=True, array_like=True):
    """The first fields of a BlockMeta, as far as bounds need them."""

    version: int
    id: str
    kind: int
    level: int
    tenant: str
    shard: int
    store: str
    day: int
    min_time_ns: int
    max_time_ns: int
    profiles: int
    samples: int
    size: int


_extent = msgspec.msgpack.Decoder(_Extent).decode


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
class Bounds:
    """What no block of a chunk exceeds; they may be wider than need be."""

    min_time_ns: int
    max_time_ns: int
    largest: int  # bytes

    def around(self, meta: BlockMeta) -> Bounds:
        return Bounds(
            min(self.min_time_ns, meta.min_time_ns),
            max(self.max_time_ns, meta.max_time_ns),
            max(self.largest, meta.size),
        )


def _bounds(bodies: tuple[bytes, ...]) -> Bounds:
    """As narrow as can be."""
    extents = [_extent(body) for body in bodies]
    return Bounds(
        min(extent.min_time_ns for extent in extents),
        max(extent.max_time_ns for extent in extents),
        max(extent.size for extent in extents),
    )


@cache
def _all_in_pack(count: int) -> tuple[bytes, tuple[bytes, ...]]:
    """Rows and loose blocks of a chunk that is one pack; shared by all of the same length."""
    return bytes(range(count)), (_IN_PACK,) * count


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some blocks, sorted by id, with the bounds that let a reader skip them all."""

    raw_ids: bytes
    levels: bytes
    rows: bytes  # of every block in the pack
    loose: tuple[bytes, ...]  # of every block: itself, or nothing when it is in the pack
    pack: Pack | None
    bounds: Bounds

    def __len__(self) -> int:
        return len(self.levels)

    @property
    def min_time_ns(self) -> int:
        return self.bounds.min_time_ns

    @property
    def max_time_ns(self) -> int:
        return self.bounds.max_time_ns

    @property
    def ids(self) -> tuple[BlockId, ...]:
        return tuple(map(block_id, self.split_ids()))

    def split_ids(self) -> list[bytes]:
        raw = self.raw_ids
        return [raw[at : at + ID_BYTES] for at in range(0, len(raw), ID_BYTES)]

    @property
    def packed(self) -> tuple[bytes, ...]:
        """Every block, as bytes."""
        if self.pack is None:
            return self.loose
        rows = content(self.pack)
        return tuple(loose or rows[row] for loose, row in zip(self.loose, self.rows, strict=True))

    def meta(self, at: int) -> BlockMeta:
        """One block; those of the same pack cost less when asked for together."""
        loose = self.loose[at]
        if loose or self.pack is None:
            return unpack(loose)
        return unpack(opened(self.pack)[self.rows[at]])

    def whole(self) -> Chunk:
        """The same blocks, all of them in one pack that holds nothing else."""
        if self.pack is not None and self.pack.rows == len(self) and not any(self.loose):
            return self
        return one_pack(self.raw_ids, self.levels, sealed(self.packed), self.bounds)

    def overlaps(self, range_: TimeRange) -> bool:
        return range_.overlaps(self.min_time_ns, self.max_time_ns)

    def place(self, raw: bytes) -> int:
        """How many blocks have smaller ids."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            at = middle * ID_BYTES
            if self.raw_ids[at : at + ID_BYTES] < raw:
                low = middle + 1
            else:
                high = middle
        return low

    def find(self, raw: bytes) -> int:
        at = self.place(raw)
        found = self.raw_ids[at * ID_BYTES : (at + 1) * ID_BYTES] == raw
        return at if found else -1

    def added(self, raw: bytes, meta: BlockMeta) -> Chunk:
        at = self.place(raw)
        cut = at * ID_BYTES
        level = bytes((min(meta.level, 255),))
        return Chunk(
            self.raw_ids[:cut] + raw + self.raw_ids[cut:],
            self.levels[:at] + level + self.levels[at:],
            self.rows[:at] + b"\0" + self.rows[at:],
            (*self.loose[:at], pack(meta), *self.loose[at:]),
            self.pack,
            self.bounds.around(meta),
        )

    def settled(self, *, last: bool) -> tuple[Chunk, ...]:
        """What came is packed when there is enough of it, and divided when there is too much.

        In the last chunk of a partition the pack doubles, so that a block is packed twice at most,
        give or take. Its newest stay loose: ids come nearly in order, so the next ones go there.
        """
        packed = self.pack.rows if self.pack else 0
        enough = max(LOOSE_LEAST, packed) if last else LOOSE_MAX
        fits = len(self) <= 2 * PACKED_MAX  # one from a snapshot has nothing loose, and may be long
        if fits and len(self) - self.loose.count(_IN_PACK) <= enough:
            return (self,)
        if len(self) <= PACKED_MAX:
            return (self.whole(),)
        loose = self._loose()
        if last:
            cut = len(self) - LOOSE_LEAST
            return (loose._part(0, cut).whole(), loose._part(cut, len(self)))
        cut = len(self) // 2
        return (loose._part(0, cut).whole(), loose._part(cut, len(self)).whole())

    def removed(self, at: int) -> Chunk:
        """The pack stays until half of it is dead."""
        cut = at * ID_BYTES
        rest = Chunk(
            self.raw_ids[:cut] + self.raw_ids[cut + ID_BYTES :],
            self.levels[:at] + self.levels[at + 1 :],
            self.rows[:at] + self.rows[at + 1 :],
            self.loose[:at] + self.loose[at + 1 :],
            self.pack,
            self.bounds,
        )
        if self.pack is None or 2 * rest.loose.count(_IN_PACK) >= self.pack.rows:
            return rest
        return rest._loose() if len(rest) <= LOOSE_LEAST else rest.whole()

    def _loose(self) -> Chunk:
        return Chunk(self.raw_ids, self.levels, bytes(len(self)), self.packed, None, self.bounds)

    def _part(self, start: int, end: int) -> Chunk:
        """Some of the blocks of a chunk that has no pack."""
        return Chunk(
            self.raw_ids[start * ID_BYTES : end * ID_BYTES],
            self.levels[start:end],
            self.rows[start:end],
            self.loose[start:end],
            None,
            _bounds(self.loose[start:end]),
        )


def one_pack(raw_ids: bytes, levels: bytes, pack: Pack, bounds: Bounds) -> Chunk:
    """A chunk whose blocks are a pack, all of it."""
    return Chunk(raw_ids, levels, *_all_in_pack(len(levels)), pack, bounds)


def _first_id(chunk: Chunk) -> bytes:
    return chunk.raw_ids[:ID_BYTES]


class Partition(NamedTuple):
    """A partition at one moment."""

    key: PartitionKey
    chunks: tuple[Chunk, ...]


class Shelf:
    """The chunks of a partition, sorted; the fold replaces them one at a time."""

    __slots__ = ("chunks",)

    def __init__(self, chunks: Iterable[Chunk] = ()) -> None:
        self.chunks = list(chunks)

    def find(self, raw: bytes) -> tuple[int, Chunk]:
        """The only chunk that can hold a block, and its number."""
        number = max(0, bisect_right(self.chunks, raw, key=_first_id) - 1)
        return number, self.chunks[number]

    def add(self, raw: bytes, meta: BlockMeta) -> None:
        if self.chunks:
            number, chunk = self.find(raw)
        else:
            bounds = Bounds(meta.min_time_ns, meta.max_time_ns, meta.size)
            number, chunk = 0, Chunk(b"", b"", b"", (), None, bounds)
        last = number >= len(self.chunks) - 1
        self.chunks[number : number + 1] = chunk.added(raw, meta).settled(last=last)

    def remove(self, raw: bytes) -> BlockMeta:
        number, chunk = self.find(raw)
        at = chunk.find(raw)
        rest = chunk.removed(at)
        self.chunks[number : number + 1] = (rest,) if len(rest) else ()
        return chunk.meta(at)


@dataclass(slots=True)
class Total:
    """What a level holds, kept as blocks come and go."""

    blocks: int = 0
    bytes: int = 0
    profiles: int = 0


class Where:
    """The partition of every block."""

    __slots__ = ("_keys", "_rows")

    def __init__(self) -> None:
        self._rows = Rows(key=ID_BYTES, width=ID_BYTES + 4)
        self._keys: Numbers[PartitionKey] = Numbers()

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[BlockId]:
        return (block_id(row[:ID_BYTES]) for row in self._rows)

    def __contains__(self, block: BlockId) -> bool:
        return raw_id(block) in self._rows

    def __getitem__(self, block: BlockId) -> PartitionKey:
        row = self._rows.find(raw_id(block))
        if row is None:
            raise KeyError(block)
        return self._keys.thing(_number(row))

    def add(self, raw: bytes, key: PartitionKey) -> None:
        self._rows.put(raw + self._keys.take(key).to_bytes(4, "big"))

    def remove(self, raw: bytes) -> None:
        row = self._rows.find(raw)
        assert row is not None
        self._rows.remove(raw)
        self._keys.give_back(_number(row))

    def load(self, chunks: Iterable[tuple[PartitionKey, Chunk]]) -> bool:
        """All at once; whether no block came twice."""
        return self._rows.load(
            raw + self._keys.take(key).to_bytes(4, "big")
            for key, chunk in chunks
            for raw in chunk.split_ids()
        )


def _number(row: bytes) -> int:
    return int.from_bytes(row[ID_BYTES:], "big")


@dataclass(slots=True)
class Index:
    """The live blocks. `where` finds the partition of an id."""

    where: Where = field(default_factory=Where)
    tenants: dict[TenantId, dict[PartitionKey, Shelf]] = field(default_factory=dict)
    totals: dict[tuple[int, Kind], Total] = field(default_factory=dict)
    hash: int = 0

    def __len__(self) -> int:
        return len(self.where)

    def __contains__(self, block: BlockId) -> bool:
        return block in self.where

    def add(self, meta: BlockMeta) -> None:
        key, raw = partition_of(meta), raw_id(meta.id)
        self.tenants.setdefault(meta.tenant, {}).setdefault(key, Shelf()).add(raw, meta)
        self.where.add(raw, key)
        self.count(meta, +1)

    def remove(self, block: BlockId) -> BlockMeta:
        key, raw = self.where[block], raw_id(block)
        shelves = self.tenants[key.tenant]
        meta = shelves[key].remove(raw)
        self.where.remove(raw)
        if not shelves[key].chunks:
            del shelves[key]
        if not shelves:
            del self.tenants[key.tenant]
        self.count(meta, -1)
        return meta

    def count(self, meta: BlockMeta, sign: int) -> None:
        """Keep totals and hash, as a block comes or goes."""
        total = self.totals.setdefault((meta.level, meta.kind), Total())
        total.blocks += sign
        total.bytes += sign * meta.size
        total.profiles += sign * meta.profiles
        if not total.blocks:
            del self.totals[(meta.level, meta.kind)]
        self.hash = (with_mark if sign > 0 else without_mark)(self.hash, essence(meta))

    def get(self, block: BlockId) -> BlockMeta:
        """A live block; the caller has checked that it is."""
        key, raw = self.where[block], raw_id(block)
        _, chunk = self.tenants[key.tenant][key].find(raw)
        return chunk.meta(chunk.find(raw))

    def chunks(self, tenant: TenantId, range_: TimeRange) -> list[Chunk]:
        """The immutable chunks of a tenant that may hold profiles of a time range."""
        return [
            chunk
            for shelf in self.tenants.get(tenant, {}).values()
            for chunk in shelf.chunks
            if chunk.overlaps(range_)
        ]

    def partitions(self) -> list[Partition]:
        """All partitions, in the order of their keys."""
        found = (item for shelves in self.tenants.values() for item in shelves.items())
        return [Partition(key, tuple(shelf.chunks)) for key, shelf in sorted(found, key=_by_key)]

    def load(self, chunks: list[tuple[PartitionKey, Chunk]]) -> bool:
        """Chunks in the order of keys and ids, instead of what was there; whether they are so.

        `totals` and `hash` are the caller's to set.
        """
        self.tenants = {}
        last: tuple[PartitionKey, bytes] | None = None
        for key, chunk in chunks:
            ids = chunk.split_ids()
            if not ids or ids != sorted(ids) or (last is not None and (key, ids[0]) <= last):
                return False
            last = key, ids[-1]
            shelves = self.tenants.setdefault(key.tenant, {})
            shelves.setdefault(key, Shelf()).chunks.append(chunk)
        return self.where.load(chunks)


def _by_key(item: tuple[PartitionKey, Shelf]) -> PartitionKey:
    return item[0]


def blocks_in(chunks: Iterable[Chunk]) -> Iterator[BlockMeta]:
    for chunk in chunks:
        for packed in chunk.packed:
            yield unpack(packed)
