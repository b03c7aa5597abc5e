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
    LimitRaised,
    LitterSwept,
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
from support.metastore.leader_term import W1, W2, W3, Office
from support.metastore.schedule_steps import office_with, plans_of


def test_a_plan_at_its_limit_is_halved_until_the_bad_input_is_alone_and_then_excluded() -> None:
    office = Office()
    blocks = office.add(1, 2, 3)
    bad = blocks[2]
    for _ in range(40):
        for lease in office.begun(W1, 10):
            if bad not in office.plan(lease.plan).inputs:
                office.complete(lease)  # else the worker dies and says nothing
        office.wait(16)
        office.set_aside()
        if any(p.state is PlanState.EXCLUDED for p in office.fold.state.plans.values()):
            break
    (held,) = (p for p in office.fold.state.plans.values() if p.state is PlanState.EXCLUDED)
    assert held.inputs == (bad,)
    assert blocks[0] not in office.fold.live()
    assert blocks[1] not in office.fold.live()


def test_an_excluded_plan_is_probed_with_doubling_delay() -> None:
    office = office_with(failure_limit=1)
    office.add(1)
    office.wait(11)
    delays = []
    for _ in range(3):
        assert len(office.begun()) == 1
        office.wait(16)
        (entry,) = office.set_aside()
        assert isinstance(entry, PlanExcluded)
        delays.append(entry.eligible_at - office.now)
        office.fold.now = entry.eligible_at - 1
        assert office.poll() == []
        office.fold.now += 1
    assert delays == [SMALL.probe_ns, 2 * SMALL.probe_ns, 4 * SMALL.probe_ns]


def excluded(office: Office, count: int) -> list[PlanId]:
    """Plans of one block each that are over their limit."""
    for n in range(count):
        office.add(n, shard=n + 1)
    office.wait(11)
    leases = office.begun(W1, count)
    office.wait(16)
    office.set_aside()
    assert [office.plan(lease.plan).state for lease in leases] == [PlanState.EXCLUDED] * count
    return plans_of(leases)


def test_excluded_plans_are_probed_one_at_a_time() -> None:
    office = office_with(failure_limit=1)
    plans = excluded(office, 3)
    office.wait(3600)
    probed = []
    for _ in range(3):
        (lease,) = office.hand_out(Wish(W1, 5), Wish(W2, 5))
        assert office.hand_out(Wish(W1, 5), Wish(W2, 5)) == []
        probed.append(lease.plan)
        office.complete(lease)
    assert sorted(probed) == plans


def test_a_probe_that_was_not_its_own_failure_comes_again_after_the_same_delay() -> None:
    office = office_with(failure_limit=1)
    (plan,) = excluded(office, 1)
    for _ in range(3):
        office.fold.now = office.plan(plan).eligible_at
        (lease,) = office.begun()
        office.fail(lease, own=False)
        (entry,) = office.set_aside()
        assert isinstance(entry, PlanExcluded)
        assert entry.eligible_at - office.now == SMALL.probe_ns


def test_what_was_set_aside_is_left_alone_until_it_is_probed() -> None:
    office = office_with(failure_limit=1)
    office.add(1, 2, 3)
    office.begun()
    office.wait(16)
    (entry,) = office.set_aside()
    assert isinstance(entry, PlanBisected)
    assert office.set_aside() == []


def test_planning_stops_at_the_bound_of_plans() -> None:
    office = office_with(plans_max=2)
    office.add(*range(12))
    assert len(office.poll(W1, 10)) == 2
    assert office.poll(W1, 10) == []


def test_at_the_bound_of_plans_the_whole_is_excluded_and_divided_when_there_is_room() -> None:
    office = office_with(plans_max=2, failure_limit=1)
    office.add(*range(6))
    leases = office.begun(W1, 2)
    office.wait(16)
    assert [type(entry) for entry in office.set_aside()] == [PlanExcluded, PlanExcluded]
    assert office.set_aside() == []
    roomy = msgspec.structs.replace(SMALL, plans_max=3, failure_limit=1)
    office.fold.put(PolicySet(roomy))
    office.rested()
    (probe,) = office.begun()
    office.wait(16)
    (entry,) = office.set_aside()
    assert isinstance(entry, PlanBisected)
    assert entry.plan == probe.plan == leases[0].plan


