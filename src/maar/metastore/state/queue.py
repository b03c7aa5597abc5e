"""Which blocks wait to be merged: a FIFO lane per key, and which lanes are due, in a logarithm.

A block keeps its place while a plan owns it, so that a released block returns to where it was.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from struct import Struct

from maar.metastore.state.index import day_of
from maar.metastore.state.marks import bulk_mark, moved
from maar.metastore.state.rows import ID_BYTES, Numbers, Rows, block_id, raw_id
from maar.metastore.state.sorted_chunks import SortedChunks
from maar.model.block import NO_DAY, BlockOutline, Kind
from maar.model.ids import BlockId
from maar.model.lane import Front, Item
from maar.model.plan import QueueKey
from maar.model.policy import Policy
from maar.model.time import LeaseTime

_PLACE = Struct(">16sQIQQI")  # block, entry, ordinal, added_at, size, number of the key
_turned = Struct(">QI").pack
_TURN = slice(16, 28)  # entry and ordinal, by which a lane is sorted
PLACE_BYTES = _PLACE.size - 4  # without the number of the key, which only this process knows


def _lane_rows() -> Rows:
    return Rows(key=12, width=12 + ID_BYTES)


@dataclass(slots=True)
class Lane:
    items: Rows = field(default_factory=_lane_rows)  # entry, ordinal, block
    bytes: int = 0
    front: Front | None = None
    full: bool = False


@dataclass(slots=True)
class Waiting:
    """What the lanes of one level hold together, kept as blocks come and go."""

    blocks: int = 0
    bytes: int = 0


def key_of(meta: BlockOutline) -> QueueKey:
    """The lane of a block: what is merged must be able to become one block.

    A segment holds profiles of any day; from level 1 on a block is of one, and waits for others of
    its day. Without that, late profiles would only ever meet blocks of other days.
    """
    day = day_of(meta) if meta.level else NO_DAY
    return QueueKey(meta.store, meta.tenant, meta.shard, meta.level, meta.zone, day)


def mergeable(meta: BlockOutline, policy: Policy) -> bool:
    """Below the top level, not yet of target size, and not in quarantine.

    Segments always are: however large, they have to be decoded.
    """
    if meta.kind is Kind.QUARANTINE or policy.level(meta.level) is None:
        return False
    return meta.kind is Kind.SEGMENT or meta.size < policy.target_block_bytes


class Places(Mapping[BlockId, Item]):
    """The place of every block that can be merged."""

    __slots__ = ("_keys", "_rows")

    def __init__(self) -> None:
        self._rows = Rows(key=ID_BYTES, width=_PLACE.size)
        self._keys: Numbers[QueueKey] = Numbers()

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[BlockId]:
        return (block_id(row[:ID_BYTES]) for row in self._rows)

    def __contains__(self, block: object) -> bool:
        return isinstance(block, str) and raw_id(BlockId(block)) in self._rows

    def __getitem__(self, block: BlockId) -> Item:
        item = self.at(raw_id(block))
        if item is None:
            raise KeyError(block)
        return item

    def at(self, raw: bytes) -> Item | None:
        row = self._rows.find(raw)
        return None if row is None else self._item(row)

    def all(self) -> Iterator[Item]:
        return map(self._item, self._rows)

    def _item(self, row: bytes) -> Item:
        raw, entry, ordinal, added_at, size, number = _PLACE.unpack(row)
        return Item(
            entry, ordinal, LeaseTime(added_at), block_id(raw), size, self._keys.thing(number)
        )

    def add(self, item: Item) -> bool:
        """Whether the block had none; one that it has is left as it is."""
        number = self._keys.take(item.key)
        raw = raw_id(item.block)
        row = _PLACE.pack(raw, item.entry, item.ordinal, item.added_at, item.size, number)
        if self._rows.add(row):
            return True
        self._keys.give_back(number)
        return False

    def pop(self, block: BlockId) -> Item | None:
        """Its place, which is free now."""
        row = self._rows.pop(raw_id(block))
        if row is None:
            return None
        item = self._item(row)
        self._keys.give_back(_PLACE.unpack(row)[-1])
        return item

    def by_key(self) -> dict[QueueKey, list[bytes]]:
        """Every place as PLACE_BYTES, which another process can load."""
        found: dict[QueueKey, list[bytes]] = {}
        for row in self._rows:
            key = self._keys.thing(_PLACE.unpack(row)[-1])
            found.setdefault(key, []).append(row[:PLACE_BYTES])
        return found

    def load(self, places: Iterable[tuple[QueueKey, list[bytes]]]) -> bool:
        """All at once; whether no block came twice."""
        return self._rows.load(
            place + self._keys.take(key).to_bytes(4, "big")
            for key, some in places
            for place in some
        )


@dataclass(slots=True)
class Queue:
    """`places` knows queued and owned blocks alike; lanes hold only those that nobody owns."""

    places: Places = field(default_factory=Places)
    lanes: dict[QueueKey, Lane] = field(default_factory=dict)
    fronts: dict[int, SortedChunks[Front]] = field(default_factory=dict)  # by level, oldest first
    full: dict[int, SortedChunks[Front]] = field(default_factory=dict)  # by count or bytes
    waiting: dict[int, Waiting] = field(default_factory=dict)  # by level
    queued: int = 0
    hash: int = 0  # of the places

    def __contains__(self, block: BlockId) -> bool:
        item = self.places.get(block)
        lane = self.lanes.get(item.key) if item else None
        return item is not None and lane is not None and _turn(item) in lane.items

    def enter(self, item: Item, policy: Policy) -> None:
        """A new block takes its place, or one that a plan gave back returns to it."""
        if self.places.add(item):
            self.hash = moved(self.hash, bulk_mark(item))
        lane = self.lanes.get(item.key)
        if lane is None:
            lane = self.lanes[item.key] = Lane()
        if not lane.items.put(_turn(item) + raw_id(item.block)):
            return
        lane.bytes += item.size
        self._count(item, +1)
        self._refresh(item.key, lane, policy)

    def take(self, block: BlockId, policy: Policy) -> None:
        """A plan owns the block now; its place is kept."""
        self.take_all((block,), policy)

    def take_all(self, blocks: Iterable[BlockId], policy: Policy) -> None:
        """The same for all inputs of a plan; their lanes are listed anew once."""
        items = (self.places.at(raw_id(block)) for block in blocks)
        self._take((item for item in items if item is not None), policy)

    def _take(self, items: Iterable[Item], policy: Policy) -> None:
        changed: dict[QueueKey, Lane] = {}
        for item in items:
            lane = self.lanes.get(item.key)
            if lane is None or not lane.items.remove(_turn(item)):
                continue
            lane.bytes -= item.size
            self._count(item, -1)
            changed[item.key] = lane
        for key, lane in changed.items():
            self._refresh(key, lane, policy)

    def give_back(self, block: BlockId, policy: Policy) -> None:
        item = self.places.get(block)
        if item is not None:
            self.enter(item, policy)

    def leave(self, block: BlockId, policy: Policy) -> None:
        """The block is gone for good, and its place with it."""
        item = self.places.pop(block)
        if item is not None:
            self._take((item,), policy)
            self.hash = moved(self.hash, -bulk_mark(item))

    def reorder(self, policy: Policy) -> None:
        """A new policy may close lanes that the old one left open."""
        for key, lane in self.lanes.items():
            self._unlist(key, lane)
            self._list(key, lane, policy)

    def items(self, key: QueueKey) -> Iterator[Item]:
        lane = self.lanes.get(key)
        return map(self._item, lane.items) if lane else iter(())

    def ahead(self, block: BlockId) -> int:
        """How many wait in the lane of a queued block before it."""
        item = self.places[block]
        return self.lanes[item.key].items.before(_turn(item))

    def due_at(self, policy: Policy) -> LeaseTime | None:
        """When the next lane closes by age; it does so when time exceeds this."""
        due = [
            front.added_at + level.age_ns
            for number, fronts in self.fronts.items()
            if (front := fronts.first()) and (level := policy.level(number))
        ]
        return LeaseTime(min(due)) if due else None

    def load(
        self, places: dict[QueueKey, list[bytes]], owned: Container[bytes], policy: Policy
    ) -> bool:
        """All places at once, in a queue that is empty; whether each block has one of them only.

        `hash` is the caller's to set.
        """
        if not self.places.load(places.items()):
            return False
        for key, some in places.items():
            free = [place for place in some if place[:ID_BYTES] not in owned]
            if free:
                self._load_lane(key, free, policy)
        return True

    def _load_lane(self, key: QueueKey, free: list[bytes], policy: Policy) -> None:
        lane = self.lanes[key] = Lane()
        lane.items.load(place[_TURN] + place[:ID_BYTES] for place in free)
        lane.bytes = sum(int.from_bytes(place[-8:], "big") for place in free)
        level = self.waiting.setdefault(key.level, Waiting())
        level.blocks += len(free)
        level.bytes += lane.bytes
        self.queued += len(free)
        self._list(key, lane, policy)

    def _item(self, row: bytes) -> Item:
        item = self.places.at(row[12:])
        assert item is not None
        return item

    def _count(self, item: Item, sign: int) -> None:
        self.queued += sign
        level = self.waiting.get(item.key.level)
        if level is None:
            level = self.waiting[item.key.level] = Waiting()
        level.blocks += sign
        level.bytes += sign * item.size
        if not level.blocks:
            del self.waiting[item.key.level]

    def _refresh(self, key: QueueKey, lane: Lane, policy: Policy) -> None:
        """Nothing to do for most of what comes and goes: the oldest stays the oldest."""
        first = lane.items.first()
        same = lane.front is not None and first is not None and first[:12] == _turn(lane.front)
        if same and lane.full == _full(key, lane, policy):
            return
        self._unlist(key, lane)
        if lane.items:
            self._list(key, lane, policy)
        else:
            del self.lanes[key]

    def _unlist(self, key: QueueKey, lane: Lane) -> None:
        if lane.front is None:
            return
        for listing in (self.fronts, self.full):
            if key.level in listing:
                listing[key.level].discard(lane.front)
                if not listing[key.level]:
                    del listing[key.level]
        lane.front, lane.full = None, False

    def _list(self, key: QueueKey, lane: Lane, policy: Policy) -> None:
        lane.front = self._front(key, lane)
        self.fronts.setdefault(key.level, SortedChunks()).add(lane.front)
        lane.full = _full(key, lane, policy)
        if lane.full:
            self.full.setdefault(key.level, SortedChunks()).add(lane.front)

    def _front(self, key: QueueKey, lane: Lane) -> Front:
        row = lane.items.first()
        assert row is not None
        oldest = self._item(row)
        return Front(oldest.added_at, oldest.entry, oldest.ordinal, key)


def _full(key: QueueKey, lane: Lane, policy: Policy) -> bool:
    level = policy.level(key.level)
    return level is not None and (len(lane.items) >= level.count or lane.bytes >= level.bytes)


def _turn(item: Item | Front) -> bytes:
    return _turned(item.entry, item.ordinal)
