"""Who gets which plan next: small jobs first among those that can run (S11). It only reads."""

from __future__ import annotations

from typing import NamedTuple

from maar.metastore import plan as plans
from maar.metastore.entries import Entry, Grant, PlanBisected, PlanExcluded, PlansLeased
from maar.metastore.entries import PlansScheduled as Scheduled
from maar.metastore.state import MetaState
from maar.model.ids import PlanId, WorkerId
from maar.model.plan import Plan, PlanState
from maar.model.time import LeaseTime

GRANTED_AT_ONCE = 1_000  # keeps an entry, and the reply, small


class Wish(NamedTuple):
    """A worker and how many plans it has room for."""

    worker: WorkerId
    capacity: int


def idle(plan: Plan, now: LeaseTime) -> bool:
    """Nobody works on it, as far as its lease tells."""
    return plan.lease is None or plan.lease.expired(now)


def failures(plan: Plan, now: LeaseTime) -> int:
    """An expired lease is a failure, counted when somebody acts on it."""
    return plan.failures + (plan.lease is not None and plan.lease.expired(now))


def set_aside(state: MetaState, now: LeaseTime) -> list[Entry]:
    """Plans at their limit: many inputs are divided, a single one is excluded (S17)."""
    entries: list[Entry] = []
    room = state.policy.plans_max - len(state.plans)  # a plan in two is one more
    for plan in state.plans.values():
        count = failures(plan, now)
        resting = plan.state is PlanState.EXCLUDED and plan.lease is None
        if resting or not idle(plan, now) or count < plan.failure_limit:
            continue
        seen = plan.lease.token if plan.lease else None
        if len(plan.inputs) > 1 and room > 0:
            entries.append(PlanBisected(plan.id, seen, len(plan.inputs) // 2))
            room -= 1
        elif len(plan.inputs) == 1:
            delay = plans.probe_delay(state, count - plan.failure_limit)
            entries.append(PlanExcluded(plan.id, seen, LeaseTime(now + delay)))
    return entries


def assign(state: MetaState, wishes: list[Wish], *, now: LeaseTime) -> list[Entry]:
    """Hand out what waits, then plan more: at most two entries, the second leases the first's."""
    wanted = min(sum(wish.capacity for wish in wishes), GRANTED_AT_ONCE)
    if wanted <= 0:
        return []
    waiting = waiting_plans(state, now)[:wanted]
    specs = plans.batches(state, now=now, limit=wanted - len(waiting))
    first = state.index + 1
    grantable = [(plan.id, plan.lease.token if plan.lease else None) for plan in waiting]
    grantable += [(PlanId(first, ordinal), None) for ordinal in range(len(specs))]
    if not grantable:
        return []
    workers = (wish.worker for wish in wishes for _ in range(wish.capacity))
    expires_at = LeaseTime(now + state.policy.lease_ns)
    leased = PlansLeased(
        tuple(
            Grant(plan, worker, expires_at, seen)
            for (plan, seen), worker in zip(grantable, workers, strict=False)
        )
    )
    return [Scheduled(tuple(specs)), leased] if specs else [leased]


def waiting_plans(state: MetaState, now: LeaseTime) -> list[Plan]:
    """Eligible plans, best first; of the excluded ones, one probe at a time."""
    eligible = [
        plan
        for plan in state.plans.values()
        if idle(plan, now)
        and plan.eligible_at <= now
        and (plan.state is PlanState.EXCLUDED or failures(plan, now) < plan.failure_limit)
    ]
    eligible.sort(key=lambda plan: _priority(plan, now))
    probing = any(
        plan.lease is not None and plan.failures >= plan.failure_limit
        for plan in state.plans.values()
    )
    probes = [plan for plan in eligible if plan.state is PlanState.EXCLUDED]
    healthy = [plan for plan in eligible if plan.state is not PlanState.EXCLUDED]
    return healthy if probing else healthy + probes[:1]


def _priority(plan: Plan, now: LeaseTime) -> tuple[int, bool, int, int, PlanId]:
    """Level; unassigned before abandoned; fewer failures; earlier expiry; order of planning."""
    expires_at = plan.lease.expires_at if plan.lease else 0
    return plan.key.level, plan.lease is not None, failures(plan, now), expires_at, plan.id
