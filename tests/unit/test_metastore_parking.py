"""A full schedule parks what failed, visibly; it returns by itself, or when an operator says so."""

from __future__ import annotations

import msgspec
import pytest

from maar.metastore.decide import operator_commands, schedule
from maar.metastore.fold.plans import parking
from maar.metastore.fold.plans import plan as plans
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
from support.metastore.leader_term import W1, W2, LeaderDecisions


def leader_with(**numbers: int) -> LeaderDecisions:
    return LeaderDecisions(Fold(policy=msgspec.structs.replace(SMALL, **numbers)))


def running(leader_term: LeaderDecisions, count: int, first: int = 0) -> list[Leased]:
    """Plans of one block each, on shards of their own."""
    for n in range(first, first + count):
        leader_term.add(n, shard=n + 1)
    leader_term.wait(11)
    return leader_term.start_plans(W1, count)


def fail_often(leader_term: LeaderDecisions, lease: Leased, count: int) -> None:
    """So many failures of its own, and no rest."""
    token = lease.token
    for _ in range(count):
        leader_term.put([PlanFailed(lease.plan, token, "x", LeaseTime(0))])
        again = Grant(lease.plan, W1, LeaseTime(leader_term.now + SMALL.lease_ns))
        (leased,) = leader_term.put([PlansLeased((again,))])
        assert isinstance(leased, Leased)
        token = leased.token
    leader_term.put([PlanFailed(lease.plan, token, "x", LeaseTime(0), counts_as_failure=False)])


def full_of_excluded(count: int = 3, **numbers: int) -> tuple[LeaderDecisions, list[PlanId]]:
    policy = {"plans_max": count, "failure_limit": 1, **numbers}
    leader_term = leader_with(**policy)
    leases = running(leader_term, count)
    for lease in leases:
        leader_term.fail(lease)
    leader_term.set_aside()
    return leader_term, [lease.plan for lease in leases]


def parked_one() -> tuple[LeaderDecisions, PlanId]:
    """Of three excluded plans in a full schedule, the oldest is parked for a fourth."""
    leader_term, excluded = full_of_excluded()
    (new,) = running(leader_term, 1, first=50)
    assert list(leader_term.fold.state.parked) == excluded[:1]
    assert new.plan in leader_term.fold.state.plans
    return leader_term, excluded[0]


# ── eviction ───────────────────────────────────────────────────────────────────────────────────


def test_a_full_schedule_makes_room_for_a_new_plan_by_parking_one_that_failed() -> None:
    leader_term, plan = parked_one()
    held = leader_term.plan(plan)
    assert held.state is PlanState.PARKED
    assert leader_term.fold.state.owners[held.inputs[0]] == plan
    assert held.inputs[0] in leader_term.fold.live()
    assert held.inputs[0] not in leader_term.fold.state.queue
    assert len(leader_term.fold.state.plans) == 3


def test_nothing_is_parked_when_nothing_new_is_wanted() -> None:
    leader_term, _ = full_of_excluded()
    assert leader_term.poll(W1, 5) == []
    assert leader_term.fold.state.parked == {}


def test_nothing_is_parked_while_there_is_room() -> None:
    leader_term = leader_with(plans_max=4, failure_limit=1)
    for lease in running(leader_term, 3):
        leader_term.fail(lease)
    leader_term.set_aside()
    assert len(running(leader_term, 3, first=50)) == 1  # one fits, and the rest waits for its turn
    assert leader_term.fold.state.parked == {}


def test_a_schedule_full_of_healthy_plans_parks_nothing_and_new_ones_wait() -> None:
    leader_term = leader_with(plans_max=3)
    leases = running(leader_term, 3)
    leader_term.add(50, shard=51)
    leader_term.wait(11)
    for lease in leases:
        leader_term.renew(lease)
    assert leader_term.poll(W2, 5) == []
    leader_term.fail(leases[0], own=False)  # not its own: it is healthy still
    assert leader_term.poll(W2, 5) == []
    assert leader_term.fold.state.parked == {}
    assert leader_term.fold.state.queue.queued == 1


