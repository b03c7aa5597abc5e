"""Answers from the state: plain values that no later entry changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from heapq import nlargest

from maar.metastore.index import Chunk, Index, blocks_in, unpack
from maar.metastore.plan import all_plans
from maar.metastore.state import MetaState, sizes
from maar.model.block import BlockMeta, Kind
from maar.model.errors import InvalidInput, NotFound
from maar.model.ids import NO_TENANT, BlockId, PlanId
from maar.model.plan import LeasedPlan, Plan, PlanState
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.metastore import LevelStatus, Status, ViewRequest

FAILED_MAX = 100  # plans that a status lists


def chunks_for(index: Index, request: ViewRequest) -> list[Chunk]:
    """Immutable: they can be searched later, or in a thread."""
    return index.chunks(request.tenant, request.range) + index.chunks(NO_TENANT, request.range)


def select(chunks: Iterable[Chunk], request: ViewRequest) -> tuple[BlockMeta, ...]:
    """The blocks of some chunks that may hold what the request asks for, oldest first."""
    found = [meta for meta in blocks_in(chunks) if _may_hold(meta, request)]
    return tuple(sorted(found, key=lambda meta: meta.id))


def _may_hold(meta: BlockMeta, request: ViewRequest) -> bool:
    if not request.range.overlaps(meta.min_time_ns, meta.max_time_ns):
        return False
    return any(
        dataset.tenant == request.tenant
        and (not request.service or dataset.service == request.service)
        and request.range.overlaps(dataset.min_time_ns, dataset.max_time_ns)
        for dataset in meta.datasets
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
        (block, chunk.packed[at])
        for chunk in chunks
        for at, block in enumerate(chunk.ids)
        if level in (-1, chunk.levels[at])
    )
    return tuple(unpack(packed) for _, packed in nlargest(limit, candidates))


def block(state: MetaState, block_id: BlockId) -> BlockMeta:
    if block_id not in state.blocks:
        raise NotFound(f"there is no live block {block_id}; it may have been merged into another")
    return state.blocks.get(block_id)


def plan(state: MetaState, plan_id: PlanId) -> Plan:
    found = state.plans.get(plan_id) or state.finished.get(plan_id)
    if found is None:
        raise NotFound(f"there is no plan {plan_id}; finished plans are archived after a while")
    return found


def plans(state: MetaState, *, named: str, limit: int) -> tuple[Plan, ...]:
    known = {member.name.lower(): member for member in PlanState}
    if named and named not in known:
        raise InvalidInput(f"{named!r} is not a state of a plan; there are {', '.join(known)}")
    found = (p for p in all_plans(state) if not named or p.state is known[named])
    return tuple(nlargest(limit, found, key=lambda p: p.id))


def leased_plan(state: MetaState, plan_id: PlanId) -> LeasedPlan:
    """All that a worker needs to carry out what it was granted."""
    found = state.plans[plan_id]
    assert found.lease is not None
    return LeasedPlan(
        id=found.id,
        service=found.service,
        token=found.lease.token,
        key=found.key,
        inputs=tuple(state.blocks.get(block_id) for block_id in found.inputs),
        target_block_bytes=state.policy.target_block_bytes,
        lease_ns=state.policy.lease_ns,
    )


def status(state: MetaState, *, now: LeaseTime, snapshot_index: int, log_first: int) -> Status:
    failed = [p for p in state.plans.values() if p.failures or p.state is PlanState.EXCLUDED]
    leased = [p for p in state.plans.values() if p.lease and not p.lease.expired(now)]
    return Status(
        incarnation=state.incarnation,
        term=state.term,
        index=state.index,
        lease_time=now,
        wall_time_ns=state.wall_time,
        levels=levels(state, now),
        plans=dict(Counter(p.state.name.lower() for p in all_plans(state))),
        leased=tuple(leased),
        failed=tuple(nlargest(FAILED_MAX, failed, key=lambda p: p.id)),
        completed=state.tally.plans_completed,
        retired=len(state.retired),
        profiles_added=state.tally.profiles_added,
        duplicates_removed=state.tally.duplicates_removed,
        profiles_quarantined=state.tally.profiles_quarantined,
        snapshot_index=snapshot_index,
        log_first=log_first,
        state_items=sizes(state),
    )


def levels(state: MetaState, now: LeaseTime) -> tuple[LevelStatus, ...]:
    queued: Counter[int] = Counter()
    for key, lane in state.queue.lanes.items():
        queued[key.level] += len(lane.items)
    held: Counter[int] = Counter()
    for excluded in state.plans.values():
        if excluded.state is PlanState.EXCLUDED:
            held[excluded.key.level] += len(excluded.inputs)
    found = []
    for (level, kind), total in sorted(state.blocks.totals.items()):
        waits = kind is not Kind.QUARANTINE
        fronts = state.queue.fronts.get(level) if waits else None
        oldest = fronts.first() if fronts else None
        found.append(
            LevelStatus(
                level=level,
                kind=kind.name.lower(),
                blocks=total.blocks,
                bytes=total.bytes,
                profiles=total.profiles,
                queued=queued[level] if waits else 0,
                oldest_queued_s=(now - oldest.added_at) / SECOND_NS if oldest else 0.0,
                held=held[level] if waits else 0,
            )
        )
    return tuple(found)
