"""Keeps the stores of the log in step with the settings and with what is really there (S14).

Every store has a marker, which names the log and the store. A store that another name has marked is
the same place twice, and is not taken, nor is one that ignores conditional writes. One whose marker
has vanished was wiped: its copies end, and repair fills it again. From a store that leaves, or that
a tenant does not want any more, a copy is given up when all the stores that should hold its block
do, each of them read again to the last byte.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import TypeVar

import msgspec

from maar.background import Loop, Threads
from maar.block.read.damage import wrong
from maar.metastore.decide import stores as decisions
from maar.metastore.fold.stores import copies
from maar.metastore.leader.background import Append, Led
from maar.metastore.leader.stores.claim import mark
from maar.metastore.leader.stores.store_inventory import StoreListing
from maar.metastore.records.entries import Entry
from maar.metastore.replica.timing import TIMING, Timing
from maar.metastore.state.index import Chunk
from maar.metastore.state.state import MetaState
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import InvalidInput, MaarError, NotFound, NotLeading, Rejected
from maar.model.ids import BlockId, Incarnation, StoreName
from maar.model.stores import STORES_MAX, StoreSet, stores_of
from maar.model.words import count_text
from maar.ports.operator.store_removal import RemovedStore
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.probe import probe
from maar.ports.stores.stores import Stores

log_ = logging.getLogger("maar.metastore")

ENDED_AT_ONCE = 500  # blocks in an entry
READ_AT_ONCE = 32  # blocks that are read again before their copies end
LOOKED_AT = 20_000  # blocks that one step looks at
NAMED_MAX = 100  # blocks that an answer names
THREADS = 4
TAKE_OUT = "take it out of the settings"

Item = TypeVar("Item")


async def nothing_else() -> None:
    """For who keeps nothing in the first store but copies."""


class StoreKeeper:
    """Runs beside every leader; with a single store there is nothing to do."""

    def __init__(
        self,
        leader: Led,
        stores: Stores,
        append: Append,
        given: Callable[[], StoreSet] | None,
        *,
        first_was_wiped: Callable[[], Awaitable[None]] = nothing_else,
        timing: Timing = TIMING,
    ) -> None:
        """`given` are the stores of the settings and of the tenants file, as they are now;
        `first_was_wiped` puts back what is in the first store only.
        """
        self._leader = leader
        self._stores = stores
        self._append = append
        self._given = given
        self._first_was_wiped = first_was_wiped
        self._threads = Threads(THREADS, "stores", when_closed=NotLeading)
        self._marking = Threads(STORES_MAX, "mark", when_closed=NotLeading)  # one for each store
        self._loop = Loop(self.step, failed="stores not checked", log=log_, every_s=timing.clean_s)
        self._trouble: dict[StoreName, str] = {}  # a sentence for each store that has some
        self._walks: dict[StoreName, Iterator[BlockMeta]] = {}  # of stores that leave
        self._drained: set[StoreName] = set()
        self._wiped: set[StoreName] = set()  # their markers have vanished
        self._put_back = False  # what was only in the first store, since that was wiped
        self._probed: set[StoreName] = set()  # they honour conditional writes
        self.down: frozenset[StoreName] = frozenset()  # those that nothing is copied to now
        self._unread: dict[BlockId, str] = {}  # copies that a drain relies on, and what is wrong

    @property
    def blocked(self) -> tuple[str, ...]:
        """Sentences for the status."""
        state = self._leader.state
        gone = sorted(
            ({*state.blocks.copies.holders(), *state.tombstones.stores()})
            - {*self._stores.names(), *state.stores.names()}
        )
        missing = (
            f"store {name} is not in the settings any more, and the index knows copies in it: it "
            f"counts as away. Name it again, or remove it (maar stores remove {name} --lost)"
            for name in gone
            if len(self._stores.names()) > 1
        )
        unread = (f"block {block} is not drained: {why}" for block, why in self._unread.items())
        return (*self._trouble.values(), *missing, *islice(unread, NAMED_MAX))

    async def forever(self) -> None:
        try:
            await self._loop.run()
        finally:
            self.close()

    def close(self) -> None:
        self._threads.close()
        self._marking.close()

    async def step(self) -> None:
        state = self._leader.state
        if self._given is None or state.adopting:
            return
        given = self._given()
        if len(given.stores) > 1 or state.stores.stores:
            unready = await self._mark_all(given)
            await self._append(
                lambda state, _: decisions.settings_entries(state, given, unready=unready)
            )
        for name in decisions.to_drain(state):
            if name in state.stores.leaving or name not in self._trouble:
                await self._drain(name)

    # ── markers ────────────────────────────────────────────────────────────────────────────────

    async def _mark_all(self, given: StoreSet) -> set[StoreName]:
        """The new stores of the settings that cannot be used yet."""
        state = self._leader.state
        self._leader.confirm()
        names = given.names()
        outcomes = await self._marking.each(self._look_at_marker, names, catching=MaarError)
        unready: set[StoreName] = set()
        # Those that are silent, refused or wiped: workers take them for stores that are away.
        unfit = (name for name, outcome in zip(names, outcomes, strict=True) if outcome)
        self.down = frozenset((*unfit, *self._wiped))
        for name, outcome in zip(names, outcomes, strict=True):
            if isinstance(outcome, NotLeading):
                raise outcome
            if isinstance(outcome, MaarError) and self._is_drained(name):
                self._tell(
                    name, f"store {name} is unreachable, and holds nothing any more: {TAKE_OUT}"
                )
            elif isinstance(outcome, MaarError):
                self._tell(name, f"store {name} is unreachable: {outcome}")
            elif outcome:
                self._tell(name, outcome)
            elif name in self._wiped:
                await self._refill_if_it_answers(name)
            else:
                self._trouble.pop(name, None)
            if name in self._trouble and name not in state.stores.names():
                unready.add(name)
        return unready

    def _look_at_marker(self, name: StoreName) -> str:
        """In a thread of the store's own. What is wrong, in a sentence; '' when nothing is."""
        state = self._leader.state
        store = self._stores.open(name)
        incarnations = (state.incarnation, *reversed(state.former))
        owner = next(
            (
                found
                for incarnation in incarnations
                if (found := _marker_name(store, incarnation)) is not None
            ),
            None,
        )
        if owner is None and (other := _other_log(store, incarnations)):
            return (
                f"store {name} has the marker of another log ({other}) and none of this one: the "
                "settings may name another place than before. Nothing there is believed"
            )
        if name not in self._probed:
            try:
                probe(store)
            except InvalidInput as error:
                return str(error)
            self._probed.add(name)
        first = self._stores.names()[0]
        marked_before = name == first and name in state.stores.names()
        if owner is None and (marked_before or name in state.blocks.copies.holders()):
            self._wiped.add(name)
            return ""
        if owner is None or _marker_name(store, state.incarnation) is None:
            mark(store, state.incarnation)  # of two names that come at once, one is first
            owner = _marker_name(store, state.incarnation) or ""
        if name != (owner or first):  # markers of single stores used to be empty
            return self._told_twice(name, StoreName(owner or first))
        self._wiped.discard(name)
        return ""

    def _told_twice(self, name: StoreName, owner: StoreName) -> str:
        state = self._leader.state
        known = {*self._stores.names(), *state.stores.names(), *state.blocks.copies.holders()}
        if owner in known:
            return (
                f"store {name} is the same place as store {owner}, by the marker in it: two names "
                "for one place would count copies that are none. It is not used"
            )
        return (
            f"store {name} has the marker of a store {owner}, which neither the settings nor the "
            f"log have any more: call it {owner} again, or, if that was a second name for this "
            f"place, remove {keys.marker(state.incarnation)} from it. It is not used"
        )

    async def _refill_if_it_answers(self, name: StoreName) -> None:
        try:
            await self._refill(name)
            self._trouble.pop(name, None)
        except NotLeading:
            raise
        except MaarError as error:
            self._tell(name, f"store {name} was wiped, and cannot be filled again yet: {error}")

    async def _refill(self, name: StoreName) -> None:
        """A store lost its marker: what it lost with it is missing, and repair copies it again."""
        if name not in self._trouble:
            log_.error("store %s has lost its marker: it was wiped, and is filled again", name)
        first = name == self._stores.names()[0]
        if first and not self._put_back:
            await self._first_was_wiped()  # before all else: without it nobody could lead again
            self._put_back = True  # all of the state: not again while the rest is tried again
        store = self._stores.open(name)
        listing = StoreListing(store)
        await self._threads.do(_walk, listing)
        state = self._leader.state
        chunks = decisions.chunks_with(state, name)
        others = await self._listed_others(name)
        lacking, ending = await self._threads.do(_missing, chunks, name, listing, others)
        for some in _in_steps(ending, ENDED_AT_ONCE):
            await self._append(partial(_end_copies, name, some, decisions.WIPED))
        ended = sum(1 for block in ending if not _is_at(state, block, name))
        log_.error("store %s was wiped copies=%d nowhere_else=%d", name, ended, lacking - ended)
        await self._threads.do(mark, store, state.incarnation)
        self._wiped.discard(name)
        self._put_back &= not first

    async def _listed_others(self, name: StoreName) -> dict[StoreName, StoreListing]:
        """What the other stores hold, as far as they answer and are not empty themselves: a disk
        that is not mounted looks like a wiped store, and may have the only copies that are left.
        """
        found = {}
        for other in self._stores.names():
            if other == name or other in self._wiped or other in self._trouble:
                continue
            try:
                listing = StoreListing(self._stores.open(other))
                await self._threads.do(_walk, listing)
                found[other] = listing
            except NotLeading:
                raise
            except MaarError as error:
                self._tell(other, f"store {other} is unreachable: {error}")
        return found

    def _tell(self, name: StoreName, why: str) -> None:
        if name not in self._trouble:
            log_.error("%s", why)
        self._trouble[name] = why

    # ── copies that are not wanted any more ────────────────────────────────────────────────────

    async def _drain(self, name: StoreName) -> None:
        """Some of the blocks of a store that leaves, or of those that it should not hold any more;
        the next step goes on.
        """
        state = self._leader.state
        walk = self._walks.get(name)
        if walk is None:
            self._unread.clear()
            chunks = decisions.chunks_to_drain(state, name)
            walk = self._walks[name] = decisions.blocks_at(chunks, name)
        found = await self._threads.do(partial(_some_to_drain, walk, state, name))
        if found is None:
            del self._walks[name]
            self._tell_drained(name)
            return
        outcomes = await self._threads.each(
            partial(self._unreadable, name), found, catching=MaarError
        )
        ready = []
        for meta, why in zip(found, outcomes, strict=True):
            if not why:
                ready.append(meta.id)
            elif len(self._unread) < NAMED_MAX:
                self._unread[meta.id] = str(why)
        if ready:
            await self._append(lambda state, _: decisions.drain_entries(state, name, ready))

    def _unreadable(self, leaving: StoreName, meta: BlockMeta) -> str:
        """In a thread: what is wrong with the copies that are to remain; '' when all are whole."""
        remaining = copies.wanted_stores(self._leader.state, meta)
        for file in meta.files:
            for at in file.locations:
                if at.store == leaving or at.store not in remaining:
                    continue
                if what := wrong(self._stores.open(at.store), file, at, compare=True):
                    return f"{at.key} in store {at.store} {what}"
        return ""

    def _tell_drained(self, name: StoreName) -> None:
        if self._is_drained(name) and name not in self._drained:
            self._drained.add(name)
            log_.info("store %s is drained: %s", name, TAKE_OUT)

    def _is_drained(self, name: StoreName) -> bool:
        """Whether it leaves, and the log knows nothing in it any more."""
        state = self._leader.state
        held = name in state.blocks.copies.holders() or state.tombstones.of_store(name)
        return name in state.stores.leaving and not held

    # ── a store that is removed by hand ────────────────────────────────────────────────────────

    async def remove(self, name: StoreName, *, lost: bool, seen: str = "") -> RemovedStore:
        """Have it drained; or, when it cannot be, give up what it had. What only it had is named
        first, and is given up only by who has seen this very list (`seen`): if it is another one
        by then, nothing is done, and the new one is the answer.
        """
        if not lost:
            await self._append(lambda state, _: decisions.leave(state, name))
            return self._removal(name)
        state = self._leader.state
        decisions.check_known(state, name)
        if name not in state.stores.leaving:
            decisions.leave(state, name)  # what cannot be is refused before anybody is asked
        chunks = [*decisions.chunks_with(state, name), *decisions.segment_chunks(state)]
        found = await self._threads.do(decisions.split_by_copies, chunks, name)
        only = tuple(meta.id for meta in found.only_here)
        profiles = sum(meta.profiles for meta in found.only_here)
        told = RemovedStore(
            *(name, False, len(found.elsewhere), len(only), profiles, only[:NAMED_MAX]),
            list_id=decisions.name_of_list(only),
        )
        if seen != told.list_id:
            return told
        if name not in state.stores.leaving:
            await self._append(lambda state, _: decisions.leave(state, name))
        for some in _in_steps(found.elsewhere, ENDED_AT_ONCE):
            await self._append(partial(_end_copies, name, some, decisions.LOST))
        for some in _in_steps(list(only), ENDED_AT_ONCE):
            await self._append(partial(_lose_blocks, name, some))
            await self._append(partial(_end_copies, name, some, decisions.LOST))  # copied meanwhile
        await self._append(lambda state, _: decisions.end_tombstones(state, name))
        log_.warning("store %s was given up blocks_lost=%d profiles=%d", name, len(only), profiles)
        left = sum(1 for block in found.elsewhere if _is_at(state, block, name))
        if left:
            raise Rejected(
                f"{count_text(left, 'block')} of store {name} belong to plans that are under way; "
                "ask again when they have ended"
            )
        return msgspec.structs.replace(told, done=True)

    async def keep(self, name: StoreName) -> RemovedStore:
        """It stays after all."""
        await self._append(lambda state, _: decisions.leave(state, name, leaves=False))
        return self._removal(name)

    def _removal(self, name: StoreName) -> RemovedStore:
        held = self._leader.state.blocks.copies.of_stores().get(name)
        return RemovedStore(name, True, held.held.blocks if held else 0, 0, 0, ())