def test_who_leaves_first_is_excluded_then_failed_most_often_then_oldest() -> None:
    leader_term = leader_with(plans_max=6, failure_limit=9)
    leases = running(leader_term, 6)
    for lease, count in zip(leases, (1, 2, 0, 2), strict=False):
        fail_often(leader_term, lease, count)
    a, b, _, d, e, _ = (lease.plan for lease in leases)
    leader_term.put(operator_commands.exclude(leader_term.fold.state, e, note="by hand"))
    assert parking.plans_to_evict(leader_term.fold.state, 9, spare=()) == (e, b, d, a)
    assert parking.plans_to_evict(leader_term.fold.state, 2, spare=(e,)) == (b, d)


def test_a_plan_that_is_handed_out_is_not_parked_in_the_same_breath() -> None:
    leader_term, excluded = full_of_excluded()
    leader_term.add(50, shard=51)
    leader_term.wait(3600)  # every probe is due
    leases = leader_term.start_plans(W2, 5)
    assert leases[0].plan not in excluded
    probed = leader_term.start_plans(W1, 5)
    assert [lease.plan in excluded for lease in probed] == [True]
    assert probed[0].plan not in leader_term.fold.state.parked


def test_when_the_parked_list_is_full_too_new_plans_wait() -> None:
    leader_term, _ = full_of_excluded(parked_max=1)
    assert len(running(leader_term, 3, first=50)) == 1
    assert len(leader_term.fold.state.parked) == 1
    assert leader_term.poll(W2, 5) == []
    assert leader_term.fold.state.queue.queued == 2


@pytest.mark.parametrize("why", ["healthy", "leased", "room", "parked_max", "unknown"])
def test_the_fold_parks_only_what_it_may(why: str) -> None:
    leader_term, excluded = full_of_excluded(parked_max=0 if why == "parked_max" else 9)
    plan, refusal = excluded[0], Refusal.NOT_FAILED
    if why == "healthy":
        leader_term.fold.put(PlanRequeued(plan))
    elif why == "leased":
        leader_term.wait(3600)
        (probe,) = leader_term.start_plans(W2)
        plan = probe.plan
        leader_term.wait(16)  # also when its lease has expired: somebody may still be at it
    elif why == "room":
        plans.cancel(leader_term.fold.state, excluded[1], gone=frozenset(), cause="x")
        refusal = Refusal.OUTDATED
    elif why == "parked_max":
        refusal = Refusal.TOO_MANY
    else:
        plan, refusal = PlanId(0, 0), Refusal.UNKNOWN_PLAN
    assert leader_term.fold.put(PlansParked((plan,))) == (Refused(refusal, plan),)
    assert leader_term.fold.state.parked == {}


def test_a_late_report_for_a_parked_plan_is_stale() -> None:
    leader_term, plan = parked_one()
    token = leader_term.plan(plan).attempts[-1].token
    refused = Refused(Refusal.STALE_TOKEN, plan, token)
    assert leader_term.put([PlanFailed(plan, token, "late", LeaseTime(0))]) == [refused]


# ── coming back ────────────────────────────────────────────────────────────────────────────────


def test_parked_plans_return_by_themselves_when_the_schedule_is_half_empty() -> None:
    leader_term, excluded = full_of_excluded(4)
    for lease in running(leader_term, 2, first=50):
        leader_term.complete(lease)
    assert list(leader_term.fold.state.parked) == excluded[:2]
    assert not any(isinstance(e, PlansUnparked) for e in leader_term.keep_house())
    plans.cancel(leader_term.fold.state, excluded[3], gone=frozenset(), cause="x")
    assert leader_term.keep_house()[0] == PlansUnparked(tuple(excluded[:1]))
    assert [*leader_term.fold.state.parked] == excluded[1:2]
    back = leader_term.plan(excluded[0])
    assert back.state is PlanState.EXCLUDED
    assert back.failures == 1
    leader_term.wait(3600)
    assert len(leader_term.start_plans(W2)) == 1


def test_a_parked_plan_comes_back_as_it_left() -> None:
    leader_term = leader_with(plans_max=3, failure_limit=9)
    hand, failed, other = running(leader_term, 3)
    fail_often(leader_term, failed, 2)
    leader_term.put(operator_commands.exclude(leader_term.fold.state, hand.plan, note="by hand"))
    before = [leader_term.plan(lease.plan) for lease in (hand, failed)]
    entry = PlansParked((hand.plan, failed.plan))
    assert leader_term.put([entry]) == [Parked(hand.plan), Parked(failed.plan)]
    back = PlansUnparked((hand.plan, failed.plan))
    assert leader_term.put([back]) == [Unparked(hand.plan), Unparked(failed.plan)]
    assert [leader_term.plan(lease.plan) for lease in (hand, failed)] == before
    assert leader_term.put([back])[0] == Refused(Refusal.UNKNOWN_PLAN, hand.plan)
    assert leader_term.plan(other.plan).lease is not None


