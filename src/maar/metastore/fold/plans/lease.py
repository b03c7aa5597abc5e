"""Leases of plans: granted, renewed and ended, each under one exact fencing token (S3)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import msgspec

from maar.metastore.fold.plans import attempts, rollback
from maar.metastore.fold.plans import plan as plans
from maar.metastore.records.effects import Effect, Effects, Refused, Renewed, Started
from maar.metastore.records.entries import (
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
from maar.metastore.state.state import MetaState
from maar.metastore.state.timeline import NEVER
from maar.model.ids import FencingToken, PlanId
from maar.model.plan import AttemptEnd, Plan, PlanState
from maar.model.refusal import Refusal
from maar.model.time import LeaseTime
from maar.scheduling.resources import busy

EXPIRED = "the lease expired before the worker reported"
TAKEN_OVER = "somebody else took the plan over, since the execution guard is off"


def grant(state: MetaState, entry: PlansLeased) -> Effects:
    ordinals = count()  # of rollbacks that are scheduled with a grant
    return tuple(effect for item in entry.grants for effect in _grant_one(state, item, ordinals))


def _grant_one(state: MetaState, item: Grant, ordinals: Iterator[int]) -> Effects:
    """The check and the grant are one step: of many who ask, one gets the lease."""
    plan = state.plans.get(item.plan)
    if plan is None:
        return (Refused(Refusal.UNKNOWN_PLAN, item.plan),)
    why = not_grantable(state, plan, item)
    if why is not None:
        return (Refused(why, item.plan),)
    taken_over = plan.lease is not None and not plan.lease.is_expired(state.lease_time)
    plan, ended = attempts.end_attempt(
        state,
        plan,
        AttemptEnd.FENCED if taken_over else AttemptEnd.EXPIRED,
        TAKEN_OVER if taken_over else EXPIRED,
        counts_as_failure=item.counts_as_failure,
    )
    leased = attempts.begin_attempt(
        state,
        plan,
        item.worker,
        expires_at=item.expires_at,
        ignores_windows=item.ignores_windows,
    )
    return (*ended, leased, *rollback.lease_first(state, state.plans[plan.id], item, ordinals))


def not_grantable(state: MetaState, plan: Plan, item: Grant) -> Refusal | None:
    """In this order: a live lease, a removable plan that has started, and what else may be.

    Without the guard a live lease is no obstacle: its holder is fenced by the grant.
    """
    why = rollback.not_presumed(state, plan, item.replaces)
    if why is not None and not (why is Refusal.LEASE_LIVE and not item.guarded):
        return why
    if plan.removable and plan.state is PlanState.INFLIGHT:
        return Refusal.MUST_BE_ROLLED_BACK
    if item.guarded and rollback.live_holder(state, plan.id, state.lease_time):
        return Refusal.LEASE_LIVE
    rested = eligible(state, plan, state.lease_time)
    if not rested and not (item.by_hand and plan.state is not PlanState.EXCLUDED):
        return Refusal.NOT_ELIGIBLE
    if plan.resources:
        held = state.plans.slots_in_use(state.lease_time, but=plan.id)
        if busy(plan.resources, held, slots=state.policy.resource_slots):
            return Refusal.RESOURCE_BUSY
    return Refusal.TOO_MANY if attempts_left(state) < 1 else None


def eligible(state: MetaState, plan: Plan, now: LeaseTime) -> bool:
    """Its pause is over, or cut short: excluded plans come back while the limit is raised."""
    if plan.eligible_at <= now:
        return True
    forgiven = plan.state is PlanState.EXCLUDED and plan.failures < state.raised_limit(now)
    return forgiven and plan.eligible_at < NEVER


def attempts_left(state: MetaState) -> int:
    """How many more attempts may begin before ended ones are cleaned up: leftovers are bounded."""
    return state.policy.leftovers_max - len(state.leftovers) - state.plans.leases


def extension(
    state: MetaState, plan_id: PlanId, token: FencingToken, *, now: LeaseTime
) -> Extension:
    """By as much as was granted. A plan that is not there any more is refused by the fold."""
    plan = state.plans.get(plan_id)
    lease_ns = plan.lease.lease_ns if plan and plan.lease else 0
    return Extension(plan_id, token, LeaseTime(now + lease_ns))


def renew(state: MetaState, entry: LeasesRenewed) -> Effects:
    return tuple(_renew_one(state, item) for item in entry.extensions)


def _renew_one(state: MetaState, item: Extension) -> Effect:
    plan, why = plan_under_token(state, item.plan, item.token)
    if plan is None or plan.lease is None:
        return Refused(why, item.plan, item.token)
    later = max(plan.lease.expires_at, item.expires_at)
    lease = msgspec.structs.replace(plan.lease, expires_at=later)
    state.plans[plan.id] = msgspec.structs.replace(plan, lease=lease)
    return Renewed(plan.id, item.token)


def start(state: MetaState, entry: PlansStarted) -> Effects:
    return tuple(_start_one(state, item) for item in entry.starts)


def _start_one(state: MetaState, item: Start) -> Effect:
    plan, why = plan_under_token(state, item.plan, item.token)
    if plan is None:
        return Refused(why, item.plan, item.token)
    if plan.state is not PlanState.INFLIGHT:
        last = msgspec.structs.replace(plan.attempts[-1], started_at=state.lease_time)
        state.plans[plan.id] = msgspec.structs.replace(
            plan, state=PlanState.INFLIGHT, attempts=(*plan.attempts[:-1], last)
        )
    return Started(item.plan, item.token)


def fail(state: MetaState, entry: PlanFailed) -> Effects:
    plan, why = plan_under_token(state, entry.plan, entry.token)
    if plan is None:
        return (Refused(why, entry.plan, entry.token),)
    plan, ended = attempts.end_attempt(
        state, plan, AttemptEnd.FAILED, entry.cause, counts_as_failure=entry.counts_as_failure
    )
    state.plans[plan.id] = msgspec.structs.replace(plan, eligible_at=entry.eligible_at)
    return ended


def fence(state: MetaState, entry: AttemptFenced) -> Effects:
    """Close a token for ever: no later entry can grant it again, since indexes only grow."""
    plan, why = plan_under_token(state, entry.plan, entry.token)
    if plan is None:
        return (Refused(why, entry.plan, entry.token),)
    return _end_attempt(state, plan, AttemptEnd.FENCED, entry.cause, counts_as_failure=False)


def bisect(state: MetaState, entry: PlanBisected) -> Effects:
    """End the lease that the leader saw expired, then split the plan; all or nothing."""
    plan = state.plans.get(entry.plan)
    if plan is None:
        return (Refused(Refusal.UNKNOWN_PLAN, entry.plan),)
    why = rollback.not_presumed(state, plan, entry.presumes)
    if why is None and plan.removable:
        why = Refusal.REMOVABLE
    if why is None and not divisible(state, plan, entry.at):
        why = Refusal.NOT_DIVISIBLE
    if why is not None:
        return (Refused(why, entry.plan),)
    ended = _end_attempt(
        state, plan, AttemptEnd.EXPIRED, EXPIRED, counts_as_failure=entry.counts_as_failure
    )
    return (*ended, *plans.bisect(state, entry))


def exclude(state: MetaState, entry: PlanExcluded) -> Effects:
    """End the lease that the leader saw expired, then exclude; an operator may end a live one."""
    plan = state.plans.get(entry.plan)
    if plan is None:
        return (Refused(Refusal.UNKNOWN_PLAN, entry.plan),)
    if plan.removable:
        return (Refused(Refusal.REMOVABLE, entry.plan),)
    why = rollback.not_presumed(state, plan, entry.presumes)
    if why is None or (entry.note and why is Refusal.LEASE_LIVE):
        end, cause = (
            (AttemptEnd.FENCED, entry.note) if entry.note else (AttemptEnd.EXPIRED, EXPIRED)
        )
        ended = _end_attempt(
            state, plan, end, cause, counts_as_failure=entry.counts_as_failure and not entry.note
        )
        return (*ended, *plans.exclude(state, entry))
    return (Refused(why, entry.plan),)


def divisible(state: MetaState, plan: Plan, at: int) -> bool:
    return 0 < at < len(plan.inputs) and len(state.plans) < state.policy.plans_max


def begin_anew(state: MetaState) -> None:
    """A new leader gives every live lease its full length: renewals may have been missed."""
    for plan in list(state.plans.values()):
        lease = plan.lease
        if lease is not None and not lease.is_expired(state.lease_time):
            until = LeaseTime(state.lease_time + lease.lease_ns)
            renewed = msgspec.structs.replace(lease, expires_at=max(lease.expires_at, until))
            state.plans[plan.id] = msgspec.structs.replace(plan, lease=renewed)


def plan_under_token(
    state: MetaState, plan_id: PlanId, token: FencingToken
) -> tuple[Plan, Refusal] | tuple[None, Refusal]:
    """The plan, if this token is the one it is held under: equal, not merely newer.

    An expired lease still holds, as long as nobody else has taken the plan (S1).
    """
    plan = state.plans.get(plan_id)
    if plan is None:
        known = plan_id in state.finished or plan_id in state.parked
        return None, Refusal.STALE_TOKEN if known else Refusal.UNKNOWN_PLAN
    if plan.lease is None or plan.lease.token != token:
        return None, Refusal.STALE_TOKEN
    return plan, Refusal.STALE_TOKEN


def _end_attempt(
    state: MetaState, plan: Plan, end: AttemptEnd, cause: str, *, counts_as_failure: bool
) -> Effects:
    after, effects = attempts.end_attempt(
        state, plan, end, cause, counts_as_failure=counts_as_failure
    )
    if effects:
        state.plans[plan.id] = after
    return effects
