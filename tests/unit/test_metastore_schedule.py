"""Who gets which plan in a round: small jobs first, shares for every level, nobody never."""

from __future__ import annotations

import pytest

from maar.metastore.decide import schedule
from maar.metastore.decide.schedule import Wish
from maar.metastore.decide.verdict import ALWAYS
from maar.metastore.records.effects import AttemptEnded, Leased
from maar.metastore.records.entries import (
    PlanFailed,
    PlansLeased,
    PlansScheduled,
)
from maar.model.block import BlockMeta
from maar.model.ids import PlanId, WorkerId
from maar.model.policy import Policy
from maar.model.time import SECOND_NS, LeaseTime
from maar.services.kinds import PlanLine
from support.metastore.fold import SMALL, Fold
from support.metastore.leader_term import W1, W2, W3, LeaderDecisions
from support.metastore.schedule_steps import leader_with, plans_of

# ── a round ────────────────────────────────────────────────────────────────────────────────────


def test_one_poll_plans_and_leases_with_ids_of_the_entry_that_scheduled() -> None:
    leader_term = LeaderDecisions()
    leader_term.add(1, 2, 3, 4, 5, 6)
    before = leader_term.fold.state.index
    entries = schedule.assign(leader_term.fold.state, [Wish(W1, 5)], now=LeaseTime(0))
    scheduled, leased = entries
    assert isinstance(scheduled, PlansScheduled)
    assert isinstance(leased, PlansLeased)
    assert [g.plan for g in leased.grants] == [PlanId(before + 1, 0), PlanId(before + 1, 1)]
    tokens = {
        effect.token.index for effect in leader_term.put(entries) if isinstance(effect, Leased)
    }
    assert tokens == {before + 2}


def test_as_many_plans_are_made_as_there_are_free_slots() -> None:
    leader_term = LeaderDecisions()
    leader_term.add(*range(30))
    assert len(leader_term.poll(W1, 4)) == 4
    assert len(leader_term.fold.state.plans) == 4


def test_capacity_is_shared_in_the_order_of_asking() -> None:
    leader_term = LeaderDecisions()
    leader_term.add(*range(12))
    leases = leader_term.hand_out(Wish(W1, 1), Wish(W2, 2), Wish(W3, 0))
    assert [lease.worker for lease in leases] == [W1, W2, W2]


def test_two_wishes_of_one_worker_are_one() -> None:
    leader_term = LeaderDecisions()
    leader_term.add(*range(12))
    assert len(leader_term.hand_out(Wish(W1, 1), Wish(W1, 2))) == 3


@pytest.mark.parametrize("capacity", [0, -5])
def test_nobody_wants_anything(capacity: int) -> None:
    leader_term = LeaderDecisions()
    leader_term.add(*range(12))
    assert leader_term.poll(W1, capacity) == []
    assert len(leader_term.fold.state.plans) == 0


def test_small_jobs_go_first_whether_they_wait_or_are_still_to_be_planned() -> None:
    leader_term = LeaderDecisions()
    leader_term.add(*range(6))
    for lease in leader_term.poll(W1, 2):
        leader_term.complete(lease)
    (large,) = leader_term.poll(W1, 1)
    assert leader_term.plan(large.plan).key.level == 1
    leader_term.wait(16)  # abandoned before it began
    leader_term.add(*range(10, 16))
    small = leader_term.poll(W2, 3)
    assert [leader_term.plan(lease.plan).key.level for lease in small] == [0, 0, 1]
    assert small[2].plan == large.plan


def test_an_expired_lease_is_handed_on_even_when_live_leases_come_before_it() -> None:
    leader_term = LeaderDecisions()
    leader_term.add(1, 2, 3, 4, 5, 6)
    first, second = leader_term.poll(W1, 2)
    leader_term.wait(10)
    leader_term.renew(first)
    leader_term.wait(6)
    (again,) = leader_term.poll(W2, 5)
    assert again.plan == second.plan
    assert again.token > second.token


