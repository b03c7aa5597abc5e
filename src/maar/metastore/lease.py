"""Who may work on what: grants, renewals and ends of attempts, each under one exact token (S3)."""

from __future__ import annotations

import msgspec

from maar.metastore import plan as plans
from maar.metastore.effects import (
    AttemptEnded,
    Effect,
    Effects,
    Leased,
    Refusal,
    Refused,
    Renewed,
    Started,
)
from maar.metastore.entries import (
    AttemptFenced,
    Extension,
    Grant,
    LeasesRenewed,
    PlanBisected,
    PlanExcluded,
    PlanFailed,
    PlansLeased,
    PlansStarted,
    Start,
)
from maar.metastore.state import MetaState
from maar.model.ids import FencingToken, PlanId
from maar.model.plan import Attempt, AttemptEnd, Lease, Plan, PlanState
from maar.model.time import LeaseTime

EXPIRED = "the lease expired before the worker reported"


def grant(state: MetaState, entry: PlansLeased) -> Effects:
    return tuple(effect for item in entry.grants for effect in _grant_one(state, item))


def _grant_one(state: MetaState, item: Grant) -> Effects:
    plan = state.plans.get(item.plan)
    if plan is None:
        return (Refused(Refusal.UNKNOWN_PLAN, item.plan),)
    why = _not_presumed(state, plan, item.replaces)
    if why is None and plan.eligible_at > state.lease_time:
        why = Refusal.NOT_ELIGIBLE
    if why is not None:
        return (Refused(why, item.plan),)
    ended = _end_open_attempt(state, plan.id, AttemptEnd.EXPIRED, EXPIRED)
    token = state.token()
    attempt = Attempt(token, item.worker, state.lease_time, None, None, AttemptEnd.OPEN, "")
    plan = state.plans[plan.id]
    state.plans[plan.id] = msgspec.structs.replace(
        plan,
        state=PlanState.REQUESTED,
        lease=Lease(token, item.worker, state.lease_time, item.expires_at),
        attempts=(*plan.attempts, attempt)[-state.policy.attempts_max :],
    )
    return (*ended, Leased(plan.id, token, item.worker))


def renew(state: MetaState, entry: LeasesRenewed) -> Effects:
    return tuple(_renew_one(state, item) for item in entry.extensions)


def _renew_one(state: MetaState, item: Extension) -> Effect:
    plan, why = held(state, item.plan, item.token)
    if plan is None or plan.lease is None:
        return Refused(why, item.plan, item.token)
    later = max(plan.lease.expires_at, item.expires_at)
    lease = msgspec.structs.replace(plan.lease, expires_at=later)
    state.plans[plan.id] = msgspec.structs.replace(plan, lease=lease)
    return Renewed(plan.id, item.token)


def start(state: MetaState, entry: PlansStarted) -> Effects:
    return tuple(_start_one(state, item) for item in entry.starts)


def _start_one(state: MetaState, item: Start) -> Effect:
    plan, why = held(state, item.plan, item.token)
    if plan is None:
        return Refused(why, item.plan, item.token)
    if plan.state is not PlanState.INFLIGHT:
        last = msgspec.structs.replace(plan.attempts[-1], started_at=state.lease_time)
        state.plans[plan.id] = msgspec.structs.replace(
            plan, state=PlanState.INFLIGHT, attempts=(*plan.attempts[:-1], last)
        )
    return Started(item.plan, item.token)


def fail(state: MetaState, entry: PlanFailed) -> Effects:
    plan, why = held(state, entry.plan, entry.token)
    if plan is None:
        return (Refused(why, entry.plan, entry.token),)
    ended = _end_open_attempt(state, plan.id, AttemptEnd.FAILED, entry.cause)
    state.plans[plan.id] = msgspec.structs.replace(
        state.plans[plan.id], eligible_at=entry.eligible_at
    )
    return ended


