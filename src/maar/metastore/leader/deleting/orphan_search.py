"""Searches the store for orphans, a page of keys at a time; what it finds may be deleted (S1).

It deletes nothing itself, so a dry run and a sweep find the same. What is in doubt stays, and a
sentence says so: a block that adoption could not read, one that is whole though no entry speaks of
it, and any key that our writers do not write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from itertools import chain, islice
from typing import NamedTuple, TypeAlias, TypeVar

from maar.background import Threads
from maar.metastore.decide import orphans
from maar.metastore.fold import registration
from maar.metastore.fold.plans import leftovers
from maar.metastore.fold.stores import objects
from maar.metastore.leader.background import Led
from maar.metastore.leader.deleting import final_sweep
from maar.metastore.leader.deleting.final_sweep import FoundLeftovers
from maar.metastore.leader.letters.letter_box import Box
from maar.metastore.leader.stores.store_inventory import (
    UNKNOWN,
    StoredBlock,
    StoreListing,
    candidate,
    read_block,
    read_quarantine,
    segment_of,
)
from maar.metastore.records.entries import AttemptKey
from maar.metastore.state.state import MetaState
from maar.model import keys
from maar.model.block import TABLES
from maar.model.errors import Corrupt, MaarError, NotFound
from maar.model.ids import BlockId, Incarnation, StoreName
from maar.model.keys import OutputName
from maar.model.time import LeaseTime
from maar.ports.stores.object_store import ObjectInfo, ObjectStore, exists

TOGETHER_MAX = 50  # segments that are deleted one after the other by one thread
KEPT_MAX = 100  # sentences, of each part of the search and in a status
STORE = "store"  # the part of the search that looks whether it may begin

Item = TypeVar("Item")
Made = TypeVar("Made")


class OrphanKind(StrEnum):
    SEGMENT = "segment"  # uploaded, and never registered
    OUTPUT = "output"  # a table, a manifest or a quarantine file that the index does not list
    INTENT = "intent"  # of an attempt that no entry speaks of any more
    COMMIT = "commit"  # of a bulk write of which no block is left


class Orphan(NamedTuple):
    key: str
    size: int
    kind: OrphanKind


Unit: TypeAlias = tuple[Orphan, ...]  # deleted in this order, by one thread


class ListedPage(NamedTuple):
    listed: int  # keys
    units: list[Unit]


class KeptSentences:
    """Sentences for what stays although nothing names it, by the part of the search.

    Threads add to it while a status reads it, so whoever reads makes a list in one step first.
    """

    def __init__(self) -> None:
        self._sentences: dict[str, dict[str, str]] = {}

    def __len__(self) -> int:
        return sum(map(len, list(self._sentences.values())))

    def sentences(self) -> tuple[str, ...]:
        """What forbids all of it comes first."""
        parts = sorted(self._sentences, key=lambda part: part != STORE)
        told = chain.from_iterable(list(self._sentences[part].values()) for part in parts)
        return tuple(islice(told, KEPT_MAX))

    def clear(self, part: str) -> None:
        self._sentences.pop(part, None)

    def keep(self, part: str, key: str, why: str) -> None:
        told = self._sentences.setdefault(part, {})
        if len(told) < KEPT_MAX:
            told[key] = f"{key}: {why}"


class SearchTools(NamedTuple):
    """What all parts of a search share."""

    leader: Led
    store: ObjectStore
    threads: Threads
    keep: Callable[[str, str, str], None]  # part, key, why
    listed_at_once: int
    name: StoreName | None = None  # of the store; None: there is only one

    def need_of(self, state: MetaState) -> Callable[[BlockId, str], bool]:
        """Whether this store may not do without an object that the index does not list in it."""
        name = self.name
        if name is None:
            return lambda _block, _key: False
        lacked = state.blocks.copies.tenants_lacking(name)
        return lambda block, key: orphans.is_needed_here(state, block, key, name, lacked=lacked)

    async def each(self, act: Callable[[Item], Made], items: Iterable[Item]) -> list[Made]:
        """In threads; the first error is raised when all have ended."""
        outcomes = await self.threads.each(act, items, catching=MaarError)
        for outcome in outcomes:
            if isinstance(outcome, MaarError):
                raise outcome
        return [outcome for outcome in outcomes if not isinstance(outcome, MaarError)]


class Part:
    """A part of the store that is walked over; the next page goes on where the last one ended."""

    name = ""
    prefixes: tuple[str, ...] = ()

    def __init__(self, tools: SearchTools) -> None:
        self._tools = tools
        self._walk: Iterator[ObjectInfo] | None = None

    @property
    def begun(self) -> bool:
        return self._walk is not None

    def begin_anew(self) -> None:
        self._walk = None

    async def prepare(self) -> bool:
        """Whether anything can be said about this part now."""
        return True

    async def page(self) -> ListedPage | None:
        """None when the walk has ended."""
        infos = await self._tools.threads.do(self._some)
        return ListedPage(len(infos), await self._units(infos)) if infos else None

    async def _units(self, infos: Sequence[ObjectInfo]) -> list[Unit]:
        raise NotImplementedError

    def _some(self) -> list[ObjectInfo]:
        self._walk = self._walk or chain.from_iterable(map(self._tools.store.list, self.prefixes))
        infos = list(islice(self._walk, self._tools.listed_at_once))
        if not infos:
            self._walk = None
        return infos

    def _keep(self, key: str, why: str) -> None:
        self._tools.keep(self.name, key, why)


# ── segments that nobody registered ────────────────────────────────────────────────────────────


class Segments(Part):
    """Of each shard the oldest come first."""

    name = "segments"
    prefixes = (keys.SEGMENTS,)

    def __init__(self, tools: SearchTools) -> None:
        super().__init__(tools)
        self._floor = LeaseTime(-1)
        self._named: set[BlockId] = set()

    async def prepare(self) -> bool:
        """Letters are read after the floor, waiting ones before held ones, since a letter moves
        from the one place to the other by copy and then delete.
        """
        state = self._tools.leader.state
        self._floor = state.registration_floor
        if self._floor < state.policy.registration_floor_lag_ns:
            return False
        named = await self._tools.threads.do(
            partial(self._letter_blocks, orphans.incarnations(state))
        )
        self._named = named or set()
        return named is not None

    def _letter_blocks(self, ours: Iterable[Incarnation]) -> set[BlockId] | None:
        """The blocks that dead letters name; None when a letter's block cannot be told."""
        found: set[BlockId] = set()
        for incarnation in ours:
            box = Box(self._tools.store, incarnation)
            for place in (box.waiting, box.list_held):
                for info in place():
                    block = keys.letter_about(keys.letter_place(info.key)[2])
                    if block is None:
                        self._keep(
                            info.key,
                            "no segment is swept: its name does not say which one it is about. "
                            "Move it elsewhere",
                        )
                        return None
                    found.add(block)
        return found

    async def _units(self, infos: Sequence[ObjectInfo]) -> list[Unit]:
        state = self._tools.leader.state
        going = [info for info in infos if self._may_go(state, info.key)]
        sound = await self._tools.each(partial(self._is_sound, state.incarnation), going)
        found = [
            Orphan(info.key, info.size, OrphanKind.SEGMENT)
            for info, good in zip(going, sound, strict=True)
            if good
        ]
        return [tuple(found[at : at + TOGETHER_MAX]) for at in range(0, len(found), TOGETHER_MAX)]

    def _may_go(self, state: MetaState, key: str) -> bool:
        segment = keys.segment_name(key)
        return (
            segment is not None
            and orphans.is_fenced(state, segment.block, registration_floor=self._floor)
            and orphans.is_unregistered(state, segment, named=self._named)
        )

    def _is_sound(self, incarnation: Incarnation, info: ObjectInfo) -> bool:
        """An orphan of an earlier incarnation is read first: if it is damaged, adoption skipped it,
        and an operator should look at it.
        """
        one = candidate(info.key)
        assert one is not None
        if one.incarnation == incarnation:
            return True
        try:
            meta = segment_of(self._tools.store, one, self._tools.store.read(info.key))
        except NotFound:
            return False
        except Corrupt as error:
            self._keep(info.key, f"it is not swept: {error}")
            return False
        if wrong := registration.why_malformed(meta):
            self._keep(info.key, f"it is not swept: {wrong}")
        return not wrong


