"""Which objects of the store no entry names, and none ever can: segments, intents, outputs and
commit objects.

Each class has an entry that fences it, before anything of it is deleted (S1):

- A segment that nobody registered: `RegistrationFloor`. At or below the floor no registration of a
  block that the index does not know is accepted, from a writer or a dead letter.
- What an attempt of a former incarnation wrote: `Reincarnated`, since no token from before it is
  ever accepted again, and `AdoptionEnded`, since until then the index may come to list what it
  wrote (S5).
- What an attempt of this incarnation wrote after its last sweep: the entry that ended the attempt.
- A commit object: whatever took the last of its blocks out of the index. No block comes back under
  the name that a bulk write gave it, once its objects are gone.

Everything here only reads.
"""

from __future__ import annotations

from collections.abc import Container

from maar.metastore.fold import registration
from maar.metastore.fold.plans import leftovers
from maar.metastore.records.entries import AttemptKey
from maar.metastore.state.state import MetaState
from maar.model import keys
from maar.model.ids import (
    BlockId,
    FencingToken,
    Incarnation,
    PlanId,
    StoreName,
    TenantId,
    block_time_ns,
)
from maar.model.keys import SegmentName
from maar.model.stores import lacking
from maar.model.time import LeaseTime


def incarnations(state: MetaState) -> tuple[Incarnation, ...]:
    """The incarnations whose objects are ours: this one, and those that it has adopted."""
    return (state.incarnation, *state.former)


# ── segments ───────────────────────────────────────────────────────────────────────────────────


def is_unregistered(state: MetaState, segment: SegmentName, *, named: Container[BlockId]) -> bool:
    """Whether it is ours, and neither the index nor a dead letter knows it."""
    return (
        segment.incarnation in incarnations(state)
        and not registration.is_known(state, segment.block)
        and segment.block not in named
    )


def is_fenced(state: MetaState, block: BlockId, *, registration_floor: LeaseTime) -> bool:
    """Whether nobody can register it any more, and that has been so for a while.

    `registration_floor` is from before the scan for letters: letters acknowledged with an id
    below it were in the store by then. While the log adopts, nothing is certain (S5).
    """
    return (
        not state.adopting
        and block_time_ns(block) <= registration_floor - state.policy.registration_floor_lag_ns
    )


def is_unlisted(
    state: MetaState, block: BlockId, key: str, *, store: StoreName | None = None
) -> bool:
    """Whether nothing will ever be read or deleted under this key because the index says so.

    With a single store, an object of a block that the index has is left to the last sweep of its
    attempt. With several, one may have been forgotten while its store was gone.
    """
    if state.tombstones.of_block(block):
        return False
    if not registration.is_known(state, block):
        return True
    return (
        store is not None
        and (block in state.blocks or block in state.retired)
        and bool(leftovers.unlisted_keys(state, {key: block}, store))
    )


def is_needed_here(
    state: MetaState, block: BlockId, key: str, store: StoreName, *, lacked: Container[TenantId]
) -> bool:
    """Whether an unlisted object may be all that a store has of some profiles (S14).

    Of a live block it may be, until the store has a listed copy: the unlisted one may have ended by
    mistake. A block that is forgotten may have been replaced by blocks that this store lacks; it
    is not known any more by which, so it stays until the store lacks nothing of its tenant.
    `lacked` are the tenants of which it does.
    """
    live = state.blocks.find_live((block,)).get(block)
    if live is not None:
        return store in lacking(live.outline, state.stores)
    return block not in state.retired and keys.tenant_of(key) in lacked


# ── what attempts wrote ────────────────────────────────────────────────────────────────────────


def is_unknown_attempt(
    state: MetaState, plan: PlanId, token: FencingToken, *, now: LeaseTime
) -> bool:
    """Whether an attempt has ended for good, and nobody else cleans up after it.

    The state is to be of later than the listing that showed the attempt: by then it knows every
    attempt that can have written. One of this incarnation that has ended is a leftover until its
    last sweep. One of a former incarnation is left alone for as long after the adoption as any task
    may write (`leftovers_ns`): deleting sooner would do no harm, and would have to be repeated.
    """
    if state.adopting or AttemptKey(plan, token) in state.leftovers:
        return False
    found = state.plans.get(plan) or state.parked.get(plan)
    if found is not None and found.lease is not None and found.lease.token == token:
        return False
    if token.incarnation == state.incarnation:
        return token.index <= state.index
    settled = now - state.adopted_at > state.policy.leftovers_ns
    return token.incarnation in state.former and settled
