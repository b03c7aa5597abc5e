"""An attempt from its grant to its end: counted or excused, and remembered (S1, S11)."""

from __future__ import annotations

import msgspec

from maar.metastore.fold import jobs
from maar.metastore.fold.plans import leftovers
from maar.metastore.records.effects import AttemptEnded, Effects, Leased
from maar.metastore.state.state import MetaState
from maar.model.ids import WorkerId
from maar.model.plan import Attempt, AttemptEnd, Lease, Plan, PlanState
from maar.model.time import LeaseTime

CAUSE_MAX = 1_000  # characters


def begin_attempt(
    state: MetaState,
    plan: Plan,
    worker: WorkerId,
    *,
    expires_at: LeaseTime,
    ignores_windows: bool = False,
) -> Leased:
    """Grant a plan that nobody holds; the token is that of the entry (S3)."""
    token, now = state.token(), state.lease_time
    attempt = Attempt(token, worker, now, None, None, AttemptEnd.OPEN, "")
    length_ns = expires_at - now
    state.plans[plan.id] = msgspec.structs.replace(
        plan,
        state=PlanState.REQUESTED,
        lease=Lease(token, worker, now, expires_at, length_ns, ignores_windows),
        attempts=(*plan.attempts, attempt)[-state.policy.attempts_max :],
        urgent=False,
    )
    jobs.begin_session(state, plan)
    return Leased(plan.id, token, worker)


def end_attempt(
    state: MetaState, plan: Plan, end: AttemptEnd, cause: str, *, counts_as_failure: bool
) -> tuple[Plan, Effects]:
    """The plan without its lease; the caller puts it back on the schedule or sets it aside."""
    if plan.lease is None:
        return plan, ()
    jobs.end_session(state, plan, completed=False)
    last = _close_attempt(state, plan, end, cause, counted=counts_as_failure)
    failed = end in (AttemptEnd.EXPIRED, AttemptEnd.FAILED)
    failures, excused = plan.failures, plan.excused
    if failed and counts_as_failure:
        failures, excused = failures + 1, 0
    elif failed:
        excused += 1
    # A removable plan that has started is never handed out again: it waits for its rollback.
    stays = plan.removable and plan.state is PlanState.INFLIGHT
    after = msgspec.structs.replace(
        plan,
        state=PlanState.INFLIGHT if stays else PlanState.REQUESTED,
        lease=None,
        attempts=(*plan.attempts[:-1], last),
        failures=failures,
        excused=excused,
    )
    return after, (AttemptEnded(plan.id, last.token, end, last.cause, counts_as_failure),)


def complete_attempt(state: MetaState, plan: Plan) -> Plan:
    """The plan with its attempt recorded as successful."""
    jobs.end_session(state, plan, completed=True)
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
    if state.kinds[plan.kind].writes:
        leftovers.remember_attempt(state, plan, last)
    return last