# ── what attempts wrote that no entry speaks of ────────────────────────────────────────────────


class WrittenObjects(NamedTuple):
    """Objects of one block that one task wrote, a manifest first."""

    objects: tuple[str, ...]
    known: bool  # the index has the block, from another task
    ours: bool  # of the present incarnation, whose log would know it if it were whole


class AttemptFinds(NamedTuple):
    found: FoundLeftovers
    written: list[WrittenObjects]
    stays: bool = False  # something else, which the store may not do without yet


class Attempts(Part):
    """Attempts that the log does not know, by their intents: a restored log lacks those that were
    granted after its snapshot. Intents go last: without them nobody could tell what is left.
    """

    name = "attempts"
    prefixes = (keys.ATTEMPTS,)

    async def _units(self, infos: Sequence[ObjectInfo]) -> list[Unit]:
        state, now = self._tools.leader.state, self._tools.leader.now()
        named = dict.fromkeys(name for info in infos if (name := keys.intent_name(info.key)))
        unknown = [
            AttemptKey(*name) for name in named if orphans.is_unknown_attempt(state, *name, now=now)
        ]
        found = await self._tools.each(partial(final_sweep.look, self._tools.store), unknown)
        finds = [AttemptFinds(one, *self._find_unlisted(one)) for one in found]
        return [unit for unit in await self._tools.each(self._unit, finds) if unit]

    def _find_unlisted(self, found: FoundLeftovers) -> tuple[list[WrittenObjects], bool]:
        """What may go, and whether anything else has to stay for now."""
        state = self._tools.leader.state
        written = found.intents.written
        unlisted = leftovers.unlisted_keys(state, written, self._tools.name)
        needed = self._tools.need_of(state)
        going = [key for key in unlisted if not needed(written[key], key)]
        beside = dict.fromkeys(keys.objects_beside(key, TABLES) or (key,) for key in going)
        return [_outputs_of(state, each) for each in beside], len(going) < len(unlisted)

    def _unit(self, finds: AttemptFinds) -> Unit:
        store, found = self._tools.store, finds.found
        plan, token = found.attempt_key.plan, found.attempt_key.token
        prefix = keys.attempt_prefix(plan=plan, token=token)
        if found.intents.bad:
            self._keep(prefix, "; ".join(found.intents.bad))
        unit: list[Orphan] = []
        whole = not finds.stays
        for written in finds.written:
            if why := why_kept(store, written):
                self._keep(written.objects[0], why)
                whole = False
            else:
                unit += _outputs(store, written.objects)
        if whole:  # else the intents say what the objects are that stay
            unit += (
                Orphan(info.key, info.size, OrphanKind.INTENT)
                for info in store.list(prefix)
                if info.key in found.intents.names
            )
        return tuple(unit)


