"""Operator commands on plans (requeue, exclude, raise the limit), as entries of the log."""

from __future__ import annotations

from collections.abc import Sequence

from maar.metastore.records.effects import Effect, Refused
from maar.metastore.records.entries import Entry, LimitRaised, PlanExcluded, PlanRequeued
from maar.metastore.state.state import MetaState
from maar.metastore.state.timeline import NEVER
from maar.model.errors import InvalidInput, NotFound, Rejected
from maar.model.ids import PlanId
from maar.model.plan import Plan, PlanState
from maar.model.policy import HOUR_NS
from maar.model.time import LeaseTime

NOTE_MAX = 500  # characters
LIMIT_MAX = 1_000
RAISED_MAX_NS = 30 * 24 * HOUR_NS


def requeue(state: MetaState, plan: PlanId) -> list[Entry]:
    """Requeue a plan; NotFound or Rejected, with the reason, when it cannot be."""
    found = _find_unfinished(state, plan)
    if found.state not in (PlanState.EXCLUDED, PlanState.PARKED):
        raise Rejected(
            f"plan {plan} is {found.state.name.lower()}: only an excluded or a parked plan is "
            "requeued, any other is tried without being asked"
        )
    return [PlanRequeued(plan)]


def exclude(state: MetaState, plan: PlanId, *, note: str) -> list[Entry]:
    """Exclude a plan until it is requeued; the worker that holds it is fenced."""
    found = _find_unfinished(state, plan)
    if found.state is PlanState.PARKED:
        raise Rejected(f"plan {plan} is parked, so it is set aside already; requeue it first")
    seen = found.lease.token if found.lease else None
    reason = note.strip()[:NOTE_MAX] or "excluded by an operator, who gave no reason"
    return [PlanExcluded(plan, seen, NEVER, counts_as_failure=False, note=reason)]


def raise_limit(
    state: MetaState, failure_limit: int, *, for_ns: int, now: LeaseTime
) -> list[Entry]:
    """Raise the failure limit for a while; 0 ns puts the limit of the settings in force again."""
    if for_ns == 0:
        return [LimitRaised(0, now)]
    if not 0 < for_ns <= RAISED_MAX_NS:
        raise InvalidInput("the failure limit can be raised for up to 30 days")
    if not state.policy.failure_limit < failure_limit <= LIMIT_MAX:
        raise InvalidInput(
            f"plans may fail {state.policy.failure_limit} times as it is: a raised limit is more "
            f"than that and at most {LIMIT_MAX}, not {failure_limit}"
        )
    return [LimitRaised(failure_limit, LeaseTime(now + for_ns))]


def plan_after(effects: Sequence[Effect], state: MetaState, plan: PlanId) -> Plan:
    """The plan after the command, or Rejected with the reason of the fold."""
    for effect in effects:
        if isinstance(effect, Refused) and effect.plan == plan:
            raise Rejected(f"plan {plan} stays as it is: {effect.why}")
    return _find_unfinished(state, plan)


def _find_unfinished(state: MetaState, plan: PlanId) -> Plan:
    found = state.plans.get(plan) or state.parked.get(plan)
    if found is not None:
        return found
    done = state.finished.get(plan)
    if done is not None:
        raise Rejected(f"plan {plan} is {done.state.name.lower()}: it has ended")
    raise NotFound(f"there is no plan {plan}; finished plans are archived after a while")
