"""What the leader does about stores: takes over the settings, drains, gives up what is lost (S14).

Everything here only reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import msgspec
import xxhash

from maar.metastore.fold.stores import copies
from maar.metastore.records.entries import (
    AdoptionEnded,
    BlocksLost,
    CopiesEnded,
    Entry,
    StoreLeaves,
    StoresSet,
    TombstonesEnded,
)
from maar.metastore.state.index import Chunk, blocks_in
from maar.metastore.state.state import MetaState
from maar.model.block import BlockMeta, BlockOutline
from maar.model.errors import NotFound, Rejected
from maar.model.ids import NO_TENANT, BlockId, StoreName, TenantId
from maar.model.stores import StoreSet, TenantStores, stores_of

LEAVES = "the store leaves"
UNWANTED = "the tenant does not want copies in this store any more"
LOST = "the store was given up as lost"
WIPED = "the store lost its marker, and this copy with it"
NO_DAMAGE = frozenset({LEAVES, UNWANTED, LOST})  # why a copy may end that was whole
TOMBSTONES_AT_ONCE = 1_000  # in an entry


def settings_entries(
    state: MetaState, given: StoreSet, *, unready: Collection[StoreName] = ()
) -> list[Entry]:
    """The stores of the settings, if the log knows others. New ones that are not ready are left
    out until they are, and nothing is said while the first one is not: the log knows it by its
    place. A single store, the only one that ever was, needs no entry.
    """
    if given.stores and given.stores[0].name in unready:
        return []
    wanted = without(given, unready)
    if len(wanted.stores) < 2 and not state.stores.stores:
        return []
    same = msgspec.structs.replace(state.stores, leaving=()) == wanted
    forgets = any(name not in _known_stores(state, wanted) for name in state.stores.leaving)
    return [] if same and not forgets else [StoresSet(wanted)]


def end_of_adoption(state: MetaState, given: StoreSet | None) -> list[Entry]:
    """The end of an adoption, after the name of the first store, if that is another one than that
    of the lost log: a leader that dies in between must not be refused for it.
    """
    if not state.adopting:
        return []
    before, after = state.stores.names()[:1], given.names()[:1] if given is not None else ()
    if given is None or not before or before == after:
        return [AdoptionEnded()]
    new = set(given.names()[1:]).difference(state.stores.names())  # not marked yet
    return [*settings_entries(state, given, unready=new), AdoptionEnded()]


def _known_stores(state: MetaState, given: StoreSet) -> set[StoreName]:
    return {*given.names(), *state.blocks.copies.holders(), *state.tombstones.stores()}


def without(given: StoreSet, unready: Collection[StoreName]) -> StoreSet:
    """The same stores but for some, for nobody."""

    def rest(names: Iterable[StoreName]) -> tuple[StoreName, ...]:
        return tuple(name for name in names if name not in unready)

    return StoreSet(
        tuple(spec for spec in given.stores if spec.name not in unready),
        rest(given.default),
        tuple(TenantStores(each.tenant, rest(each.stores)) for each in given.tenants),
    )


def check_known(state: MetaState, store: StoreName) -> None:
    if store not in _known_stores(state, state.stores):
        raise NotFound(f"there is no store {store!r}; see maar stores")


def leave(state: MetaState, store: StoreName, *, leaves: bool = True) -> list[Entry]:
    """NotFound or Rejected, with the reason, when a store cannot be drained."""
    check_known(state, store)
    others = [n for n in state.stores.names() if n != store and n not in state.stores.leaving]
    if leaves and not others:
        raise Rejected(f"store {store} is the last one that stays; add another one first")
    homes = state.stores.get(store)
    if leaves and homes is not None and homes.zones:
        raise Rejected(
            f"store {store} is the home of zone {homes.zones[0]}, whose writers write to it; make "
            "another store the home of its zones first ([[stores]] zones)"
        )
    if leaves and store == state.stores.names()[0]:
        raise Rejected(
            f"store {store} is the first of the settings, where snapshots and commits are, and "
            "cannot be drained; to give it up, restore the log with settings that do not have it"
        )
    return [StoreLeaves(store, leaves)]


# ── blocks of a store ──────────────────────────────────────────────────────────────────────────


def chunks_with(state: MetaState, store: StoreName) -> list[Chunk]:
    """Those that may hold blocks of a store; immutable, so that a thread may search them."""
    return _chunks_of(state, {h.tenant for h in state.blocks.copies.sums if store in h.stores})


def _chunks_of(state: MetaState, tenants: set[TenantId]) -> list[Chunk]:
    return [
        chunk
        for tenant in sorted(tenants)
        for shelf in state.blocks.tenants.get(tenant, {}).values()
        for chunk in shelf.chunks
    ]


def segment_chunks(state: MetaState) -> list[Chunk]:
    """Segments are of all tenants; they are in their home store only."""
    return [
        chunk
        for shelf in state.blocks.tenants.get(NO_TENANT, {}).values()
        for chunk in shelf.chunks
    ]


def blocks_at(chunks: Iterable[Chunk], store: StoreName) -> Iterator[BlockMeta]:
    return (meta for meta in blocks_in(chunks) if store in stores_of(meta))


def to_drain(state: MetaState) -> tuple[StoreName, ...]:
    """The stores that leave, and those with copies that their tenants do not want there any more,
    while all the stores that they want have theirs. One that the settings do not know is left as it
    is: they may be wrong.
    """
    copies_ = state.blocks.copies
    surplus = {name for held in copies_.sums for name in copies_.surplus(held)}
    stays = surplus.intersection(state.stores.names()).difference(state.stores.leaving)
    return (*state.stores.leaving, *sorted(stays))


def chunks_to_drain(state: MetaState, store: StoreName) -> list[Chunk]:
    """Those that may hold blocks whose copies in a store are to end."""
    copies_ = state.blocks.copies
    return _chunks_of(state, {h.tenant for h in copies_.sums if store in copies_.surplus(h)})


def drain_entries(state: MetaState, store: StoreName, blocks: Iterable[BlockId]) -> list[Entry]:
    """For copies of which the remaining ones were read again: of those that may still go."""
    found = state.blocks.find_live(blocks)
    ready = tuple(block for block, each in found.items() if may_drain(state, each.outline, store))
    why = LEAVES if store in state.stores.leaving else UNWANTED
    return [CopiesEnded(store, ready, gone=False, why=why)] if ready else []


def may_drain(state: MetaState, meta: BlockOutline, store: StoreName) -> bool:
    """Whether all the stores that should hold a block do, and this one should not."""
    held = stores_of(meta)
    return store in held and all(
        name in held and name != store for name in copies.wanted_stores(state, meta)
    )


# ── a store that is given up ───────────────────────────────────────────────────────────────────


class Bereaved(NamedTuple):
    """What giving a store up means for its blocks."""

    elsewhere: list[BlockId]  # they have another copy
    only_here: list[BlockMeta]


def split_by_copies(chunks: Iterable[Chunk], store: StoreName) -> Bereaved:
    found = Bereaved([], [])
    for meta in blocks_at(chunks, store):
        if len(stores_of(meta)) > 1:
            found.elsewhere.append(meta.id)
        else:
            found.only_here.append(meta)
    return found


def name_of_list(blocks: Iterable[BlockId]) -> str:
    """By which a list of blocks is recognised that somebody has seen."""
    return xxhash.xxh3_128_hexdigest("\n".join(sorted(blocks)).encode())


def end_copies(store: StoreName, blocks: Iterable[BlockId], why: str) -> list[Entry]:
    return [CopiesEnded(store, tuple(blocks), gone=True, why=why)]


def lose_blocks(state: MetaState, blocks: Iterable[BlockId], store: StoreName) -> list[Entry]:
    """Those that are still in no other store: repair may have copied some since they were found."""
    found = state.blocks.find_live(blocks)
    live = tuple(block for block, each in found.items() if stores_of(each.outline) == (store,))
    note = f"only the store {store} had it, which was given up"
    return [BlocksLost(live, note)] if live else []


def end_tombstones(state: MetaState, store: StoreName) -> list[Entry]:
    buried = [each.key for each in state.tombstones.of_store(store)]
    return [
        TombstonesEnded(store, tuple(buried[at : at + TOMBSTONES_AT_ONCE]))
        for at in range(0, len(buried), TOMBSTONES_AT_ONCE)
    ]
