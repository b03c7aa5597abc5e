"""Undoes retention: blocks that it took return to the index, the queue and later queries.

Objects are deleted only when their delay has passed, so a block may return until shortly before
that: a deletion may have been decided on while the entry that brings it back is on its way.
"""

from __future__ import annotations

from collections.abc import Iterable

from maar.metastore.fold import registration
from maar.metastore.fold.deleting.retention import tenants_of
from maar.metastore.records.effects import Effect, Effects, Refused, Returned
from maar.metastore.records.entries import RetentionUndone
from maar.metastore.records.packs import alone, outline, unpack
from maar.metastore.state.retired import Cause
from maar.metastore.state.state import MetaState
from maar.model.ids import BlockId
from maar.model.policy import MINUTE_NS
from maar.model.refusal import Refusal
from maar.model.time import LeaseTime

MARGIN_NS = MINUTE_NS  # far longer than an append may take


def returning(
    state: MetaState, blocks: Iterable[BlockId], *, tenant: str, now: LeaseTime
) -> tuple[BlockId, ...]:
    """Those of the blocks that can be brought back: all, or only what a tenant has a part in."""
    return tuple(
        block
        for block in blocks
        if can_return(state, block, now=now)
        and (not tenant or tenant in tenants_of(unpack(state.retired[block].packed)))
    )


def can_return(state: MetaState, block: BlockId, *, now: LeaseTime) -> bool:
    """While retention is on hold nothing is deleted, so its delays do not run."""
    retired = state.retired.get(block)
    if retired is None or retired.cause is not Cause.EXPIRED:
        return False
    until = min(now, state.hold.at) if state.hold.why else now
    return until - retired.at <= state.policy.expired_delay_ns - MARGIN_NS


# ── the fold ───────────────────────────────────────────────────────────────────────────────────


def bring_back(state: MetaState, entry: RetentionUndone) -> Effects:
    if state.adopting:
        return (Refused(Refusal.ADOPTING),)
    effects: list[Effect] = []
    blocks = profiles = 0
    for ordinal, block in enumerate(entry.blocks):
        if not can_return(state, block, now=state.lease_time):
            effects.append(Refused(Refusal.NOT_EXPIRED, what=block))
            continue
        packed = alone(state.retired.pop(block).packed)
        meta = outline(packed)
        registration.admit(state, meta, packed, ordinal=ordinal)
        blocks, profiles = blocks + 1, profiles + meta.profiles
    state.tally.profiles_expired -= profiles
    return (*effects, Returned(blocks, profiles))