def test_a_lease_has_expired_when_time_exceeds_it_and_not_before() -> None:
    leader_term = LeaderDecisions()
    leader_term.add(1, 2, 3)
    (lease,) = leader_term.start_plans()
    leader_term.fold.now += SMALL.lease_ns
    assert schedule.assign(leader_term.fold.state, [Wish(W2, 1)], now=leader_term.now) == []
    assert len(leader_term.fold.state.plans.work_of(W1, leader_term.now)) == 1
    leader_term.fold.now += 1
    assert leader_term.fold.state.plans.work_of(W1, leader_term.now) == []
    assert plans_of(leader_term.poll(W2)) == [lease.plan]


def test_the_order_among_plans_that_wait() -> None:
    """Unassigned before abandoned; fewer failures; longest since; order of planning."""
    leader_term = leader_with(failure_limit=9)
    leader_term.add(*range(18))
    a, b, c, d, e, f = leader_term.start_plans(W1, 6)
    leader_term.put([PlanFailed(c.plan, c.token, "x", LeaseTime(0), counts_as_failure=False)])
    leader_term.put([PlanFailed(f.plan, f.token, "x", LeaseTime(0), counts_as_failure=False)])
    for lease in (d, e):
        leader_term.put([PlanFailed(lease.plan, lease.token, "x", LeaseTime(0))])
    (again,) = leader_term.start_plans(W2, 1)  # fails a second time
    assert again.plan == c.plan
    leader_term.put([PlanFailed(c.plan, again.token, "x", LeaseTime(0), counts_as_failure=False)])
    leader_term.wait(1)
    leader_term.renew(a)
    leader_term.wait(16)
    state, now = leader_term.fold.state, leader_term.now
    healthy = schedule.healthy(state, PlanLine(0, 0), now=now, hearing_since=now)
    assert [plan.id for plan in healthy] == plans_of([c, f, b, a])  # b's lease ended sooner
    failing = schedule.failing(state, PlanLine(0, 0), now=now, hearing_since=ALWAYS)
    assert [plan.id for plan in failing] == plans_of([d, e, b, a])


def test_a_plan_that_reported_a_failure_rests_first() -> None:
    leader_term = LeaderDecisions()
    leader_term.add(1, 2, 3)
    (lease,) = leader_term.start_plans()
    leader_term.fail(lease)
    assert leader_term.poll(W2) == []
    leader_term.wait(SMALL.retry_ns / SECOND_NS)
    assert plans_of(leader_term.poll(W2)) == [lease.plan]


# ── shares ─────────────────────────────────────────────────────────────────────────────────────


def backlog_on_all_levels(leader_term: LeaderDecisions) -> None:
    """Work for hours on level 0, and some on 1 and 2."""
    leader_term.add(*range(36))
    for level in (0, 1):
        for lease in leader_term.poll(W1, 12 >> level):
            assert leader_term.plan(lease.plan).key.level == level
            leader_term.complete(lease)
    leader_term.add(*range(100, 130), shard=2)
    for lease in leader_term.poll(W1, 10):
        leader_term.complete(lease)
    leader_term.add(*range(1000, 1600), shard=3)
    leader_term.worker_registry.turns.clear()


@pytest.mark.parametrize("slots", [1, 3, 16])
def test_higher_levels_get_their_share_however_many_slots_there_are(slots: int) -> None:
    leader_term = LeaderDecisions()
    backlog_on_all_levels(leader_term)
    levels: list[int] = []
    while len(levels) < 32:
        for lease in leader_term.poll(W1, slots):
            levels.append(leader_term.plan(lease.plan).key.level)
            leader_term.complete(lease)
    assert set(levels[:9]) == {0, 1, 2}
    assert levels.count(1) >= 2
    assert levels.count(2) >= 2
    assert levels.count(0) > len(levels) / 2


