"""Ends an attempt: counts it or excuses it, and remembers what it may have written (S1, S11)."""

from __future__ import annotations

import msgspec

from maar.metastore.fold import leftovers
from maar.metastore.records.effects import AttemptEnded, Effects
from maar.metastore.state.state import MetaState
from maar.model.plan import Attempt, AttemptEnd, Plan, PlanState

CAUSE_MAX = 1_000  # characters


def end_attempt(
    state: MetaState, plan: Plan, end: AttemptEnd, cause: str, *, counts_as_failure: bool
) -> tuple[Plan, Effects]:
    """The plan without its lease; the caller puts it back on the schedule or sets it aside."""
    if plan.lease is None:
        return plan, ()
    last = _close_attempt(state, plan, end, cause, counted=counts_as_failure)
    failed = end in (AttemptEnd.EXPIRED, AttemptEnd.FAILED)
    failures, excused = plan.failures, plan.excused
    if failed and counts_as_failure:
        failures, excused = failures + 1, 0
    elif failed:
        excused += 1
    after = msgspec.structs.replace(
        plan,
        state=PlanState.REQUESTED,
        lease=None,
        attempts=(*plan.attempts[:-1], last),
        failures=failures,
        excused=excused,
    )
    return after, (AttemptEnded(plan.id, last.token, end, last.cause, counts_as_failure),)


def complete_attempt(state: MetaState, plan: Plan) -> Plan:
    """The plan with its attempt recorded as successful."""
    last = _close_attempt(state, plan, AttemptEnd.COMPLETED, "", counted=True)
    return msgspec.structs.replace(
        plan,
        state=PlanState.COMPLETED,
        lease=None,
        attempts=(*plan.attempts[:-1], last),
        excused=0,
    )


def _close_attempt(
    state: MetaState, plan: Plan, end: AttemptEnd, cause: str, *, counted: bool
) -> Attempt:
    last = msgspec.structs.replace(
        plan.attempts[-1],
        ended_at=state.lease_time,
        end=end,
        cause=cause[:CAUSE_MAX],
        counted=counted,
    )
    leftovers.remember_attempt(state, plan.id, last.token, completed=end is AttemptEnd.COMPLETED)
    return last
