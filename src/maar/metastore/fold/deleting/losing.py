"""An operator gives up a block whose objects are lost, so that queries can go on without it.

No block is given up automatically: a store that answers wrongly for an hour must not cost any data.
Blocks that it had replaced come back, if their objects still exist.
"""

from __future__ import annotations

from collections.abc import Sequence

from maar.metastore.fold import registration
from maar.metastore.fold.plans import plan as plans
from maar.metastore.records.effects import Effect, Effects, Lost, Refused
from maar.metastore.records.entries import BlocksLost, Entry
from maar.metastore.records.packs import alone, outline, unpack
from maar.metastore.state.retired import Cause, Retired
from maar.metastore.state.state import MetaState
from maar.model.block import BlockMeta
from maar.model.errors import NotFound, Rejected
from maar.model.ids import BlockId, PlanId
from maar.model.refusal import Refusal

NOTE_MAX = 500  # characters

# ── decisions of the leader: they only read ────────────────────────────────────────────────────


def sources(state: MetaState, block: BlockId) -> list[BlockMeta]:
    """The blocks that it replaced, as far as the state still knows them."""
    return [unpack(each.packed) for each in state.retired.values() if block in each.outputs]


def owner(state: MetaState, block: BlockId) -> PlanId | None:
    return state.owners.get(block)


def order(
    state: MetaState, block: BlockId, *, note: str, returning: Sequence[BlockId]
) -> list[Entry]:
    """NotFound or Rejected, with the reason, when it cannot be given up."""
    if state.adopting:
        raise Rejected(f"{Refusal.ADOPTING}: wait for the end of adoption (maar status)")
    if block not in state.blocks:
        raise NotFound(f"there is no live block {block}; it may have been merged into another")
    return [BlocksLost((block,), note.strip()[:NOTE_MAX], tuple(returning))]


def check_effects(effects: Sequence[Effect], block: BlockId) -> None:
    """Rejected, with the reason of the fold, when the block was not given up."""
    for effect in effects:
        if isinstance(effect, Refused):
            raise Rejected(f"block {block} stays in the index: {effect.why}")


# ── the fold ───────────────────────────────────────────────────────────────────────────────────


def lose(state: MetaState, entry: BlocksLost) -> Effects:
    """Blocks leave the index; plans that own one end, and what they replaced may return (S8)."""
    if state.adopting:
        return (Refused(Refusal.ADOPTING),)
    effects: list[Effect] = []
    live = state.blocks.find_live(entry.blocks)
    effects += [Refused(Refusal.INPUT_GONE, what=b) for b in entry.blocks if b not in live]
    owners = sorted({state.owners[block] for block in live if block in state.owners})
    for plan in owners:
        effects += plans.cancel(state, plan, gone=frozenset(live), cause="a block of it was lost")
    state.blocks.drop(live)
    for block, found in live.items():
        state.queue.leave(block, state.policy)
        gone = Retired(state.index, state.lease_time, (), found.packed, Cause.LOST)
        state.retired[block] = gone
        profiles = found.outline.profiles
        state.tally.blocks_lost += 1
        state.tally.profiles_lost += profiles
        effects.append(Lost(block, profiles, entry.note))
    for ordinal, block in enumerate(entry.returning):
        _return(state, block, ordinal=ordinal, instead_of=frozenset(live))
    return tuple(effects)


def _return(
    state: MetaState, block: BlockId, *, ordinal: int, instead_of: frozenset[BlockId]
) -> None:
    """A source of what was lost: readers see every profile once, whatever else replaced it (S9)."""
    retired = state.retired.get(block)
    if retired is None or instead_of.isdisjoint(retired.outputs):
        return
    packed = alone(state.retired.pop(block).packed)
    registration.admit(state, outline(packed), packed, ordinal=ordinal)
