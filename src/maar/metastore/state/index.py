"""Which blocks are live: packed, immutable chunks, replaced by the fold and never edited.

A chunk holds some blocks of one partition (day, tenant, shard), sorted by id: most of them in one
compressed pack, the newest few beside it. A reader that took chunks at one moment may decode them
later, in a thread, while the fold goes on (S10, S15).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from operator import itemgetter
from typing import NamedTuple

import msgspec

from maar.metastore.records.packs import (
    Bytes,
    Pack,
    Packed,
    alone,
    content,
    outline,
    pack,
    seal,
    unpack,
)
from maar.metastore.state.copies import Copies
from maar.metastore.state.marks import add_mark, mark_of_bytes
from maar.metastore.state.rows import ID_BYTES, Numbers, Rows, block_id, raw_id
from maar.metastore.state.windows import Windows
from maar.model.block import BlockMeta, BlockOutline, Kind, day_of
from maar.model.ids import BlockId, Shard, TenantId
from maar.model.time import TimeRange
from maar.model.token_range import TokenRange
from maar.services.repair.ranges import VNODES, Token, token_of_raw, vnode_number

PACKED_MAX = 64  # blocks; a chunk with more is divided
LOOSE_MAX = 16  # blocks of a chunk that are not in its pack
LOOSE_MIN = 8  # fewer are not worth a pack
LOOSE_SEGMENTS = 40  # of a shard: usually they are merged before there are this many

_IN_PACK = b""


class PartitionKey(NamedTuple):
    day: int
    tenant: TenantId
    shard: Shard


def partition_of(meta: BlockOutline) -> PartitionKey:
    return PartitionKey(day_of(meta), meta.tenant, meta.shard)


class ChunkBounds(msgspec.Struct, frozen=True, gc=False):
    """Limits that no block of a chunk exceeds; they may be wider than necessary."""

    min_time_ns: int
    max_time_ns: int
    largest: int  # bytes

    def around(self, meta: BlockOutline) -> ChunkBounds:
        within = self.min_time_ns <= meta.min_time_ns and meta.max_time_ns <= self.max_time_ns
        if within and meta.size <= self.largest:
            return self
        return ChunkBounds(
            min(self.min_time_ns, meta.min_time_ns),
            max(self.max_time_ns, meta.max_time_ns),
            max(self.largest, meta.size),
        )


def _bounds(bodies: tuple[bytes, ...]) -> ChunkBounds:
    """The narrowest bounds of these blocks."""
    outlines = list(map(outline, bodies))
    return ChunkBounds(
        min(each.min_time_ns for each in outlines),
        max(each.max_time_ns for each in outlines),
        max(each.size for each in outlines),
    )


@cache
def _all_in_pack(count: int) -> tuple[bytes, tuple[bytes, ...]]:
    """Rows and loose blocks of a chunk that is one pack; shared by all of the same length."""
    return bytes(range(count)), (_IN_PACK,) * count


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Some blocks, sorted by id, with the bounds that let a reader skip them all."""

    raw_ids: bytes
    levels: bytes
    rows: bytes  # of every block in the pack
    loose: tuple[bytes, ...]  # of every block: itself, or nothing when it is in the pack
    pack: Pack | None
    bounds: ChunkBounds
    spread: int  # how many are loose
    vnodes: bytes  # of every block: which of the fixed ranges of tokens it is in

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

    def row(self, at: int) -> Bytes:
        """One block as it is kept; those of the same pack cost less when read together."""
        loose = self.loose[at]
        return loose if loose or self.pack is None else Packed(self.pack, self.rows[at])

    def meta(self, at: int) -> BlockMeta:
        return unpack(self.row(at))

    def token(self, at: int) -> Token:
        """Where on the ring of repairs a block is."""
        return token_of_raw(self.raw_ids[at * ID_BYTES : (at + 1) * ID_BYTES])

    def whole(self) -> Chunk:
        """The same blocks, all of them in one pack that holds nothing else."""
        if self.pack is not None and self.pack.rows == len(self) and not self.spread:
            return self
        return one_pack(self.raw_ids, self.levels, seal(self.packed), self.bounds, self.vnodes)

    def overlaps(self, range_: TimeRange) -> bool:
        return range_.overlaps(self.min_time_ns, self.max_time_ns)

    def place(self, raw: bytes) -> int:
        """How many blocks have smaller ids."""
        low, high = 0, len(self)
        if self.raw_ids[-ID_BYTES:] < raw:
            return high  # most blocks come in the order of their ids
        while low < high:
            middle = (low + high) // 2
            at = middle * ID_BYTES
            if self.raw_ids[at : at + ID_BYTES] < raw:
                low = middle + 1
            else:
                high = middle
        return low

    def find(self, raw: bytes) -> int:
        """Which one it is; -1 when it is not here."""
        at = self.raw_ids.find(raw)
        while at >= 0 and at % ID_BYTES:
            at = self.raw_ids.find(raw, at + 1)
        return at // ID_BYTES

    def with_block(self, raw: bytes, meta: BlockOutline, packed: bytes) -> Chunk:
        at = self.place(raw)
        cut = at * ID_BYTES
        level = bytes((min(meta.level, 255),))
        return Chunk(
            self.raw_ids[:cut] + raw + self.raw_ids[cut:],
            self.levels[:at] + level + self.levels[at:],
            self.rows[:at] + b"\0" + self.rows[at:],
            (*self.loose[:at], packed, *self.loose[at:]),
            self.pack,
            self.bounds.around(meta),
            self.spread + 1,
            self.vnodes[:at] + _vnodes(raw) + self.vnodes[at:],
        )

    def settle(self, *, spare: int, last: bool) -> tuple[Chunk, ...]:
        """Pack loose blocks when there are enough of them, and split a chunk that is too large.

        In the last chunk of a partition the pack doubles, so that a block is packed about twice at
        most, or once when `spare` is large. The newest blocks stay loose: ids come nearly in order,
        so the next ones belong beside them.
        """
        packed = self.pack.rows if self.pack else 0
        enough = max(LOOSE_MIN, packed, spare) if last else LOOSE_MAX
        fits = len(self) <= 2 * PACKED_MAX  # one from a snapshot has nothing loose, and may be long
        if fits and self.spread <= enough:
            return (self,)
        if len(self) <= PACKED_MAX:
            return (self.whole(),)
        loose = self._loose()
        if last:
            cut = len(self) - LOOSE_MIN  # few enough that the bounds of the others stay good
            return (loose._part(0, cut, self.bounds).whole(), loose._part(cut, len(self)))
        cut = len(self) // 2
        return (loose._part(0, cut).whole(), loose._part(cut, len(self)).whole())

    def without(self, gone: Container[int]) -> Chunk:
        """The pack stays until half of it is dead."""
        left = [at for at in range(len(self)) if at not in gone]
        ids = self.split_ids()
        loose = tuple(self.loose[at] for at in left)
        rest = Chunk(
            b"".join(ids[at] for at in left),
            bytes(self.levels[at] for at in left),
            bytes(self.rows[at] for at in left),
            loose,
            self.pack,
            self.bounds,
            len(loose) - loose.count(_IN_PACK),
            bytes(self.vnodes[at] for at in left),
        )
        if self.pack is None or 2 * (len(rest) - rest.spread) >= self.pack.rows:
            return rest
        return rest._loose() if len(rest) <= LOOSE_MIN else rest.whole()

    def _loose(self) -> Chunk:
        count = len(self)
        rows = bytes(count)
        return Chunk(
            self.raw_ids, self.levels, rows, self.packed, None, self.bounds, count, self.vnodes
        )

    def _part(self, start: int, end: int, bounds: ChunkBounds | None = None) -> Chunk:
        """Some of the blocks of a chunk that has no pack."""
        return Chunk(
            self.raw_ids[start * ID_BYTES : end * ID_BYTES],
            self.levels[start:end],
            self.rows[start:end],
            self.loose[start:end],
            None,
            bounds or _bounds(self.loose[start:end]),
            end - start,
            self.vnodes[start:end],
        )


