"""At its limit a plan is halved, excluded and probed; the number of attempts is bounded."""

from __future__ import annotations

import msgspec

from maar.metastore.decide import schedule
from maar.metastore.decide.schedule import Wish
from maar.metastore.records.effects import Refused
from maar.metastore.records.entries import (
    AttemptFenced,
    AttemptKey,
    Grant,
    LeftoversSwept,
    LimitRaised,
    PlanBisected,
    PlanExcluded,
    PlansLeased,
    PolicySet,
)
from maar.model.ids import PlanId
from maar.model.plan import PlanState
from maar.model.refusal import Refusal
from maar.model.time import SECOND_NS, LeaseTime
from support.metastore.fold import SMALL
from support.metastore.leader_term import W1, W2, W3, LeaderDecisions
from support.metastore.schedule_steps import leader_with, plans_of


def test_a_plan_at_its_limit_is_halved_until_the_bad_input_is_alone_and_then_excluded() -> None:
    leader_term = LeaderDecisions()
    blocks = leader_term.add(1, 2, 3)
    bad = blocks[2]
    for _ in range(40):
        for lease in leader_term.start_plans(W1, 10):
            if bad not in leader_term.plan(lease.plan).inputs:
                leader_term.complete(lease)  # else the worker dies and says nothing
        leader_term.wait(16)
        leader_term.set_aside()
        if any(p.state is PlanState.EXCLUDED for p in leader_term.fold.state.plans.values()):
            break
    (held,) = (p for p in leader_term.fold.state.plans.values() if p.state is PlanState.EXCLUDED)
    assert held.inputs == (bad,)
    assert blocks[0] not in leader_term.fold.live()
    assert blocks[1] not in leader_term.fold.live()


def test_an_excluded_plan_is_probed_with_doubling_delay() -> None:
    leader_term = leader_with(failure_limit=1)
    leader_term.add(1)
    leader_term.wait(11)
    delays = []
    for _ in range(3):
        assert len(leader_term.start_plans()) == 1
        leader_term.wait(16)
        (entry,) = leader_term.set_aside()
        assert isinstance(entry, PlanExcluded)
        delays.append(entry.eligible_at - leader_term.now)
        leader_term.fold.now = entry.eligible_at - 1
        assert leader_term.poll() == []
        leader_term.fold.now += 1
    assert delays == [SMALL.probe_ns, 2 * SMALL.probe_ns, 4 * SMALL.probe_ns]


def excluded(leader_term: LeaderDecisions, count: int) -> list[PlanId]:
    """Plans of one block each that are over their limit."""
    for n in range(count):
        leader_term.add(n, shard=n + 1)
    leader_term.wait(11)
    leases = leader_term.start_plans(W1, count)
    leader_term.wait(16)
    leader_term.set_aside()
    assert [leader_term.plan(lease.plan).state for lease in leases] == [PlanState.EXCLUDED] * count
    return plans_of(leases)


def test_excluded_plans_are_probed_one_at_a_time() -> None:
    leader_term = leader_with(failure_limit=1)
    plans = excluded(leader_term, 3)
    leader_term.wait(3600)
    probed = []
    for _ in range(3):
        (lease,) = leader_term.hand_out(Wish(W1, 5), Wish(W2, 5))
        assert leader_term.hand_out(Wish(W1, 5), Wish(W2, 5)) == []
        probed.append(lease.plan)
        leader_term.complete(lease)
    assert sorted(probed) == plans


def test_a_probe_that_was_not_its_own_failure_comes_again_after_the_same_delay() -> None:
    leader_term = leader_with(failure_limit=1)
    (plan,) = excluded(leader_term, 1)
    for _ in range(3):
        leader_term.fold.now = leader_term.plan(plan).eligible_at
        (lease,) = leader_term.start_plans()
        leader_term.fail(lease, own=False)
        (entry,) = leader_term.set_aside()
        assert isinstance(entry, PlanExcluded)
        assert entry.eligible_at - leader_term.now == SMALL.probe_ns


def test_what_was_set_aside_is_left_alone_until_it_is_probed() -> None:
    leader_term = leader_with(failure_limit=1)
    leader_term.add(1, 2, 3)
    leader_term.start_plans()
    leader_term.wait(16)
    (entry,) = leader_term.set_aside()
    assert isinstance(entry, PlanBisected)
    assert leader_term.set_aside() == []


def test_planning_stops_at_the_bound_of_plans() -> None:
    leader_term = leader_with(plans_max=2)
    leader_term.add(*range(12))
    assert len(leader_term.poll(W1, 10)) == 2
    assert leader_term.poll(W1, 10) == []


