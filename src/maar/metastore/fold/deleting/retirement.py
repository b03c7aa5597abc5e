"""When retired blocks may be deleted: after a delay, once no reader needs them (S10)."""

from __future__ import annotations

from collections.abc import Container, Iterable
from itertools import takewhile

from maar.metastore.fold.stores import copies
from maar.metastore.records.effects import Effect, Effects, Forgotten, Pinned, Refused
from maar.metastore.records.entries import BlocksForgotten, PinsDropped, PinsTaken
from maar.metastore.records.packs import outline
from maar.metastore.state.retired import Cause, Retired
from maar.metastore.state.state import MetaState, Pin
from maar.model.block import Kind
from maar.model.ids import BlockId, block_time_ns
from maar.model.refusal import Refusal
from maar.model.time import LeaseTime

# ── decisions of the leader: they only read ────────────────────────────────────────────────────


def due(
    state: MetaState, *, now: LeaseTime, limit: int, resting: Container[BlockId] = ()
) -> list[BlockId]:
    """Retired blocks whose objects may be deleted, oldest first; those held back are skipped."""
    pinned = oldest_pin(state, now)
    found: list[BlockId] = []
    for blocks in _by_delay(state):
        for block in blocks:
            retired = state.retired[block]
            if len(found) >= limit or now - retired.at <= delay_ns(state, retired):
                break
            if pinned is not None and pinned < retired.entry:
                break
            if block not in resting and not _is_missed(state, block):
                found.append(block)
    return found


def _is_missed(state: MetaState, block: BlockId) -> bool:
    """Whether a block was given up of whose sources copies wait for it in some store: they may be
    all that is left, and would go when it is forgotten.
    """
    lost = state.retired[block].cause is Cause.LOST
    return lost and bool(state.tombstones.waiting_for(block))


def oldest_pin(state: MetaState, now: LeaseTime) -> int | None:
    """The oldest entry whose index some reader may hold."""
    return min((p.entry for p in state.pins.values() if now <= p.expires_at), default=None)


def _by_delay(state: MetaState) -> tuple[Iterable[BlockId], ...]:
    """Each list oldest first; expired blocks stay while retention is on hold."""
    return (state.retired.others, () if state.hold.why else state.retired.expired)


def delay_ns(state: MetaState, retired: Retired) -> int:
    """How long the objects of a retired block stay at least.

    Blocks that it replaced are deleted first, so that their successor is still known then. So
    expired blocks never overtake them, however short their own delay is.
    """
    policy = state.policy
    if retired.cause is Cause.EXPIRED:
        return max(policy.expired_delay_ns, policy.retire_delay_ns)
    return policy.retire_delay_ns


def is_final(state: MetaState, retired: Retired, now: LeaseTime) -> bool:
    """Whether nobody wants the profiles of a block any more, and it will not be brought back. What
    an operator gave up is still wanted: what it was made of may be all that is left of it.
    """
    kept = retired.cause is Cause.EXPIRED and bool(state.hold.why)
    kept |= retired.cause is Cause.LOST
    return not kept and now - retired.at > delay_ns(state, retired)


def doubt(state: MetaState, block: BlockId) -> str:
    """Why a block must not be deleted, whatever the store holds; '' when the log allows it.

    A replaced block is deleted before its successors, which are therefore still known then.
    """
    retired = state.retired[block]
    if retired.cause is not Cause.REPLACED:
        return ""
    if not retired.outputs:
        return (
            "the plan that took it wrote no output, and neither retention nor an operator gave it "
            "up; its objects stay until an operator has looked (docs/runbook.md)"
        )
    unknown = [o for o in retired.outputs if o not in state.blocks and o not in state.retired]
    return f"block {unknown[0]}, which replaces it, is not known any more" if unknown else ""


def expired_pins(state: MetaState, now: LeaseTime) -> tuple[str, ...]:
    """Expired pins, oldest renewal first; it stops at the first pin that is live."""
    oldest = takewhile(lambda item: now > item[1].expires_at, state.pins.items())
    return tuple(reader for reader, _ in oldest)


# ── the fold ───────────────────────────────────────────────────────────────────────────────────


def forget(state: MetaState, entry: BlocksForgotten) -> Effects:
    """The ids of segments are remembered until the floor has passed them (S4)."""
    if state.adopting:
        return (Refused(Refusal.ADOPTING),)
    effects: list[Effect] = []
    forgotten = 0
    for block in entry.blocks:
        retired = state.retired.get(block)
        if retired is None:
            effects.append(Refused(Refusal.NOT_RETIRED, what=block))
            continue
        copies.add_tombstones(state, block, retired, entry.copies_stay)
        del state.retired[block]
        copies.pass_on(state, block, retired)
        forgotten += 1
        if (
            outline(retired.packed).kind is Kind.SEGMENT
            and block_time_ns(block) > state.registration_floor
        ):
            state.remembered.add(block)
    return (*effects, Forgotten(forgotten))


def pin(state: MetaState, entry: PinsTaken) -> Effects:
    effects: list[Effect] = []
    for reader in entry.readers:
        if reader not in state.pins and len(state.pins) >= state.policy.pins_max:
            effects.append(Refused(Refusal.TOO_MANY, what=reader))
            continue
        state.pins.pop(reader, None)  # a renewed pin moves to the end: pins are in order of expiry
        state.pins[reader] = Pin(state.index, entry.expires_at)
        effects.append(Pinned(reader))
    return tuple(effects)


def unpin(state: MetaState, entry: PinsDropped) -> Effects:
    """Only pins that have expired: a reader that renewed in time keeps its pin."""
    for reader in entry.readers:
        held = state.pins.get(reader)
        if held is not None and state.lease_time > held.expires_at:
            del state.pins[reader]
    return ()
