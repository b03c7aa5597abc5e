"""A full schedule parks what failed, visibly; it returns by itself, or when an operator says so."""

from __future__ import annotations

import msgspec
import pytest

from maar.metastore.decide import operator_commands, schedule
from maar.metastore.fold import parking
from maar.metastore.fold import plan as plans
from maar.metastore.records.effects import (
    AttemptEnded,
    Cancelled,
    Leased,
    Parked,
    Refused,
    Requeued,
    Unparked,
)
from maar.metastore.records.entries import (
    Grant,
    LimitRaised,
    PlanExcluded,
    PlanFailed,
    PlanRequeued,
    PlansLeased,
    PlansParked,
    PlansUnparked,
)
from maar.metastore.state.timeline import NEVER
from maar.model.errors import InvalidInput, NotFound, Rejected
from maar.model.ids import PlanId
from maar.model.plan import AttemptEnd, PlanState
from maar.model.refusal import Refusal
from maar.model.time import SECOND_NS, LeaseTime
from support.metastore.fold import SMALL, Fold
from support.metastore.leader_term import W1, W2, Office


def office_with(**numbers: int) -> Office:
    return Office(Fold(policy=msgspec.structs.replace(SMALL, **numbers)))


def running(office: Office, count: int, first: int = 0) -> list[Leased]:
    """Plans of one block each, on shards of their own."""
    for n in range(first, first + count):
        office.add(n, shard=n + 1)
    office.wait(11)
    return office.begun(W1, count)


def fail_often(office: Office, lease: Leased, count: int) -> None:
    """So many failures of its own, and no rest."""
    token = lease.token
    for _ in range(count):
        office.put([PlanFailed(lease.plan, token, "x", LeaseTime(0))])
        again = Grant(lease.plan, W1, LeaseTime(office.now + SMALL.lease_ns))
        (leased,) = office.put([PlansLeased((again,))])
        assert isinstance(leased, Leased)
        token = leased.token
    office.put([PlanFailed(lease.plan, token, "x", LeaseTime(0), counts=False)])


def full_of_excluded(count: int = 3, **numbers: int) -> tuple[Office, list[PlanId]]:
    policy = {"plans_max": count, "failure_limit": 1, **numbers}
    office = office_with(**policy)
    leases = running(office, count)
    for lease in leases:
        office.fail(lease)
    office.set_aside()
    return office, [lease.plan for lease in leases]


def parked_one() -> tuple[Office, PlanId]:
    """Of three excluded plans in a full schedule, the oldest is parked for a fourth."""
    office, excluded = full_of_excluded()
    (new,) = running(office, 1, first=50)
    assert list(office.fold.state.parked) == excluded[:1]
    assert new.plan in office.fold.state.plans
    return office, excluded[0]


# ── eviction ───────────────────────────────────────────────────────────────────────────────────


def test_a_full_schedule_makes_room_for_a_new_plan_by_parking_one_that_failed() -> None:
    office, plan = parked_one()
    held = office.plan(plan)
    assert held.state is PlanState.PARKED
    assert office.fold.state.owners[held.inputs[0]] == plan
    assert held.inputs[0] in office.fold.live()
    assert held.inputs[0] not in office.fold.state.queue
    assert len(office.fold.state.plans) == 3


def test_nothing_is_parked_when_nothing_new_is_wanted() -> None:
    office, _ = full_of_excluded()
    assert office.poll(W1, 5) == []
    assert office.fold.state.parked == {}


def test_nothing_is_parked_while_there_is_room() -> None:
    office = office_with(plans_max=4, failure_limit=1)
    for lease in running(office, 3):
        office.fail(lease)
    office.set_aside()
    assert len(running(office, 3, first=50)) == 1  # one fits, and the rest waits for its turn
    assert office.fold.state.parked == {}


def test_a_schedule_full_of_healthy_plans_parks_nothing_and_new_ones_wait() -> None:
    office = office_with(plans_max=3)
    leases = running(office, 3)
    office.add(50, shard=51)
    office.wait(11)
    for lease in leases:
        office.renew(lease)
    assert office.poll(W2, 5) == []
    office.fail(leases[0], own=False)  # not its own: it is healthy still
    assert office.poll(W2, 5) == []
    assert office.fold.state.parked == {}
    assert office.fold.state.queue.queued == 1