def test_a_parked_plan_does_not_return_into_a_full_schedule() -> None:
    leader_term, plan = parked_one()
    assert leader_term.put([PlansUnparked((plan,))]) == [Refused(Refusal.TOO_MANY, plan)]
    assert leader_term.put([PlanRequeued(plan)]) == [Refused(Refusal.TOO_MANY, plan)]


# ── an operator's commands ───────────────────────────────────────────────────────────────────────


def requeue(leader_term: LeaderDecisions, plan: PlanId) -> object:
    effects = leader_term.put(operator_commands.requeue(leader_term.fold.state, plan))
    return operator_commands.plan_after(effects, leader_term.fold.state, plan)


def exclude(leader_term: LeaderDecisions, plan: PlanId, note: str = "known to be bad") -> object:
    effects = leader_term.put(operator_commands.exclude(leader_term.fold.state, plan, note=note))
    return operator_commands.plan_after(effects, leader_term.fold.state, plan)


def test_an_excluded_plan_that_is_requeued_begins_anew_at_once() -> None:
    leader_term, excluded = full_of_excluded()
    plan = excluded[2]
    assert requeue(leader_term, plan) == leader_term.plan(plan)
    anew = leader_term.plan(plan)
    assert (anew.state, anew.failures, anew.excused) == (PlanState.REQUESTED, 0, 0)
    assert (anew.eligible_at, anew.note) == (0, "")
    assert [lease.plan for lease in leader_term.poll(W2, 5)] == [plan]


def test_a_parked_plan_is_requeued_when_there_is_room_and_refused_when_not() -> None:
    leader_term, plan = parked_one()
    with pytest.raises(Rejected, match="bound"):
        requeue(leader_term, plan)
    other = next(iter(leader_term.fold.state.plans))
    plans.cancel(leader_term.fold.state, other, gone=frozenset(), cause="x")
    effects = leader_term.put(operator_commands.requeue(leader_term.fold.state, plan))
    assert effects == [Requeued(plan)]
    assert leader_term.plan(plan).state is PlanState.REQUESTED
    assert leader_term.fold.state.parked == {}


def test_only_what_was_set_aside_is_requeued() -> None:
    leader_term = LeaderDecisions()
    (lease,) = running(leader_term, 1)
    with pytest.raises(Rejected, match="inflight"):
        requeue(leader_term, lease.plan)
    assert leader_term.put([PlanRequeued(lease.plan)]) == [
        Refused(Refusal.NOT_SET_ASIDE, lease.plan)
    ]
    leader_term.complete(lease)
    with pytest.raises(Rejected, match="completed: it has ended"):
        requeue(leader_term, lease.plan)
    with pytest.raises(NotFound):
        requeue(leader_term, PlanId(0, 0))
    assert leader_term.put([PlanRequeued(PlanId(0, 0))])[0] == Refused(
        Refusal.UNKNOWN_PLAN, PlanId(0, 0)
    )


def test_a_plan_excluded_by_hand_is_fenced_and_never_probed() -> None:
    leader_term = LeaderDecisions()
    (lease,) = running(leader_term, 1)
    exclude(leader_term, lease.plan, "  known to be bad ")
    held = leader_term.plan(lease.plan)
    assert (held.state, held.note, held.failures) == (PlanState.EXCLUDED, "known to be bad", 0)
    assert held.eligible_at == NEVER
    assert held.attempts[-1].end is AttemptEnd.FENCED
    assert not held.attempts[-1].counted
    assert isinstance(leader_term.complete(lease)[0], Refused)
    leader_term.wait(10**9)
    assert leader_term.poll(W2, 5) == []
    leader_term.fold.put(LimitRaised(99, LeaseTime(leader_term.now + SECOND_NS)))
    assert (
        schedule.assign(leader_term.fold.state, [schedule.Wish(W2, 5)], now=leader_term.now) == []
    )
    forced = Grant(lease.plan, W2, LeaseTime(leader_term.now + 9))
    assert leader_term.put([PlansLeased((forced,))]) == [Refused(Refusal.NOT_ELIGIBLE, lease.plan)]
    requeue(leader_term, lease.plan)
    assert [again.plan for again in leader_term.poll(W2, 5)] == [lease.plan]


