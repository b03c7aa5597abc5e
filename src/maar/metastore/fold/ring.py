"""Applies ring changes: an entry replaces a zone's whole ring, or changes nothing (S16)."""

from __future__ import annotations

from itertools import pairwise

from maar.metastore.records.effects import Effects, Refused, RingReplaced
from maar.metastore.records.entries import RingChanged
from maar.metastore.state.state import MetaState
from maar.model.ids import Zone
from maar.model.refusal import Refusal
from maar.model.ring import Ring, WriterState


def ring_of(state: MetaState, zone: Zone) -> Ring:
    """The ring of a zone; without writers when there is none."""
    return state.rings.get(zone) or no_ring(zone)


def no_ring(zone: Zone, *, changed_at: int = 0) -> Ring:
    return Ring(zone, changed_at, (), ())


def shard_counts(ring: Ring) -> list[int]:
    """How many shards each writer takes, by its place in the ring."""
    counts = [0] * len(ring.writers)
    for owner in ring.owners:
        counts[owner] += 1
    return counts


def count_moved(before: Ring, after: Ring) -> int:
    """How many shards that were there, and still are, have another owner."""
    pairs = zip(before.owners, after.owners, strict=False)
    return sum(before.writers[one].node != after.writers[two].node for one, two in pairs)


def change(state: MetaState, entry: RingChanged) -> Effects:
    before = ring_of(state, entry.zone)
    after = Ring(entry.zone, state.index, entry.writers, entry.owners)
    if before.changed_at != entry.presumes:
        return (Refused(Refusal.OUTDATED, what=entry.zone),)
    if not _is_ring(after):
        return (Refused(Refusal.RING, what=entry.zone),)
    if _too_large(state, before, after):
        return (Refused(Refusal.TOO_MANY, what=entry.zone),)
    if after.writers:
        state.rings[entry.zone] = after
    else:
        state.rings.pop(entry.zone, None)
    return (RingReplaced(before, after),)


def _is_ring(ring: Ring) -> bool:
    """Whether every shard has an owner and every active writer has the number it asks for."""
    writers = ring.writers
    return (
        bool(ring.zone)
        and all(0 <= owner < len(writers) for owner in ring.owners)
        and all(one.node < two.node for one, two in pairwise(writers))
        and all(writer.node and writer.shards > 0 for writer in writers)
        and all(
            count == writer.shards
            for writer, count in zip(writers, shard_counts(ring), strict=True)
            if writer.state is WriterState.ACTIVE
        )
    )


def _too_large(state: MetaState, before: Ring, after: Ring) -> bool:
    """A bound that was lowered refuses what grows, and nothing that shrinks."""
    policy = state.policy
    if after.writers and not before.writers and len(state.rings) >= policy.zones_max:
        return True
    return any(
        new > bound and new > old
        for old, new, bound in (
            (len(before.writers), len(after.writers), policy.writers_max),
            (len(before.owners), len(after.owners), policy.shards_max),
        )
    )