def _marker_name(store: ObjectStore, incarnation: Incarnation) -> str | None:
    """The name in the marker of an incarnation; None when there is none."""
    try:
        return store.read(keys.marker(incarnation)).decode(errors="replace")
    except NotFound:
        return None


def _walk(listing: StoreListing) -> None:
    for _ in listing.walk():
        pass


def _other_log(store: ObjectStore, ours: Container[str]) -> str:
    """Another log that has marked a store; '' when there is none."""
    marked = (info.key.removeprefix(keys.MARKERS) for info in store.list(keys.MARKERS))
    return next((incarnation for incarnation in marked if incarnation not in ours), "")


def _missing(
    chunks: list[Chunk],
    name: StoreName,
    listing: StoreListing,
    others: Mapping[StoreName, StoreListing],
) -> tuple[int, list[BlockId]]:
    """How many blocks are not in a store that should have them, and which of them another store
    has: only their copies end. The rest stays listed, and repair looks at it again.
    """
    gone = [meta for meta in decisions.blocks_at(chunks, name) if listing.lacks(meta)]
    ending = [
        meta.id
        for meta in gone
        if any(at in others and others[at].whole(meta) for at in stores_of(meta))
    ]
    return len(gone), ending


def _some_to_drain(
    walk: Iterator[BlockMeta], state: MetaState, name: StoreName
) -> list[BlockMeta] | None:
    """The next blocks whose copies may end; None when the walk has ended."""
    looked = list(islice(walk, READ_AT_ONCE))
    seen = len(looked)
    found = [meta for meta in looked if decisions.may_drain(state, meta, name)]
    while not found and looked and seen < LOOKED_AT:
        looked = list(islice(walk, READ_AT_ONCE))
        seen += len(looked)
        found = [meta for meta in looked if decisions.may_drain(state, meta, name)]
    return found if looked else None


def _end_copies(name: StoreName, blocks: list[BlockId], why: str, *_: object) -> list[Entry]:
    return decisions.end_copies(name, blocks, why)


def _lose_blocks(
    name: StoreName, blocks: list[BlockId], state: MetaState, _: object
) -> list[Entry]:
    return decisions.lose_blocks(state, blocks, name)


def _is_at(state: MetaState, block: BlockId, name: StoreName) -> bool:
    return block in state.blocks and name in stores_of(state.blocks.get(block))


def _in_steps(items: list[Item], size: int) -> Iterator[list[Item]]:
    return (items[at : at + size] for at in range(0, len(items), size))
