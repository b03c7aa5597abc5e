"""How a plan ends well: its inputs are replaced by its outputs in one step, or nothing changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from maar.metastore.fold import registration
from maar.metastore.fold.deleting import deletion
from maar.metastore.fold.deleting.deletion import NOTHING, Deletable
from maar.metastore.fold.plans import attempts, lease, leftovers
from maar.metastore.fold.plans import plan as plans
from maar.metastore.fold.stores import objects
from maar.metastore.records.effects import Completed, Effects, Refused
from maar.metastore.records.entries import PlanCompleted
from maar.metastore.records.packs import pack, unpack
from maar.metastore.state.index import FoundBlock
from maar.metastore.state.retired import Cause, Retired
from maar.metastore.state.state import MetaState, SetbackScope
from maar.model.block import BlockMeta
from maar.model.ids import BlockId, FencingToken
from maar.model.lane import Item
from maar.model.plan import Plan, PlanState
from maar.model.refusal import Refusal


def complete(state: MetaState, entry: PlanCompleted) -> Effects:
    done = state.finished.get(entry.plan)
    if done is not None and done.state is PlanState.COMPLETED:
        return (_again(done, entry.token),)
    plan, why = lease.plan_under_token(state, entry.plan, entry.token)
    if plan is None:
        return (Refused(why, entry.plan, entry.token),)
    live = state.blocks.find_live(plan.inputs)
    allowed = deletion.deletable(state, _inputs(live), entry.token) if state.predicates else NOTHING
    refusal = _refusal(state, plan, live, entry, allowed)
    if refusal is not None:
        return (Refused(refusal, entry.plan, entry.token),)
    return (_replace(state, plan, live, entry),)


def _inputs(live: Mapping[BlockId, FoundBlock]) -> Iterator[BlockMeta]:
    return (unpack(found.packed) for found in live.values())


def _again(done: Plan, token: FencingToken) -> Completed | Refused:
    """A repeated report gets the same answer as the first."""
    if done.attempts[-1].token == token:
        return Completed(done.id, token, again=True)
    return Refused(Refusal.COMPLETED_BY_OTHER, done.id, token)


def _refusal(
    state: MetaState,
    plan: Plan,
    live: Mapping[BlockId, FoundBlock],
    entry: PlanCompleted,
    allowed: Deletable,
) -> Refusal | None:
    if any(block not in live for block in plan.inputs):
        return Refusal.INPUT_GONE
    if any(state.owners.get(block) != plan.id for block in plan.inputs):
        return Refusal.INPUT_OWNED
    if entry.result.kind != plan.kind:
        return Refusal.RESULT_KIND
    if entry.result.adopted:
        if not state.kinds[plan.kind].adopts:
            return Refusal.RESULT_KIND
        if allowed.profiles:
            return Refusal.HIDDEN  # as it is, the block still holds what is to be deleted
    if any(registration.why_malformed(meta) for meta in entry.result.outputs):
        return Refusal.OUTPUT
    inputs = {block: found.outline for block, found in live.items()}
    refusal = state.kinds[plan.kind].refusal(plan, inputs, entry.result, allowed.profiles)
    refusal = refusal or deletion.refusal(allowed, entry.result)
    return refusal or _output_refusal(state, plan, entry)


def _output_refusal(state: MetaState, plan: Plan, entry: PlanCompleted) -> Refusal | None:
    outputs = entry.result.outputs
    ids = {meta.id for meta in outputs}
    if len(ids) != len(outputs) or any(
        block in state.blocks or block in state.retired or block in state.remembered
        for block in ids
    ):
        return Refusal.OUTPUT_TAKEN
    # Every output has its files, under keys that this attempt gave it (S1, S3).
    if any(objects.wrong_with_files(meta) for meta in outputs):
        return Refusal.OUTPUT_FILES
    own = all(
        not objects.wrong_with_keys(meta, plan=plan.id, token=entry.token)
        and not objects.wrong_with_since(meta)
        for meta in outputs
    )
    return None if own else Refusal.OUTPUT_KEY


def _remember_success(state: MetaState, plan: Plan) -> None:
    scope = SetbackScope(plan.kind, plan.key)
    state.setbacks.pop(scope, None)
    if plan.rolls_back is not None:
        leftovers.mark_rolled_back(state, plan.rolls_back, plan.tokens)
    elif not plan.inputs:
        state.successes.pop(scope, None)  # the newest comes last
        state.successes[scope] = state.lease_time
        plans.trim(state.successes, state.policy.scopes_max)


def _first_place(state: MetaState, plan: Plan) -> Item | None:
    places = (state.queue.place(block) for block in plan.inputs)
    return min((place for place in places if place is not None), default=None)


def _replace(
    state: MetaState, plan: Plan, live: Mapping[BlockId, FoundBlock], entry: PlanCompleted
) -> Completed:
    if entry.result.adopted:
        return _adopt(state, plan, live, entry)
    zone = plan.key.zone  # outputs inherit that of their lane
    metas = tuple(
        meta if meta.zone == zone else msgspec.structs.replace(meta, zone=zone)
        for meta in entry.result.outputs
    )
    result = msgspec.structs.replace(entry.result, outputs=metas)
    done = attempts.complete_attempt(state, plan)
    plans.finish(state, msgspec.structs.replace(done, result=result))
    _remember_success(state, plan)
    outputs = tuple(meta.id for meta in metas)
    place = _first_place(state, plan) if state.kinds[plan.kind].keeps_place else None
    state.blocks.drop(live)
    # What was deleted whole has no successor, and needs none before its objects go.
    emptied = not metas and result.account.deleted > 0
    cause = Cause.DELETED if emptied else Cause.REPLACED
    for block in plan.inputs:
        state.queue.leave(block, state.policy)
        was = live[block].packed
        gone = Retired(state.index, state.lease_time, outputs, was, cause)
        state.retired[block] = gone
    for ordinal, meta in enumerate(metas):
        registration.admit(state, meta, pack(meta), ordinal=ordinal, place=place)
    state.tally.plans_completed += 1
    state.tally.duplicates_removed += result.account.duplicates
    state.tally.profiles_quarantined += result.account.quarantined
    state.tally.profiles_deleted += result.account.deleted
    return Completed(plan.id, entry.token, plan.inputs, outputs)


def _adopt(
    state: MetaState, plan: Plan, live: Mapping[BlockId, FoundBlock], entry: PlanCompleted
) -> Completed:
    """The only input waits at the next level, or is finished. It is the same block with the same
    objects, also where a repair has copied it meanwhile, so nothing is retired.
    """
    (block,) = plan.inputs
    was = unpack(live[block].packed)
    meta = msgspec.structs.replace(was, level=plan.key.level + 1)
    done = attempts.complete_attempt(state, plan)
    plans.finish(state, msgspec.structs.replace(done, result=entry.result))
    _remember_success(state, plan)
    state.blocks.drop(live)
    state.queue.leave(block, state.policy)
    registration.admit(state, meta, pack(meta), ordinal=0)
    state.tally.plans_completed += 1
    return Completed(plan.id, entry.token, (), (block,))
