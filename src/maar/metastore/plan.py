"""Which blocks are worth merging, and the life of a plan apart from its leases."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import chain

import msgspec

from maar.metastore.effects import Bisected, Effect, Effects, Excluded, Refusal, Refused, Scheduled
from maar.metastore.entries import (
    PlanBisected,
    PlanExcluded,
    PlansArchived,
    PlanSpec,
    PlansScheduled,
)
from maar.metastore.policy import Level
from maar.metastore.queue import Front, Item
from maar.metastore.state import MetaState
from maar.model.ids import BlockId, PlanId, block_time_ns
from maar.model.plan import Plan, PlanState, QueueKey, Service
from maar.model.time import LeaseTime

# ── decisions of the leader: they only read ────────────────────────────────────────────────────


def batches(state: MetaState, *, now: LeaseTime, limit: int) -> list[PlanSpec]:
    """The next plans, low levels first, then by the age of their oldest block."""
    room = min(limit, state.policy.plans_max - len(state.plans))
    found: list[PlanSpec] = []
    for number, level in enumerate(state.policy.levels):
        if len(found) >= room:
            break
        found += _batches_of_level(state, number, level, now=now, limit=room - len(found))
    return found


def _batches_of_level(
    state: MetaState, number: int, level: Level, *, now: LeaseTime, limit: int
) -> list[PlanSpec]:
    cuts: list[tuple[Item, list[Item], Iterator[list[Item]]]] = []
    for key in _due_lanes(state, number, level, now=now, limit=limit):
        lane = cut(state.queue.items(key), level, span_ns=state.policy.span_ns, now=now)
        batch = next(lane, None)
        if batch:
            cuts.append((batch[0], batch, lane))
    heapify(cuts)  # a lane with a deep backlog must not hold up the others of its level
    specs: list[PlanSpec] = []
    while cuts and len(specs) < limit:
        _, batch, lane = heappop(cuts)
        inputs = tuple(item.block for item in batch)
        specs.append(
            PlanSpec(Service.COMPACT, False, batch[0].key, inputs, state.policy.failure_limit)
        )
        following = next(lane, None)
        if following:
            heappush(cuts, (following[0], following, lane))
    return specs


def _due_lanes(
    state: MetaState, number: int, level: Level, *, now: LeaseTime, limit: int
) -> list[QueueKey]:
    """Lanes that are full, and lanes that are old; never more than there are plans wanted."""
    full = state.queue.full.get(number, ())
    keys = dict.fromkeys(front.key for front, _ in zip(full, range(limit), strict=False))
    old = state.queue.fronts.get(number, ())
    for front, _ in zip(old, range(limit), strict=False):
        if not aged(front, level, now):
            break
        keys[front.key] = None
    return list(keys)


def aged(item: Item | Front, level: Level, now: LeaseTime) -> bool:
    return now - item.added_at > level.age_ns


def cut(
    items: Iterator[Item], level: Level, *, span_ns: int, now: LeaseTime
) -> Iterator[list[Item]]:
    """Closed batches from the front of a lane, in its order."""
    batch: list[Item] = []
    size = 0
    for item in items:
        if batch and not _near(batch, item, span_ns):
            yield batch  # it can never grow: what follows is too far away
            batch, size = [], 0
        batch.append(item)
        size += item.size
        if len(batch) >= level.count or size >= level.bytes:
            yield batch
            batch, size = [], 0
    if batch and aged(batch[0], level, now):
        yield batch


def _near(batch: list[Item], item: Item, span_ns: int) -> bool:
    times = [block_time_ns(other.block) for other in batch]
    time = block_time_ns(item.block)
    return max(*times, time) - min(*times, time) <= span_ns


def probe_delay(state: MetaState, probes: int) -> int:
    """How long an excluded plan rests: twice as long after every failed probe."""
    return min(state.policy.probe_ns << min(max(0, probes), 30), state.policy.probe_max_ns)


# ── the fold ───────────────────────────────────────────────────────────────────────────────────


def schedule(state: MetaState, entry: PlansScheduled) -> Effects:
    return tuple(
        _schedule_one(state, spec, PlanId(state.index, ordinal))
        for ordinal, spec in enumerate(entry.plans)
    )


def _schedule_one(state: MetaState, spec: PlanSpec, plan: PlanId) -> Effect:
    why = _not_free(state, spec.inputs)
    if why is None and len(state.plans) >= state.policy.plans_max:
        why = Refusal.TOO_MANY
    if why is not None:
        return Refused(why, plan)
    _own(
        state,
        Plan(
            id=plan,
            service=spec.service,
            removable=spec.removable,
            key=spec.key,
            inputs=spec.inputs,
            state=PlanState.REQUESTED,
            scheduled_at=state.lease_time,
            failure_limit=max(1, spec.failure_limit),
            eligible_at=spec.eligible_at,
            resources=spec.resources,
            rolls_back=spec.rolls_back,
        ),
    )
    return Scheduled(plan, spec.key.level)


def _not_free(state: MetaState, inputs: tuple[BlockId, ...]) -> Refusal | None:
    """Every input must be live and unowned (S7)."""
    if not inputs or len(set(inputs)) != len(inputs):
        return Refusal.INPUT_REPEATED
    if any(block not in state.blocks for block in inputs):
        return Refusal.INPUT_GONE
    if any(block in state.owners for block in inputs):
        return Refusal.INPUT_OWNED
    return None


def _own(state: MetaState, plan: Plan) -> None:
    state.plans[plan.id] = plan
    for block in plan.inputs:
        state.owners[block] = plan.id
        state.queue.take(block, state.policy)


def bisect(state: MetaState, entry: PlanBisected) -> Effects:
    """The plan ends, and two plans own its inputs in the same entry: none is ever free (S17)."""
    plan = state.plans[entry.plan]
    if not 0 < entry.at < len(plan.inputs) or len(state.plans) >= state.policy.plans_max:
        return (Refused(Refusal.NOT_DIVISIBLE, plan.id),)
    halves = plan.inputs[: entry.at], plan.inputs[entry.at :]
    children = PlanId(state.index, 0), PlanId(state.index, 1)
    finish(state, msgspec.structs.replace(plan, state=PlanState.CANCELLED, lease=None))
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
                eligible_at=LeaseTime(0),
                parent=plan.id,
            ),
        )
    return (Bisected(plan.id, children),)


def exclude(state: MetaState, entry: PlanExcluded) -> Effects:
    """The plan keeps its inputs, which are thereby held, with the plan as the reason (S7)."""
    plan = state.plans[entry.plan]
    state.plans[plan.id] = msgspec.structs.replace(
        plan, state=PlanState.EXCLUDED, lease=None, eligible_at=entry.eligible_at
    )
    return (Excluded(plan.id, entry.eligible_at),)


def finish(state: MetaState, plan: Plan) -> None:
    """Off the schedule; kept for repeated reports, within a bound."""
    del state.plans[plan.id]
    for block in plan.inputs:
        del state.owners[block]
    state.finished[plan.id] = msgspec.structs.replace(plan, completed_at=state.lease_time)
    while len(state.finished) > state.policy.finished_max:
        del state.finished[next(iter(state.finished))]


def archive(state: MetaState, entry: PlansArchived) -> Effects:
    for plan in entry.plans:
        state.finished.pop(plan, None)
    return ()


def all_plans(state: MetaState) -> Iterator[Plan]:
    return chain(state.plans.values(), state.finished.values())
