"""Has blocks rewritten that hold deleted profiles, until a deletion applies to nothing (S8).

While there is one, the index is walked in a thread: blocks that it applies to get plans that write
them again without what was deleted. Segments are left to compaction, and blocks of pending plans to
those. When no block is left, nor an object of one, and none can come any more, the deletion goes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from maar.background import Loop, Threads
from maar.metastore.fold.deleting import deletion
from maar.metastore.leader.background import Append, Deleting, deleter
from maar.metastore.records.entries import Entry, PlansScheduled, PredicatesDropped
from maar.metastore.records.packs import Bytes, unpack
from maar.metastore.replica.timing import TIMING, Timing
from maar.metastore.state.index import Chunk, blocks_in
from maar.metastore.state.state import MetaState
from maar.metastore.state.tombstones import NO_BLOCK
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import AlreadyExists, NotLeading
from maar.model.ids import NO_TENANT, block_time_ns
from maar.model.predicate import Mask, Predicate
from maar.model.time import TimeRange
from maar.model.words import count_text
from maar.ports.clock import Clock
from maar.ports.operator.deletions import Deletion, PendingDeletion
from maar.ports.stores.object_store import ObjectStore
from maar.services.erase.rules import ERASE, can_erase, spec_of

log_ = logging.getLogger("maar.metastore")

PENDING_MAX = 64  # plans at a time
CLEAR_ROUNDS = 2  # in a row that found nothing: a block may return to the index between two looks
LATER = "it was not looked at yet"


class Eraser:
    """Runs beside every leader; idle while there is no deletion."""

    def __init__(
        self,
        leader: Deleting,
        store: ObjectStore,
        clock: Clock,
        append: Append,
        *,
        timing: Timing = TIMING,
    ) -> None:
        self._leader = leader
        self._store = store
        self._append = append
        self._threads = Threads(2, "erase", when_closed=NotLeading)
        self._deleter = deleter(leader, store, clock)
        self._loop = Loop(self.step, failed="deletions postponed", log=log_, every_s=timing.clean_s)
        self._stored: set[int] = set()  # predicates whose objects are there
        self._clear: dict[int, int] = {}  # rounds in which nothing was left of a predicate
        self._waits: dict[int, str] = {}
        self._tidied = False

    async def forever(self) -> None:
        try:
            await self._loop.run()
        finally:
            self._threads.close()

    def pending(self) -> tuple[PendingDeletion, ...]:
        return tuple(
            PendingDeletion(each.id, each.mask, self._waits.get(each.id, LATER))
            for each in self._leader.state.predicates.values()
        )

    async def count(self, mask: Mask) -> Deletion:
        """What a deletion would take, of what the index knows now."""
        return await self._threads.do(count, chunks_of(self._leader.state, [mask]), mask)

    async def keep(self, predicate: Predicate) -> None:
        """Write it to the store, so that a log that is restored from an older snapshot, or from the
        objects alone, has it too.
        """
        key = keys.deletion(incarnation=predicate.incarnation, index=predicate.id)
        self._leader.confirm()
        try:
            await self._threads.do(self._store.create, key, msgspec.msgpack.encode(predicate))
        except AlreadyExists:
            pass
        self._stored.add(predicate.id)

    def keep_again(self) -> None:
        """The store was wiped: the next step writes all of them anew."""
        self._stored.clear()

    async def step(self) -> None:
        state = self._leader.state
        if state.adopting:
            return
        await self._tidy()
        predicates = list(state.predicates.values())
        if not predicates:
            return
        for each in predicates:
            if each.id not in self._stored:
                await self.keep(each)
        why = {each.id: deletion.why_unfinished(state, each) for each in predicates}
        found = await self._left(predicates, why)
        for name, left in found.items():
            self._clear[name] = 0 if left else self._clear.get(name, 0) + 1
        self._waits = found
        gone = [each for each in predicates if self._clear.get(each.id, 0) >= CLEAR_ROUNDS]
        if gone:
            await self._drop(gone)

    async def _left(self, predicates: list[Predicate], why: dict[int, str]) -> dict[int, str]:
        """By predicate, what it waits for; '' when nothing is left. Blocks that it applies to are
        given plans.
        """
        state = self._leader.state
        chunks = chunks_of(state, [each.mask for each in predicates])
        touched = await self._threads.do(_blocks_touched, chunks, predicates)
        live = {meta.id: meta for meta in touched if meta.id in state.blocks}
        counts = dict.fromkeys((each.id for each in predicates), 0)
        doomed: list[BlockMeta] = []
        for meta in live.values():
            names = deletion.which(state, meta)
            for name in names:
                counts[name] = counts.get(name, 0) + 1
            if names and can_erase(meta) and meta.id not in state.owners:
                doomed.append(meta)
        await self._schedule(doomed)
        lag_ns = state.policy.registration_floor_lag_ns
        gone = [each.packed for each in state.retired.values()]
        gone += [each.packed for each in state.tombstones.values() if each.packed != NO_BLOCK]
        retired = await self._threads.do(_count_retired, gone, predicates, lag_ns)
        oldest = await self._threads.do(self._oldest_held)
        return {
            each.id: _waits(
                _Left(counts[each.id], retired[each.id], oldest is not None and oldest <= each.at),
                why[each.id],
            )
            for each in predicates
        }

    async def _schedule(self, doomed: list[BlockMeta]) -> None:
        def prepare(state: MetaState, _: object) -> list[Entry]:
            pending = sum(1 for _ in state.plans.of_kind(ERASE))
            room = min(PENDING_MAX - pending, state.policy.plans_max - len(state.plans))
            free = [
                meta for meta in doomed if meta.id in state.blocks and meta.id not in state.owners
            ]
            specs = tuple(spec_of(meta, state.policy) for meta in free[: max(0, room)])
            return [PlansScheduled(specs)] if specs else []

        if doomed:
            await self._append(prepare)

    async def _drop(self, gone: list[Predicate]) -> None:
        await self._append(lambda *_: [PredicatesDropped(tuple(each.id for each in gone))])
        for each in gone:
            if each.id in self._leader.state.predicates:
                continue
            log_.info(
                "deletion carried out predicate=%d tenant=%s service=%s",
                each.id, each.mask.tenant, each.mask.service or "*",
            )  # fmt: skip
            self._clear.pop(each.id, None)
            self._stored.discard(each.id)
            key = keys.deletion(incarnation=each.incarnation, index=each.id)
            await self._threads.do(self._deleter.delete, [key])

    async def _tidy(self) -> None:
        """Once a term: objects of deletions that a former leader had carried out."""
        if self._tidied:
            return
        state = self._leader.state
        found = await self._threads.do(lambda: list(self._store.list(keys.DELETIONS)))
        head, incarnations = state.index, (state.incarnation, *state.former)
        stale = [
            info.key
            for info in found
            if (name := keys.deletion_name(info.key)) is not None
            and name.incarnation in incarnations
            and name.predicate <= head
            and name.predicate not in state.predicates
        ]
        await self._threads.do(self._deleter.delete, stale)
        self._tidied = True

    def _oldest_held(self) -> int | None:
        """The lease time of the oldest segment that a held letter is about: it may be delivered
        yet, by hand.
        """
        state = self._leader.state
        times = [
            block_time_ns(block)
            for incarnation in (state.incarnation, *state.former)
            for info in self._store.list(keys.held_letters(incarnation))
            if (block := keys.letter_about(keys.letter_place(info.key)[2])) is not None
        ]
        return min(times, default=None)


class _Left(NamedTuple):
    """What a predicate still applies to."""

    blocks: int
    retired: int
    held: bool  # letters


def _waits(left: _Left, why: str) -> str:
    if left.blocks:
        return f"{count_text(left.blocks, 'block')} to be rewritten"
    if left.retired:
        return f"{count_text(left.retired, 'replaced block')} to be deleted from the store"
    if left.held:
        return "held dead letters from before it (maar dead-letters)"
    return why


def chunks_of(state: MetaState, masks: Iterable[Mask]) -> list[Chunk]:
    """Those that may hold what some masks name; immutable, so that a thread may search them."""
    found: dict[int, Chunk] = {}
    for mask in masks:
        range_ = TimeRange(mask.from_ns, mask.until_ns)
        for tenant in (mask.tenant, NO_TENANT):
            found.update((id(chunk), chunk) for chunk in state.blocks.chunks(tenant, range_))
    return list(found.values())


def count(chunks: Iterable[Chunk], mask: Mask) -> Deletion:
    blocks = profiles = 0
    at_most = False
    for meta in blocks_in(chunks):
        some = [each for each in meta.datasets if mask.touches(each)]
        blocks += bool(some)
        profiles += sum(each.profiles for each in some)
        at_most = at_most or not all(map(mask.covers, some))
    return Deletion(None, profiles, blocks, at_most)


def _blocks_touched(chunks: Iterable[Chunk], predicates: list[Predicate]) -> list[BlockMeta]:
    return [
        meta
        for meta in blocks_in(chunks)
        if any(each.mask.touches(dataset) for each in predicates for dataset in meta.datasets)
    ]


def _count_retired(
    retired: Iterable[Bytes], predicates: list[Predicate], lag_ns: int
) -> dict[int, int]:
    counts = dict.fromkeys((each.id for each in predicates), 0)
    for meta in map(unpack, retired):
        for each in predicates:
            counts[each.id] += deletion.hides_retired(each, meta, lag_ns=lag_ns)
    return counts