class Outputs(Part):
    """Objects of blocks that neither the index nor an intent names. What an intent names is found
    by it, and of a block that the index has, the last sweep of its attempt finds other copies.
    """

    name = "outputs"
    prefixes = (keys.LAKE, keys.QUARANTINES, keys.SEGMENTS)  # of the last, what plans wrote there

    async def _units(self, infos: Sequence[ObjectInfo]) -> list[Unit]:
        named = await self._tools.threads.do(_output_names, infos)
        state, now = self._tools.leader.state, self._tools.leader.now()
        needed = self._tools.need_of(state)
        going = [
            (key, _outputs_of(state, beside))
            for key, name in named
            if orphans.is_unknown_attempt(state, name.plan, name.token, now=now)
            and orphans.is_unlisted(state, name.block, key, store=self._tools.name)
            and not needed(name.block, key)
            and (beside := keys.objects_beside(key, TABLES))
        ]
        return [unit for unit in await self._tools.each(self._unit, going) if unit]

    def _unit(self, one: tuple[str, WrittenObjects]) -> Unit:
        """A block is found once, by its manifest."""
        key, written = one
        store, first = self._tools.store, written.objects[0]
        if next(iter(store.list(keys.intents_of(key))), None) is not None:
            return ()
        if key != first:
            if not exists(store, first):
                self._keep(
                    key, "it is not swept: it has no manifest, and no intent tells of its attempt"
                )
            return ()
        if why := why_kept(store, written):
            self._keep(first, why)
            return ()
        return tuple(_outputs(store, written.objects))


def _output_names(infos: Iterable[ObjectInfo]) -> list[tuple[str, OutputName]]:
    """In a thread. Only keys that are spelled as our writers spell them."""
    named = ((info.key, keys.output_name(info.key)) for info in infos)
    return [
        (key, name)
        for key, name in named
        if name is not None and keys.attempt_block(key, plan=name.plan, token=name.token)
    ]


def _outputs_of(state: MetaState, beside: tuple[str, ...]) -> WrittenObjects:
    named = keys.output_name(beside[0])
    assert named is not None
    known = named.block in state.blocks or named.block in state.retired
    return WrittenObjects(beside, known, named.token.incarnation == state.incarnation)


def _outputs(store: ObjectStore, objects_: Iterable[str]) -> Iterator[Orphan]:
    """Those that are there."""
    for key in objects_:
        try:
            yield Orphan(key, store.size(key), OrphanKind.OUTPUT)
        except NotFound:
            continue


def _was_copied(store: ObjectStore, one: StoredBlock) -> bool:
    """Whether it is a copy of a block: only a block that the log knew was ever copied, so this log
    has forgotten it rightly.
    """
    if not one.key.startswith(keys.MANIFESTS):
        return False
    try:
        meta = read_block(store, one, StoreListing(store))
    except Corrupt:
        return False
    return meta is not None and meta.plan != one.plan


def why_kept(store: ObjectStore, written: WrittenObjects) -> str:
    """Why unlisted objects of a block stay all the same; '' when nobody can miss them.

    Without a manifest its task never finished. With one, adoption would have taken the block if it
    could, unless it was written too late; so one that is damaged is for an operator to look at.
    """
    first = written.objects[0]
    one = candidate(first)
    if one is None:
        return "it is not swept: no plan of ours writes such a key"
    if written.known or not exists(store, first):
        return ""
    if written.ours and not _was_copied(store, one):
        return (
            "it is not swept: it is whole, of this log, and the log does not know it. The log may "
            "have lost entries (docs/runbook.md)"
        )
    try:
        if first.startswith(keys.QUARANTINES):
            meta = read_quarantine(store, one, UNKNOWN)
        else:
            meta = read_block(store, one, StoreListing(store))
    except Corrupt as error:
        return f"it is not swept: {error}"
    if meta is None:
        return "it is not swept: files that it names are missing, or are of another size"
    wrong = registration.why_malformed(meta) or objects.wrong_with_adopted(meta, (one.incarnation,))
    return f"it is not swept: {wrong}" if wrong else ""
