"""The queue holds what a plain list of places would, in the same order, and knows what is due."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from maar.metastore.state.marks import add_mark, bulk_mark
from maar.metastore.state.queue import Queue
from maar.metastore.state.rows import raw_id
from maar.model.block import NO_DAY
from maar.model.ids import MAIN_STORE, BlockId, Shard, TenantId, Zone, segment_id
from maar.model.lane import Front, Item
from maar.model.plan import QueueKey
from maar.model.policy import Level, Policy
from maar.model.time import SECOND_NS, LeaseTime
from support.metastore.fold import SMALL

KEYS = [
    QueueKey(MAIN_STORE, TenantId(tenant), Shard(shard), level, Zone(zone), day)
    for tenant in ("", "acme")
    for shard in (1, 2)
    for zone, level, day in (("", 0, NO_DAY), ("east", 1, 20_000), ("east", 1, 20_001))
]
TIGHT = msgspec.structs.replace(
    SMALL, levels=(Level(2, 5_000, SECOND_NS), Level(9, 20_000, 2 * SECOND_NS))
)
UNSIGNED_MAX = (1 << 64) - 1


@dataclass
class Held:
    item: Item
    owned: bool = False


class QueueAgainstAList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue()
        self.policy: Policy = SMALL
        self.model: dict[BlockId, Held] = {}
        self.entry = 0

    @rule(key=st.sampled_from(KEYS), count=st.integers(1, 200), size=st.integers(0, 3_000))
    def enter(self, key: QueueKey, count: int, size: int) -> None:
        self.entry += 1
        for ordinal in range(count):
            name = segment_id(lease_time_ns=self.entry, entropy=ordinal * 7919 % 10_007)
            at = LeaseTime(self.entry * SECOND_NS)
            item = Item(self.entry, ordinal, at, name, size + ordinal, key)
            self.queue.enter(item, self.policy)
            self.queue.enter(item, self.policy)  # once is enough
            self.model[name] = Held(item)

    def some(self, data: st.DataObject, count: int) -> list[BlockId]:
        known = list(self.model)
        at = data.draw(st.integers(0, len(known) - 1))
        return known[at : at + count]

    @precondition(lambda self: self.model)
    @rule(data=st.data(), count=st.integers(1, 150))
    def take(self, data: st.DataObject, count: int) -> None:
        blocks = self.some(data, count)
        self.queue.take_all(blocks, self.policy)
        for block in blocks:
            self.model[block].owned = True

    @precondition(lambda self: self.model)
    @rule(data=st.data(), count=st.integers(1, 150))
    def give_back(self, data: st.DataObject, count: int) -> None:
        for block in reversed(self.some(data, count)):
            self.queue.give_back(block, self.policy)
            self.model[block].owned = False

    @precondition(lambda self: self.model)
    @rule(data=st.data(), count=st.integers(1, 150))
    def leave(self, data: st.DataObject, count: int) -> None:
        for block in self.some(data, count):
            self.queue.leave(block, self.policy)
            del self.model[block]

    @rule()
    def ask_for_strangers(self) -> None:
        stranger = segment_id(lease_time_ns=0, entropy=1)
        for act in (self.queue.take, self.queue.give_back, self.queue.leave):
            act(stranger, self.policy)

    @rule(policy=st.sampled_from([SMALL, TIGHT]))
    def reorder(self, policy: Policy) -> None:
        self.policy = policy
        self.queue.reorder(policy)

    @rule()
    def reload(self) -> None:
        """As a restart does."""
        again = Queue(hash=self.queue.hash)
        owned = {raw_id(block) for block, held in self.model.items() if held.owned}
        assert again.load(self.queue.places.by_key(), owned, self.policy)
        self.queue = again

    def lanes(self) -> dict[QueueKey, list[Item]]:
        found: dict[QueueKey, list[Item]] = {}
        for held in sorted(self.model.values(), key=lambda held: held.item):
            if not held.owned:
                found.setdefault(held.item.key, []).append(held.item)
        return found

    @invariant()
    def same(self) -> None:
        queue, lanes = self.queue, self.lanes()
        assert dict(queue.places) == {b: held.item for b, held in self.model.items()}
        assert set(queue.lanes) == set(lanes)
        for key, items in lanes.items():
            assert list(queue.items(key)) == items
            assert queue.lanes[key].bytes == sum(item.size for item in items)
            assert queue.ahead(items[-1].block) == len(items) - 1
        assert queue.queued == sum(map(len, lanes.values()))
        assert all((b in queue) != held.owned for b, held in self.model.items())

    @invariant()
    def due(self) -> None:
        fronts: dict[int, list[Front]] = {}
        full: dict[int, list[Front]] = {}
        waiting: dict[int, tuple[int, int]] = {}
        for key, items in self.lanes().items():
            front = Front(items[0].added_at, items[0].entry, items[0].ordinal, key)
            fronts.setdefault(key.level, []).append(front)
            level = self.policy.level(key.level)
            size = sum(item.size for item in items)
            if level and (len(items) >= level.count or size >= level.bytes):
                full.setdefault(key.level, []).append(front)
            blocks, bytes_ = waiting.get(key.level, (0, 0))
            waiting[key.level] = blocks + len(items), bytes_ + size
        assert {n: list(f) for n, f in self.queue.fronts.items()} == sorted_lists(fronts)
        assert {n: list(f) for n, f in self.queue.full.items()} == sorted_lists(full)
        assert {n: (w.blocks, w.bytes) for n, w in self.queue.waiting.items()} == waiting

    def teardown(self) -> None:
        total = 0
        for held in self.model.values():
            total = add_mark(total, bulk_mark(held.item))
        assert self.queue.hash == total
        for block in list(self.model):
            self.queue.leave(block, self.policy)
        assert self.queue == Queue(places=self.queue.places)
        assert len(self.queue.places) == 0


def sorted_lists(listing: dict[int, list[Front]]) -> dict[int, list[Front]]:
    return {level: sorted(fronts) for level, fronts in listing.items()}


QueueAgainstAList.TestCase.settings = settings(
    max_examples=40, stateful_step_count=15, deadline=None
)
TestQueue = QueueAgainstAList.TestCase


def test_places_with_the_largest_numbers_there_are() -> None:
    queue = Queue()
    item = Item(
        UNSIGNED_MAX, 0xFFFF_FFFF, LeaseTime(UNSIGNED_MAX), BlockId("f" * 32), UNSIGNED_MAX, KEYS[0]
    )
    queue.enter(item, SMALL)
    assert list(queue.items(KEYS[0])) == [item]
    assert queue.places[item.block] == item
    assert KEYS[0] in queue.lanes


def test_two_places_of_one_block_are_not_loaded() -> None:
    queue = Queue()
    name = segment_id(lease_time_ns=1, entropy=1)
    queue.enter(Item(1, 0, LeaseTime(1), name, 1, KEYS[0]), SMALL)
    (place,) = queue.places.by_key()[KEYS[0]]
    assert Queue().load({KEYS[0]: [place]}, frozenset(), SMALL)
    assert not Queue().load({KEYS[0]: [place], KEYS[1]: [place]}, frozenset(), SMALL)


def test_the_next_lane_closes_when_its_oldest_is_old_enough() -> None:
    queue = Queue()
    assert queue.due_at(SMALL) is None
    for n, key in enumerate((KEYS[1], KEYS[0])):
        name = segment_id(lease_time_ns=n, entropy=n)
        queue.enter(Item(n + 1, 0, LeaseTime(n * SECOND_NS), name, 1, key), SMALL)
    ages = [level.age_ns for level in SMALL.levels]
    assert queue.due_at(SMALL) == min(0 + ages[1], SECOND_NS + ages[0])