def test_who_leaves_first_is_excluded_then_failed_most_often_then_oldest() -> None:
    office = office_with(plans_max=6, failure_limit=9)
    leases = running(office, 6)
    for lease, count in zip(leases, (1, 2, 0, 2), strict=False):
        fail_often(office, lease, count)
    a, b, _, d, e, _ = (lease.plan for lease in leases)
    office.put(operator_commands.exclude(office.fold.state, e, note="by hand"))
    assert parking.evicted(office.fold.state, 9, spare=()) == (e, b, d, a)
    assert parking.evicted(office.fold.state, 2, spare=(e,)) == (b, d)


def test_a_plan_that_is_handed_out_is_not_parked_in_the_same_breath() -> None:
    office, excluded = full_of_excluded()
    office.add(50, shard=51)
    office.wait(3600)  # every probe is due
    leases = office.begun(W2, 5)
    assert leases[0].plan not in excluded
    probed = office.begun(W1, 5)
    assert [lease.plan in excluded for lease in probed] == [True]
    assert probed[0].plan not in office.fold.state.parked


def test_when_the_parked_list_is_full_too_new_plans_wait() -> None:
    office, _ = full_of_excluded(parked_max=1)
    assert len(running(office, 3, first=50)) == 1
    assert len(office.fold.state.parked) == 1
    assert office.poll(W2, 5) == []
    assert office.fold.state.queue.queued == 2


@pytest.mark.parametrize("why", ["healthy", "leased", "room", "parked_max", "unknown"])
def test_the_fold_parks_only_what_it_may(why: str) -> None:
    office, excluded = full_of_excluded(parked_max=0 if why == "parked_max" else 9)
    plan, refusal = excluded[0], Refusal.NOT_FAILED
    if why == "healthy":
        office.fold.put(PlanRequeued(plan))
    elif why == "leased":
        office.wait(3600)
        (probe,) = office.begun(W2)
        plan = probe.plan
        office.wait(16)  # also when its lease has expired: somebody may still be at it
    elif why == "room":
        plans.cancel(office.fold.state, excluded[1], gone=frozenset(), cause="x")
        refusal = Refusal.OUTDATED
    elif why == "parked_max":
        refusal = Refusal.TOO_MANY
    else:
        plan, refusal = PlanId(0, 0), Refusal.UNKNOWN_PLAN
    assert office.fold.put(PlansParked((plan,))) == (Refused(refusal, plan),)
    assert office.fold.state.parked == {}


def test_a_late_report_for_a_parked_plan_is_stale() -> None:
    office, plan = parked_one()
    token = office.plan(plan).attempts[-1].token
    refused = Refused(Refusal.STALE_TOKEN, plan, token)
    assert office.put([PlanFailed(plan, token, "late", LeaseTime(0))]) == [refused]


# ── coming back ────────────────────────────────────────────────────────────────────────────────


def test_parked_plans_return_by_themselves_when_the_schedule_is_half_empty() -> None:
    office, excluded = full_of_excluded(4)
    for lease in running(office, 2, first=50):
        office.complete(lease)
    assert list(office.fold.state.parked) == excluded[:2]
    assert not any(isinstance(e, PlansUnparked) for e in office.keep_house())
    plans.cancel(office.fold.state, excluded[3], gone=frozenset(), cause="x")
    assert office.keep_house()[0] == PlansUnparked(tuple(excluded[:1]))
    assert [*office.fold.state.parked] == excluded[1:2]
    back = office.plan(excluded[0])
    assert back.state is PlanState.EXCLUDED
    assert back.failures == 1
    office.wait(3600)
    assert len(office.begun(W2)) == 1