def one_pack(
    raw_ids: bytes,
    levels: bytes,
    pack: Pack,
    bounds: ChunkBounds,
    vnodes: bytes | None = None,  # if they are known
) -> Chunk:
    """A chunk whose blocks are a pack, all of it."""
    known = _vnodes(raw_ids) if vnodes is None else vnodes
    return Chunk(raw_ids, levels, *_all_in_pack(len(levels)), pack, bounds, 0, known)


def _vnodes(raw_ids: bytes) -> bytes:
    """The number of the range of each block."""
    raws = (raw_ids[at : at + ID_BYTES] for at in range(0, len(raw_ids), ID_BYTES))
    return bytes(vnode_number(token_of_raw(raw)) for raw in raws)


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
        last = self.chunks[-1]
        if _first_id(last) <= raw:
            return len(self.chunks) - 1, last  # where most blocks come, and the newest are
        number = max(0, bisect_right(self.chunks, raw, key=_first_id) - 1)
        return number, self.chunks[number]

    def add(self, raw: bytes, meta: BlockOutline, packed: bytes) -> None:
        if self.chunks:
            number, chunk = self.find(raw)
        else:
            bounds = ChunkBounds(meta.min_time_ns, meta.max_time_ns, meta.size)
            number, chunk = 0, Chunk(b"", b"", b"", (), None, bounds, 0, b"")
        last = number >= len(self.chunks) - 1
        spare = min(PACKED_MAX, LOOSE_MIN * number)  # an eighth of the others, or fewer
        if meta.kind is Kind.SEGMENT:
            spare = max(spare, LOOSE_SEGMENTS)
        settled = chunk.with_block(raw, meta, packed).settle(spare=spare, last=last)
        self.chunks[number : number + 1] = settled

    def drop(self, raws: Iterable[bytes]) -> None:
        """Those of one chunk cost little more than one of them."""
        gone: dict[int, set[int]] = {}
        for raw in raws:
            number, chunk = self.find(raw)
            gone.setdefault(number, set()).add(chunk.find(raw))
        for number in sorted(gone, reverse=True):
            rest = self.chunks[number].without(gone[number])
            self.chunks[number : number + 1] = (rest,) if len(rest) else ()


