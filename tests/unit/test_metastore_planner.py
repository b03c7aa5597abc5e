"""Batches close by count, bytes and age, also when nothing new comes; small jobs go first."""

from __future__ import annotations

import msgspec

from maar.metastore import plan as plans
from maar.metastore import prepare, schedule
from maar.metastore.effects import Leased
from maar.metastore.entries import (
    BlocksAdded,
    PlanBisected,
    PlanCompleted,
    PlanExcluded,
    PlanFailed,
    PlansLeased,
    PlansScheduled,
    PolicySet,
    Tick,
)
from maar.metastore.policy import Level
from maar.metastore.schedule import Wish
from maar.model.block import Kind
from maar.model.ids import BlockId, PlanId, TenantId, WorkerId
from maar.model.plan import PlanState
from maar.model.time import SECOND_NS, LeaseTime
from support.metastore import SMALL, Fold, result, segment

W1 = WorkerId("w1")


def batches(fold: Fold, limit: int = 10) -> list[tuple[BlockId, ...]]:
    found = plans.batches(fold.state, now=LeaseTime(fold.now), limit=limit)
    return [spec.inputs for spec in found]


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


def test_the_peers_example_gives_the_same_jobs() -> None:
    """Pushes A0 B2 A1 A1 B2 A1 B2 A0 A1 A0 B2 A1, three blocks a job."""
    fold = Fold()
    pushes = "A0 B2 A1 A1 B2 A1 B2 A0 A1 A0 B2 A1 B2 A1 B2".split()  # noqa: SIM905 - reads as it was
    number: dict[BlockId, int] = {}

    def push(first: int, some: list[str]) -> None:
        for n, name in enumerate(some, start=first):
            meta = msgspec.structs.replace(
                segment(n, shard=int(name[1]) + 1), tenant=TenantId(name[0])
            )
            number[meta.id] = n
            fold.put(BlocksAdded((meta,)))

    push(0, pushes[:12])
    jobs = [[number[block] for block in batch] for batch in batches(fold)]
    assert sorted(jobs) == [[0, 7, 9], [1, 4, 6], [2, 3, 5]]
    push(12, pushes[12:])
    jobs = [[number[block] for block in batch] for batch in batches(fold)]
    assert sorted(jobs) == [[0, 7, 9], [1, 4, 6], [2, 3, 5], [8, 11, 13], [10, 12, 14]]


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


def test_low_levels_are_planned_first_and_no_more_than_wanted() -> None:
    fold = Fold()
    add(fold, 1, 2, 3, 4, 5, 6)
    for lease in hand_out(fold):
        inputs = fold.metas(fold.state.plans[lease.plan].inputs)
        fold.put(PlanCompleted(lease.plan, lease.token, result(lease.plan, lease.token, inputs)))
    fresh = add(fold, 7, 8, 9)
    found = plans.batches(fold.state, now=LeaseTime(fold.now), limit=1)
    assert [spec.inputs for spec in found] == [tuple(fresh)]
    found = plans.batches(fold.state, now=LeaseTime(fold.now), limit=5)
    assert [spec.key.level for spec in found] == [0, 1]


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


def test_one_poll_plans_and_leases_with_ids_of_the_entry_that_scheduled() -> None:
    fold = Fold()
    add(fold, 1, 2, 3, 4, 5, 6)
    before = fold.state.index
    entries = schedule.assign(fold.state, [Wish(W1, 5)], now=LeaseTime(0))
    scheduled, leased = entries
    assert isinstance(scheduled, PlansScheduled)
    assert isinstance(leased, PlansLeased)
    assert [g.plan for g in leased.grants] == [PlanId(before + 1, 0), PlanId(before + 1, 1)]
    effects = [effect for entry in entries for effect in fold.put(entry)]
    tokens = {effect.token.index for effect in effects if isinstance(effect, Leased)}
    assert tokens == {before + 2}


def test_capacity_is_shared_in_the_order_of_asking() -> None:
    fold = Fold()
    add(fold, *range(12))
    wishes = [Wish(W1, 1), Wish(WorkerId("w2"), 2), Wish(WorkerId("w3"), 0)]
    entries = schedule.assign(fold.state, wishes, now=LeaseTime(0))
    workers = [e.worker for entry in entries for e in fold.put(entry) if isinstance(e, Leased)]
    assert workers == ["w1", "w2", "w2"]


def test_nobody_wants_anything() -> None:
    fold = Fold()
    add(fold, *range(12))
    assert schedule.assign(fold.state, [Wish(W1, 0)], now=LeaseTime(0)) == []


def test_an_expired_lease_is_handed_on_even_when_live_leases_come_before_it() -> None:
    fold = Fold()
    add(fold, 1, 2, 3)
    (first,) = hand_out(fold)
    fold.now += 16 * SECOND_NS
    add(fold, 4, 5, 6)
    hand_out(fold, 1, WorkerId("w2"))  # takes the expired one again
    again = hand_out(fold, 1, WorkerId("w3"))
    assert fold.state.plans[first.plan].failures == 1
    assert again[0].plan != first.plan