def test_a_flood_of_plans_at_their_limit_is_set_aside_in_bounded_steps() -> None:
    office = office_with(failure_limit=1)
    for n in range(150):
        office.add(n, shard=n + 1)
    office.wait(11)
    rounds = [len(office.begun(W1, 150)) for _ in range(3)]
    assert rounds == [schedule.GRANTED_AT_ONCE] * 2 + [150 - 2 * schedule.GRANTED_AT_ONCE]
    office.wait(16)
    assert [len(office.set_aside()) for _ in range(3)] == [schedule.SET_ASIDE_AT_ONCE, 50, 0]


def test_while_the_limit_is_raised_excluded_plans_are_tried_again_without_rest() -> None:
    office = office_with(failure_limit=1)
    plans = excluded(office, 3)
    assert office.poll(W2, 5) == []
    office.fold.put(LimitRaised(3, LeaseTime(office.now + 60 * SECOND_NS)))
    tried = office.hand_out(Wish(W2, 5), Wish(W3, 5))
    assert plans_of(tried) == plans[:2]  # each alone on a worker
    office.fail(tried[0])
    assert office.set_aside() == []  # two failures of three
    office.complete(tried[1])
    (third,) = office.poll(W3)
    assert third.plan == plans[2]


def test_when_the_raise_is_over_the_limit_of_the_plan_is_in_force_again() -> None:
    office = office_with(failure_limit=1)
    (plan,) = excluded(office, 1)
    office.fold.put(LimitRaised(9, LeaseTime(office.now + 5 * SECOND_NS)))
    (lease,) = office.begun(W2)
    office.fail(lease)
    office.wait(5)
    assert office.set_aside() == []
    office.wait(0.001)
    (entry,) = office.set_aside()
    assert isinstance(entry, PlanExcluded)
    assert office.plan(plan).failures == 2
    early = Grant(plan, W1, LeaseTime(office.now + 9), None)
    assert office.fold.put(PlansLeased((early,))) == (Refused(Refusal.NOT_ELIGIBLE, plan),)


def test_no_attempt_begins_when_too_many_have_left_litter() -> None:
    office = office_with(litter_max=3)
    office.add(*range(30))
    first, second = office.poll(W1, 2)
    office.complete(first)
    assert len(office.fold.state.litter) == 1
    (third,) = office.poll(W1, 5)
    assert office.poll(W2, 5) == []
    spare = Grant(PlanId(0, 0), W2, LeaseTime(office.now + 9), None)
    plan = next(p for p in office.fold.state.plans.values() if p.lease).id
    office.wait(16)
    seen = office.plan(plan).lease
    assert seen is not None
    again = msgspec.structs.replace(spare, plan=plan, replaces=seen.token)
    assert office.fold.put(PlansLeased((again,))) == (Refused(Refusal.TOO_MANY, plan),)
    office.fold.put(LitterSwept(tuple(office.fold.state.litter)))
    assert plans_of(office.poll(W2, 1)) == [second.plan]
    assert third.plan != second.plan


def test_every_end_of_an_attempt_leaves_its_remains_to_be_looked_for() -> None:
    office = Office()
    office.add(*range(12))
    completed, failed, expired, fenced = office.begun(W1, 4)
    office.complete(completed)
    office.fail(failed)
    office.fold.put(AttemptFenced(fenced.plan, fenced.token, "by hand"))
    office.wait(16)
    for worker in (W1, W2, W3):
        office.poll(worker)
    left = office.fold.state.litter
    ended = [completed, failed, fenced, expired]
    assert list(left) == [AttemptKey(lease.plan, lease.token) for lease in ended]
    assert [remnant.completed for remnant in left.values()] == [True, False, False, False]