def test_a_parked_plan_comes_back_as_it_left() -> None:
    office = office_with(plans_max=3, failure_limit=9)
    hand, failed, other = running(office, 3)
    fail_often(office, failed, 2)
    office.put(operator_commands.exclude(office.fold.state, hand.plan, note="by hand"))
    before = [office.plan(lease.plan) for lease in (hand, failed)]
    entry = PlansParked((hand.plan, failed.plan))
    assert office.put([entry]) == [Parked(hand.plan), Parked(failed.plan)]
    back = PlansUnparked((hand.plan, failed.plan))
    assert office.put([back]) == [Unparked(hand.plan), Unparked(failed.plan)]
    assert [office.plan(lease.plan) for lease in (hand, failed)] == before
    assert office.put([back])[0] == Refused(Refusal.UNKNOWN_PLAN, hand.plan)
    assert office.plan(other.plan).lease is not None


def test_a_parked_plan_does_not_return_into_a_full_schedule() -> None:
    office, plan = parked_one()
    assert office.put([PlansUnparked((plan,))]) == [Refused(Refusal.TOO_MANY, plan)]
    assert office.put([PlanRequeued(plan)]) == [Refused(Refusal.TOO_MANY, plan)]


# ── an operator's orders ───────────────────────────────────────────────────────────────────────


def requeue(office: Office, plan: PlanId) -> object:
    effects = office.put(operator_commands.requeue(office.fold.state, plan))
    return operator_commands.ordered(effects, office.fold.state, plan)


def exclude(office: Office, plan: PlanId, note: str = "known to be bad") -> object:
    effects = office.put(operator_commands.exclude(office.fold.state, plan, note=note))
    return operator_commands.ordered(effects, office.fold.state, plan)


def test_an_excluded_plan_that_is_requeued_begins_anew_at_once() -> None:
    office, excluded = full_of_excluded()
    plan = excluded[2]
    assert requeue(office, plan) == office.plan(plan)
    anew = office.plan(plan)
    assert (anew.state, anew.failures, anew.spared) == (PlanState.REQUESTED, 0, 0)
    assert (anew.eligible_at, anew.note) == (0, "")
    assert [lease.plan for lease in office.poll(W2, 5)] == [plan]


def test_a_parked_plan_is_requeued_when_there_is_room_and_refused_when_not() -> None:
    office, plan = parked_one()
    with pytest.raises(Rejected, match="bound"):
        requeue(office, plan)
    other = next(iter(office.fold.state.plans))
    plans.cancel(office.fold.state, other, gone=frozenset(), cause="x")
    effects = office.put(operator_commands.requeue(office.fold.state, plan))
    assert effects == [Requeued(plan)]
    assert office.plan(plan).state is PlanState.REQUESTED
    assert office.fold.state.parked == {}


def test_only_what_was_set_aside_is_requeued() -> None:
    office = Office()
    (lease,) = running(office, 1)
    with pytest.raises(Rejected, match="inflight"):
        requeue(office, lease.plan)
    assert office.put([PlanRequeued(lease.plan)]) == [Refused(Refusal.NOT_SET_ASIDE, lease.plan)]
    office.complete(lease)
    with pytest.raises(Rejected, match="completed: it has ended"):
        requeue(office, lease.plan)
    with pytest.raises(NotFound):
        requeue(office, PlanId(0, 0))
    assert office.put([PlanRequeued(PlanId(0, 0))])[0] == Refused(
        Refusal.UNKNOWN_PLAN, PlanId(0, 0)
    )


def test_a_plan_excluded_by_hand_is_fenced_and_never_probed() -> None:
    office = Office()
    (lease,) = running(office, 1)
    exclude(office, lease.plan, "  known to be bad ")
    held = office.plan(lease.plan)
    assert (held.state, held.note, held.failures) == (PlanState.EXCLUDED, "known to be bad", 0)
    assert held.eligible_at == NEVER
    assert held.attempts[-1].end is AttemptEnd.FENCED
    assert not held.attempts[-1].counted
    assert isinstance(office.complete(lease)[0], Refused)
    office.wait(10**9)
    assert office.poll(W2, 5) == []
    office.fold.put(LimitRaised(99, LeaseTime(office.now + SECOND_NS)))
    assert schedule.assign(office.fold.state, [schedule.Wish(W2, 5)], now=office.now) == []
    forced = Grant(lease.plan, W2, LeaseTime(office.now + 9))
    assert office.put([PlansLeased((forced,))]) == [Refused(Refusal.NOT_ELIGIBLE, lease.plan)]
    requeue(office, lease.plan)
    assert [again.plan for again in office.poll(W2, 5)] == [lease.plan]


