"""Batches close by count, bytes and age, also when nothing new comes; small jobs go first."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import chain, islice
from typing import cast

import msgspec
import xxhash

from maar.metastore.decide import prepare, schedule
from maar.metastore.decide.schedule import Wish
from maar.metastore.fold import registration
from maar.metastore.records.effects import Leased, Registered
from maar.metastore.records.entries import BlocksAdded, PlanCompleted, PlansLeased, PolicySet, Tick
from maar.metastore.records.packs import pack
from maar.metastore.state.queue import Queue
from maar.model.block import Kind
from maar.model.ids import BlockId, TenantId, WorkerId
from maar.model.lane import Item
from maar.model.plan import PlanSpec, QueueKey
from maar.model.policy import Level
from maar.model.time import SECOND_NS, LeaseTime
from maar.services.compact.rules import COMPACTION, LARGE_AT_ONCE, LARGE_BYTES
from support.metastore.fold import SMALL, Fold, result, segment

W1 = WorkerId("w1")


def specs(fold: Fold, limit: int = 10) -> list[PlanSpec]:
    """The next plans of all levels."""
    now = LeaseTime(fold.now)
    levels = (COMPACTION.due(fold.state, level, now=now) for level in range(len(SMALL.levels)))
    return list(islice(chain.from_iterable(levels), limit))


def batches(fold: Fold, limit: int = 10) -> list[tuple[BlockId, ...]]:
    return [spec.inputs for spec in specs(fold, limit)]


def add(fold: Fold, *numbers: int, shard: int = 1, size: int = 1000) -> list[BlockId]:
    metas = tuple(segment(n, at=fold.now, shard=shard, size=size) for n in numbers)
    fold.put(BlocksAdded(metas))
    return [meta.id for meta in metas]


def hand_out(fold: Fold, capacity: int = 10, worker: WorkerId = W1) -> list[Leased]:
    entries = schedule.assign(fold.state, [Wish(worker, capacity)], now=LeaseTime(fold.now))
    effects = [effect for entry in entries for effect in fold.put(entry)]
    return [effect for effect in effects if isinstance(effect, Leased)]


def test_a_batch_closes_by_count_in_the_order_of_arrival() -> None:
    fold = Fold()
    a = add(fold, 5, 4)
    assert batches(fold) == []
    b = add(fold, 3, 2)
    assert batches(fold) == [(*a, b[0])]


class Pushes:
    """Blocks pushed one by one as tenant, shard and level, and the jobs that they make.

    Jobs are told as the peer names them: a hash of the numbers of their blocks, and their queue.
    """

    def __init__(self) -> None:
        self.fold = Fold()
        self.numbers: dict[BlockId, int] = {}

    def push(self, *names: str) -> None:
        for name in names:
            tenant, shard, level = name[0], int(name[1]), int(name[2:] or 0)
            kind = Kind.BLOCK if level else Kind.SEGMENT
            meta = msgspec.structs.replace(
                segment(len(self.numbers), shard=shard), tenant=TenantId(tenant), level=level
            )
            self.numbers[meta.id] = len(self.numbers)
            self.fold.put(Tick())  # an entry, as if it had brought the block
            meta = msgspec.structs.replace(meta, kind=kind)
            registration.admit(self.fold.state, meta, pack(meta), ordinal=0)

    def jobs(self) -> list[str]:
        return [self.name(spec) for spec in specs(self.fold)]

    def name(self, spec: PlanSpec) -> str:
        blocks = "".join(str(self.numbers[block]) for block in spec.inputs)
        key = spec.key
        hashed = xxhash.xxh64(blocks.encode()).hexdigest()
        return f"{hashed}-T{key.tenant}-S{key.shard}-L{key.level}"


def test_the_peers_pushes_give_the_peers_jobs() -> None:
    """Three blocks a job; a queue per tenant and shard, each in the order of arrival."""
    pushes = Pushes()
    pushes.push("A0", "B2", "A1", "A1", "B2", "A1", "B2", "A0", "A1", "A0", "B2", "A1")
    first = {
        "ffba6b12acb007e6-TA-S1-L0",  # 2, 3, 5
        "3860b3ec2cf5bfa3-TB-S2-L0",  # 1, 4, 6
        "6a1fee35d1568267-TA-S0-L0",  # 0, 7, 9
    }
    assert set(pushes.jobs()) == first
    pushes.push("B2", "A1", "B2")
    second = {
        "34d4246acbf55d05-TA-S1-L0",  # 8, 11, 13
        "5567ff0cdb349aaf-TB-S2-L0",  # 10, 12, 14
    }
    assert set(pushes.jobs()) == first | second
    assert set(pushes.jobs()[:3]) == first


def test_the_peers_lower_level_goes_before_the_higher_one_that_came_first() -> None:
    pushes = Pushes()
    pushes.push("B21", "A10", "A10", "B21", "A10")
    assert pushes.jobs() == ["3567f9a8f34203a9-TA-S1-L0", "3254788b90b8fafc-TB-S2-L1"]


def test_a_batch_closes_by_bytes() -> None:
    fold = Fold()
    add(fold, 1, size=(1 << 20) - 1)
    assert batches(fold) == []
    add(fold, 2, size=1)
    assert [len(batch) for batch in batches(fold)] == [2]


def test_an_idle_queue_closes_by_age_without_any_new_block() -> None:
    fold = Fold()
    (lonely,) = add(fold, 1)
    fold.now = 10 * SECOND_NS
    assert batches(fold) == []
    fold.now += 1
    assert batches(fold) == [(lonely,)]
    assert prepare.housekeeping(fold.state, now=LeaseTime(fold.now)) == [Tick()]
    fold.put(Tick())
    assert prepare.housekeeping(fold.state, now=LeaseTime(fold.now)) == []


def test_blocks_too_far_apart_are_not_merged_together() -> None:
    fold = Fold()
    first = add(fold, 1)
    fold.now += 3601 * SECOND_NS
    second = add(fold, 2, 3, 4)
    assert batches(fold) == [tuple(first), tuple(second)]


def test_shards_tenants_and_levels_are_never_mixed() -> None:
    fold = Fold()
    add(fold, 1, 2, shard=1)
    add(fold, 3, shard=2)
    assert batches(fold) == []


def test_a_deep_lane_does_not_hold_up_the_others_of_its_level() -> None:
    fold = Fold()
    deep = add(fold, 1, 2, 3)
    other = add(fold, 10, 11, 12, shard=2)
    add(fold, 4, 5, 6)
    assert batches(fold, limit=2) == [tuple(deep), tuple(other)]


def behind(count: int = 9) -> Fold:
    return Fold(policy=msgspec.structs.replace(SMALL, backlog_count=count))


def test_batches_of_segments_that_closed_while_nobody_took_the_first_are_one_plan() -> None:
    fold = behind()
    (*one, rest) = add(fold, 1, 2, 3, 4)
    assert batches(fold) == [tuple(one)], "nobody is behind yet: the second batch is open"
    two = [rest, *add(fold, 5, 6)]
    assert batches(fold) == [(*one, *two)]
    more = add(fold, 7, 8)
    assert batches(fold) == [(*one, *two, *more)], "what is no batch yet goes along"
    more += add(fold, 9, 10, 11)
    assert batches(fold) == [(*one, *two, *more[:3])], "nine are enough for a plan"
    fold.now = 11 * SECOND_NS
    assert batches(fold) == [(*one, *two, *more[:3]), tuple(more[3:])]


def test_an_open_batch_waits_that_does_not_fit_a_plan_of_several() -> None:
    fold = behind(count=7)
    metas = add(fold, *range(8))
    assert batches(fold) == [tuple(metas[:6])]
    fold = behind()
    add(fold, *range(6), size=150_000)
    add(fold, 6, size=200_000)
    assert [len(batch) for batch in batches(fold)] == [6]


def test_a_plan_of_several_batches_is_no_larger_in_number_bytes_or_time_than_it_may_be() -> None:
    fold = behind(count=8)
    add(fold, *range(12))
    assert [len(batch) for batch in batches(fold)] == [6, 6]
    fold = behind()
    add(fold, *range(9), size=150_000)
    assert [len(batch) for batch in batches(fold)] == [6, 3]
    fold = behind()
    add(fold, 1, 2, 3)
    fold.now += 3601 * SECOND_NS
    add(fold, 4, 5, 6)
    assert [len(batch) for batch in batches(fold)] == [3, 3]


def test_a_plan_of_several_batches_is_no_larger_also_where_a_batch_may_be() -> None:
    levels = (Level(count=3, bytes=1 << 30, age_ns=10 * SECOND_NS), *SMALL.levels[1:])
    fold = Fold(policy=msgspec.structs.replace(SMALL, backlog_count=100, levels=levels))
    add(fold, *range(9), size=LARGE_BYTES // 6)
    assert [len(batch) for batch in batches(fold)] == [6, 3]


def test_the_lanes_of_others_come_before_what_a_plan_of_several_batches_leaves() -> None:
    fold = behind(count=6)
    deep = add(fold, *range(6))
    other = add(fold, 10, 11, 12, shard=2)
    left = add(fold, 6, 7, 8)
    assert batches(fold) == [tuple(deep), tuple(other), tuple(left)]


def test_only_some_plans_of_a_round_have_several_batches_so_that_a_reply_is_bounded() -> None:
    fold = behind()
    for shard in range(LARGE_AT_ONCE + 1):
        add(fold, *range(100 * shard, 100 * shard + 6), shard=shard)
    assert [len(batch) for batch in batches(fold)] == [6] * LARGE_AT_ONCE + [3, 3]


def test_blocks_that_were_merged_before_are_taken_batch_by_batch_however_many_wait() -> None:
    pushes = Pushes()
    pushes.fold = behind()
    pushes.push(*["A11"] * 4)
    assert [(spec.key.level, len(spec.inputs)) for spec in specs(pushes.fold)] == [(1, 2), (1, 2)]


def test_low_levels_are_planned_first_and_no_more_than_wanted() -> None:
    fold = Fold()
    add(fold, 1, 2, 3, 4, 5, 6)
    for lease in hand_out(fold):
        inputs = fold.metas(fold.state.plans[lease.plan].inputs)
        fold.put(PlanCompleted(lease.plan, lease.token, result(lease.plan, lease.token, inputs)))
    fresh = add(fold, 7, 8, 9)
    assert batches(fold, limit=1) == [tuple(fresh)]
    assert [spec.key.level for spec in specs(fold)] == [0, 1]


def test_a_block_of_target_size_and_a_block_of_the_top_level_are_not_merged_further() -> None:
    fold = Fold()
    add(fold, 1, 2, 3, 4, 5, 6)
    big, small = hand_out(fold)
    for lease, size in ((big, SMALL.target_block_bytes), (small, 10)):
        inputs = fold.metas(fold.state.plans[lease.plan].inputs)
        made = result(lease.plan, lease.token, inputs, size=size)
        fold.put(PlanCompleted(lease.plan, lease.token, made))
        assert (made.outputs[0].id in fold.state.queue) is (size == 10)
    for level in (2, 3):
        fold.now += 41 * SECOND_NS
        (lease,) = hand_out(fold)
        inputs = fold.metas(fold.state.plans[lease.plan].inputs)
        made = result(lease.plan, lease.token, inputs)
        fold.put(PlanCompleted(lease.plan, lease.token, made))
        assert made.outputs[0].level == level
    assert fold.state.queue.queued == 0
    fold.now += 10_000 * SECOND_NS
    assert batches(fold) == []


def test_a_new_policy_queues_what_the_old_one_left() -> None:
    fold = Fold()
    add(fold, 1, 2, 3)
    (lease,) = hand_out(fold)
    inputs = fold.metas(fold.state.plans[lease.plan].inputs)
    made = result(lease.plan, lease.token, inputs, size=SMALL.target_block_bytes)
    fold.put(PlanCompleted(lease.plan, lease.token, made))
    assert fold.state.queue.queued == 0
    larger = msgspec.structs.replace(SMALL, target_block_bytes=10 * SMALL.target_block_bytes)
    fold.put(PolicySet(larger))
    assert made.outputs[0].id in fold.state.queue
    fold.put(PolicySet(msgspec.structs.replace(larger, levels=(Level(1, 1, 0), Level(1, 1, 0)))))
    assert batches(fold) == [(made.outputs[0].id,)]


def test_blocks_of_an_ended_plan_keep_their_place() -> None:
    fold = Fold()
    a = add(fold, 1, 2, 3)
    hand_out(fold, 1)
    add(fold, 4, 5, 6)
    for block in a:
        fold.state.queue.give_back(block, SMALL)
    lane = fold.state.queue.places[a[0]].key
    assert [item.block for item in fold.state.queue.items(lane)][:3] == a


def test_quarantine_is_never_queued_however_old() -> None:
    fold = Fold()
    meta = msgspec.structs.replace(segment(1), kind=Kind.QUARANTINE)
    fold.put(BlocksAdded((meta,)))
    fold.now += 10**15
    assert batches(fold) == []


def test_a_block_that_is_queued_is_not_queued_again() -> None:
    fold = Fold()
    (queued,) = add(fold, 1)
    assert fold.put(BlocksAdded((segment(1), segment(1)))) == (Registered(queued, ""),) * 2
    assert fold.state.queue.queued == 1
    add(fold, 2, 3)
    hand_out(fold)
    fold.put(BlocksAdded((segment(1),)))
    assert fold.state.queue.queued == 0  # nor while a plan owns it


def test_a_block_that_is_deleted_while_it_is_queued_leaves_a_whole_queue() -> None:
    fold = Fold()
    a, b, c = add(fold, 1, 2, 3)
    fold.state.blocks.remove(b)
    fold.state.queue.leave(b, SMALL)
    assert batches(fold) == []
    (d,) = add(fold, 4)
    assert batches(fold) == [(a, c, d)]
    for block in (a, c, d):
        fold.state.queue.leave(block, SMALL)
    assert not fold.state.queue.lanes
    assert not fold.state.queue.fronts
    assert fold.state.queue.due_at(SMALL) is None


def test_a_single_old_block_is_a_job_of_its_own() -> None:
    fold = Fold()
    (lonely,) = add(fold, 1)
    fold.now += 11 * SECOND_NS
    (lease,) = hand_out(fold)
    assert fold.state.plans[lease.plan].inputs == (lonely,)
    made = result(lease.plan, lease.token, fold.metas((lonely,)))
    fold.put(PlanCompleted(lease.plan, lease.token, made))
    assert made.outputs[0].level == 1
    assert made.outputs[0].id in fold.state.queue


def test_a_poll_looks_at_as_many_lanes_as_it_has_slots_and_no_more() -> None:
    """However many blocks and lanes wait: each lane that is looked at is counted."""
    fold = Fold()
    for shard in range(1, 101):
        add(fold, *range(10 * shard, 10 * shard + 9), shard=shard)
    looked_at: list[object] = []

    class Watched:
        def __getattr__(self, name: str) -> object:
            return getattr(fold.state.queue, name)

        def items(self, key: QueueKey) -> Iterator[Item]:
            for item in fold.state.queue.items(key):
                looked_at.append(item)
                yield item

    state = dataclasses.replace(fold.state, queue=cast(Queue, Watched()))
    (_, leased) = schedule.assign(state, [Wish(W1, 2)], now=LeaseTime(fold.now))
    assert isinstance(leased, PlansLeased)
    assert len(leased.grants) == 2
    assert len(looked_at) <= 4 * (2 + 1) * SMALL.levels[0].count
