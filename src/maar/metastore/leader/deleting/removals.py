"""Deletes the objects of retired blocks, after checking that their successors exist (S1).

Each store is cleaned by itself: a block's copy goes from a store when all that replaced it is in
that store, or the store should not hold it any more (S14). What a store is not ready for stays
behind as its tombstone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from maar.metastore.fold.deleting import retirement
from maar.metastore.fold.stores import copies
from maar.metastore.records.entries import AttemptKey
from maar.metastore.records.packs import unpack
from maar.metastore.state.retired import Cause, Retired
from maar.metastore.state.state import ANY_STORE, MetaState
from maar.metastore.state.tombstones import NO_BLOCK, CopyKey, Tombstone
from maar.model import keys
from maar.model.block import TABLES, BlockMeta, File, Kind
from maar.model.errors import NotFound, NotLeading, Retryable
from maar.model.ids import BlockId, StoreName
from maar.model.stores import stores_of
from maar.model.time import LeaseTime
from maar.model.trouble import Trouble, Why
from maar.ports.stores.object_store import ObjectStore, exists
from maar.services.deletion import BatchDeleter

REMOVAL_MAX = 32  # blocks; a thread cannot be interrupted, so its work is kept short

Named = Callable[[StoreName], ObjectStore]


class Successor(NamedTuple):
    """A block that replaced another one, and what will do as well where it is not whole."""

    meta: BlockMeta
    here: bool = True  # whether the index knows it where it is needed
    instead: tuple[Successor, ...] | None = None  # None: nothing else will do


@dataclass(frozen=True, slots=True)
class Removal:
    """Blocks that one entry retired, and the blocks that must be whole before their objects go from
    one store.
    """

    blocks: tuple[BlockMeta, ...]
    successors: tuple[Successor, ...]  # none when the blocks expired or were given up
    doubt: str = ""  # why the log itself forbids it
    store: StoreName | None = None  # None: that of the deleter
    stay: tuple[StoreName, ...] = ()  # stores from which their copies may not go yet
    copy: tuple[str, ...] = ()  # or the objects of a single copy, whose block lives on
    spared: frozenset[str] = frozenset()  # beginnings of intents that are needed further

    def ids(self) -> tuple[BlockId, ...]:
        return tuple(meta.id for meta in self.blocks)

    @property
    def title(self) -> str:
        if self.copy:
            return f"the copy {self.copy[0]}"
        others = len(self.blocks) - 1
        more = f" and {others} retired with it" if others else ""
        return f"block {self.blocks[0].id}{more}"


def due(
    state: MetaState, *, now: LeaseTime, limit: int, resting: Collection[BlockId] = ()
) -> list[Removal]:
    """What may be deleted now, store by store; plain values, so that a thread can act on them.

    Those of the same blocks follow each other. Blocks that may go from no store yet have one
    removal too, which deletes nothing.
    """
    groups: dict[tuple[int, tuple[BlockId, ...], tuple[StoreName, ...]], list[BlockMeta]] = {}
    staying = _staying(state, resting)
    due = retirement.due(state, now=now, limit=limit, resting=staying)
    waiting = (*due, *staying)
    looked_for = {output for block in waiting for output in state.retired[block].outputs}
    for block in due:
        if block in looked_for:
            continue  # blocks that it replaced go first: only it says what became of them
        retired = state.retired[block]
        meta = unpack(retired.packed)
        held = (
            *stores_of(meta),
            *copies.wanted_stores(state, meta),
        )  # alike in all that is asked below
        groups.setdefault((retired.entry, retired.outputs, held), []).append(meta)
    return [
        removal
        for group in groups.values()
        for at in range(0, len(group), REMOVAL_MAX)
        for removal in _by_store(state, tuple(group[at : at + REMOVAL_MAX]), now)
    ]


def _staying(state: MetaState, resting: Collection[BlockId]) -> set[BlockId]:
    """Blocks that rest, and what replaced them: it stays for them, and must not stand in the way of
    others that may go.
    """
    found: set[BlockId] = set()
    coming = list(resting)
    while coming:
        block = coming.pop()
        if block in state.retired and block not in found:
            found.add(block)
            coming.extend(state.retired[block].outputs)
    return found


def _by_store(state: MetaState, some: tuple[BlockMeta, ...], now: LeaseTime) -> Iterator[Removal]:
    first = some[0]
    retired = state.retired[first.id]
    doubt = retirement.doubt(state, first.id)
    held = stores_of(first)
    ready = [
        store
        for store in held
        if doubt or copies.may_leave(state, first, retired.outputs, store, retired.cause)
    ]
    stay = tuple(store for store in held if store not in ready)
    for store in ready:
        successors = _successors(state, first, retired, store, now)
        spared = _intents_to_spare(state, (key for meta in some for key in _files(meta, store)))
        yield Removal(some, tuple(successors), doubt, store, stay, spared=spared)
    if not ready:
        yield Removal(some, (), doubt, None, stay)


class DueTombstone(NamedTuple):
    key: str  # of the first file
    removal: Removal


def due_tombstones(
    state: MetaState,
    store: StoreName,
    *,
    now: LeaseTime,
    limit: int,
    looked_at: int,
    resting: Collection[CopyKey] = (),
    start: int = 0,
) -> list[DueTombstone]:
    """Copies that may be deleted in a store now, oldest first, of those from the one at `start` on;
    the leader's loop asks, so that only some are looked at.
    """
    found: list[DueTombstone] = []
    oldest_pin = retirement.oldest_pin(state, now)
    for buried in islice(state.tombstones.of_store(store), start, start + looked_at):
        if len(found) >= limit:
            break
        one = state.tombstones[buried]
        kept = one.cause is Cause.EXPIRED and bool(state.hold.why)
        pinned = oldest_pin is not None and oldest_pin < one.entry
        if buried in resting or kept or pinned or now - one.at <= state.policy.retire_delay_ns:
            continue
        if one.packed == NO_BLOCK:
            beside = keys.objects_beside(buried.key, TABLES)
            others = tuple(map(Successor, _metas_of(state, one.block)))
            spared = _intents_to_spare(state, beside)
            removal = Removal((), others, "", store, copy=beside, spared=spared)
            found.append(DueTombstone(buried.key, removal))
            continue
        meta = unpack(one.packed)
        if copies.may_leave(state, meta, one.outputs, store, one.cause):
            successors = tuple(_successors(state, meta, one, store, now))
            spared = _intents_to_spare(state, _files(meta, store))
            removal = Removal((meta,), successors, "", store, spared=spared)
            found.append(DueTombstone(buried.key, removal))
    return found


def _intents_to_spare(state: MetaState, written: Iterable[str]) -> frozenset[str]:
    """The intents of plans that write to any store and whose last sweep is still to come. Of what
    such a plan announced, only some may have become copies; what was refused is known by the
    intents alone.
    """
    found = set()
    for key in written:
        named = keys.output_name(key)
        if named is not None and _is_open_in_any_store(state, AttemptKey(named.plan, named.token)):
            found.add(keys.intents_of(key))
    return frozenset(found)


def _is_open_in_any_store(state: MetaState, attempt: AttemptKey) -> bool:
    plan, ended = state.plans.get(attempt.plan), state.leftovers.get(attempt)
    under_way = plan is not None and state.kinds[plan.kind].any_store
    return under_way or (ended is not None and ended.store == ANY_STORE)


def _successors(
    state: MetaState,
    meta: BlockMeta,
    gone: Retired | Tombstone,
    store: StoreName,
    now: LeaseTime,
) -> Iterator[Successor]:
    """What has to be there before a copy goes: in this store, if it should hold the block."""
    if gone.cause is not Cause.REPLACED:
        return
    needed = store in copies.wanted_stores(state, meta)
    for output in gone.outputs:
        for known in _metas_of(state, output):
            here = not needed or store in stores_of(known)
            yield Successor(known, here, _instead(state, known, store, now))


def _instead(
    state: MetaState, meta: BlockMeta, store: StoreName, now: LeaseTime
) -> tuple[Successor, ...] | None:
    """What replaced it in turn was made of a whole copy of it. Nothing will do for a block that is
    live, that can be brought back, or of which nobody knows what became of it.
    """
    again = state.retired.get(meta.id)
    if again is None or retirement.doubt(state, meta.id):
        return None
    if again.cause is not Cause.REPLACED and not retirement.is_final(state, again, now):
        return None
    return tuple(_successors(state, meta, again, store, now))


def _metas_of(state: MetaState, block: BlockId) -> Iterator[BlockMeta]:
    if block in state.blocks:
        yield state.blocks.get(block)
    elif block in state.retired:
        yield unpack(state.retired[block].packed)


def carry_out(
    deleter: BatchDeleter,
    removal: Removal,
    named: Named | None = None,
    bad_copies: list[Trouble] | None = None,
) -> str:
    """Delete the objects in one store; '' when they are gone, else why they have to stay. Copies
    that are not whole of what replaced them are added to `bad_copies`.
    """
    store = deleter.store
    looked = _Look(
        removal.store, named or (lambda _: store), [] if bad_copies is None else bad_copies
    )
    doubt = removal.doubt or looked.first_trouble(removal.successors)
    if doubt and _left(store, removal):
        return f"{removal.title} cannot be deleted: {doubt}"
    deleter.delete(list(_objects(removal)))
    deleter.delete(list(_intents(store, removal)))
    return ""


def _objects(removal: Removal) -> Iterator[str]:
    """Manifests before tables: an index rebuilt from manifests must not name lost files."""
    yield from removal.copy
    for meta in removal.blocks:
        files = list(_files(meta, removal.store))
        manifests = map(keys.manifest_of, files) if meta.kind is Kind.BLOCK else ()
        yield from (*dict.fromkeys(manifests), *files)


def _files(meta: BlockMeta, store: StoreName | None) -> Iterator[str]:
    for file in meta.files:
        yield from (at.key for at in file.locations if store in (None, at.store))


def _intents(store: ObjectStore, removal: Removal) -> Iterator[str]:
    """The outputs that they announced are known, or spared: none of them is a leftover."""
    files = (key for meta in removal.blocks for key in _files(meta, removal.store))
    announced = filter(keys.output_name, (*files, *removal.copy))  # not the segments of writers
    for prefix in dict.fromkeys(map(keys.intents_of, announced)):
        if prefix in removal.spared:
            continue
        yield from (intent.key for intent in store.list(prefix))


def _left(store: ObjectStore, removal: Removal) -> bool:
    """Whether any object of the blocks still exists here."""
    files = (key for meta in removal.blocks for key in _files(meta, removal.store))
    return any(exists(store, key) for key in (*files, *removal.copy))


class _Look(NamedTuple):
    """A look at what replaced the blocks that are to go from a store."""

    store: StoreName | None
    named: Named
    bad_copies: list[Trouble]

    def first_trouble(self, some: Iterable[Successor]) -> str:
        """What is wrong with some blocks; '' when nothing is."""
        return next(filter(None, map(self._trouble, some)), "")

    def _trouble(self, one: Successor) -> str:
        if not one.here:
            trouble = f"block {one.meta.id}, which replaces it, is not in store {self.store} yet"
        else:
            troubles = (self._file_trouble(one.meta.id, file) for file in one.meta.files)
            trouble = next(filter(None, troubles), "")
        if trouble and one.instead is not None:
            return self.first_trouble(one.instead)
        return trouble

    def _file_trouble(self, block: BlockId, file: File) -> str:
        """A file must be in the store that is cleaned; if that should not hold it, in another."""
        here = [at for at in file.locations if at.store == self.store] or list(file.locations)
        trouble = ""
        for at in here:
            why: Why = "missing"
            try:
                size = self.named(at.store).size(at.key)
            except NotFound:
                trouble = f"{at.key}, which replaces it, is missing"
            except Retryable as error:
                if at.store == self.store or isinstance(error, NotLeading):
                    raise
                trouble = f"{at.key}, which replaces it, cannot be looked at: {error}"
                continue
            else:
                if size == file.size:
                    return ""
                why = "damaged"
                trouble = f"{at.key}, which replaces it, has {size} bytes, not {file.size}"
            self.bad_copies.append(Trouble(block, at.store, at.key, why, trouble))
        return trouble