def test_an_order_that_was_overtaken_is_refused() -> None:
    office = Office()
    (lease,) = running(office, 1)
    late = operator_commands.exclude(office.fold.state, lease.plan, note="x")
    office.fail(lease)
    with pytest.raises(Rejected, match="moved on"):
        operator_commands.ordered(office.put(late), office.fold.state, lease.plan)
    assert office.plan(lease.plan).state is PlanState.REQUESTED


def test_the_leader_alone_cannot_end_a_live_lease_by_excluding() -> None:
    office = Office()
    (lease,) = running(office, 1)
    entry = PlanExcluded(lease.plan, lease.token, LeaseTime(office.now + 9))
    assert office.put([entry]) == [Refused(Refusal.LEASE_LIVE, lease.plan)]


def test_what_cannot_be_excluded_says_why() -> None:
    office, plan = parked_one()
    with pytest.raises(Rejected, match="parked"):
        exclude(office, plan)
    with pytest.raises(NotFound):
        exclude(office, PlanId(0, 0))
    other = next(iter(office.fold.state.plans))
    exclude(office, other, "")
    assert "no reason" in office.plan(other).note


def test_the_limit_is_raised_for_a_while_or_not_at_all() -> None:
    office = Office()
    state = office.fold.state
    (entry,) = operator_commands.raise_limit(state, 9, for_ns=5, now=LeaseTime(10))
    assert entry == LimitRaised(9, LeaseTime(15))
    office.put([entry])
    assert [state.raised_limit(LeaseTime(now)) for now in (15, 16)] == [9, 0]
    office.put(operator_commands.raise_limit(state, 0, for_ns=0, now=LeaseTime(12)))
    assert state.raised_limit(LeaseTime(12)) == 0
    for limit, for_ns in ((2, 5), (10**6, 5), (9, -1), (9, 10**18)):
        with pytest.raises(InvalidInput):
            operator_commands.raise_limit(state, limit, for_ns=for_ns, now=LeaseTime(0))


# ── cancelling ─────────────────────────────────────────────────────────────────────────────────


def test_a_cancelled_plan_is_fenced_and_its_other_inputs_return_to_their_place() -> None:
    office = Office()
    a, b, c = office.add(1, 2, 3)
    (lease,) = office.begun()
    office.add(4)
    key = office.plan(lease.plan).key
    effects = plans.cancel(office.fold.state, lease.plan, gone=frozenset({b}), cause="too old")
    assert effects == (
        AttemptEnded(lease.plan, lease.token, AttemptEnd.FENCED, "too old", False),
        Cancelled(lease.plan),
    )
    ended = office.fold.state.finished[lease.plan]
    assert (ended.state, ended.note, ended.failures) == (PlanState.CANCELLED, "too old", 0)
    assert office.fold.state.owners == {}
    assert [item.block for item in office.fold.state.queue.items(key)][:2] == [a, c]
    assert b not in office.fold.state.queue
    assert len(office.fold.state.litter) == 1
    late = PlanFailed(lease.plan, lease.token, "late", LeaseTime(0))
    assert office.put([late]) == [Refused(Refusal.STALE_TOKEN, lease.plan, lease.token)]


def test_a_parked_plan_can_be_cancelled_and_an_unknown_one_is_refused() -> None:
    office, plan = parked_one()
    (block,) = office.plan(plan).inputs
    assert plans.cancel(office.fold.state, plan, gone=frozenset(), cause="x") == (Cancelled(plan),)
    assert block in office.fold.state.queue
    assert office.fold.state.parked == {}
    again = plans.cancel(office.fold.state, plan, gone=frozenset(), cause="x")
    assert again == (Refused(Refusal.UNKNOWN_PLAN, plan),)
