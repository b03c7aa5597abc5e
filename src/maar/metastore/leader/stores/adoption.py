"""Searches the store after a restore, until the index knows everything in it (S5).

A restored log lacks what happened after its snapshot. What was written since is found by listing
the store: segments that nobody merged, and blocks whose manifests say that they are whole. Which
block replaced which is not known any more, so all are adopted; queries still count every profile
once (S9). Blocks whose objects are gone leave the index, and blocks that they had replaced come
back if they still exist. Blocks of a bulk write replaced nothing: they are adopted only if its
commit object names them, all or none. Meanwhile nothing is deleted, no plan is made, and the
registration floor does not advance.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import TypeVar

from maar.background import Loop, Threads
from maar.metastore.decide import prepare, stores
from maar.metastore.decide.dead_letter_rules import FoundLetter
from maar.metastore.fold import registration, reincarnation
from maar.metastore.leader.background import Append, Led
from maar.metastore.leader.letters.letter_box import Box
from maar.metastore.leader.stores import claim, committing
from maar.metastore.leader.stores.store_inventory import (
    UNKNOWN,
    Sibling,
    StoredBlock,
    StoreListing,
    best_first,
    candidate,
    read_block,
    read_quarantine,
    whole_copies,
)
from maar.metastore.records.entries import BlocksMissed, Entry
from maar.metastore.records.packs import unpack
from maar.metastore.replica.metrics import MetastoreMetrics
from maar.metastore.state.index import Chunk, blocks_in
from maar.metastore.state.state import MetaState
from maar.metastore.views import reads
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import Corrupt, MaarError, NotFound, NotLeading
from maar.model.ids import BlockId, PlanId, StoreName
from maar.model.keys import AttemptName, OutputName
from maar.model.stores import StoreSet
from maar.model.stores import stores_of as copies_in
from maar.model.time import LeaseTime
from maar.ports.clock import Clock
from maar.ports.stores.object_store import ObjectInfo, ObjectStore, exists
from maar.ports.stores.stores import Stores, stores_of

log_ = logging.getLogger("maar.metastore")

RETRY_S = 5.0  # after a search that failed
THREADS = 8
LISTED_AT_ONCE = 1_000  # keys
READ_AT_ONCE = 32  # segments or manifests in memory
MISSED_AT_ONCE = 1_000  # blocks in an entry
TOLD_MAX = 100  # sentences in a status

Item = TypeVar("Item")


class Adoption:
    """Runs beside every leader; idle unless a restored log has not searched the store yet."""

    def __init__(
        self,
        leader: Led,
        store: ObjectStore | Stores,
        clock: Clock,
        append: Append,
        metrics: MetastoreMetrics,
        given: Callable[[], StoreSet] | None = None,
    ) -> None:
        """`given` are the stores of the settings, as they are now."""
        self._leader = leader
        self._given = given
        self._stores = stores_of(store)
        self._clock = clock
        self._append = append
        self._metrics = metrics
        self._threads = Threads(THREADS, "adopt", when_closed=NotLeading)
        self._adopting = Loop(
            self.adopt, failed="adoption postponed", log=log_, every_s=0.0, retry_s=RETRY_S
        )
        self._left: list[str] = []  # what cannot be adopted, a sentence each

    @property
    def blocked(self) -> tuple[str, ...]:
        """Sentences for the status: what could not be adopted, and why."""
        if not self._leader.state.adopting:
            return tuple(self._left[:TOLD_MAX])
        trouble = self._adopting.trouble
        doing = (
            "the log was restored: nothing is merged or deleted until the store has been searched"
        )
        return tuple([doing, *([trouble] if trouble else []), *self._left][:TOLD_MAX])

    async def forever(self) -> None:
        """Adopt what is to be adopted; never returns, since its end would end the term."""
        try:
            await self._adopting.run(while_=lambda: bool(self._leader.state.adopting))
            await asyncio.Event().wait()
        finally:
            self.close()

    def close(self) -> None:
        self._threads.close()

    async def adopt(self) -> None:
        """Search the whole store once. Repeated, it continues where it was interrupted."""
        self._left.clear()
        began_ns = self._clock.monotonic_ns()
        names = self._stores.names()
        for name in names[1:]:
            await self._threads.do(self._end_former, name)
        listings = {name: StoreListing(self._stores.open(name)) for name in names}
        found = await self._only_committed(await self._unknown(listings))
        blocks = [block for block, some in found.items() if not _is_quarantined(some[0])]
        held = [block for block, some in found.items() if _is_quarantined(some[0])]
        log_.info("adoption found blocks=%d quarantined=%d", len(blocks), len(held))
        siblings: dict[PlanId, Sibling] = {}
        for some in _in_steps(blocks, READ_AT_ONCE):
            make = partial(whole_copies, make=partial(self._read_block, listings))
            metas = await self._make_blocks(make, [found[block] for block in some])
            siblings |= {m.plan: Sibling(m.shard, m.level) for m in metas if m.plan is not None}
            await self._take(metas)
        for some in _in_steps(held, READ_AT_ONCE):
            make = partial(whole_copies, make=partial(self._in_quarantine, siblings))
            await self._take(await self._make_blocks(make, [found[block] for block in some]))
        await self._miss(listings)
        await self._bring_back(listings)
        await self._deliver_letters()
        given = self._given() if self._given is not None else None
        await self._append(lambda state, _: stores.end_of_adoption(state, given))
        tally = self._leader.state.tally
        log_.info(
            "adoption ended adopted=%d missed=%d left=%d seconds=%.1f",
            *(tally.blocks_adopted, tally.blocks_missed, len(self._left)),
            (self._clock.monotonic_ns() - began_ns) / 1e9,
        )

    def _end_former(self, name: StoreName) -> None:
        claim.end_former(self._stores.open(name), self._leader.state)

    # ── what the store holds and the index does not know ───────────────────────────────────────

    async def _unknown(
        self, listings: Mapping[StoreName, StoreListing]
    ) -> dict[BlockId, list[StoredBlock]]:
        """Objects of blocks of earlier incarnations, the best candidate of each block first.

        Every store is listed. From one that came later than the log that is adopted, as it lacks
        that log's marker, nothing is taken: what it holds unlisted is an orphan.
        """
        found: dict[BlockId, list[StoredBlock]] = {}
        for name, listing in listings.items():
            ours = await self._threads.do(self._was_ours, name)
            async for one in self._candidates(name, listing.walk()):
                if ours and self._is_wanted(one):
                    found.setdefault(one.block, []).append(one)
        return {block: best_first(some) for block, some in found.items()}

    async def _candidates(
        self, name: StoreName, walk: Iterator[ObjectInfo]
    ) -> AsyncIterator[StoredBlock]:
        def some() -> tuple[int, list[StoredBlock]]:
            infos = list(islice(walk, LISTED_AT_ONCE))
            named = [candidate(info.key, name) for info in infos]
            return len(infos), [one for one in named if one is not None]

        looked_at = 1
        while looked_at:
            looked_at, candidates = await self._threads.do(some)
            for one in candidates:
                yield one

    def _was_ours(self, name: StoreName) -> bool:
        """Whether the log that is adopted used a store; the first one needs no proof."""
        store = self._stores.open(name)
        return name == self._stores.names()[0] or any(
            exists(store, keys.marker(incarnation)) for incarnation in self._leader.state.adopting
        )

    def _read_block(
        self, listings: Mapping[StoreName, StoreListing], one: StoredBlock
    ) -> BlockMeta | None:
        return read_block(self._stores.open(one.store), one, listings[one.store])

    def _in_quarantine(
        self, siblings: Mapping[PlanId, Sibling], one: StoredBlock
    ) -> BlockMeta | None:
        sibling = siblings.get(one.plan, UNKNOWN) if one.plan is not None else UNKNOWN
        return read_quarantine(self._stores.open(one.store), one, sibling)

    async def _only_committed(
        self, found: dict[BlockId, list[StoredBlock]]
    ) -> dict[BlockId, list[StoredBlock]]:
        """Without the blocks of bulk writes that were never whole: nothing says which of them are
        missing. Orphans are swept later, and these with them.
        """
        bulk = [one for some in found.values() for one in some if keys.is_ingested(one.key)]
        names = sorted({AttemptName(name.plan, name.token) for name in map(_name_of, bulk)})
        first = self._stores.open(self._stores.names()[0])
        read = await self._threads.each(partial(_commit_of, first), names, catching=MaarError)
        whole: set[str] = set()
        for outcome in read:
            if isinstance(outcome, MaarError):
                raise outcome
            whole |= outcome
        left = {one.key for one in bulk if one.key not in whole}
        if left:
            log_.warning("adoption skipped bulk writes without a commit objects=%d", len(left))
        kept = {
            block: [one for one in some if one.key not in left] for block, some in found.items()
        }
        return {block: some for block, some in kept.items() if some}

    def _is_wanted(self, one: StoredBlock) -> bool:
        """Skip unknown segments below the floor: never acknowledged, or merged and forgotten."""
        state = self._leader.state
        if one.incarnation not in state.adopting or registration.is_known(state, one.block):
            return False
        return one.plan is not None or not registration.below_floor(state, one.block)

    async def _make_blocks(
        self,
        make: Callable[[list[StoredBlock]], BlockMeta | None],
        candidates: Sequence[list[StoredBlock]],
    ) -> list[BlockMeta]:
        """The blocks that are complete; damaged ones are reported and left where they are."""
        metas: list[BlockMeta] = []
        for made in await self._threads.each(make, candidates, catching=MaarError):
            if isinstance(made, Corrupt):
                self._leave(str(made))
            elif isinstance(made, MaarError):
                raise made
            elif made is not None:
                metas.append(made)
        return metas

    async def _take(self, metas: Sequence[BlockMeta]) -> None:
        """Append through the leader's loop; the fold decides which blocks are adopted."""
        if not metas:
            return
        await self._append(lambda *_: list(prepare.adoptions(metas)))
        state = self._leader.state
        for meta in metas:
            if not registration.is_known(state, meta.id):
                self._leave(
                    f"block {meta.id} is not adopted: {reincarnation.why_refused(state, meta)}"
                )

    def _leave(self, sentence: str) -> None:
        log_.error("adoption skipped an object cause=%s", sentence)
        self._left.append(sentence)

    # ── what the index knows and the store does not hold ───────────────────────────────────────

    async def _miss(self, listings: Mapping[StoreName, StoreListing]) -> None:
        """A block is missed only if no store has it whole; nothing is while a store is away."""
        chunks = reads.all_chunks(self._leader.state.blocks, "")
        missed: list[BlockId] = []
        for some in _in_steps(chunks, THREADS):
            lacking = await self._threads.each(
                partial(_lacking, listings), some, catching=MaarError
            )
            for outcome in lacking:
                if isinstance(outcome, MaarError):
                    raise outcome
                missed += outcome
        unlisted = await self._copies_of(missed, listings)
        for gone in _in_steps(missed, MISSED_AT_ONCE):
            await self._append(partial(_still_there, tuple(gone)))
        for metas in _in_steps(list(unlisted.values()), READ_AT_ONCE):
            await self._take(metas)
        missed = [block for block in missed if block not in unlisted]
        if missed:
            log_.error(
                "adoption missed blocks=%d: the index had them but the store does not; what "
                "replaced them was adopted, unless it is lost too",
                len(missed),
            )

    async def _copies_of(
        self, missed: Sequence[BlockId], listings: Mapping[StoreName, StoreListing]
    ) -> dict[BlockId, BlockMeta]:
        """Copies that were made after the snapshot, of blocks that are nowhere else."""
        if not missed or len(listings) < 2:
            return {}
        wanted, found = set(missed), dict[BlockId, list[StoredBlock]]()
        for name in listings:
            store = self._stores.open(name)
            if not await self._threads.do(self._was_ours, name):
                continue
            prefixes = (keys.MANIFESTS, keys.QUARANTINES)
            walk = chain.from_iterable(map(store.list, prefixes))
            async for one in self._candidates(name, walk):
                if one.block in wanted:
                    found.setdefault(one.block, []).append(one)
        read = partial(self._read_any, listings)
        metas = await self._make_blocks(
            partial(whole_copies, make=read), [best_first(some) for some in found.values()]
        )
        return {meta.id: meta for meta in metas}

    def _read_any(
        self, listings: Mapping[StoreName, StoreListing], one: StoredBlock
    ) -> BlockMeta | None:
        if _is_quarantined(one):
            return self._in_quarantine({}, one)
        return self._read_block(listings, one)

    async def _bring_back(self, listings: Mapping[StoreName, StoreListing]) -> None:
        """Replaced blocks whose successor is missing, as far as they still exist."""
        state = self._leader.state
        returning = [block for block in state.retired if reincarnation.must_return(state, block)]
        for some in _in_steps(returning, READ_AT_ONCE):
            metas = [unpack(state.retired[block].packed) for block in some]
            there = await self._threads.each(
                partial(_is_somewhere, listings), metas, catching=MaarError
            )
            for outcome in there:
                if isinstance(outcome, MaarError):
                    raise outcome
            await self._take(
                [meta for meta, is_there in zip(metas, there, strict=True) if is_there]
            )

    # ── dead letters of earlier incarnations ───────────────────────────────────────────────────

    async def _deliver_letters(self) -> None:
        """Their segments were found above; a letter is deleted when the index knows its block."""
        incarnations = self._leader.state.adopting
        for name, incarnation in (
            (name, incarnation) for name in self._stores.names() for incarnation in incarnations
        ):
            box = Box(self._stores.open(name), incarnation)
            for infos in _in_steps(await self._threads.do(partial(_waiting, box)), READ_AT_ONCE):
                await self._deliver(box, await self._read(box, infos))
            for infos in _in_steps(await self._threads.do(partial(_list_held, box)), READ_AT_ONCE):
                for letter in await self._read(box, infos):
                    await self._delete_if_known(box, letter)  # it may be deliverable now

    async def _read(self, box: Box, infos: Sequence[ObjectInfo]) -> list[FoundLetter]:
        letters: list[FoundLetter] = []
        for outcome in await self._threads.each(box.read, infos, catching=MaarError):
            if isinstance(outcome, FoundLetter):
                letters.append(outcome)
            elif not isinstance(outcome, NotFound):
                raise outcome
        return letters

    async def _deliver(self, box: Box, letters: Sequence[FoundLetter]) -> None:
        state = self._leader.state
        await self._take(
            [
                letter.meta
                for letter in letters
                if letter.meta is not None
                and not letter.absent
                and not registration.is_known(state, letter.meta.id)
                and not reincarnation.why_refused(state, letter.meta)
            ]
        )
        for letter in letters:
            if not await self._delete_if_known(box, letter):
                self._leader.confirm()
                if await self._threads.do(partial(box.hold, letter)):
                    self._leave(f"dead letter {letter.info.key} is held: {_cause(state, letter)}")

    async def _delete_if_known(self, box: Box, letter: FoundLetter) -> bool:
        """Whether the index knows its block; if so, the letter is deleted."""
        meta = letter.meta
        if meta is None or not registration.is_known(self._leader.state, meta.id):
            return False
        self._leader.confirm()
        await self._threads.do(partial(box.store.delete, letter.info.key))
        self._metrics.letters_delivered.inc()
        return True