@dataclass(slots=True)
class Total:
    """Counts and bytes of a level, updated as blocks come and go."""

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
        key = self.at(raw_id(block))
        if key is None:
            raise KeyError(block)
        return key

    def at(self, raw: bytes) -> PartitionKey | None:
        row = self._rows.find(raw)
        return None if row is None else self._keys.thing(_number(row))

    def items(self) -> Iterator[tuple[bytes, PartitionKey]]:
        return ((row[:ID_BYTES], self._keys.thing(_number(row))) for row in self._rows)

    def add(self, raw: bytes, key: PartitionKey) -> None:
        self._rows.add(raw + self._keys.take(key).to_bytes(4, "big"), replace=True)

    def remove(self, raw: bytes) -> None:
        row = self._rows.pop(raw)
        assert row is not None
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


class FoundBlock(NamedTuple):
    """A live block: where it is, as it is kept, and in outline."""

    key: PartitionKey
    raw: bytes
    packed: Bytes
    outline: BlockOutline


@dataclass(slots=True)
class Index:
    """The live blocks. `where` finds the partition of an id."""

    where: Where = field(default_factory=Where)
    tenants: dict[TenantId, dict[PartitionKey, Shelf]] = field(default_factory=dict)
    totals: dict[tuple[int, Kind], Total] = field(default_factory=dict)
    hash: int = 0  # over blocks as they are kept, every byte of them
    windows: Windows = field(default_factory=Windows)
    copies: Copies = field(default_factory=Copies)

    def __len__(self) -> int:
        return len(self.where)

    def __contains__(self, block: BlockId) -> bool:
        return block in self.where

    def add(self, meta: BlockMeta) -> None:
        self.put(meta, pack(meta))

    def put(self, meta: BlockOutline, packed: bytes) -> None:
        """A block that is packed already."""
        key, raw = partition_of(meta), raw_id(meta.id)
        self._shelf(key).add(raw, meta, packed)
        self.where.add(raw, key)
        self.count(meta, packed, +1)

    def remove(self, block: BlockId) -> BlockMeta:
        meta = self.get(block)
        self.drop(self.find_live((block,)))
        return meta

    def find_live(self, blocks: Iterable[BlockId]) -> dict[BlockId, FoundBlock]:
        """Those of the blocks that are live."""
        live: dict[BlockId, FoundBlock] = {}
        for block in blocks:
            raw = raw_id(block)
            key = self.where.at(raw)
            if key is not None:
                packed = self._row(key, raw)
                live[block] = FoundBlock(key, raw, packed, outline(packed))
        return live

    def drop(self, live: Mapping[BlockId, FoundBlock]) -> None:
        """Remove blocks from the live ones; removing those of one chunk together costs less."""
        by_key: dict[PartitionKey, list[bytes]] = {}
        for each in live.values():
            by_key.setdefault(each.key, []).append(each.raw)
            self.where.remove(each.raw)
            self.count(each.outline, alone(each.packed), -1)
        for key, raws in by_key.items():
            shelves = self.tenants[key.tenant]
            shelves[key].drop(raws)
            if not shelves[key].chunks:
                del shelves[key]
            if not shelves:
                del self.tenants[key.tenant]

    def _shelf(self, key: PartitionKey) -> Shelf:
        shelves = self.tenants.setdefault(key.tenant, {})
        shelf = shelves.get(key)
        if shelf is None:
            shelf = shelves[key] = Shelf()
        return shelf

    def count(self, meta: BlockOutline, packed: bytes, sign: int) -> None:
        """Keep totals, windows, copies and hash, as a block comes or goes."""
        total = self.totals.get((meta.level, meta.kind))
        if total is None:
            total = self.totals[meta.level, meta.kind] = Total()
        total.blocks += sign
        total.bytes += sign * meta.size
        total.profiles += sign * meta.profiles
        if not total.blocks:
            del self.totals[(meta.level, meta.kind)]
        self.hash = add_mark(self.hash, sign * mark_of_bytes(packed))
        self.windows.count(meta, sign)
        self.copies.count(meta, sign)

    def get(self, block: BlockId) -> BlockMeta:
        """A live block; the caller has checked that it is."""
        return unpack(self._row(self.where[block], raw_id(block)))

    def _row(self, key: PartitionKey, raw: bytes) -> Bytes:
        _, chunk = self.tenants[key.tenant][key].find(raw)
        return chunk.row(chunk.find(raw))

    def chunks(self, tenant: TenantId, range_: TimeRange) -> list[Chunk]:
        """The immutable chunks of a tenant that may hold profiles of a time range."""
        return [
            chunk
            for shelf in self.tenants.get(tenant, {}).values()
            for chunk in shelf.chunks
            if chunk.overlaps(range_)
        ]

    def of_day(self, tenant: TenantId, day: int) -> Iterator[BlockOutline]:
        """The live blocks of a tenant's day, shard by shard."""
        for key, shelf in sorted(self.tenants.get(tenant, {}).items(), key=itemgetter(0)):
            if key.day == day:
                for chunk in shelf.chunks:
                    yield from map(outline, chunk.packed)

    def in_vnodes(
        self, tenant: TenantId, numbers: Collection[int], within: TokenRange | None = None
    ) -> Iterator[tuple[Chunk, int]]:
        """The live blocks of a tenant that are in some of the fixed ranges of tokens, or in a part
        of them: in which chunk, and where in it. The others cost next to nothing.
        """
        chosen = frozenset(numbers)
        wanted = bytes(number in chosen for number in range(VNODES))
        alone = next(iter(chosen)) if len(chosen) == 1 else None
        sought = 1 if alone is None else alone
        for shelf in self.tenants.get(tenant, {}).values():
            for chunk in shelf.chunks:  # there may be ten thousand: nothing is made for each
                marks = chunk.vnodes.translate(wanted) if alone is None else chunk.vnodes
                at = marks.find(sought)
                while at >= 0:
                    if within is None or chunk.token(at) in within:
                        yield chunk, at
                    at = marks.find(sought, at + 1)

    def partitions(self) -> list[Partition]:
        """All partitions, in the order of their keys."""
        found = (item for shelves in self.tenants.values() for item in shelves.items())
        return [
            Partition(key, tuple(shelf.chunks)) for key, shelf in sorted(found, key=itemgetter(0))
        ]

    def load(self, chunks: list[tuple[PartitionKey, Chunk]]) -> bool:
        """Chunks in the order of keys and ids, instead of what was there; whether they are so.

        `totals`, `windows`, `copies` and `hash` are the caller's to set.
        """
        self.tenants = {}
        last: tuple[PartitionKey, bytes] | None = None
        for key, chunk in chunks:
            ids = chunk.split_ids()
            if not ids or ids != sorted(ids) or (last is not None and (key, ids[0]) <= last):
                return False
            last = key, ids[-1]
            self._shelf(key).chunks.append(chunk)
        return self.where.load(chunks)


def blocks_in(chunks: Iterable[Chunk]) -> Iterator[BlockMeta]:
    for chunk in chunks:
        for packed in chunk.packed:
            yield unpack(packed)
