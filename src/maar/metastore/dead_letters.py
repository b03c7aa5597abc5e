"""Delivers what segment writers could not announce, holds what cannot be delivered, never drops it.

A dead letter is the metadata of a segment whose push was acknowledged while no leader answered
(S20). The leader looks for letters as soon as it is in office and then again and again, adds their
blocks as if the writers had, and deletes a letter only when the index knows its block. How far it
has looked is how far the floor may go (S4): docs/decisions/0016-dead-letters.md has the argument.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Protocol, TypeVar

import msgspec

from maar.metastore import prepare
from maar.metastore.inbox import Prepare
from maar.metastore.letter_box import Box, named, read_ours
from maar.metastore.letter_fate import (
    Fate,
    Found,
    Verdict,
    deliverable,
    in_steps,
    reach,
    rewritten,
    second_chance,
    verdict,
)
from maar.metastore.metrics import Metrics
from maar.metastore.state import NO_FLOOR, MetaState
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import (
    MaarError,
    NotFound,
    Rejected,
    Unavailable,
)
from maar.model.ids import BlockId, block_time_ns, segment_id
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.metastore import Letter, LetterRetried, Letters, LettersStatus
from maar.ports.object_store import ObjectInfo, ObjectStore

log_ = logging.getLogger("maar.metastore")

DRAIN_S = 15.0  # from the end of one look to the next
RETRY_S = 5.0  # after one that failed
SURVEY_S = 300.0  # held and foreign letters come and go rarely
THREADS = 8
LISTED_AT_ONCE = 64  # letters in memory

Append = Callable[[Prepare], Awaitable[int]]  # by the leader's loop; the index after it
Item = TypeVar("Item")
Made = TypeVar("Made")


class Led(Protocol):
    """What looking for letters needs of a leader."""

    @property
    def state(self) -> MetaState: ...

    def now(self) -> LeaseTime: ...


class _Pass:
    """What one look has come to so far."""

    def __init__(self) -> None:
        self.delivered = 0
        self.held = 0
        self.stuck = 0  # they would be held, but cannot be moved
        self.left: list[BlockId] = []  # still where they were, and to be looked at again
        self.failure: MaarError | None = None

    def note(self, outcomes: Iterable[object], *, but: type[MaarError] | None = None) -> None:
        """The store was not there for some: a look that did not see everything is no look."""
        errors = _errors(outcomes, but=but)
        self.failure = self.failure or next(errors, None)


class DeadLetters:
    """The letters of one leader, from office to office."""

    def __init__(
        self,
        leader: Led,
        store: ObjectStore,
        append: Append,
        metrics: Metrics,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._leader = leader
        self._store = store
        self._append = append
        self._metrics = metrics
        self._entropy = entropy
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="letters")
        self._retrying = asyncio.Lock()
        self._woken = asyncio.Event()
        self._office = 0
        self._began: LeaseTime | None = None  # the last complete look in this office
        self._reach = NO_FLOOR
        self._survey_at = 0.0
        self._status = LettersStatus()
        self._oldest: LeaseTime | None = None
        self._trouble = ""

    @property
    def floor_max(self) -> LeaseTime:
        """The floor may go so far and no further; without a complete look, nowhere (S4)."""
        return self._reach

    def take_office(self) -> None:
        """Another leader may have been there: what we knew of letters is worth nothing now."""
        self._office += 1
        self._began, self._reach = None, NO_FLOOR
        self._survey_at = 0.0
        self._woken.set()

    def status(self) -> LettersStatus:
        now = self._leader.now()
        return msgspec.structs.replace(
            self._status,
            oldest_s=0.0 if self._oldest is None else max(0, now - self._oldest) / SECOND_NS,
            drained_s=-1.0 if self._began is None else (now - self._began) / SECOND_NS,
            trouble=self._trouble,
        )

    async def forever(self) -> None:
        try:
            while True:
                self._woken.clear()
                rest_s = DRAIN_S if await self._drained() else RETRY_S
                try:
                    async with asyncio.timeout(rest_s):  # wait_for may swallow a cancellation
                        await self._woken.wait()
                except TimeoutError:
                    pass
        finally:
            self.close()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _drained(self) -> bool:
        """Whether a look succeeded; one that did not is told once, and tried again soon."""
        try:
            await self.drain()
        except (MaarError, OSError) as error:
            # letters wait where they are, queries read them there, and the floor waits too
            if str(error) != self._trouble:
                log_.warning("dead letters postponed cause=%s", error)
            self._trouble = str(error)
        except Exception as error:  # a defect here must not take the index down
            log_.exception("dead letters postponed")
            self._trouble = f"a fault in maar ({type(error).__name__}); its log has the details"
        else:
            self._trouble = ""
            return True
        finally:
            self._observe()
        return False

    async def drain(self) -> None:
        """Look at every letter once: deliver, hold, or leave it for the next time."""
        office, began = self._office, self._leader.now()
        box, made = self._box(), _Pass()
        listing = await self._do(box.waiting)
        infos = await self._do(lambda: list(islice(listing, LISTED_AT_ONCE)))
        await self._count(box, infos)
        while infos:
            await self._deal_with(box, infos, made)
            infos = await self._do(lambda: list(islice(listing, LISTED_AT_ONCE)))
        if made.delivered or made.held:
            log_.info(
                "dead letters delivered=%d held=%d waiting=%d",
                *(made.delivered, made.held, len(made.left)),
            )
        if made.failure is not None:
            raise made.failure
        self._oldest = min((_named_at(block) for block in made.left), default=None)
        self._set(waiting=len(made.left))
        await self._survey(box, again=bool(made.held or made.stuck), stuck=made.stuck)
        if office == self._office:
            margin_ns = self._leader.state.policy.floor_lag_ns
            self._began = began
            self._reach = reach(began=began, margin_ns=margin_ns, left=made.left)
        self._observe()

    async def _count(self, box: Box, infos: Sequence[ObjectInfo]) -> None:
        """Before many are dealt with, so that people see what is to come."""
        number = len(infos)
        if number >= LISTED_AT_ONCE:
            number = await self._do(lambda: sum(1 for _ in box.waiting()))
        self._set(waiting=number)
        blocks = (keys.letter_block(keys.letter_place(info.key)[2]) for info in infos)
        self._oldest = next((_named_at(block) for block in blocks if block), None)
        self._observe()

    async def _deal_with(self, box: Box, infos: Sequence[ObjectInfo], made: _Pass) -> None:
        read = await self._each(box.read, infos)
        made.note(read, but=NotFound)  # a letter that is gone was delivered, or held
        letters = [one for one in read if isinstance(one, Found)]
        if made.failure is not None and not letters:
            raise made.failure  # there is no store, rather than one bad letter
        going: list[Found] = []
        aside: list[tuple[Found, str]] = []
        for step in in_steps(letters):
            await self._add(step)
            for letter in step:
                fate, cause = self._verdict(letter)
                if fate is Fate.DELIVERED:
                    going.append(letter)
                elif fate is Fate.HELD:
                    aside.append((letter, cause))
                elif letter.meta is not None:
                    made.left.append(letter.meta.id)
        await self._delete(going, made)
        await self._hold(box, aside, made)

    async def _add(self, letters: Sequence[Found]) -> None:
        """By the leader's loop, like any registration: what the fold says counts."""
        if deliverable(self._leader.state, letters, now=self._leader.now()):
            await self._append(
                lambda state, now: list(prepare.registrations(deliverable(state, letters, now=now)))
            )

    def _verdict(self, letter: Found) -> Verdict:
        return verdict(self._leader.state, letter, now=self._leader.now())

    async def _delete(self, letters: Sequence[Found], made: _Pass) -> None:
        """Delivered: the index knows their blocks, and that is in the log."""
        outcomes = await self._each(self._store.delete, [one.info.key for one in letters])
        gone = sum(outcome is None for outcome in outcomes)
        made.note(outcomes)
        made.delivered += gone
        self._metrics.letters_delivered.inc(gone)
        self._set(
            delivered=self._status.delivered + gone, waiting=max(0, self._status.waiting - gone)
        )
        self._observe()

    async def _hold(self, box: Box, aside: Sequence[tuple[Found, str]], made: _Pass) -> None:
        outcomes = await self._each(box.hold, [letter for letter, _ in aside])
        made.note(outcomes, but=NotFound)
        for (letter, cause), outcome in zip(aside, outcomes, strict=True):
            if outcome is True:
                made.held += 1
                log_.error("dead letter held name=%s cause=%s", letter.name, cause)
            elif outcome is False:
                made.stuck += 1

    async def _survey(self, box: Box, *, again: bool, stuck: int = 0) -> None:
        """Held letters and those of other logs are counted now and then."""
        now_s = asyncio.get_running_loop().time()
        if again or now_s >= self._survey_at:
            held, foreign = await self._do(box.survey)
            self._survey_at = now_s + SURVEY_S
            self._set(held=held + stuck, foreign=foreign)

    def _set(self, **numbers: int) -> None:
        self._status = msgspec.structs.replace(self._status, **numbers)

    def _observe(self) -> None:
        status = self.status()
        self._metrics.letters_waiting.set(status.waiting)
        self._metrics.letters_oldest.set(status.oldest_s)
        self._metrics.letters_held.set(status.held)
        self._metrics.letters_foreign.set(status.foreign)
        self._metrics.letters_drain_age.set(status.drained_s)

    # ── what an operator asks ──────────────────────────────────────────────────────────────────

    async def listed(self, *, limit: int) -> Letters:
        """With the cause of each, as the index sees it now."""
        box = self._box()

        def found() -> list[ObjectInfo]:
            every = (info for some in (box.held, box.waiting, box.strangers) for info in some())
            return list(islice(every, limit + 1))

        infos = await self._do(found)
        read = await self._each(partial(read_ours, box), infos[:limit])
        for error in _errors(read, but=NotFound):
            raise error
        letters = [self._shown(box, one) for one in read if isinstance(one, Found)]
        return Letters(self.status(), tuple(letters), more=len(infos) > limit)

    async def one(self, name: str) -> Letter:
        box = self._box()
        return self._shown(box, await self._do(lambda: named(box, name)))

    async def retry(self, name: str) -> LetterRetried:
        """Deliver a held letter, if what was wrong with it has been mended.

        Below the floor its block might have been merged and forgotten, so that it cannot come back
        as what it was. Its profiles can: its segment is written again, as another block. Should
        they be in the lake already, they show once all the same (S9).
        """
        async with self._retrying:
            box = self._box()
            letter = await self._do(lambda: named(box, name, only_held=True))
            meta, again = await self._delivered(box, letter)
            await self._do(lambda: self._store.delete(letter.info.key))
            if again and letter.meta is not None:
                # below the floor nobody can ever refer to it, and no letter names it (S1)
                old = letter.meta.files[0].locations[0].key
                await self._do(lambda: self._store.delete(old))
            await self._survey(box, again=True)
            self._observe()
        log_.info("dead letter delivered name=%s block=%s", name, meta.id)
        return LetterRetried(name, meta.id, again)

    async def _delivered(self, box: Box, letter: Found) -> tuple[BlockMeta, bool]:
        """The block that the index knows now, and whether it had to be written again."""
        again = second_chance(self._leader.state, letter, now=self._leader.now())
        if again and letter.meta is not None:
            letter = letter._replace(meta=await self._written_again(box, letter.meta))
        await self._add([letter])
        fate, cause = self._verdict(letter)
        if fate is Fate.HELD or letter.meta is None:
            raise Rejected(f"{letter.name} cannot be delivered: {cause}")
        if fate is not Fate.DELIVERED:
            raise Unavailable(f"{letter.name} cannot be delivered yet: {cause}")
        return letter.meta, again

    async def _written_again(self, box: Box, meta: BlockMeta) -> BlockMeta:
        block = segment_id(
            lease_time_ns=self._leader.now(), entropy=int.from_bytes(self._entropy(8), "big")
        )
        key = keys.segment(shard=meta.shard, block=block, incarnation=box.incarnation)
        await self._do(lambda: box.copy_segment(meta, key))
        return rewritten(meta, block=block, key=key)

    def _shown(self, box: Box, letter: Found) -> Letter:
        incarnation, held, _ = keys.letter_place(letter.info.key)
        block = keys.letter_block(letter.name)
        name, key, size = block or letter.name, letter.info.key, letter.info.size
        if incarnation != box.incarnation:
            cause = f"it is of the log {incarnation}, not of this one, which is {box.incarnation}"
            return Letter(name, key, "foreign", cause, size)
        cause = self._verdict(letter).cause
        if held and not cause:
            cause = "nothing is wrong with it any more: retry it"
        return Letter(name, key, "held" if held else "waiting", cause, size, letter.meta)

    # ── threads ────────────────────────────────────────────────────────────────────────────────

    def _box(self) -> Box:
        return Box(self._store, self._leader.state.incarnation)

    async def _do(self, act: Callable[[], Made]) -> Made:
        return await asyncio.get_running_loop().run_in_executor(self._threads, act)

    async def _each(
        self, act: Callable[[Item], Made], items: Iterable[Item]
    ) -> list[Made | MaarError]:
        """What became of each; one that goes wrong stops no other."""

        def done(item: Item) -> Made | MaarError:
            try:
                return act(item)
            except MaarError as error:
                return error

        return list(await asyncio.gather(*(self._do(partial(done, item)) for item in items)))


def _named_at(block: BlockId) -> LeaseTime:
    return LeaseTime(block_time_ns(block))


def _errors(
    outcomes: Iterable[object], *, but: type[MaarError] | None = None
) -> Iterator[MaarError]:
    for outcome in outcomes:
        if isinstance(outcome, MaarError) and not (but and isinstance(outcome, but)):
            yield outcome
