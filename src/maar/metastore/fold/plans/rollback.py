"""Rollbacks: attempts are fenced first, then what they wrote is deleted under a lease (S1).

A removable plan that is rolled back leaves the schedule in the fencing entry, and its inputs return
to their old places. Any other plan stays: only its dead attempts are undone, by a cleaning or by
whoever executes it next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from maar.metastore.fold.plans import attempts, leftovers
from maar.metastore.fold.plans import plan as plans
from maar.metastore.records.effects import Effects, Refused, RollbackScheduled, RolledBack
from maar.metastore.records.entries import Grant, RollbacksScheduled, RollbackWish
from maar.metastore.state.state import MetaState, SetbackScope
from maar.model.ids import FencingToken, PlanId
from maar.model.plan import ROLLBACK, AttemptEnd, Lease, Plan, PlanState
from maar.model.refusal import Refusal
from maar.model.time import LeaseTime
from maar.services.rules import Setback

# ── what every replica and the leader ask: it only reads ───────────────────────────────────────


def dead_tokens(state: MetaState, plan: Plan) -> tuple[FencingToken, ...]:
    """The attempts of a plan that may have written, and that nobody has undone."""
    return tuple(
        attempt.token
        for attempt in plan.attempts
        if leftovers.is_dead(state, plan.id, attempt.token)
    )


def live_holder(state: MetaState, target: PlanId, now: LeaseTime) -> Lease | None:
    """The lease under which somebody rolls a plan back just now."""
    pending = state.plans.rollback_of(target)
    lease = pending.lease if pending else None
    return lease if lease is not None and not lease.is_expired(now) else None


def not_presumed(state: MetaState, plan: Plan, seen: FencingToken | None) -> Refusal | None:
    """The leader presumed no lease, or this very one, expired."""
    if plan.lease is None:
        return None if seen is None else Refusal.OUTDATED
    if plan.lease.token != seen:
        return Refusal.OUTDATED
    return None if plan.lease.is_expired(state.lease_time) else Refusal.LEASE_LIVE


# ── the fold ───────────────────────────────────────────────────────────────────────────────────


def schedule(state: MetaState, entry: RollbacksScheduled) -> Effects:
    """A plan that takes what another one held is refused with the rollback of that one: its inputs
    are owned then.
    """
    undone = tuple(
        effect
        for ordinal, wish in enumerate(entry.rollbacks)
        for effect in _schedule_one(state, wish, PlanId(state.index, ordinal))
    )
    taken = tuple(
        plans.schedule_one(state, spec, PlanId(state.index, ordinal))
        for ordinal, spec in enumerate(entry.takes, start=len(entry.rollbacks))
    )
    return (*undone, *taken)


def _schedule_one(state: MetaState, wish: RollbackWish, rollback: PlanId) -> Effects:
    target = state.plans.get(wish.target)
    why = _refusal(state, target, wish)
    if why is not None:
        return (Refused(why, wish.target),)
    effects: Effects = ()
    if target is not None:
        target, effects = _fence(state, target, wish)
        state.plans[target.id] = target
    tokens = tuple(t for t in wish.tokens if leftovers.is_dead(state, wish.target, t))
    if target is not None and target.removable:
        effects = (*effects, _remove(state, target, wish))
    _add(state, rollback, wish.target, tokens)
    return (*effects, RollbackScheduled(rollback, wish.target))


def _fence(state: MetaState, target: Plan, wish: RollbackWish) -> tuple[Plan, Effects]:
    """Its lease has expired. A plan that stays is judged for that as by a grant (S11)."""
    end = AttemptEnd.FENCED if target.removable else AttemptEnd.EXPIRED
    return attempts.end_attempt(
        state, target, end, wish.cause, counts_as_failure=wish.counts_as_failure
    )


def _refusal(state: MetaState, target: Plan | None, wish: RollbackWish) -> Refusal | None:
    if state.adopting:  # which attempts were completed after all is not known yet (S5)
        return Refusal.ADOPTING
    if wish.target in state.plans.rollbacks:
        return Refusal.ROLLBACK_PENDING
    if len(state.plans) >= state.policy.plans_max:
        return Refusal.TOO_MANY
    why = not_presumed(state, target, wish.presumes) if target else None
    if why is not None or (target is not None and target.removable):
        return why
    expired = target.lease.token if target and target.lease and _has_started(target) else None
    undone = any(t == expired or leftovers.is_dead(state, wish.target, t) for t in wish.tokens)
    return None if undone else Refusal.NOT_DEAD


def _has_started(plan: Plan) -> bool:
    return plan.attempts[-1].started_at is not None


def _remove(state: MetaState, plan: Plan, wish: RollbackWish) -> RolledBack:
    """A removable plan ends; what it owned waits again where it waited before (S7)."""
    if plan.state is PlanState.INFLIGHT or plan.failures:
        _remember_setback(state, plan, wish.scope_rests_until)
    ended = msgspec.structs.replace(plan, state=PlanState.ROLLED_BACK, note=wish.cause)
    plans.finish(state, ended)
    for block in plan.inputs:
        state.queue.give_back(block, state.policy)
    return RolledBack(plan.id, plan.kind)


def _remember_setback(state: MetaState, plan: Plan, until: LeaseTime) -> None:
    """A scope whose plans always fail is due less and less often."""
    scope = SetbackScope(plan.kind, plan.key)
    before = state.setbacks.get(scope)
    state.setbacks[scope] = Setback(before.failures + 1 if before else 1, until)
    plans.trim(state.setbacks, state.policy.scopes_max)


def _add(
    state: MetaState, rollback: PlanId, target: PlanId, tokens: tuple[FencingToken, ...]
) -> Plan:
    known = plans.find(state, target)
    made = Plan(
        id=rollback,
        kind=ROLLBACK,
        removable=False,
        key=known.key if known else plans.NO_KEY,
        inputs=(),
        state=PlanState.REQUESTED,
        scheduled_at=state.lease_time,
        failure_limit=state.policy.failure_limit,
        rolls_back=target,
        tokens=tokens,
    )
    state.plans[rollback] = made
    return made


def lease_first(state: MetaState, plan: Plan, grant: Grant, ordinals: Iterator[int]) -> Effects:
    """Whoever gets a plan finishes its rollback first: a pending one, or one of its dead attempts,
    which is scheduled and leased in the entry that grants the plan.
    """
    pending = state.plans.rollback_of(plan.id)
    effects: Effects = ()
    if pending is None:
        tokens = dead_tokens(state, plan)
        if not tokens or len(state.plans) >= state.policy.plans_max:
            return ()
        pending = _add(state, PlanId(state.index, next(ordinals)), plan.id, tokens)
        effects = (RollbackScheduled(pending.id, plan.id),)
    cause = "whoever executes the plan finishes its rollback"
    pending, ended = attempts.end_attempt(
        state, pending, AttemptEnd.FENCED, cause, counts_as_failure=False
    )
    until = LeaseTime(state.lease_time + state.kinds[ROLLBACK].lease_ns(state.policy))
    leased = attempts.begin_attempt(state, pending, grant.worker, expires_at=until)
    return (*effects, *ended, replace(leased, before=plan.id))
