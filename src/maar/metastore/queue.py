"""Which blocks wait to be merged: a FIFO lane per key, and which lanes are due, in a logarithm.

A block keeps its place while a plan owns it, so that a released block returns to where it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from maar.metastore.marks import with_mark, without_mark
from maar.metastore.policy import Policy
from maar.metastore.sorted_chunks import SortedChunks
from maar.model.block import BlockMeta, Kind
from maar.model.ids import BlockId
from maar.model.plan import QueueKey
from maar.model.time import LeaseTime


class Item(NamedTuple):
    """A block in its lane; sorts by place, which is unique."""

    entry: int  # the index of the one that brought it
    ordinal: int
    added_at: LeaseTime
    block: BlockId
    size: int
    key: QueueKey


class Front(NamedTuple):
    """The oldest item of a lane; sorts by age."""

    added_at: LeaseTime
    entry: int
    ordinal: int
    key: QueueKey


@dataclass(slots=True)
class Lane:
    items: SortedChunks[Item] = field(default_factory=SortedChunks)
    bytes: int = 0
    front: Front | None = None
    full: bool = False


def key_of(meta: BlockMeta) -> QueueKey:
    return QueueKey(meta.store, meta.tenant, meta.shard, meta.level)


def mergeable(meta: BlockMeta, policy: Policy) -> bool:
    """Below the top level, not yet of target size, and not in quarantine.

    Segments always are: however large, they have to be decoded.
    """
    if meta.kind is Kind.QUARANTINE or policy.level(meta.level) is None:
        return False
    return meta.kind is Kind.SEGMENT or meta.size < policy.target_block_bytes


@dataclass(slots=True)
class Queue:
    """`places` knows queued and owned blocks alike; lanes hold only those that nobody owns."""

    places: dict[BlockId, Item] = field(default_factory=dict)
    lanes: dict[QueueKey, Lane] = field(default_factory=dict)
    fronts: dict[int, SortedChunks[Front]] = field(default_factory=dict)  # by level, oldest first
    full: dict[int, SortedChunks[Front]] = field(default_factory=dict)  # by count or bytes
    queued: int = 0
    hash: int = 0  # of the places

    def __contains__(self, block: BlockId) -> bool:
        item = self.places.get(block)
        lane = self.lanes.get(item.key) if item else None
        return item is not None and lane is not None and item in lane.items

    def enter(self, item: Item, policy: Policy) -> None:
        """A new block takes its place, or one that a plan gave back returns to it."""
        if item.block not in self.places:
            self.places[item.block] = item
            self.hash = with_mark(self.hash, item[:4])
        lane = self.lanes.setdefault(item.key, Lane())
        if item in lane.items:
            return
        lane.items.add(item)
        lane.bytes += item.size
        self.queued += 1
        self._refresh(item.key, lane, policy)

    def take(self, block: BlockId, policy: Policy) -> None:
        """A plan owns the block now; its place is kept."""
        item = self.places.get(block)
        lane = self.lanes.get(item.key) if item else None
        if item is None or lane is None or item not in lane.items:
            return
        lane.items.discard(item)
        lane.bytes -= item.size
        self.queued -= 1
        self._refresh(item.key, lane, policy)

    def give_back(self, block: BlockId, policy: Policy) -> None:
        item = self.places.get(block)
        if item is not None:
            self.enter(item, policy)

    def leave(self, block: BlockId, policy: Policy) -> None:
        """The block is gone for good, and its place with it."""
        self.take(block, policy)
        item = self.places.pop(block, None)
        if item is not None:
            self.hash = without_mark(self.hash, item[:4])

    def reorder(self, policy: Policy) -> None:
        """A new policy may close lanes that the old one left open."""
        for key, lane in self.lanes.items():
            self._unlist(key, lane)
            self._list(key, lane, policy)

    def items(self, key: QueueKey) -> Iterator[Item]:
        lane = self.lanes.get(key)
        return iter(lane.items) if lane else iter(())

    def due_at(self, policy: Policy) -> LeaseTime | None:
        """When the next lane closes by age; it does so when time exceeds this."""
        due = [
            front.added_at + level.age_ns
            for number, fronts in self.fronts.items()
            if (front := fronts.first()) and (level := policy.level(number))
        ]
        return LeaseTime(min(due)) if due else None

    def _refresh(self, key: QueueKey, lane: Lane, policy: Policy) -> None:
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
        oldest = lane.items.first()
        assert oldest is not None
        lane.front = Front(oldest.added_at, oldest.entry, oldest.ordinal, key)
        self.fronts.setdefault(key.level, SortedChunks()).add(lane.front)
        level = policy.level(key.level)
        if level and (len(lane.items) >= level.count or lane.bytes >= level.bytes):
            lane.full = True
            self.full.setdefault(key.level, SortedChunks()).add(lane.front)