def test_an_order_that_was_overtaken_is_refused() -> None:
    leader_term = LeaderDecisions()
    (lease,) = running(leader_term, 1)
    late = operator_commands.exclude(leader_term.fold.state, lease.plan, note="x")
    leader_term.fail(lease)
    with pytest.raises(Rejected, match="moved on"):
        operator_commands.plan_after(leader_term.put(late), leader_term.fold.state, lease.plan)
    assert leader_term.plan(lease.plan).state is PlanState.REQUESTED


def test_the_leader_alone_cannot_end_a_live_lease_by_excluding() -> None:
    leader_term = LeaderDecisions()
    (lease,) = running(leader_term, 1)
    entry = PlanExcluded(lease.plan, lease.token, LeaseTime(leader_term.now + 9))
    assert leader_term.put([entry]) == [Refused(Refusal.LEASE_LIVE, lease.plan)]


def test_what_cannot_be_excluded_says_why() -> None:
    leader_term, plan = parked_one()
    with pytest.raises(Rejected, match="parked"):
        exclude(leader_term, plan)
    with pytest.raises(NotFound):
        exclude(leader_term, PlanId(0, 0))
    other = next(iter(leader_term.fold.state.plans))
    exclude(leader_term, other, "")
    assert "no reason" in leader_term.plan(other).note


def test_the_limit_is_raised_for_a_while_or_not_at_all() -> None:
    leader_term = LeaderDecisions()
    state = leader_term.fold.state
    (entry,) = operator_commands.raise_limit(state, 9, for_ns=5, now=LeaseTime(10))
    assert entry == LimitRaised(9, LeaseTime(15))
    leader_term.put([entry])
    assert [state.raised_limit(LeaseTime(now)) for now in (15, 16)] == [9, 0]
    leader_term.put(operator_commands.raise_limit(state, 0, for_ns=0, now=LeaseTime(12)))
    assert state.raised_limit(LeaseTime(12)) == 0
    for limit, for_ns in ((2, 5), (10**6, 5), (9, -1), (9, 10**18)):
        with pytest.raises(InvalidInput):
            operator_commands.raise_limit(state, limit, for_ns=for_ns, now=LeaseTime(0))


# ── cancelling ─────────────────────────────────────────────────────────────────────────────────


def test_a_cancelled_plan_is_fenced_and_its_other_inputs_return_to_their_place() -> None:
    leader_term = LeaderDecisions()
    a, b, c = leader_term.add(1, 2, 3)
    (lease,) = leader_term.start_plans()
    leader_term.add(4)
    key = leader_term.plan(lease.plan).key
    effects = plans.cancel(leader_term.fold.state, lease.plan, gone=frozenset({b}), cause="too old")
    assert effects == (
        AttemptEnded(lease.plan, lease.token, AttemptEnd.FENCED, "too old", False),
        Cancelled(lease.plan),
    )
    ended = leader_term.fold.state.finished[lease.plan]
    assert (ended.state, ended.note, ended.failures) == (PlanState.CANCELLED, "too old", 0)
    assert leader_term.fold.state.owners == {}
    assert [item.block for item in leader_term.fold.state.queue.items(key)][:2] == [a, c]
    assert b not in leader_term.fold.state.queue
    assert len(leader_term.fold.state.leftovers) == 1
    late = PlanFailed(lease.plan, lease.token, "late", LeaseTime(0))
    assert leader_term.put([late]) == [Refused(Refusal.STALE_TOKEN, lease.plan, lease.token)]


def test_a_parked_plan_can_be_cancelled_and_an_unknown_one_is_refused() -> None:
    leader_term, plan = parked_one()
    (block,) = leader_term.plan(plan).inputs
    assert plans.cancel(leader_term.fold.state, plan, gone=frozenset(), cause="x") == (
        Cancelled(plan),
    )
    assert block in leader_term.fold.state.queue
    assert leader_term.fold.state.parked == {}
    again = plans.cancel(leader_term.fold.state, plan, gone=frozenset(), cause="x")
    assert again == (Refused(Refusal.UNKNOWN_PLAN, plan),)
