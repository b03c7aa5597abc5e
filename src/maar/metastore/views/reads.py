"""Answers made from the state: plain values that no later entry changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import nlargest, nsmallest
from itertools import chain
from typing import NamedTuple

import msgspec

from maar.metastore.decide import execution, repairs
from maar.metastore.fold import registration
from maar.metastore.fold.deleting import deletion, retention, trust
from maar.metastore.fold.plans.plan import all_plans, find
from maar.metastore.records.packs import unpack
from maar.metastore.state.index import Chunk, Index
from maar.metastore.state.rows import raw_id
from maar.metastore.state.state import MetaState, sizes
from maar.metastore.views.alarms import every_alarm
from maar.model.block import BlockMeta, Dataset, Kind
from maar.model.errors import InvalidInput, NotFound
from maar.model.ids import NO_TENANT, BlockId, PlanId, StoreName
from maar.model.plan import LeasedPlan, Plan, PlanState, Rollback
from maar.model.predicate import Mask
from maar.model.time import SECOND_NS, LeaseTime, WallTime
from maar.ports.metastore.replica import ReplicaStatus
from maar.ports.operator.dead_letters import LettersStatus
from maar.ports.operator.operator import (
    LevelStatus,
    ListPlans,
    PlanDetail,
    PlanRollback,
    Status,
    ZoneStatus,
)
from maar.ports.reader.index import ViewRequest

STAMP_BYTES = 16
LISTED_MAX = 100  # plans of a kind that a status lists

# Enum lookups by value are slow, and there may be tens of thousands of plans.
_EXCLUDED = PlanState.EXCLUDED
_SET_ASIDE = (PlanState.EXCLUDED, PlanState.PARKED)
_ACTIVE = (PlanState.REQUESTED, PlanState.INFLIGHT)


def stamp_of(index: Index) -> bytes:
    """Says which blocks are live, every byte of what is known of them."""
    return index.hash.to_bytes(STAMP_BYTES, "big")


def chunks_for(index: Index, request: ViewRequest) -> list[Chunk]:
    """Immutable: they can be searched later, or in a thread."""
    return index.chunks(request.tenant, request.range) + index.chunks(NO_TENANT, request.range)


def select(chunks: Iterable[Chunk], request: ViewRequest) -> tuple[BlockMeta, ...]:
    """The blocks of some chunks that may hold what the request asks for, oldest first; with the
    datasets of that tenant and service alone, unless all are wanted.
    """
    # A block of a service has its name among its bytes: most of the others are not decoded.
    name = request.service.encode()
    packed = (each for chunk in chunks for each in chunk.packed if name in each)
    found = [
        meta if request.every_dataset else _narrow(meta, request)
        for meta in map(unpack, packed)
        if _may_hold(meta, request)
    ]
    return tuple(sorted(found, key=lambda meta: meta.id))


def _may_hold(meta: BlockMeta, request: ViewRequest) -> bool:
    if not request.range.overlaps(meta.min_time_ns, meta.max_time_ns):
        return False
    return any(
        _is_wanted(dataset, request)
        and request.range.overlaps(dataset.min_time_ns, dataset.max_time_ns)
        for dataset in meta.datasets
    )


def _narrow(meta: BlockMeta, request: ViewRequest) -> BlockMeta:
    """Whoever asks for one of a thousand services need not be sent the others. Times do not count:
    what a query keeps of a segment must be the same, whichever range it asked for first.
    """
    wanted = tuple(dataset for dataset in meta.datasets if _is_wanted(dataset, request))
    if len(wanted) == len(meta.datasets):
        return meta
    return msgspec.structs.replace(meta, datasets=wanted)


def _is_wanted(dataset: Dataset, request: ViewRequest) -> bool:
    return dataset.tenant == request.tenant and request.service in ("", dataset.service)


def hidden_masks(state: MetaState, blocks: Iterable[BlockMeta]) -> dict[BlockId, tuple[Mask, ...]]:
    """What of live blocks was deleted and is still in them; only those that it concerns (S8)."""
    found = ((meta.id, deletion.applying(state, meta)) for meta in blocks)
    return {block: masks for block, masks in found if masks}


def undelivered_blocks(state: MetaState, letters: Iterable[BlockId]) -> tuple[BlockId, ...]:
    """Blocks of dead letters that the index has never seen and may still take (S20).

    What it has seen is in the view, or was merged, or went by retention: no letter brings it back.
    """
    return tuple(
        block
        for block in letters
        if raw_id(block)
        and not registration.is_known(state, block)
        and not registration.below_floor(state, block)
    )


def all_chunks(index: Index, tenant: str) -> list[Chunk]:
    return [
        chunk
        for partition in index.partitions()
        if not tenant or partition.key.tenant == tenant
        for chunk in partition.chunks
    ]


def newest(chunks: list[Chunk], *, level: int, limit: int) -> tuple[BlockMeta, ...]:
    """The newest blocks (level -1: of all levels); only those that are returned are decoded."""
    candidates = (
        (block, number, at)
        for number, chunk in enumerate(chunks)
        for at, block in enumerate(chunk.ids)
        if level in (-1, chunk.levels[at])
    )
    return tuple(chunks[number].meta(at) for _, number, at in nlargest(limit, candidates))


def block(state: MetaState, block_id: BlockId) -> BlockMeta:
    if block_id not in state.blocks:
        raise NotFound(f"there is no live block {block_id}; it may have been merged into another")
    return state.blocks.get(block_id)


def plan(state: MetaState, plan_id: PlanId, *, now: LeaseTime) -> PlanDetail:
    found = find(state, plan_id)
    if found is None:
        raise NotFound(f"there is no plan {plan_id}; finished plans are archived after a while")
    limit = max(found.failure_limit, state.raised_limit(now))
    known = (known_block(state, block_id) for block_id in found.inputs)
    inputs = tuple(meta for meta in known if meta is not None)
    would = execution.preview(state, plan_id, now=now)
    told = msgspec.structs.replace(would, result=None)  # the plan itself has it
    undone = tuple(_rollbacks_of(state, plan_id))
    slots = state.kinds[found.kind].slots(state.policy)
    return PlanDetail(found, now, limit, inputs, undone, told, slots)


def _rollbacks_of(state: MetaState, target: PlanId) -> Iterator[PlanRollback]:
    """A row for each attempt that they undo."""
    found = (each for each in all_plans(state) if each.rolls_back == target)
    for each in sorted(found, key=lambda each: each.id):
        for token in each.tokens or (None,):
            yield PlanRollback(each.id, token, each.state.name.lower())


def known_block(state: MetaState, block_id: BlockId) -> BlockMeta | None:
    """A block that is live, or replaced and not yet deleted."""
    if block_id in state.blocks:
        return state.blocks.get(block_id)
    retired = state.retired.get(block_id)
    return unpack(retired.packed) if retired else None


def plans(state: MetaState, wanted: ListPlans) -> tuple[Plan, ...]:
    """Newest first."""
    _check(wanted.state, "a state of a plan", [member.name.lower() for member in PlanState])
    _check(wanted.service, "a kind of plan", list(state.kinds))
    wanted_state = PlanState[wanted.state.upper()] if wanted.state else None
    found = (
        plan
        for plan in all_plans(state)
        if wanted_state in (None, plan.state) and _matches(state, plan, wanted)
    )
    return tuple(nlargest(wanted.limit, found, key=lambda plan: plan.id))


def _check(given: str, what: str, known: list[str]) -> None:
    if given and given not in known:
        raise InvalidInput(f"{given[:60]!r} is not {what}; there are {', '.join(known)}")


def _matches(state: MetaState, plan: Plan, wanted: ListPlans) -> bool:
    return (
        (not wanted.service or plan.kind == wanted.service)
        and (not wanted.tenant or plan.key.tenant == wanted.tenant)
        and (wanted.level < 0 or _level(state, plan) == str(wanted.level))
        and (not wanted.shard or plan.key.shard == wanted.shard)
        and (not wanted.failing or failing(plan))
    )


def _level(state: MetaState, plan: Plan) -> str:
    return state.kinds[plan.kind].level(plan.key)


def failing(plan: Plan) -> bool:
    """Whether it has failed and not ended: it waits for another attempt, or is set aside."""
    return plan.state in _SET_ASIDE or (plan.failures > 0 and plan.state in _ACTIVE)


class Standings(NamedTuple):
    """How many plans are in each state, and how many blocks of each level they hold back."""

    plans: dict[PlanState, int]
    held: dict[str, int]  # blocks of excluded and parked plans, by level


def standings(state: MetaState) -> Standings:
    """Runs twice a second over tens of thousands of plans, so the per-plan work is done in C."""
    states = bytes([plan.state for plan in all_plans(state)])
    plans = {member: states.count(member) for member in PlanState}
    aside = [plan for plan in state.plans.values() if plan.state is _EXCLUDED]
    held: dict[str, int] = {}
    for plan in chain(aside, state.parked.values()):
        level = _level(state, plan)
        held[level] = held.get(level, 0) + len(plan.inputs)
    return Standings(plans, held)


def leased_plan(state: MetaState, plan_id: PlanId) -> LeasedPlan:
    """All that a worker needs to carry out what it was granted."""
    found = state.plans[plan_id]
    assert found.lease is not None
    rules = state.kinds[found.kind]
    repair, inputs = None, tuple(state.blocks.get(block_id) for block_id in found.inputs)
    if found.repair is not None:
        repair, inputs = repairs.session_blocks(state, found, found.repair)
    token = found.lease.token
    masks: tuple[tuple[Mask, ...], ...] = ()
    if state.predicates:
        masks = tuple(deletion.applying(state, meta, before=token) for meta in inputs)
    return LeasedPlan(
        id=found.id,
        kind=found.kind,
        token=token,
        key=found.key,
        inputs=inputs,
        target_block_bytes=state.policy.target_block_bytes,
        lease_ns=found.lease.lease_ns,
        title=state.kinds.title(found),
        renew_ns=rules.renew_ns(found.lease.lease_ns),
        limit_ns=rules.limit_ns(state.policy),
        rollbacks=tuple(_rollbacks(state, found)),
        slots=rules.slots(state.policy),
        memory_bytes=rules.memory_bytes(state.policy),
        masks=masks if any(masks) else (),
        scheduled_at=found.scheduled_at,
        repair=repair,
    )


def _rollbacks(state: MetaState, plan: Plan) -> Iterator[Rollback]:
    """Those that the holder of a plan holds too, and finishes first; a rollback is its own."""
    pending = plan if plan.rolls_back else state.plans.rollback_of(plan.id)
    if pending is None or pending.rolls_back is None or pending.lease is None:
        return
    assert plan.lease is not None
    if pending.lease.token == plan.lease.token:  # of the same entry
        yield Rollback(
            pending.id,
            pending.lease.token,
            pending.rolls_back,
            pending.tokens,
            _store_written_to(state, pending.rolls_back),
        )


def _store_written_to(state: MetaState, target: PlanId) -> StoreName:
    """The store that attempts of a plan wrote to; '' when it may be any."""
    found = state.plans.get(target)
    if found is None or state.kinds[found.kind].any_store:
        return StoreName("")
    return found.key.store


def lease_ns(state: MetaState, plan_id: PlanId) -> int:
    """The length of a plan's lease; 0 when it has none any more."""
    found = state.plans.get(plan_id)
    return found.lease.lease_ns if found and found.lease else 0


