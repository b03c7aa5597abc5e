"""How plans are created, split, excluded, cancelled and archived; leases are in `lease`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgspec

from maar.metastore.fold.plans import attempts
from maar.metastore.records.effects import (
    Bisected,
    Cancelled,
    Effect,
    Effects,
    Excluded,
    Refused,
    Scheduled,
)
from maar.metastore.records.entries import (
    PlanAsked,
    PlanBisected,
    PlanExcluded,
    PlansArchived,
    PlansScheduled,
)
from maar.metastore.state.marks import Marked
from maar.metastore.state.state import MetaState
from maar.model.ids import MAIN_STORE, NO_TENANT, BlockId, PlanId, Shard
from maar.model.plan import AttemptEnd, Plan, PlanSpec, PlanState, QueueKey
from maar.model.refusal import Refusal
from maar.model.time import LeaseTime

OTHER_REQUESTS_MAX = 32  # that a plan remembers: it ends, and they with it
NO_KEY = QueueKey(MAIN_STORE, NO_TENANT, Shard(0), 0)  # of plans that are about no lane

# ── decisions of the leader: they only read ────────────────────────────────────────────────────


def probe_delay(state: MetaState, probes: int) -> int:
    """How long an excluded plan pauses: twice as long after every failed probe."""
    return min(state.policy.probe_ns << min(max(0, probes), 30), state.policy.probe_max_ns)


# ── the fold ───────────────────────────────────────────────────────────────────────────────────


def schedule(state: MetaState, entry: PlansScheduled) -> Effects:
    return tuple(
        schedule_one(state, spec, PlanId(state.index, ordinal))
        for ordinal, spec in enumerate(entry.plans)
    )


def schedule_one(state: MetaState, spec: PlanSpec, plan: PlanId) -> Effect:
    rules = state.kinds[spec.kind]
    why = _not_free(state, spec.inputs) or rules.misfit(state, spec)
    if why is None and len(state.plans) >= state.policy.plans_max:
        why = Refusal.TOO_MANY
    if why is not None:
        return Refused(why, plan)
    _own(
        state,
        Plan(
            id=plan,
            kind=spec.kind,
            removable=spec.removable,
            key=spec.key,
            inputs=spec.inputs,
            state=PlanState.REQUESTED,
            scheduled_at=state.lease_time,
            failure_limit=max(1, spec.failure_limit),
            eligible_at=spec.eligible_at,
            resources=spec.resources,
            request_id=spec.request_id,
            job=spec.job,
            repair=spec.repair,
        ),
    )
    return Scheduled(plan)


def _not_free(state: MetaState, inputs: tuple[BlockId, ...]) -> Refusal | None:
    """Every input must be live and unowned (S7)."""
    if len(set(inputs)) != len(inputs):
        return Refusal.INPUT_REPEATED
    if any(block not in state.blocks for block in inputs):
        return Refusal.INPUT_GONE
    if any(block in state.owners for block in inputs):
        return Refusal.INPUT_OWNED
    return None


def _own(state: MetaState, plan: Plan) -> None:
    state.plans[plan.id] = plan
    state.owners.update(dict.fromkeys(plan.inputs, plan.id))
    state.queue.take_all(plan.inputs, state.policy)


def ask(state: MetaState, entry: PlanAsked) -> Effects:
    """Somebody wants a plan that is there: the request finds it again, or it goes first (S6)."""
    plan = state.plans.get(entry.plan)
    if plan is None:
        return (Refused(Refusal.UNKNOWN_PLAN, entry.plan),)
    others = plan.other_requests
    if entry.request_id and not plan.answers(entry.request_id):
        others = (*others, entry.request_id)[-OTHER_REQUESTS_MAX:]
    urgent = plan.urgent or entry.urgent
    state.plans[plan.id] = msgspec.structs.replace(plan, other_requests=others, urgent=urgent)
    return ()


def bisect(state: MetaState, entry: PlanBisected) -> Effects:
    """The plan ends, and two plans own its inputs in the same entry: none is ever free (S17)."""
    plan = state.plans[entry.plan]
    if not 0 < entry.at < len(plan.inputs) or len(state.plans) >= state.policy.plans_max:
        return (Refused(Refusal.NOT_DIVISIBLE, plan.id),)
    halves = plan.inputs[: entry.at], plan.inputs[entry.at :]
    children = PlanId(state.index, 0), PlanId(state.index, 1)
    finish(state, msgspec.structs.replace(plan, state=PlanState.CANCELLED))
    for child, inputs in zip(children, halves, strict=True):
        _own(
            state,
            msgspec.structs.replace(
                plan,
                id=child,
                inputs=inputs,
                state=PlanState.REQUESTED,
                scheduled_at=state.lease_time,
                lease=None,
                attempts=(),
                failures=0,
                excused=0,
                eligible_at=LeaseTime(0),
                parent=plan.id,
                request_id="",  # requests find the plan that they made: it names its halves
                other_requests=(),
                urgent=False,
            ),
        )
    return (Bisected(plan.id, children),)


def exclude(state: MetaState, entry: PlanExcluded) -> Effects:
    """Exclude the plan: it keeps its inputs, and is shown as the reason why they wait (S7)."""
    plan = state.plans[entry.plan]
    state.plans[plan.id] = msgspec.structs.replace(
        plan, state=PlanState.EXCLUDED, eligible_at=entry.eligible_at, note=entry.note
    )
    return (Excluded(plan.id, entry.eligible_at),)


def cancel(state: MetaState, plan_id: PlanId, *, gone: frozenset[BlockId], cause: str) -> Effects:
    """A plan, on the schedule or parked, ends because some of its inputs are going.

    Whoever works on it is fenced; its other inputs return to their old place in the queue (S7).
    """
    plan = state.plans.get(plan_id) or state.parked.get(plan_id)
    if plan is None:
        return (Refused(Refusal.UNKNOWN_PLAN, plan_id),)
    plan, fenced = attempts.end_attempt(
        state, plan, AttemptEnd.FENCED, cause, counts_as_failure=False
    )
    finish(state, msgspec.structs.replace(plan, state=PlanState.CANCELLED, note=cause))
    for block in plan.inputs:
        if block not in gone:
            state.queue.give_back(block, state.policy)
    return (*fenced, Cancelled(plan_id))


def finish(state: MetaState, plan: Plan) -> None:
    """Move an ended plan off the schedule; it is kept for repeated reports, within a bound."""
    if state.parked.pop(plan.id, None) is None:
        del state.plans[plan.id]
    for block in plan.inputs:
        del state.owners[block]
    state.finished[plan.id] = msgspec.structs.replace(plan, completed_at=state.lease_time)
    while len(state.finished) > state.policy.finished_max:
        del state.finished[next(iter(state.finished))]


def trim(marked: Marked[Any, Any], size_max: int) -> None:
    """Forget the oldest items beyond a bound."""
    while len(marked) > size_max:
        del marked[next(iter(marked))]


def archive(state: MetaState, entry: PlansArchived) -> Effects:
    for plan in entry.plans:
        state.finished.pop(plan, None)
    return ()


def find(state: MetaState, plan: PlanId) -> Plan | None:
    """A plan on the schedule, parked, or finished not long ago."""
    return state.plans.get(plan) or state.parked.get(plan) or state.finished.get(plan)


def all_plans(state: MetaState) -> Iterator[Plan]:
    return chain(state.plans.values(), state.parked.values(), state.finished.values())