def fence(state: MetaState, entry: AttemptFenced) -> Effects:
    """For ever: no later entry can grant this token again, since indexes only grow."""
    plan, why = held(state, entry.plan, entry.token)
    if plan is None:
        return (Refused(why, entry.plan, entry.token),)
    return _end_open_attempt(state, plan.id, AttemptEnd.FENCED, entry.cause)


def bisect(state: MetaState, entry: PlanBisected) -> Effects:
    return _set_aside(state, entry)


def exclude(state: MetaState, entry: PlanExcluded) -> Effects:
    return _set_aside(state, entry)


def _set_aside(state: MetaState, entry: PlanBisected | PlanExcluded) -> Effects:
    """End what the leader saw expired, then divide or exclude; all or nothing."""
    plan = state.plans.get(entry.plan)
    if plan is None:
        return (Refused(Refusal.UNKNOWN_PLAN, entry.plan),)
    why = _not_presumed(state, plan, entry.presumes)
    if isinstance(entry, PlanBisected) and why is None and not divisible(state, plan, entry.at):
        why = Refusal.NOT_DIVISIBLE
    if why is not None:
        return (Refused(why, entry.plan),)
    ended = _end_open_attempt(state, plan.id, AttemptEnd.EXPIRED, EXPIRED)
    if isinstance(entry, PlanBisected):
        return (*ended, *plans.bisect(state, entry))
    return (*ended, *plans.exclude(state, entry))


def divisible(state: MetaState, plan: Plan, at: int) -> bool:
    return 0 < at < len(plan.inputs) and len(state.plans) < state.policy.plans_max


def begin_anew(state: MetaState) -> None:
    """A new leader gives every live lease its full length: it cannot know what went unheard."""
    for plan in list(state.plans.values()):
        lease = plan.lease
        if lease is not None and not lease.expired(state.lease_time):
            until = LeaseTime(state.lease_time + state.policy.lease_ns)
            renewed = msgspec.structs.replace(lease, expires_at=max(lease.expires_at, until))
            state.plans[plan.id] = msgspec.structs.replace(plan, lease=renewed)


def held(
    state: MetaState, plan_id: PlanId, token: FencingToken
) -> tuple[Plan, Refusal] | tuple[None, Refusal]:
    """The plan, if this token is the one it is held under: equal, not merely newer.

    An expired lease still holds, as long as nobody else has taken the plan (S1).
    """
    plan = state.plans.get(plan_id)
    if plan is None:
        done = plan_id in state.finished
        return None, Refusal.STALE_TOKEN if done else Refusal.UNKNOWN_PLAN
    if plan.lease is None or plan.lease.token != token:
        return None, Refusal.STALE_TOKEN
    return plan, Refusal.STALE_TOKEN


def _not_presumed(state: MetaState, plan: Plan, seen: FencingToken | None) -> Refusal | None:
    """The leader presumed no lease, or this very one, expired."""
    if plan.lease is None:
        return None if seen is None else Refusal.OUTDATED
    if plan.lease.token != seen:
        return Refusal.OUTDATED
    return None if plan.lease.expired(state.lease_time) else Refusal.LEASE_LIVE


def _end_open_attempt(state: MetaState, plan_id: PlanId, end: AttemptEnd, cause: str) -> Effects:
    """Close the attempt under the plan's lease, and count it as a failure unless it was fenced."""
    plan = state.plans[plan_id]
    if plan.lease is None:
        return ()
    last = msgspec.structs.replace(
        plan.attempts[-1], ended_at=state.lease_time, end=end, cause=cause[:1000]
    )
    state.plans[plan_id] = msgspec.structs.replace(
        plan,
        state=PlanState.REQUESTED,
        lease=None,
        attempts=(*plan.attempts[:-1], last),
        failures=plan.failures + (end is not AttemptEnd.FENCED),
    )
    return (AttemptEnded(plan_id, last.token, end, last.cause),)
