"""How a plan ends well: its inputs are replaced by its outputs in one step, or nothing changes."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from maar.metastore.fold import accounting, attempts, lease, objects, registration
from maar.metastore.fold import plan as plans
from maar.metastore.records.effects import Completed, Effects, Refused
from maar.metastore.records.entries import PlanCompleted
from maar.metastore.records.packs import ZONES_SINCE, pack
from maar.metastore.state.index import FoundBlock, day_of
from maar.metastore.state.queue import LANES_SINCE
from maar.metastore.state.retired import Cause, Retired, recorded
from maar.metastore.state.state import MetaState
from maar.model.block import NO_DAY, BlockMeta, Kind
from maar.model.ids import NO_ZONE, BlockId, FencingToken
from maar.model.plan import Plan, PlanState, QueueKey
from maar.model.refusal import Refusal


def complete(state: MetaState, entry: PlanCompleted) -> Effects:
    done = state.finished.get(entry.plan)
    if done is not None and done.state is PlanState.COMPLETED:
        return (_again(done, entry.token),)
    plan, why = lease.held(state, entry.plan, entry.token)
    if plan is None:
        return (Refused(why, entry.plan, entry.token),)
    live = state.blocks.found(plan.inputs)
    refusal = _refusal(state, plan, live, entry)
    if refusal is not None:
        return (Refused(refusal, entry.plan, entry.token),)
    return (_replace(state, plan, live, entry),)


def _again(done: Plan, token: FencingToken) -> Completed | Refused:
    """A repeated report gets the answer that it got."""
    if done.attempts[-1].token == token:
        return Completed(done.id, token)
    return Refused(Refusal.COMPLETED_BY_OTHER, done.id, token)


def _refusal(
    state: MetaState, plan: Plan, live: Mapping[BlockId, FoundBlock], entry: PlanCompleted
) -> Refusal | None:
    if any(block not in live for block in plan.inputs):
        return Refusal.INPUT_GONE
    if any(state.owners.get(block) != plan.id for block in plan.inputs):
        return Refusal.INPUT_OWNED
    if not accounting.adds_up(live, entry.result):
        return Refusal.ACCOUNT
    refusal = _output_refusal(state, plan, entry)
    if refusal is not None or state.version < accounting.SHARES_SINCE:
        return refusal
    possible = accounting.possible(live, entry.result, level=plan.key.level)
    return None if possible else Refusal.SHARE


def _output_refusal(state: MetaState, plan: Plan, entry: PlanCompleted) -> Refusal | None:
    outputs = entry.result.outputs
    ids = {meta.id for meta in outputs}
    if len(ids) != len(outputs) or any(
        block in state.blocks or block in state.retired or block in state.remembered
        for block in ids
    ):
        return Refusal.OUTPUT_TAKEN
    if not all(_belongs(meta, plan, version=state.version) for meta in outputs):
        return Refusal.OUTPUT
    if state.version >= objects.OBJECTS_SINCE:
        return _objects_refusal(plan, entry)
    mark = f"-{plan.id}-{entry.token}-"  # every key carries plan and token (S3)
    keys = [at.key for meta in outputs for file in meta.files for at in file.locations]
    return None if all(mark in key for key in keys) else Refusal.OUTPUT_KEY


def _objects_refusal(plan: Plan, entry: PlanCompleted) -> Refusal | None:
    """Every output has its files, under keys that this attempt gave it (S1, S3)."""
    if any(objects.wrong_with_files(meta) for meta in entry.result.outputs):
        return Refusal.OUTPUT_FILES
    own = all(
        not objects.wrong_with_keys(meta, plan=plan.id, token=entry.token)
        for meta in entry.result.outputs
    )
    return None if own else Refusal.OUTPUT_KEY


def _belongs(meta: BlockMeta, plan: Plan, *, version: int) -> bool:
    key = plan.key
    if meta.store != key.store or meta.shard != key.shard or not meta.tenant:
        return False
    if registration.malformed(meta, version=version):
        return False
    if key.tenant and meta.tenant != key.tenant:
        return False
    if version >= LANES_SINCE and not _of_lane(meta, key):
        return False
    return meta.kind is Kind.QUARANTINE or meta.level == key.level + 1


def _of_lane(meta: BlockMeta, key: QueueKey) -> bool:
    """In the zone and, from level 1 on, of the day of its lane. A worker from before zones names
    none; a plan from before lanes had days may hold any.
    """
    return meta.zone in (NO_ZONE, key.zone) and key.day in (NO_DAY, day_of(meta))


def _kept(meta: BlockMeta, plan: Plan, *, version: int) -> BlockMeta:
    """Outputs inherit the zone of their lane, which has none before lanes had zones.

    A plan that ended is hashed with its outputs, so an older log has no more of them than its
    programs know.
    """
    dated_ns = meta.dated_ns if version >= ZONES_SINCE else 0
    if (meta.zone, meta.dated_ns) == (plan.key.zone, dated_ns):
        return meta
    return msgspec.structs.replace(meta, zone=plan.key.zone, dated_ns=dated_ns)


def _replace(
    state: MetaState, plan: Plan, live: Mapping[BlockId, FoundBlock], entry: PlanCompleted
) -> Completed:
    metas = tuple(_kept(meta, plan, version=state.version) for meta in entry.result.outputs)
    result = msgspec.structs.replace(entry.result, outputs=metas)
    done = attempts.completed(state, plan)
    plans.finish(state, msgspec.structs.replace(done, result=result))
    outputs = tuple(meta.id for meta in metas)
    cause = recorded(Cause.REPLACED, version=state.version)
    state.blocks.drop(live)
    for block in plan.inputs:
        state.queue.leave(block, state.policy)
        was = live[block].packed
        state.retired[block] = Retired(state.index, state.lease_time, outputs, was, cause)
    for ordinal, meta in enumerate(metas):
        packed = pack(meta, version=state.version)
        registration.admit(state, meta, packed, ordinal=ordinal)
    state.tally.plans_completed += 1
    state.tally.duplicates_removed += result.account.duplicates
    state.tally.profiles_quarantined += result.account.quarantined
    return Completed(plan.id, entry.token, plan.inputs, outputs)