def test_unassigned_plans_go_before_abandoned_ones_and_fewer_failures_before_more() -> None:
    fold = Fold()
    add(fold, *range(9))
    one, two, three = hand_out(fold)
    fold.put(PlanFailed(two.plan, two.token, "x", LeaseTime(0)))
    fold.now += 16 * SECOND_NS
    order = [plan.id for plan in schedule.waiting_plans(fold.state, LeaseTime(fold.now))]
    assert order == [two.plan, one.plan, three.plan]


def test_a_plan_at_its_limit_is_halved_until_the_bad_input_is_alone_and_then_excluded() -> None:
    fold = Fold()
    blocks = add(fold, 1, 2, 3)
    bad = blocks[2]
    for _ in range(40):
        for entry in schedule.set_aside(fold.state, LeaseTime(fold.now)):
            fold.put(entry)
        for lease in hand_out(fold):
            inputs = fold.metas(fold.state.plans[lease.plan].inputs)
            if any(meta.id == bad for meta in inputs):
                continue  # the worker dies and says nothing
            made = result(lease.plan, lease.token, inputs)
            fold.put(PlanCompleted(lease.plan, lease.token, made))
        fold.now += 16 * SECOND_NS
        if any(p.state is PlanState.EXCLUDED for p in fold.state.plans.values()):
            break
    (held,) = (p for p in fold.state.plans.values() if p.state is PlanState.EXCLUDED)
    assert held.inputs == (bad,)
    assert blocks[0] not in fold.live()
    assert blocks[1] not in fold.live()


def test_an_excluded_plan_is_probed_with_doubling_delay() -> None:
    fold = Fold(policy=msgspec.structs.replace(SMALL, failure_limit=1))
    add(fold, 1)
    fold.now += 11 * SECOND_NS
    delays = []
    for _ in range(3):
        assert len(hand_out(fold)) == 1
        fold.now += 16 * SECOND_NS
        (entry,) = schedule.set_aside(fold.state, LeaseTime(fold.now))
        assert isinstance(entry, PlanExcluded)
        fold.put(entry)
        delays.append(entry.eligible_at - fold.now)
        fold.now = entry.eligible_at - 1
        assert hand_out(fold) == []
        fold.now += 1
    assert delays == [SMALL.probe_ns, 2 * SMALL.probe_ns, 4 * SMALL.probe_ns]


def test_excluded_plans_are_probed_one_at_a_time() -> None:
    fold = Fold(policy=msgspec.structs.replace(SMALL, failure_limit=1))
    add(fold, 1)
    add(fold, 2, shard=2)
    fold.now += 11 * SECOND_NS
    assert len(hand_out(fold)) == 2
    fold.now += 16 * SECOND_NS
    for entry in schedule.set_aside(fold.state, LeaseTime(fold.now)):
        fold.put(entry)
    fold.now += 3600 * SECOND_NS
    assert len(hand_out(fold)) == 1
    assert hand_out(fold) == []


def test_what_was_set_aside_is_left_alone_until_it_is_probed() -> None:
    fold = Fold(policy=msgspec.structs.replace(SMALL, failure_limit=1))
    add(fold, 1, 2, 3)
    hand_out(fold)
    fold.now += 16 * SECOND_NS
    (entry,) = schedule.set_aside(fold.state, LeaseTime(fold.now))
    assert isinstance(entry, PlanBisected)
    fold.put(entry)
    assert schedule.set_aside(fold.state, LeaseTime(fold.now)) == []


def test_quarantine_is_never_queued_however_old() -> None:
    fold = Fold()
    meta = msgspec.structs.replace(segment(1), kind=Kind.QUARANTINE)
    fold.put(BlocksAdded((meta,)))
    fold.now += 10**15
    assert batches(fold) == []


def test_planning_stops_at_the_bound_of_plans() -> None:
    fold = Fold(policy=msgspec.structs.replace(SMALL, plans_max=2))
    add(fold, *range(12))
    assert len(hand_out(fold)) == 2
    assert hand_out(fold) == []


def test_at_the_bound_of_plans_none_is_divided_and_the_log_does_not_grow() -> None:
    fold = Fold(policy=msgspec.structs.replace(SMALL, plans_max=2, failure_limit=1))
    add(fold, *range(6))
    hand_out(fold)
    fold.now += 16 * SECOND_NS
    assert schedule.set_aside(fold.state, LeaseTime(fold.now)) == []
    fold.put(PolicySet(msgspec.structs.replace(SMALL, plans_max=3, failure_limit=1)))
    assert len(schedule.set_aside(fold.state, LeaseTime(fold.now))) == 1
