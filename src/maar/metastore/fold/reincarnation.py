"""Continues a log from a snapshot when its later entries were lost: the fold's part (S5).

The snapshot lacks what happened after it. Plans that it knows may have been completed since, under
tokens that it never saw; blocks that it lists as live may have been replaced and deleted. So all
plans end, nothing is deleted, and the store is searched for what exists: see
metastore/leader/stores/adoption.py.
"""

from __future__ import annotations

from collections.abc import Container

from maar.metastore.fold import registration
from maar.metastore.fold.deleting import deletion, trust
from maar.metastore.fold.plans import plan as plans
from maar.metastore.fold.stores import objects
from maar.metastore.records.effects import (
    Adopted,
    AdoptionOver,
    Effect,
    Effects,
    Missed,
    Reborn,
    Refused,
)
from maar.metastore.records.entries import (
    AttemptKey,
    BlocksAdopted,
    BlocksMissed,
    Reincarnated,
)
from maar.metastore.records.packs import alone, outline, pack
from maar.metastore.state.state import MetaState
from maar.model.block import BlockMeta, Kind
from maar.model.ids import BlockId
from maar.model.refusal import Refusal

INCARNATIONS_MAX = 16  # incarnations that one restore can adopt

ENDED = "the log was restored from a snapshot: what became of the plan is not known"
MISSED = "an input was replaced or deleted after the snapshot that the log was restored from"


def reincarnate(state: MetaState, entry: Reincarnated) -> Effects:
    """Start a new incarnation: no token that was handed out before is valid, and all plans end."""
    before = tuple(dict.fromkeys((state.incarnation, *state.adopting, *entry.adopts)))
    if not entry.incarnation or entry.incarnation in before or len(before) > INCARNATIONS_MAX:
        return (Refused(Refusal.INCARNATION),)
    state.incarnation = entry.incarnation
    state.adopting = tuple(sorted(before))
    state.former = tuple(dict.fromkeys((*state.former, *before)))[-INCARNATIONS_MAX:]
    deletion.restore(state, entry.predicates)
    ended: list[Effect] = []
    for plan in sorted((*state.plans, *state.parked)):
        ended += plans.cancel(state, plan, gone=frozenset(), cause=ENDED)
    return (Reborn(state.adopting, entry.incarnation), *ended)


def adopt(state: MetaState, entry: BlocksAdopted) -> Effects:
    if not state.adopting:
        return (Refused(Refusal.NOT_ADOPTING),)
    return tuple(
        _adopt_one(state, meta, ordinal=ordinal) for ordinal, meta in enumerate(entry.blocks)
    )


def _adopt_one(state: MetaState, meta: BlockMeta, *, ordinal: int) -> Adopted:
    if must_return(state, meta.id):
        packed = alone(state.retired.pop(meta.id).packed)
        kept = outline(packed)
        registration.admit(state, kept, packed, ordinal=ordinal)
        return Adopted(meta.id, "", kept.profiles)
    if registration.is_known(state, meta.id):
        return Adopted(meta.id, "")
    if refusal := why_refused(state, meta):
        return Adopted(meta.id, refusal)
    registration.admit(state, meta, pack(meta), ordinal=ordinal)
    registration.anchor(state, meta)
    state.tally.blocks_adopted += 1
    state.tally.profiles_added += meta.profiles
    return Adopted(meta.id, "", meta.profiles)


def why_refused(state: MetaState, meta: BlockMeta) -> str:
    """Why a block that is not known cannot be adopted; '' when it can.

    A segment may be named by a time that the log had before, and has not reached again. The index
    may get too full by it: merging and deleting, which make room, wait for the end of adoption.
    A segment that a plan made of others is as old as the oldest of them, and so may be below the
    floor: like any output of a plan it is known by its key.
    """
    if meta.kind is Kind.SEGMENT and meta.plan is None:
        return registration.never(state, meta)
    if malformed := registration.why_malformed(meta):
        return malformed
    return objects.wrong_with_adopted(meta, registration.incarnations(state))


def must_return(state: MetaState, block: BlockId) -> bool:
    """Whether a replaced block must come back, because a block that replaced it is missing."""
    retired = state.retired.get(block)
    if retired is None or not retired.outputs:
        return False
    return any(
        output not in state.blocks and output not in state.retired for output in retired.outputs
    )


def miss(state: MetaState, entry: BlocksMissed) -> Effects:
    """Blocks leave the index because their objects are gone; plans that own them end (S7)."""
    if not state.adopting:
        return (Refused(Refusal.NOT_ADOPTING),)
    going = {block: state.blocks.get(block) for block in entry.blocks if block in state.blocks}
    effects: list[Effect] = [
        Refused(Refusal.INPUT_GONE, what=block) for block in entry.blocks if block not in going
    ]
    owners = sorted({state.owners[block] for block in going if block in state.owners})
    for owner in owners:
        effects += plans.cancel(state, owner, gone=frozenset(going), cause=MISSED)
    for block in going:
        state.blocks.remove(block)
        state.queue.leave(block, state.policy)
    _spare_outputs(state, going)
    profiles = sum(meta.profiles for meta in going.values())
    state.tally.blocks_missed += len(going)
    state.tally.profiles_missed += profiles
    return (*effects, Missed(len(going), profiles))


def _spare_outputs(state: MetaState, gone: Container[BlockId]) -> None:
    """A plan whose inputs are gone was completed after all: what it wrote stays, even if it
    could not be adopted.
    """
    for plan in state.finished.values():
        if plan.note == ENDED and any(block in gone for block in plan.inputs):
            for attempt in plan.attempts:
                state.leftovers.pop(AttemptKey(plan.id, attempt.token), None)


def end(state: MetaState) -> Effects:
    if not state.adopting:
        return (Refused(Refusal.NOT_ADOPTING),)
    state.adopting, state.adopted_at = (), state.lease_time
    trust.doubt(state)
    return (AdoptionOver(),)
