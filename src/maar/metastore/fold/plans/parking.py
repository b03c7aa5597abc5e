"""Failed plans that had to leave a full schedule: they own their inputs, and can come back (S7)."""

from __future__ import annotations

from collections.abc import Container
from heapq import nsmallest
from itertools import islice

import msgspec

from maar.metastore.records.effects import Effect, Effects, Parked, Refused, Requeued, Unparked
from maar.metastore.records.entries import PlanRequeued, PlansParked, PlansUnparked
from maar.metastore.state.state import MetaState
from maar.metastore.state.timeline import NEVER, PlanBucket, PlanStanding
from maar.model.ids import PlanId
from maar.model.plan import Plan, PlanState
from maar.model.refusal import Refusal
from maar.model.time import LeaseTime

UNPARKED_AT_ONCE = 100

# ── decisions of the leader: they only read ────────────────────────────────────────────────────


def room(state: MetaState) -> int:
    """How many plans could be evicted now: none unless the schedule is full."""
    if len(state.plans) < state.policy.plans_max:
        return 0
    failed = sum(len(places) for line, places in state.plans.lines.items() if _has_failed(line))
    return max(0, min(failed, state.policy.parked_max - len(state.parked)))


def plans_to_evict(
    state: MetaState, wanted: int, *, spare: Container[PlanId]
) -> tuple[PlanId, ...]:
    """Which plans leave: the excluded first, then those that failed most, then the oldest."""
    wanted = min(wanted, room(state))
    if wanted <= 0:
        return ()
    candidates = (
        (line.standing < PlanStanding.EXCLUDED, -line.failures, place.plan)
        for line, places in state.plans.lines.items()
        if _has_failed(line)
        for place in places
        if place.plan not in spare and _may_park(state.plans[place.plan])
    )
    return tuple(plan for _, _, plan in nsmallest(wanted, candidates))


def _has_failed(line: PlanBucket) -> bool:
    """Plans that have failed, or were set aside, and that nobody holds."""
    return line.standing >= PlanStanding.EXCLUDED or (
        line.standing is PlanStanding.UNASSIGNED and line.failures > 0
    )


def _may_park(plan: Plan) -> bool:
    """A removable plan is rolled back instead, and a rollback holds up its target until it ends."""
    return not plan.removable and plan.rolls_back is None


def returning(state: MetaState) -> tuple[PlanId, ...]:
    """The oldest of the parked, when the schedule is less than half full."""
    space = (state.policy.plans_max + 1) // 2 - len(state.plans)
    return tuple(islice(state.parked, max(0, min(space, UNPARKED_AT_ONCE))))


# ── the fold ───────────────────────────────────────────────────────────────────────────────────


def park(state: MetaState, entry: PlansParked) -> Effects:
    """Park plans: only from a full schedule, and never a healthy or a leased plan."""
    if len(state.plans) < state.policy.plans_max:
        return tuple(Refused(Refusal.OUTDATED, plan) for plan in entry.plans)
    return tuple(_park_one(state, plan_id) for plan_id in entry.plans)


def _park_one(state: MetaState, plan_id: PlanId) -> Effect:
    plan = state.plans.get(plan_id)
    if plan is None:
        return Refused(Refusal.UNKNOWN_PLAN, plan_id)
    failed = plan.failures > 0 or plan.state is PlanState.EXCLUDED
    if not failed or plan.lease is not None or not _may_park(plan):
        return Refused(Refusal.NOT_FAILED, plan_id)
    if len(state.parked) >= state.policy.parked_max:
        return Refused(Refusal.TOO_MANY, plan_id)
    del state.plans[plan_id]
    state.parked[plan_id] = msgspec.structs.replace(plan, state=PlanState.PARKED)
    return Parked(plan_id)


def unpark(state: MetaState, entry: PlansUnparked) -> Effects:
    return tuple(_unpark_one(state, plan_id) for plan_id in entry.plans)


def _unpark_one(state: MetaState, plan_id: PlanId) -> Effect:
    plan = state.parked.get(plan_id)
    if plan is None:
        return Refused(Refusal.UNKNOWN_PLAN, plan_id)
    if len(state.plans) >= state.policy.plans_max:
        return Refused(Refusal.TOO_MANY, plan_id)
    del state.parked[plan_id]
    aside = PlanState.EXCLUDED if _was_excluded(plan) else PlanState.REQUESTED
    state.plans[plan_id] = msgspec.structs.replace(plan, state=aside)
    return Unparked(plan_id)


def _was_excluded(plan: Plan) -> bool:
    """Whether it was excluded before it was parked: by an operator, or at its failure limit."""
    at_limit = plan.failures >= plan.failure_limit
    return plan.eligible_at >= NEVER or (at_limit and len(plan.inputs) < 2)


def requeue(state: MetaState, entry: PlanRequeued) -> Effects:
    """Requeue an excluded or parked plan: its failures, pause and reason are reset."""
    plan = state.plans.get(entry.plan) or state.parked.get(entry.plan)
    if plan is None:
        return (Refused(Refusal.UNKNOWN_PLAN, entry.plan),)
    if plan.state not in (PlanState.EXCLUDED, PlanState.PARKED):
        return (Refused(Refusal.NOT_SET_ASIDE, entry.plan),)
    if plan.state is PlanState.PARKED and len(state.plans) >= state.policy.plans_max:
        return (Refused(Refusal.TOO_MANY, entry.plan),)
    state.parked.pop(plan.id, None)
    state.plans[plan.id] = msgspec.structs.replace(
        plan,
        state=PlanState.REQUESTED,
        failures=0,
        excused=0,
        eligible_at=LeaseTime(0),
        note="",
    )
    return (Requeued(plan.id),)
