"""Which dead attempts and removable plans are to be rolled back now, and which are left alone.

A cleaning asks for all of them, an operator for one, and the planner for those that keep blocks
from compaction too long. The entry says what it presumes, and the fold checks it (S6).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from maar.metastore.decide import verdict
from maar.metastore.fold.plans import lease, leftovers, rollback
from maar.metastore.fold.plans import plan as plans
from maar.metastore.records.effects import Effect, Refused, Renewed, RollbackScheduled
from maar.metastore.records.entries import (
    AttemptKey,
    Entry,
    LeasesRenewed,
    RollbacksScheduled,
    RollbackWish,
)
from maar.metastore.state.state import MetaState
from maar.model import keys
from maar.model.errors import LeaseLost, NotFound, Unavailable
from maar.model.ids import FencingToken, PlanId
from maar.model.plan import Plan, PlanSpec
from maar.model.refusal import Refusal
from maar.model.time import LeaseTime
from maar.ports.plans.board import (
    CleanStep,
    ConfirmDeletes,
    RollbackRef,
    RollbackReply,
    ScheduleRollbacks,
    SkippedPlan,
)
from maar.services.clean.rules import SkipReason, is_live, why_left_alone

AT_ONCE_MAX = 500  # rollbacks in an entry, which has a bound (S12); the next cleaning takes more
TAKEN_MAX = 5_000  # blocks that other plans get in an entry, or a few more
SKIPPED_MAX = 1_000  # plans that an answer names
AT_ONCE = LeaseTime(0)
NOT_YET = PlanId(0, 0)  # of a rollback that a dry run only speaks of


class Survey(NamedTuple):
    """What a cleaning does, decided at the head of the log."""

    wishes: tuple[RollbackWish, ...]
    skipped: tuple[SkippedPlan, ...]

    def entries(self) -> list[Entry]:
        return [RollbacksScheduled(self.wishes)] if self.wishes else []


def survey(
    state: MetaState, *, now: LeaseTime, hearing_since: LeaseTime = verdict.ALWAYS
) -> Survey:
    wishes = tuple(islice(_all_wishes(state, now), AT_ONCE_MAX))
    judged = tuple(_judge(state, wish, hearing_since=hearing_since) for wish in wishes)
    return Survey(judged, _first_skipped(state, now))


def _judge(state: MetaState, wish: RollbackWish, *, hearing_since: LeaseTime) -> RollbackWish:
    """A plan that stays must not escape its limit because a cleaning comes before a worker."""
    plan = state.plans.get(wish.target)
    if plan is None or plan.removable:
        return wish
    counts = verdict.expiry_counts(state, plan, hearing_since=hearing_since)
    return msgspec.structs.replace(wish, counts_as_failure=counts)


def _all_wishes(state: MetaState, now: LeaseTime) -> Iterator[RollbackWish]:
    for plan in state.plans.removable_plans():
        if why_left_alone(plan, state.policy, now=now) is None:
            yield _wish(state, plan, now=now, cause="nobody finished it")
    for target, tokens in _dead_by_plan(state).items():
        found = state.plans.get(target)
        busy = found is not None and (found.removable or is_live(found, now))
        if not busy and target not in state.plans.rollbacks:
            yield _wish_for(found, target, tokens, cause="its attempt ended without a result")
    for plan in _abandoned_plans(state, now):
        yield _wish(state, plan, now=now, cause="its lease expired and nobody took it")


def _abandoned_plans(state: MetaState, now: LeaseTime) -> Iterator[Plan]:
    """Plans that stay, whose last attempt has begun to write and whose lease has expired."""
    for plan in state.plans.abandoned_plans(now):
        named = plan.id in state.plans.rollbacks or rollback.dead_tokens(state, plan)
        if not named:
            yield plan


def _dead_by_plan(state: MetaState) -> dict[PlanId, tuple[FencingToken, ...]]:
    found: dict[PlanId, tuple[FencingToken, ...]] = {}
    for key in islice(state.leftovers.dead, AT_ONCE_MAX * 4):
        found[key.plan] = (*found.get(key.plan, ()), key.token)
    return found


def _wish(state: MetaState, plan: Plan, *, now: LeaseTime, cause: str) -> RollbackWish:
    tokens = rollback.dead_tokens(state, plan)
    if plan.lease is not None and plan.lease.is_expired(now):
        tokens = (*tokens, plan.lease.token)
    rest = _rests_until(state, plan, now)
    return _wish_for(plan, plan.id, tokens, cause=cause, scope_rests_until=rest)


def _rests_until(state: MetaState, plan: Plan, now: LeaseTime) -> LeaseTime:
    """A scope whose plans always fail is due less and less often."""
    before = state.setback(plan.kind, plan.key)
    return LeaseTime(now + plans.probe_delay(state, before.failures if before else 0))


def _wish_for(
    plan: Plan | None,
    target: PlanId,
    tokens: tuple[FencingToken, ...],
    *,
    cause: str,
    scope_rests_until: LeaseTime = AT_ONCE,
) -> RollbackWish:
    seen = plan.lease.token if plan and plan.lease else None
    return RollbackWish(target, tokens, seen, cause, scope_rests_until)


def _first_skipped(state: MetaState, now: LeaseTime) -> tuple[SkippedPlan, ...]:
    return tuple(islice(_all_skipped(state, now), SKIPPED_MAX))


def _all_skipped(state: MetaState, now: LeaseTime) -> Iterator[SkippedPlan]:
    for plan in state.plans.values():
        if plan.rolls_back is not None or not state.kinds[plan.kind].writes:
            continue
        if plan.removable:
            why = why_left_alone(plan, state.policy, now=now)
        else:
            why = SkipReason.LIVE_LEASE if is_live(plan, now) else SkipReason.IMMUTABLE
        if why is not None:
            yield SkippedPlan(plan.id, why)


# ── the planner: a pending plan blocks nothing for ever ────────────────────────────────────────


def held_too_long(state: MetaState, *, now: LeaseTime) -> list[Entry]:
    """Removable plans that nobody works on, and that keep blocks too long which are due to be
    merged: one entry fences them and gives what they held to other plans.
    """
    wishes: list[RollbackWish] = []
    takes: list[PlanSpec] = []
    for plan in state.plans.removable_plans():
        if len(wishes) >= AT_ONCE_MAX or sum(len(spec.inputs) for spec in takes) >= TAKEN_MAX:
            break  # the next round takes more
        if not _holds_too_long(state, plan, now) or plan.id in state.plans.rollbacks:
            continue
        due = list(state.kinds.queue.taking(state, plan.inputs, now=now))
        if due:
            wishes.append(_wish(state, plan, now=now, cause="compaction needs what it holds"))
            takes += due
    return [RollbacksScheduled(tuple(wishes), tuple(takes))] if wishes else []


def _holds_too_long(state: MetaState, plan: Plan, now: LeaseTime) -> bool:
    if not plan.attempts:  # it was never leased: whoever scheduled it may still come
        return now - plan.scheduled_at > state.policy.rollback_delay_ns
    ended_at = plan.lease.expires_at if plan.lease else plan.attempts[-1].ended_at
    return ended_at is not None and now - ended_at > state.policy.hold_max_ns


# ── one plan, by hand ──────────────────────────────────────────────────────────────────────────


def by_hand(
    state: MetaState,
    target: PlanId,
    *,
    now: LeaseTime,
    hearing_since: LeaseTime = verdict.ALWAYS,
) -> list[Entry]:
    """Nobody waits for the delay here, but a live lease is respected. A second wish finds the
    first; NotFound when nothing is known of the plan.
    """
    if state.adopting:
        raise Unavailable(str(Refusal.ADOPTING))
    plan = state.plans.get(target)
    tokens = tuple(key.token for key in state.leftovers.dead if key.plan == target)
    if plan is None and not tokens and plans.find(state, target) is None:
        raise NotFound(f"there is no plan {target}; finished plans are archived after a while")
    if target in state.plans.rollbacks or (plan is not None and is_live(plan, now)):
        return []
    cause = "somebody asked for it"
    if plan is not None:
        wish = _wish(state, plan, now=now, cause=cause)
    else:
        wish = _wish_for(None, target, tokens, cause=cause)
    wish = _judge(state, wish, hearing_since=hearing_since)
    removes = plan is not None and plan.removable
    return [RollbacksScheduled((wish,))] if wish.tokens or removes else []


def by_hand_reply(state: MetaState, target: PlanId, *, now: LeaseTime) -> RollbackReply:
    """After the entries of `by_hand`."""
    pending = state.plans.rollbacks.get(target)
    if pending is not None:
        return RollbackReply(target, "scheduled", pending)
    plan = state.plans.get(target)
    live = plan is not None and is_live(plan, now)
    return RollbackReply(target, "lease_live" if live else "nothing_to_do")


# ── a cleaning ─────────────────────────────────────────────────────────────────────────────────


def clean_entries(
    state: MetaState,
    request: ScheduleRollbacks,
    *,
    now: LeaseTime,
    hearing_since: LeaseTime = verdict.ALWAYS,
) -> list[Entry]:
    """Only under the lease of the cleaning, whose length begins anew."""
    assert request.plan is not None
    assert request.token is not None
    renewal = LeasesRenewed((lease.extension(state, request.plan, request.token, now=now),))
    held, _ = lease.plan_under_token(state, request.plan, request.token)
    if held is None:
        return [renewal]
    return [renewal, *survey(state, now=now, hearing_since=hearing_since).entries()]


def clean_step(effects: Sequence[Effect], state: MetaState, *, now: LeaseTime) -> CleanStep:
    _check_held(effects)
    scheduled = tuple(
        RollbackRef(effect.rollback, effect.target)
        for effect in effects
        if isinstance(effect, RollbackScheduled)
    )
    return CleanStep(scheduled, _first_skipped(state, now), _pending(state))


def dry_run(state: MetaState, *, now: LeaseTime) -> CleanStep:
    """What a cleaning would do now; the ids of rollbacks are not known before they are made."""
    found = survey(state, now=now)
    would = tuple(RollbackRef(NOT_YET, wish.target) for wish in found.wishes)
    return CleanStep(would, found.skipped, _pending(state))


def _pending(state: MetaState) -> tuple[RollbackRef, ...]:
    return tuple(
        RollbackRef(rollback_id, target)
        for target, rollback_id in islice(state.plans.rollbacks.items(), AT_ONCE_MAX)
    )


def _check_held(effects: Sequence[Effect]) -> None:
    """The first entry renewed the lease of whoever asks."""
    if not effects or not isinstance(effects[0], Renewed):
        why = effects[0].why if effects and isinstance(effects[0], Refused) else "it is not held"
        raise LeaseLost(f"the lease is gone: {why}")


# ── what a rollback may delete ─────────────────────────────────────────────────────────────────


def confirm_entries(state: MetaState, request: ConfirmDeletes, *, now: LeaseTime) -> list[Entry]:
    return [LeasesRenewed((lease.extension(state, request.plan, request.token, now=now),))]


def deletable(
    effects: Sequence[Effect], state: MetaState, request: ConfirmDeletes
) -> tuple[str, ...]:
    """Objects of the attempts that it undoes and that the index does not list; none other may go,
    whatever the intents say. Nothing is deleted while adopting (S5), and nothing of an attempt that
    is not remembered any more: a restore may have spared it.
    """
    _check_held(effects)
    if state.adopting:
        raise Unavailable(str(Refusal.ADOPTING))
    plan = state.plans[request.plan]
    if plan.rolls_back is None:
        raise LeaseLost(f"plan {plan.id} is no rollback: it deletes nothing")
    written = {}
    for key in request.keys:
        for token in plan.tokens:
            block = keys.attempt_block(key, plan=plan.rolls_back, token=token)
            if block is not None and AttemptKey(plan.rolls_back, token) in state.leftovers:
                written[key] = block
    return tuple(leftovers.unlisted_keys(state, written))