def _name_of(one: StoredBlock) -> OutputName:
    name = keys.output_name(one.key)
    assert name is not None, "it was found by its name"
    return name


def _commit_of(store: ObjectStore, name: AttemptName) -> frozenset[str]:
    return committing.read(store, plan=name.plan, token=name.token)


def _is_quarantined(one: StoredBlock) -> bool:
    return one.key.startswith(keys.QUARANTINES)


def _lacking(listings: Mapping[StoreName, StoreListing], chunk: Chunk) -> list[BlockId]:
    """Blocks of which no store has all files; a store that is not known here may have them."""
    return [meta.id for meta in blocks_in((chunk,)) if not _is_somewhere(listings, meta)]


def _is_somewhere(listings: Mapping[StoreName, StoreListing], meta: BlockMeta) -> bool:
    return any(name not in listings or not listings[name].lacks(meta) for name in copies_in(meta))


def _still_there(blocks: Sequence[BlockId], state: MetaState, _: LeaseTime) -> list[Entry]:
    live = tuple(block for block in blocks if block in state.blocks)
    return [BlocksMissed(live)] if live and state.adopting else []


def _waiting(box: Box) -> list[ObjectInfo]:
    return list(box.waiting())


def _list_held(box: Box) -> list[ObjectInfo]:
    return list(box.list_held())


def _cause(state: MetaState, letter: FoundLetter) -> str:
    if letter.meta is None:
        return letter.trouble
    return letter.absent or reincarnation.why_refused(state, letter.meta)


def _in_steps(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    return (items[at : at + size] for at in range(0, len(items), size))
