"""Copies of blocks come and go, store by store; the last good one is never given up (S14).

Copies are listed per block, in its files' locations, and a block is in a store with all its files
or not at all. A copy that ends is not deleted here: it becomes a tombstone of its store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from maar.metastore.fold.plans import lease
from maar.metastore.fold.stores import objects
from maar.metastore.records.effects import (
    CopiesLost,
    CopyAdded,
    CopyEnded,
    Effect,
    Effects,
    Refused,
    StoresChanged,
    TombstonesGone,
)
from maar.metastore.records.entries import (
    CopiesEnded,
    StoreLeaves,
    StoresSet,
    SubrangeRepaired,
    TombstonesEnded,
)
from maar.metastore.records.packs import pack, unpack
from maar.metastore.state.index import FoundBlock, blocks_in
from maar.metastore.state.retired import Cause, Retired
from maar.metastore.state.state import MetaState
from maar.metastore.state.tombstones import NO_BLOCK, CopyKey, Tombstone
from maar.model.block import BlockMeta, BlockOutline, Location
from maar.model.ids import BlockId, FencingToken, PlanId, StoreName
from maar.model.predicate import since
from maar.model.refusal import Refusal
from maar.model.stores import CopyBad, CopyMade, StoreSet, is_copied, keys_at, stores_of
from maar.model.time import LeaseTime

# ── decisions: they only read ──────────────────────────────────────────────────────────────────


def is_settled(state: MetaState, block: BlockId, store: StoreName) -> bool:
    """Whether a store holds a block, or all that replaced it since, or nobody wants it any more:
    then what the block itself replaced may go from this store.
    """
    live = state.blocks.find_live((block,)).get(block)
    if live is not None:
        return store in stores_of(live.outline)
    retired = state.retired.get(block)
    if retired is None:
        return False  # not known any more: a doubt, and no reason to delete
    if store in stores_of(unpack(retired.packed)):
        return True
    if retired.cause is not Cause.REPLACED:
        return True
    return bool(retired.outputs) and all(
        is_settled(state, output, store) for output in retired.outputs
    )


def may_leave(
    state: MetaState, meta: BlockOutline, outputs: Iterable[BlockId], store: StoreName, cause: Cause
) -> bool:
    """Whether the copy of a block that left the index may be deleted in a store (S14)."""
    if cause is not Cause.REPLACED:
        return True
    if store not in wanted_stores(state, meta):
        return True
    return all(is_settled(state, output, store) for output in outputs)


def wanted_stores(state: MetaState, meta: BlockOutline) -> tuple[StoreName, ...]:
    """The stores that should hold a block; of segments only their home."""
    if not is_copied(meta):
        return (meta.store,)
    return state.stores.wanted_stores(meta.tenant, meta.store)


def is_buried(state: MetaState, store: StoreName, key: str) -> bool:
    return CopyKey(store, key) in state.tombstones


def has_room(state: MetaState, store: StoreName, more: int = 1) -> bool:
    """Whether the list of what is to be deleted in a store may grow."""
    return len(state.tombstones.of_store(store)) + more <= state.policy.tombstones_max


# ── the fold: which stores there are ───────────────────────────────────────────────────────────


def set_stores(state: MetaState, entry: StoresSet) -> Effects:
    """A store that leaves goes on leaving, and is forgotten when it holds nothing any more."""
    if entry.stores.problem() or len(entry.stores.tenants) > state.policy.tenants_max:
        return (Refused(Refusal.STORES, what=entry.stores.problem()),)
    still = {*entry.stores.names(), *state.blocks.copies.holders(), *state.tombstones.stores()}
    leaving = tuple(name for name in state.stores.leaving if name in still)
    return _change(state, msgspec.structs.replace(entry.stores, leaving=leaving))


def leave(state: MetaState, entry: StoreLeaves) -> Effects:
    before = state.stores
    known = {*before.names(), *state.blocks.copies.holders()}
    others = [n for n in before.names() if n != entry.store and n not in before.leaving]
    if entry.store not in known or (entry.leaves and not others):
        return (Refused(Refusal.UNKNOWN_STORE, what=entry.store),)
    rest = tuple(name for name in before.leaving if name != entry.store)
    leaving = tuple(sorted((*rest, entry.store))) if entry.leaves else rest
    return _change(state, msgspec.structs.replace(before, leaving=leaving))


def _change(state: MetaState, after: StoreSet) -> Effects:
    before = state.stores
    for tenant in sorted(state.blocks.copies.set_stores(after)):
        for shelf in state.blocks.tenants.get(tenant, {}).values():
            state.blocks.copies.look_again(blocks_in(shelf.chunks))
    return (StoresChanged(before, after),)


# ── the fold: copies of live blocks ────────────────────────────────────────────────────────────


class _Change(NamedTuple):
    """What an entry says of one block."""

    ended: dict[StoreName, str]  # what is wrong with each copy
    made: dict[StoreName, CopyMade]


def repair(state: MetaState, entry: SubrangeRepaired) -> Effects:
    """The partial result of a repair; each block is taken or refused by itself."""
    plan, why = lease.plan_under_token(state, entry.plan, entry.token)
    if plan is None:
        return (Refused(why, entry.plan, entry.token),)
    changes = _by_block(entry.copies, entry.ended)
    effects: list[Effect] = []
    taken: dict[BlockId, BlockMeta] = {}
    live = state.blocks.find_live(changes)
    for block, change in changes.items():
        if block not in live:
            effects.append(Refused(Refusal.INPUT_GONE, entry.plan, entry.token, what=block))
            continue
        meta = unpack(live[block].packed)
        refusal = _refusal(state, meta, change, plan=entry.plan, token=entry.token)
        if refusal is not None:
            effects.append(Refused(refusal, entry.plan, entry.token, what=block))
            continue
        for store, what in change.ended.items():
            _bury_copy(state, meta, store)
            effects.append(CopyEnded(block, store, what))
        effects += [CopyAdded(block, store) for store in change.made]
        taken[block] = _with_copies(_without(meta, change.ended), change.made, at=entry.started_at)
    _replace(state, live, taken)
    if entry.lost:
        effects.append(CopiesLost(entry.lost))
    return tuple(effects)


def end(state: MetaState, entry: CopiesEnded) -> Effects:
    effects: list[Effect] = []
    taken: dict[BlockId, BlockMeta] = {}
    live = state.blocks.find_live(entry.blocks)
    for block in dict.fromkeys(entry.blocks):
        if block not in live:
            effects.append(Refused(Refusal.INPUT_GONE, what=block))
            continue
        meta = unpack(live[block].packed)
        change = _Change({entry.store: entry.why}, {})
        refusal = _ending_refusal(state, meta, change, buries=not entry.gone)
        moves = entry.store == meta.store and entry.store in state.stores.leaving
        if refusal is None and moves and block in state.owners:
            refusal = Refusal.INPUT_OWNED  # its plan writes to the home that it was made for
        if refusal is not None:
            effects.append(Refused(refusal, what=block))
            continue
        if not entry.gone:
            _bury_copy(state, meta, entry.store)
        rest = _without(meta, change.ended)
        taken[block] = _at_another_home(state, rest) if moves else rest
        effects.append(CopyEnded(block, entry.store, entry.why))
    _replace(state, live, taken)
    return tuple(effects)


def _by_block(made: Iterable[CopyMade], ended: Iterable[CopyBad]) -> dict[BlockId, _Change]:
    changes: dict[BlockId, _Change] = {}
    for bad in ended:
        changes.setdefault(bad.block, _Change({}, {})).ended[bad.store] = bad.what
    for copy in made:
        changes.setdefault(copy.block, _Change({}, {})).made[copy.store] = copy
    return changes


def _refusal(
    state: MetaState, meta: BlockMeta, change: _Change, *, plan: PlanId, token: FencingToken
) -> Refusal | None:
    """What the entry says of a block is taken whole or not at all."""
    why = _ending_refusal(state, meta, change, buries=True)
    if why is not None:
        return why
    rest = _without(meta, change.ended)
    for store, copy in change.made.items():
        if store in stores_of(rest):
            return Refusal.HAS_COPY
        if store not in wanted_stores(state, meta):
            return Refusal.UNKNOWN_STORE
        if sorted(table for table, _ in copy.files) != sorted(file.table for file in meta.files):
            return Refusal.COPY_KEY
        alone_ = _with_copies(_without(meta, stores_of(meta)), {store: copy}, at=LeaseTime(0))
        if objects.wrong_with_keys(alone_, plan=plan, token=token):
            return Refusal.COPY_KEY
        if len(set(map(_stem, keys_at(alone_, store)))) != 1:
            return Refusal.COPY_KEY
    return None


def _ending_refusal(
    state: MetaState, meta: BlockMeta, change: _Change, *, buries: bool
) -> Refusal | None:
    had = stores_of(meta)
    if any(store not in had for store in change.ended):
        return Refusal.NO_COPY
    if change.ended and not change.made and not set(had).difference(change.ended):
        return Refusal.LAST_COPY
    if buries and not all(has_room(state, store) for store in change.ended):
        return Refusal.TOO_MANY
    return None


def _stem(key: str) -> str:
    return key.rpartition("/")[2]


def _without(meta: BlockMeta, stores: Iterable[StoreName]) -> BlockMeta:
    """Without the keys at its home, a block still tells which deletions it is from before (S8)."""
    gone = set(stores)
    files = tuple(
        msgspec.structs.replace(
            file, locations=tuple(at for at in file.locations if at.store not in gone)
        )
        for file in meta.files
    )
    return msgspec.structs.replace(meta, files=files, since=since(meta))


def _with_copies(
    meta: BlockMeta, made: Mapping[StoreName, CopyMade], *, at: LeaseTime
) -> BlockMeta:
    """The home comes first, then the others by name."""
    files = []
    for file in meta.files:
        added = (Location(store, dict(copy.files)[file.table], at) for store, copy in made.items())
        every = sorted(
            (*file.locations, *added), key=lambda each: (each.store != meta.store, each.store)
        )
        files.append(msgspec.structs.replace(file, locations=tuple(every)))
    return msgspec.structs.replace(meta, files=tuple(files))


def _at_another_home(state: MetaState, meta: BlockMeta) -> BlockMeta:
    """A block whose home is drained lives in the first of the stores that hold it and should: what
    it is merged into is written there.
    """
    held = stores_of(meta)
    home = next((name for name in wanted_stores(state, meta) if name in held), held[0])
    moved = msgspec.structs.replace(meta, store=home)
    return _with_copies(moved, {}, at=LeaseTime(0))


def _replace(
    state: MetaState, live: Mapping[BlockId, FoundBlock], taken: Mapping[BlockId, BlockMeta]
) -> None:
    """The blocks as they are now, at the places in the queue that they had."""
    state.blocks.drop({block: live[block] for block in taken})
    for block, meta in taken.items():
        state.blocks.put(meta, pack(meta))
        place = state.queue.place(block)
        key = state.queue.rules.lane(meta)
        if place is not None and place.key != key:
            state.queue.leave(block, state.policy)
            state.queue.enter(place._replace(key=key), state.policy)


# ── the fold: what is to be deleted in a store ─────────────────────────────────────────────────


def _bury_copy(state: MetaState, meta: BlockMeta, store: StoreName) -> None:
    """A copy of a block that lives on."""
    made = Tombstone(meta.id, state.index, state.lease_time, (), NO_BLOCK, Cause.COPY)
    state.tombstones[CopyKey(store, keys_at(meta, store)[0])] = made


def add_tombstones(
    state: MetaState, block: BlockId, retired: Retired, stores: Iterable[StoreName]
) -> None:
    """The copies that stay behind when a retired block is forgotten.

    The list of a store that is away for long must neither grow without bound nor keep blocks in the
    index, where they would stop pushes. So the oldest leave a list that is full: when the store is
    back, the search for orphans finds what they named.
    """
    meta = unpack(retired.packed)
    for store in (store for store in stores_of(meta) if store in set(stores)):
        while (oldest := _oldest_too_many(state, store)) is not None:
            del state.tombstones[oldest]
        key = CopyKey(store, keys_at(meta, store)[0])
        state.tombstones[key] = Tombstone(
            block, retired.entry, retired.at, retired.outputs, retired.packed, retired.cause
        )


def _oldest_too_many(state: MetaState, store: StoreName) -> CopyKey | None:
    full = not has_room(state, store)
    return next(iter(state.tombstones.of_store(store)), None) if full else None


def pass_on(state: MetaState, block: BlockId, retired: Retired) -> None:
    """A block is forgotten: what waited for it waits for what replaced it, if that is needed."""
    after = retired.outputs if retired.cause is Cause.REPLACED else ()
    for key in state.tombstones.waiting_for(block):
        was = state.tombstones[key]
        outputs = tuple(
            dict.fromkeys(
                each for output in was.outputs for each in (after if output == block else (output,))
            )
        )
        state.tombstones[key] = msgspec.structs.replace(was, outputs=outputs)


def end_tombstones(state: MetaState, entry: TombstonesEnded) -> Effects:
    if state.adopting:
        return (Refused(Refusal.ADOPTING),)
    keys_ = (CopyKey(entry.store, key) for key in entry.keys)
    gone = sum(state.tombstones.pop(key, None) is not None for key in keys_)
    return (TombstonesGone(entry.store, gone),)
