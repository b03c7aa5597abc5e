"""Which blocks wait to be merged: a FIFO lane per key; finding the lanes that are due is O(log n).

A block keeps its place while a plan owns it, so that a released block returns to where it was.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from struct import Struct

from maar.metastore.state.marks import add_mark, bulk_mark
from maar.metastore.state.rows import ID_BYTES, Numbers, Rows, block_id, raw_id
from maar.metastore.state.sorted_items import SortedItems, add_to, discard_from
from maar.metastore.state.windows import WindowSum, window_of_lane
from maar.model.ids import BlockId, is_joined_segment
from maar.model.lane import Front, Item
from maar.model.plan import QueueKey
from maar.model.policy import Policy
from maar.model.time import LeaseTime
from maar.services.kinds import KINDS
from maar.services.rules import Listing, QueueRules

_PLACE = Struct(">16sQIQQI")  # block, entry, ordinal, added_at, size, number of the key
_turned = Struct(">QI").pack
_TURN = slice(16, 28)  # entry and ordinal, by which a lane is sorted
PLACE_BYTES = _PLACE.size - 4  # without the number of the key, which only this process knows


@dataclass(slots=True)
class Lane:
    # By entry, ordinal and block.
    items: Rows = field(default_factory=partial(Rows, key=12, width=12 + ID_BYTES))
    bytes: int = 0
    joined: int = 0  # segments that plans made of others
    front: Front | None = None
    full: bool = False
    line: int = 0  # of the kind that merges what is in it


@dataclass(slots=True)
class Waiting:
    """What the lanes of one line hold together, kept as blocks come and go."""

    blocks: int = 0
    bytes: int = 0
    joined: int = 0  # segments that plans made of others


class Places(Mapping[BlockId, Item]):
    """The place of every block that can be merged."""

    __slots__ = ("_keys", "_rows")

    def __init__(self) -> None:
        self._rows = Rows(key=ID_BYTES, width=_PLACE.size)
        self._keys: Numbers[QueueKey] = Numbers()

    @property
    def lanes(self) -> int:
        """How many lanes the blocks are of."""
        return len(self._keys)

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
        self._keys.give_back(int.from_bytes(row[PLACE_BYTES:], "big"))
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
    fronts: dict[int, SortedItems[Front]] = field(default_factory=dict)  # by line, oldest first
    full: dict[int, SortedItems[Front]] = field(default_factory=dict)  # by count or bytes
    waiting: dict[int, Waiting] = field(default_factory=dict)  # by line
    placed: dict[QueueKey, WindowSum] = field(default_factory=dict)  # by window, from level 1 on
    queued: int = 0
    hash: int = 0  # of the places
    rules: QueueRules = KINDS.queue

    def __contains__(self, block: BlockId) -> bool:
        item = self.places.get(block)
        lane = self.lanes.get(item.key) if item else None
        return item is not None and lane is not None and _turn(item) in lane.items

    def enter(self, item: Item, policy: Policy) -> None:
        """A new block takes its place, or one that a plan gave back returns to it."""
        if self.places.add(item):
            self.hash = add_mark(self.hash, bulk_mark(item))
            self._count_placed(item, +1)
        lane = self.lanes.get(item.key)
        if lane is None:
            lane = self.lanes[item.key] = Lane(line=self.rules.line(item.key))
        if not lane.items.add(_turn(item) + raw_id(item.block), replace=True):
            return
        self._count(lane, +1, item)
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
            self._count(lane, -1, item)
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
            self.hash = add_mark(self.hash, -bulk_mark(item))
            self._count_placed(item, -1)

    def reorder(self, policy: Policy) -> None:
        """A new policy may close lanes that the old one left open."""
        for key, lane in self.lanes.items():
            self._unlist(lane)
            self._list(key, lane, policy)

    def oldest_first(self, line: int) -> Listing[Front]:
        return self.fronts.get(line, ())

    def full_lanes(self, line: int) -> Listing[Front]:
        return self.full.get(line, ())

    def place(self, block: BlockId) -> Item | None:
        return self.places.get(block)

    def items(self, key: QueueKey) -> Iterator[Item]:
        lane = self.lanes.get(key)
        return map(self._item, lane.items) if lane else iter(())

    def count_unjoined(self, key: QueueKey) -> int:
        lane = self.lanes.get(key)
        return len(lane.items) - lane.joined if lane else 0

    def count_joined(self) -> int:
        """Segments that plans made of others, in all lanes."""
        return sum(waiting.joined for waiting in self.waiting.values())

    def ahead(self, block: BlockId) -> int:
        """How many wait in the lane of a queued block before it."""
        item = self.places[block]
        return self.lanes[item.key].items.before(_turn(item))

    def due_at(self, policy: Policy) -> LeaseTime | None:
        """When the next lane closes by age; it does so when time exceeds this."""
        due = [
            fronts[0].added_at + age_ns
            for line, fronts in self.fronts.items()
            if (age_ns := self.rules.closes_after_ns(line, policy)) is not None
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
            self._load_placed(key, some)
            free = [place for place in some if place[:ID_BYTES] not in owned]
            if free:
                self._load_lane(key, free, policy)
        return True

    def _load_lane(self, key: QueueKey, free: list[bytes], policy: Policy) -> None:
        lane = self.lanes[key] = Lane(line=self.rules.line(key))
        lane.items.load(place[_TURN] + place[:ID_BYTES] for place in free)
        lane.bytes = sum(int.from_bytes(place[-8:], "big") for place in free)
        lane.joined = sum(is_joined_segment(block_id(place[:ID_BYTES])) for place in free)
        waiting = self.waiting.setdefault(lane.line, Waiting())
        waiting.blocks += len(free)
        waiting.bytes += lane.bytes
        waiting.joined += lane.joined
        self.queued += len(free)
        self._list(key, lane, policy)

    def _load_placed(self, key: QueueKey, some: list[bytes]) -> None:
        window = window_of_lane(key)
        if window is not None:
            sums = self.placed.setdefault(window, WindowSum())
            sums.blocks += len(some)
            sums.bytes += sum(int.from_bytes(place[-8:], "big") for place in some)
            sums.times_ns += sum(int.from_bytes(place[:8], "big") for place in some)

    def _item(self, row: bytes) -> Item:
        item = self.places.at(row[12:])
        assert item is not None
        return item

    def _count(self, lane: Lane, sign: int, item: Item) -> None:
        joined = sign * is_joined_segment(item.block)
        lane.bytes += sign * item.size
        lane.joined += joined
        self.queued += sign
        waiting = self.waiting.get(lane.line)
        if waiting is None:
            waiting = self.waiting[lane.line] = Waiting()
        waiting.blocks += sign
        waiting.bytes += sign * item.size
        waiting.joined += joined
        if not waiting.blocks:
            del self.waiting[lane.line]

    def _count_placed(self, item: Item, sign: int) -> None:
        window = window_of_lane(item.key)
        if window is None:
            return
        sums = self.placed.get(window)
        if sums is None:
            sums = self.placed[window] = WindowSum()
        sums.add(item.block, item.size, sign)
        if not sums.blocks:
            del self.placed[window]

    def _refresh(self, key: QueueKey, lane: Lane, policy: Policy) -> None:
        """Usually nothing changes here: the oldest block of the lane is still the oldest."""
        first = lane.items.first()
        same = lane.front is not None and first is not None and first[:12] == _turn(lane.front)
        if same and lane.full == self._is_full(key, lane, policy):
            return
        self._unlist(lane)
        if lane.items:
            self._list(key, lane, policy)
        else:
            del self.lanes[key]

    def _unlist(self, lane: Lane) -> None:
        if lane.front is None:
            return
        for listing in (self.fronts, self.full):
            discard_from(listing, lane.line, lane.front)
        lane.front, lane.full = None, False

    def _list(self, key: QueueKey, lane: Lane, policy: Policy) -> None:
        row = lane.items.first()
        assert row is not None
        oldest = self._item(row)
        lane.front = Front(oldest.added_at, oldest.entry, oldest.ordinal, key)
        add_to(self.fronts, lane.line, lane.front)
        lane.full = self._is_full(key, lane, policy)
        if lane.full:
            add_to(self.full, lane.line, lane.front)

    def _is_full(self, key: QueueKey, lane: Lane, policy: Policy) -> bool:
        return self.rules.full(key, blocks=len(lane.items), size=lane.bytes, policy=policy)


def _turn(item: Item | Front) -> bytes:
    return _turned(item.entry, item.ordinal)