def test_at_the_bound_of_plans_the_whole_is_excluded_and_divided_when_there_is_room() -> None:
    leader_term = leader_with(plans_max=2, failure_limit=1)
    leader_term.add(*range(6))
    leases = leader_term.start_plans(W1, 2)
    leader_term.wait(16)
    assert [type(entry) for entry in leader_term.set_aside()] == [PlanExcluded, PlanExcluded]
    assert leader_term.set_aside() == []
    roomy = msgspec.structs.replace(SMALL, plans_max=3, failure_limit=1)
    leader_term.fold.put(PolicySet(roomy))
    leader_term.pass_rest()
    (probe,) = leader_term.start_plans()
    leader_term.wait(16)
    (entry,) = leader_term.set_aside()
    assert isinstance(entry, PlanBisected)
    assert entry.plan == probe.plan == leases[0].plan


def test_a_flood_of_plans_at_their_limit_is_set_aside_in_bounded_steps() -> None:
    leader_term = leader_with(failure_limit=1)
    for n in range(150):
        leader_term.add(n, shard=n + 1)
    leader_term.wait(11)
    rounds = [len(leader_term.start_plans(W1, 150)) for _ in range(3)]
    assert rounds == [schedule.GRANTED_AT_ONCE] * 2 + [150 - 2 * schedule.GRANTED_AT_ONCE]
    leader_term.wait(16)
    assert [len(leader_term.set_aside()) for _ in range(3)] == [schedule.SET_ASIDE_AT_ONCE, 50, 0]


def test_while_the_limit_is_raised_excluded_plans_are_tried_again_without_rest() -> None:
    leader_term = leader_with(failure_limit=1)
    plans = excluded(leader_term, 3)
    assert leader_term.poll(W2, 5) == []
    leader_term.fold.put(LimitRaised(3, LeaseTime(leader_term.now + 60 * SECOND_NS)))
    tried = leader_term.hand_out(Wish(W2, 5), Wish(W3, 5))
    assert plans_of(tried) == plans[:2]  # each alone on a worker
    leader_term.fail(tried[0])
    assert leader_term.set_aside() == []  # two failures of three
    leader_term.complete(tried[1])
    (third,) = leader_term.poll(W3)
    assert third.plan == plans[2]


def test_when_the_raise_is_over_the_limit_of_the_plan_is_in_force_again() -> None:
    leader_term = leader_with(failure_limit=1)
    (plan,) = excluded(leader_term, 1)
    leader_term.fold.put(LimitRaised(9, LeaseTime(leader_term.now + 5 * SECOND_NS)))
    (lease,) = leader_term.start_plans(W2)
    leader_term.fail(lease)
    leader_term.wait(5)
    assert leader_term.set_aside() == []
    leader_term.wait(0.001)
    (entry,) = leader_term.set_aside()
    assert isinstance(entry, PlanExcluded)
    assert leader_term.plan(plan).failures == 2
    early = Grant(plan, W1, LeaseTime(leader_term.now + 9), None)
    assert leader_term.fold.put(PlansLeased((early,))) == (Refused(Refusal.NOT_ELIGIBLE, plan),)


def test_no_attempt_begins_when_too_many_have_leftovers() -> None:
    leader_term = leader_with(leftovers_max=3)
    leader_term.add(*range(30))
    first, second = leader_term.poll(W1, 2)
    leader_term.complete(first)
    assert len(leader_term.fold.state.leftovers) == 1
    (third,) = leader_term.poll(W1, 5)
    assert leader_term.poll(W2, 5) == []
    spare = Grant(PlanId(0, 0), W2, LeaseTime(leader_term.now + 9), None)
    plan = next(p for p in leader_term.fold.state.plans.values() if p.lease).id
    leader_term.wait(16)
    seen = leader_term.plan(plan).lease
    assert seen is not None
    again = msgspec.structs.replace(spare, plan=plan, replaces=seen.token)
    assert leader_term.fold.put(PlansLeased((again,))) == (Refused(Refusal.TOO_MANY, plan),)
    leader_term.fold.put(LeftoversSwept(tuple(leader_term.fold.state.leftovers)))
    assert plans_of(leader_term.poll(W2, 1)) == [second.plan]
    assert third.plan != second.plan


def test_every_end_of_an_attempt_leaves_its_remains_to_be_looked_for() -> None:
    leader_term = LeaderDecisions()
    leader_term.add(*range(12))
    completed, failed, expired, fenced = leader_term.start_plans(W1, 4)
    leader_term.complete(completed)
    leader_term.fail(failed)
    leader_term.fold.put(AttemptFenced(fenced.plan, fenced.token, "by hand"))
    leader_term.wait(16)
    for worker in (W1, W2, W3):
        leader_term.poll(worker)
    left = leader_term.fold.state.leftovers
    ended = [completed, failed, fenced, expired]
    assert list(left) == [AttemptKey(lease.plan, lease.token) for lease in ended]
    assert [ended_attempt.completed for ended_attempt in left.values()] == [
        True,
        False,
        False,
        False,
    ]
