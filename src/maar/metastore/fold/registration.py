"""Adds blocks that writers register: exactly once, however often a request is repeated (S4)."""

from __future__ import annotations

from collections.abc import Iterable

from maar.metastore.fold.stores import objects
from maar.metastore.records.effects import Effects, Registered
from maar.metastore.records.entries import RegistrationFloor
from maar.metastore.state.rows import raw_id
from maar.metastore.state.state import Anchor, MetaState
from maar.model.block import BlockOutline, Kind
from maar.model.ids import BlockId, Incarnation, block_time_ns
from maar.model.lane import Item
from maar.model.time import LeaseTime

MOST = 1 << 40  # bytes or profiles of a block: the sum over millions still fits into the formats


def add(state: MetaState, blocks: Iterable[tuple[BlockOutline, bytes]]) -> Effects:
    """What is known of each, and itself as it is to be kept."""
    return tuple(
        _add_one(state, meta, packed, ordinal=ordinal)
        for ordinal, (meta, packed) in enumerate(blocks)
    )


def anchor(state: MetaState, meta: BlockOutline) -> None:
    """Advance the clock that profiles show, as far as the leader's clock agrees: a profile from the
    future must not spoil it for good (S2). Profiles that a server dated by itself do not count.
    """
    shown = min(meta.dated_ns, meta.max_time_ns, state.wall_time)
    if shown > state.anchor.reading(state.lease_time):
        state.anchor = Anchor(shown, state.lease_time)


def why_malformed(meta: BlockOutline) -> str:
    """Why a block is malformed, whoever made it; '' when it is well formed."""
    if not raw_id(meta.id):
        return f"block id {meta.id[:40]!r} is not 32 hex digits"
    if min(meta.level, meta.size, meta.profiles) < 0 or meta.min_time_ns > meta.max_time_ns:
        return f"block {meta.id} has a negative level, size or count, or ends before it begins"
    if max(meta.size, meta.profiles) > MOST:
        return f"block {meta.id} cannot have {meta.size} bytes and {meta.profiles} profiles"
    return ""


def admit(
    state: MetaState,
    meta: BlockOutline,
    packed: bytes,
    *,
    ordinal: int,
    place: Item | None = None,
) -> None:
    """Into the index, and into the queue when it can be merged: at the end of its lane, or at a
    place that another block has left to it.
    """
    state.blocks.put(meta, packed)
    if not state.queue.rules.takes(meta, state.policy):
        return
    key = state.queue.rules.lane(meta)
    if place is None:
        item = Item(state.index, ordinal, state.lease_time, meta.id, meta.size, key)
    else:
        item = place._replace(block=meta.id, size=meta.size, key=key)
    state.queue.enter(item, state.policy)


def raise_floor(state: MetaState, entry: RegistrationFloor) -> Effects:
    """Ids at or below the floor need not be remembered: such registrations are refused by age."""
    if state.adopting:  # the ids above the floor are being searched for in the store
        return ()
    if entry.lease_time > state.registration_floor and entry.lease_time <= state.lease_time:
        state.registration_floor = entry.lease_time
        state.remembered.drop_below(BlockId(f"{entry.lease_time + 1:016x}"))
    return ()


def _add_one(state: MetaState, meta: BlockOutline, packed: bytes, *, ordinal: int) -> Registered:
    if is_known(state, meta.id):
        return Registered(meta.id, "")
    refusal = never(state, meta) or not_now(state, meta, now=state.lease_time)
    if refusal:
        return Registered(meta.id, refusal)
    admit(state, meta, packed, ordinal=ordinal)
    anchor(state, meta)
    state.tally.profiles_added += meta.profiles
    return Registered(meta.id, "", meta.profiles)


def is_known(state: MetaState, block: BlockId) -> bool:
    """Whether it is or was in the index; above the floor this is always known (S4)."""
    return block in state.blocks or block in state.retired or block in state.remembered


def never(state: MetaState, meta: BlockOutline) -> str:
    """Why a block that is not known can never be added; '' when it may."""
    if wrong := why_malformed(meta):
        return wrong
    if meta.kind is not Kind.SEGMENT:
        return f"block {meta.id} is no segment; other blocks come only from plans"
    if wrong := foreign(state, meta):
        return wrong
    if below_floor(state, meta.id):
        return (
            f"block {meta.id} is older than the registration floor and may have been merged and "
            "forgotten; write its profiles again in a new segment"
        )
    return ""


def foreign(state: MetaState, meta: BlockOutline) -> str:
    """Why a segment's object cannot be its own; '' when it can."""
    return objects.wrong_with_segment(meta, incarnations(state))


def incarnations(state: MetaState) -> tuple[Incarnation, ...]:
    """The incarnations of this log: the present one, former ones, and those that it adopts."""
    return (state.incarnation, *state.former, *state.adopting)


def below_floor(state: MetaState, block: BlockId) -> bool:
    return block_time_ns(block) <= state.registration_floor


def not_now(state: MetaState, meta: BlockOutline, *, now: LeaseTime) -> str:
    """Why a block cannot be added yet, although it may be later; '' when it can."""
    if block_time_ns(meta.id) > now + state.policy.registration_floor_lag_ns:
        return (
            f"block {meta.id} has a lease time in its id that this log has not reached yet; "
            "ask the metastore for its time"
        )
    return full(state)


def full(state: MetaState) -> str:
    if state.room() < 1:
        return "the index is full; let compaction and cleaning catch up"
    return ""