def test_plans_that_failed_do_not_hold_up_the_healthy_ones_nor_the_other_way_round() -> None:
    """One slot; twenty plans that always fail, and enough work for hours."""
    leader_term = leader_with(failure_limit=99)
    for n in range(20):
        leader_term.add(*range(1000 + 3 * n, 1003 + 3 * n), shard=7)
    bad = set(plans_of(leases := leader_term.start_plans(W1, 20)))
    for lease in leases:
        leader_term.fail(lease)
    leader_term.pass_rest()
    leader_term.add(*range(600))
    given = []
    for _ in range(80):
        (lease,) = leader_term.start_plans(W1, 1)
        given.append(lease.plan in bad)
        if lease.plan in bad:
            leader_term.fail(lease)
        else:
            leader_term.complete(lease)
        leader_term.wait(1)
    for start in range(64):
        window = given[start : start + 10]
        assert any(window)
        assert sum(window) <= 2


# ── nothing starves ────────────────────────────────────────────────────────────────────────────


HOUR_POLICY = Policy(levels=SMALL.levels, failure_limit=3, plans_max=60, parked_max=40)


def test_an_hour_in_which_one_plan_in_five_fails_starves_nobody() -> None:
    """Three workers of different sizes; shard 5 is poison, and a worker dies now and then."""
    leader_term = LeaderDecisions(Fold(policy=HOUR_POLICY))
    slots = {W1: 1, W2: 1, W3: 2}
    running: dict[WorkerId, list[Leased]] = {worker: [] for worker in slots}
    number = 0
    waited_most = 0.0
    for second in range(3600):
        if second % 2 == 0:
            for shard in range(1, 6):
                if shard != 5 or second % 60 == 0:
                    leader_term.add(number, shard=shard)
                    number += 1
        for worker, leases in running.items():
            step(leader_term, leases, second, dies=worker == W3 and second % 600 == 599)
            leases += leader_term.start_plans(worker, slots[worker] - len(leases))
        leader_term.keep_house()
        leader_term.wait(1)
        waited_most = max(waited_most, oldest_healthy_s(leader_term))
        assert len(leader_term.fold.state.plans) <= HOUR_POLICY.plans_max
    state = leader_term.fold.state
    held = [p for p in [*state.plans.values(), *state.parked.values()] if p.key.shard == 5]
    assert waited_most < 60  # lanes close after 10, 20 and 40 s
    assert all(p.attempts for p in held)
    tried = [p.attempts[-1].granted_at for p in state.plans.values() if p.key.shard == 5]
    assert leader_term.now - max(tried) < 120 * SECOND_NS  # the bad ones are tried all the time
    assert max(meta.level for meta in metas(leader_term)) == 3


def step(leader_term: LeaderDecisions, leases: list[Leased], second: int, *, dies: bool) -> None:
    """Work of two seconds, or a failure, or the end of a worker that says nothing."""
    if dies:
        leases.clear()
    for lease in list(leases):
        if leader_term.plan(lease.plan).key.shard == 5:
            leases.remove(lease)
            assert isinstance(leader_term.fail(lease, cause="poison")[0], AttemptEnded)
        elif (second + lease.plan.index) % 2 == 0:
            leases.remove(lease)
            leader_term.complete(lease)
        else:
            leader_term.renew(lease)


def oldest_healthy_s(leader_term: LeaderDecisions) -> float:
    """How long the oldest block that is queued, and not poison, has waited after its time."""
    queue, found = leader_term.fold.state.queue, [0.0]
    for level, fronts in queue.fronts.items():
        rule = HOUR_POLICY.levels[level]
        front = next((f for f in fronts if f.key.shard != 5), None)
        if front:
            found.append((leader_term.now - front.added_at - rule.age_ns) / SECOND_NS)
    return max(found)


def metas(leader_term: LeaderDecisions) -> list[BlockMeta]:
    return [leader_term.fold.state.blocks.get(block) for block in leader_term.fold.live()]