def status(
    state: MetaState,
    *,
    now: LeaseTime,
    wall: WallTime,
    blocked: tuple[str, ...],
    snapshot_index: int,
    log_first: int,
    zones: tuple[ZoneStatus, ...] = (),
    letters: LettersStatus = LettersStatus(),  # noqa: B008  (it never changes)
    leader: str = "",
    replicas: tuple[ReplicaStatus, ...] = (),
    clocks: trust.Clocks = trust.ALONE,
) -> Status:
    failed = filter(failing, chain(state.plans.values(), state.parked.values()))
    leased = [p for p in state.plans.values() if p.lease and not p.lease.is_expired(now)]
    counted = standings(state)
    return Status(
        incarnation=state.incarnation,
        term=state.term,
        index=state.index,
        lease_time=now,
        wall_time_ns=state.wall_time,
        levels=levels(state, now, counted.held),
        plans={member.name.lower(): count for member, count in counted.plans.items() if count},
        running=len(leased),
        leased=tuple(nsmallest(LISTED_MAX, leased, key=lambda p: p.id)),
        failed=tuple(nlargest(LISTED_MAX, failed, key=lambda p: p.id)),
        completed=state.tally.plans_completed,
        retired=len(state.retired),
        profiles_added=state.tally.profiles_added,
        duplicates_removed=state.tally.duplicates_removed,
        profiles_quarantined=state.tally.profiles_quarantined,
        profiles_expired=state.tally.profiles_expired,
        parked=len(state.parked),
        leftovers=len(state.leftovers),
        failure_limit=max(state.policy.failure_limit, state.raised_limit(now)),
        limit_raised_s=_limit_raised_s(state, now),
        retention=retention.status(state, now=now, wall=wall, clocks=clocks),
        blocked=blocked,
        snapshot_index=snapshot_index,
        log_first=log_first,
        state_items=sizes(state),
        zones=zones,
        letters=letters,
        leader=leader,
        replicas=replicas,
        adopting=bool(state.adopting),
        alarms=every_alarm(state)[:LISTED_MAX],
        blocks_adopted=state.tally.blocks_adopted,
        blocks_missed=state.tally.blocks_missed,
        profiles_missed=state.tally.profiles_missed,
        blocks_lost=state.tally.blocks_lost,
        profiles_lost=state.tally.profiles_lost,
        rollbacks=len(state.plans.rollbacks),
        dead=len(state.leftovers.dead),
        deletions=len(state.predicates),
        profiles_deleted=state.tally.profiles_deleted,
    )


def _limit_raised_s(state: MetaState, now: LeaseTime) -> float:
    return (state.raised.until - now) / SECOND_NS if state.raised_limit(now) else 0.0


def levels(state: MetaState, now: LeaseTime, held: Mapping[str, int]) -> tuple[LevelStatus, ...]:
    """From counts that are kept as blocks come and go: the cost is that of the levels."""
    found = []
    for (level, kind), total in sorted(state.blocks.totals.items()):
        waits = kind is not Kind.QUARANTINE
        line = state.kinds.queue.line_of_level(level)
        waiting = state.queue.waiting.get(line) if waits else None
        fronts = state.queue.fronts.get(line) if waits else None
        oldest = fronts[0] if fronts else None
        found.append(
            LevelStatus(
                level=level,
                kind=kind.name.lower(),
                blocks=total.blocks,
                bytes=total.bytes,
                profiles=total.profiles,
                queued=waiting.blocks if waiting else 0,
                queued_bytes=waiting.bytes if waiting else 0,
                oldest_queued_s=(now - oldest.added_at) / SECOND_NS if oldest else 0.0,
                held=held.get(str(level), 0) if waits else 0,
            )
        )
    return tuple(found)
