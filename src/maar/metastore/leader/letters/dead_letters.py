"""Delivers dead letters of segment writers; those that cannot be delivered are kept, not dropped.

A dead letter is the metadata of a segment whose push was acknowledged while no leader answered
(S20). The leader scans for letters as soon as it is elected and then regularly, registers their
blocks as the writers would have, and deletes a letter only when the index knows its block. The
registration floor advances only as far as the scans have covered (S4): see
docs/decisions/0016-dead-letters.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

import msgspec

from maar.background import Loop, Threads
from maar.metastore.decide import prepare
from maar.metastore.decide.dead_letter_rules import (
    Fate,
    FoundLetter,
    LetterVerdict,
    deliverable,
    has_deletions_since,
    in_steps,
    reach,
    rewritten,
    second_chance,
    verdict,
)
from maar.metastore.leader.background import Append, Led
from maar.metastore.leader.letters.letter_box import Box, find_letter, read_ours
from maar.metastore.replica.metrics import MetastoreMetrics
from maar.metastore.replica.timing import TIMING, Timing
from maar.metastore.state.state import NO_FLOOR
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import (
    MaarError,
    NotFound,
    NotLeading,
    Rejected,
    Unavailable,
)
from maar.model.ids import BlockId, block_time_ns, segment_id
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.operator.dead_letters import Letter, LetterRetried, LettersPage, LettersStatus
from maar.ports.stores.object_store import ObjectInfo, ObjectStore

log_ = logging.getLogger("maar.metastore")

RETRY_S = 5.0  # after one that failed
SURVEY_S = 300.0  # held and foreign letters come and go rarely
THREADS = 8
LISTED_AT_ONCE = 64  # letters in memory
ADDED_BYTES_MAX = 256 << 10  # of letters in one step of the loop: others wait meanwhile


class _Pass:
    """The result of one scan so far."""

    def __init__(self) -> None:
        self.delivered = 0
        self.held = 0
        self.stuck = 0  # they would be held, but cannot be moved
        self.left: list[BlockId] = []  # not dealt with, and left for the next scan
        self.failure: MaarError | None = None

    def note(self, outcomes: Iterable[object], *, but: type[MaarError] | None = None) -> None:
        """Note a failure of the store: a scan that did not see every letter does not count."""
        errors = _errors(outcomes, but=but)
        self.failure = self.failure or next(errors, None)


class DeadLetters:
    """The letters as one leader's term sees them; nothing is carried over from earlier terms."""

    def __init__(
        self,
        leader: Led,
        store: ObjectStore,
        append: Append,
        metrics: MetastoreMetrics,
        entropy: Callable[[int], bytes],
        *,
        listed_at_once: int = LISTED_AT_ONCE,
        added_bytes_max: int = ADDED_BYTES_MAX,
        timing: Timing = TIMING,
        shown: Callable[[], LettersStatus] | None = None,
    ) -> None:
        """`shown` is what the gauges show, when these are not the only letters."""
        self._leader = leader
        self._shown = shown or self.status
        self._store = store
        self._append = append
        self._metrics = metrics
        self._entropy = entropy
        self._timing = timing
        self._listed_at_once = listed_at_once
        self._added_bytes_max = added_bytes_max
        self._threads = Threads(THREADS, "letters", when_closed=NotLeading)
        self._retrying = asyncio.Lock()
        self._began: LeaseTime | None = None  # when the last complete scan began
        self._reach = NO_FLOOR
        self._survey_at = 0.0
        self._status = LettersStatus()
        self._oldest: LeaseTime | None = None
        self._draining = Loop(
            self._drain_and_observe,
            failed="delivery of dead letters postponed",
            log=log_,
            every_s=self._timing.drain_s,
            retry_s=RETRY_S,
        )

    @property
    def floor_max(self) -> LeaseTime:
        """How far the registration floor may advance; not at all without a complete scan (S4)."""
        return self._reach

    def status(self) -> LettersStatus:
        now = self._leader.now()
        return msgspec.structs.replace(
            self._status,
            oldest_s=0.0 if self._oldest is None else max(0, now - self._oldest) / SECOND_NS,
            drained_s=-1.0 if self._began is None else (now - self._began) / SECOND_NS,
            trouble=self._draining.trouble,
        )

    async def forever(self) -> None:
        """Letters wait where they are meanwhile, queries read them there, and the floor waits."""
        try:
            await self._draining.run()
        finally:
            self.close()

    def close(self) -> None:
        self._threads.close()

    async def _drain_and_observe(self) -> None:
        try:
            await self.drain()
        finally:
            self._observe()

    async def drain(self) -> None:
        """Visit every letter once: deliver it, hold it, or leave it for the next scan."""
        began = self._leader.now()
        box, made = self._box(), _Pass()
        for each in self._boxes():
            listing = await self._threads.do(each.waiting)
            take = partial(self._some, listing)
            infos = await self._threads.do(take)
            if each == box:
                await self._count(box, infos)
            while infos:
                await self._deal_with(each, infos, made)
                infos = await self._threads.do(take)
        if made.delivered or made.held:
            log_.info(
                "dead letters delivered=%d held=%d waiting=%d",
                *(made.delivered, made.held, len(made.left)),
            )
        if made.failure is not None:
            raise made.failure
        self._oldest = min((_time_of(block) for block in made.left), default=None)
        self._set(waiting=len(made.left))
        await self._survey(box, again=bool(made.held or made.stuck), stuck=made.stuck)
        margin_ns = self._leader.state.policy.registration_floor_lag_ns
        self._began = began
        self._reach = reach(began=began, margin_ns=margin_ns, left=made.left)
        self._observe()

    def _some(self, listing: Iterator[ObjectInfo]) -> list[ObjectInfo]:
        return list(islice(listing, self._listed_at_once))

    async def _count(self, box: Box, infos: Sequence[ObjectInfo]) -> None:
        """Set the gauges before the letters are dealt with, so that operators see the backlog."""
        number = len(infos)
        if number >= self._listed_at_once:
            number = await self._threads.do(lambda: sum(1 for _ in box.waiting()))
        self._set(waiting=number)
        blocks = (keys.letter_block(keys.letter_place(info.key)[2]) for info in infos)
        self._oldest = next((_time_of(block) for block in blocks if block), None)
        self._observe()

    async def _deal_with(self, box: Box, infos: Sequence[ObjectInfo], made: _Pass) -> None:
        read = await self._threads.each(box.read, infos, catching=MaarError)
        made.note(read, but=NotFound)  # a letter that is gone was delivered or held meanwhile
        letters = [one for one in read if isinstance(one, FoundLetter)]
        if made.failure is not None and not letters:
            raise made.failure  # the store is unavailable, rather than one letter damaged
        going: list[FoundLetter] = []
        aside: list[tuple[FoundLetter, str]] = []
        for step in in_steps(letters, bytes_max=self._added_bytes_max):
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

    async def _add(self, letters: Sequence[FoundLetter]) -> None:
        """Register through the leader's loop, like any writer; the fold decides."""
        if deliverable(self._leader.state, letters, now=self._leader.now()):
            await self._append(
                lambda state, now: list(prepare.registrations(deliverable(state, letters, now=now)))
            )

    def _verdict(self, letter: FoundLetter) -> LetterVerdict:
        return verdict(self._leader.state, letter, now=self._leader.now())

    async def _delete(self, letters: Sequence[FoundLetter], made: _Pass) -> None:
        """Delete delivered letters: the index knows their blocks, and the log says so."""
        outcomes = await self._threads.each(
            self._delete_one, [one.info.key for one in letters], catching=MaarError
        )
        gone = sum(outcome is None for outcome in outcomes)
        made.note(outcomes)
        made.delivered += gone
        self._metrics.letters_delivered.inc(gone)
        self._set(
            delivered=self._status.delivered + gone, waiting=max(0, self._status.waiting - gone)
        )
        self._observe()

    def _delete_one(self, key: str) -> None:
        self._leader.confirm()
        self._store.delete(key)

    async def _hold(self, box: Box, aside: Sequence[tuple[FoundLetter, str]], made: _Pass) -> None:
        def hold(letter: FoundLetter) -> bool:
            self._leader.confirm()
            return box.hold(letter)

        outcomes = await self._threads.each(
            hold, [letter for letter, _ in aside], catching=MaarError
        )
        made.note(outcomes, but=NotFound)
        for (letter, cause), outcome in zip(aside, outcomes, strict=True):
            if outcome is True:
                made.held += 1
                log_.error("dead letter held name=%s cause=%s", letter.name, cause)
            elif outcome is False:
                made.stuck += 1

    async def _survey(self, box: Box, *, again: bool, stuck: int = 0) -> None:
        """Count held letters and those of other logs; rarely, since they seldom change."""
        now_s = asyncio.get_running_loop().time()
        if again or now_s >= self._survey_at:
            held, foreign = await self._threads.do(box.survey)
            self._survey_at = now_s + SURVEY_S
            self._set(held=held + stuck, foreign=foreign)

    def _set(self, **numbers: int) -> None:
        self._status = msgspec.structs.replace(self._status, **numbers)

    def _observe(self) -> None:
        status = self._shown()
        self._metrics.letters_waiting.set(status.waiting)
        self._metrics.letters_oldest.set(status.oldest_s)
        self._metrics.letters_held.set(status.held)
        self._metrics.letters_foreign.set(status.foreign)
        self._metrics.letters_drain_age.set(status.drained_s)

    # ── operator commands ──────────────────────────────────────────────────────────────────────

    async def list_letters(self, *, limit: int) -> LettersPage:
        """With the cause of each, as the index sees it now."""
        box = self._box()

        def list_infos() -> list[ObjectInfo]:
            every = (
                info for some in (box.list_held, box.waiting, box.list_foreign) for info in some()
            )
            return list(islice(every, limit + 1))

        infos = await self._threads.do(list_infos)
        read = await self._threads.each(partial(read_ours, box), infos[:limit], catching=MaarError)
        for error in _errors(read, but=NotFound):
            raise error
        letters = [self._describe(box, one) for one in read if isinstance(one, FoundLetter)]
        return LettersPage(self.status(), tuple(letters), more=len(infos) > limit)

    async def one(self, name: str) -> Letter:
        box = self._box()
        return self._describe(box, await self._threads.do(lambda: find_letter(box, name)))

    async def retry(self, name: str) -> LetterRetried:
        """Deliver a held letter, if what was wrong with it has been fixed.

        A block below the registration floor may have been merged and forgotten, so it cannot be
        registered again. Its profiles can: its segment is written again as another block. If they
        are in the lake already, queries still count them once (S9).
        """
        async with self._retrying:
            box, letter = await self._threads.do(lambda: self._find_letter(name, only_held=True))
            meta, again = await self._deliver(box, letter)
            await self._threads.do(lambda: self._delete_one(letter.info.key))
            if again and letter.meta is not None:
                # below the floor nobody can ever refer to it, and no letter names it (S1)
                old = letter.meta.files[0].locations[0].key
                await self._threads.do(lambda: self._delete_one(old))
            await self._survey(box, again=True)
            self._observe()
        log_.info("dead letter delivered name=%s block=%s", name, meta.id)
        return LetterRetried(name, meta.id, again)

    async def _deliver(self, box: Box, letter: FoundLetter) -> tuple[BlockMeta, bool]:
        """The block that the index knows now, and whether it had to be written again."""
        again = second_chance(self._leader.state, letter, now=self._leader.now())
        if again and letter.meta is not None:
            if has_deletions_since(self._leader.state, letter.meta):
                raise Rejected(
                    f"{letter.name} cannot be delivered: some of its profiles were deleted since "
                    "it was written, and would come back with it"
                )
            letter = letter._replace(meta=await self._write_again(box, letter.meta))
        await self._add([letter])
        fate, cause = self._verdict(letter)
        if fate is Fate.HELD or letter.meta is None:
            raise Rejected(f"{letter.name} cannot be delivered: {cause}")
        if fate is not Fate.DELIVERED:
            raise Unavailable(f"{letter.name} cannot be delivered yet: {cause}")
        return letter.meta, again

    async def _write_again(self, box: Box, meta: BlockMeta) -> BlockMeta:
        block = segment_id(
            lease_time_ns=self._leader.now(), entropy=int.from_bytes(self._entropy(8), "big")
        )
        key = keys.segment(shard=meta.shard, block=block, incarnation=box.incarnation)
        await self._threads.do(lambda: box.copy_segment(meta, key))
        return rewritten(meta, block=block, key=key)

    def _describe(self, box: Box, letter: FoundLetter) -> Letter:
        incarnation, held, _ = keys.letter_place(letter.info.key)
        block = keys.letter_block(letter.name)
        name, key, size = block or letter.name, letter.info.key, letter.info.size
        if incarnation != box.incarnation:
            cause = f"it belongs to log {incarnation}, and this log is {box.incarnation}"
            return Letter(name, key, "foreign", cause, size)
        cause = self._verdict(letter).cause
        if held and not cause:
            cause = "nothing is wrong with it any more; run `maar dead-letters retry`"
        return Letter(name, key, "held" if held else "waiting", cause, size, letter.meta)

    # ── threads ────────────────────────────────────────────────────────────────────────────────

    def _boxes(self) -> list[Box]:
        """Letter boxes of this incarnation and of former ones: a writer that was disconnected when
        the log was restored still uses the incarnation that it knows. While adopting, adoption
        reads them.
        """
        state = self._leader.state
        former = () if state.adopting else state.former
        return [self._box(), *(Box(self._store, incarnation) for incarnation in former)]

    def _find_letter(self, name: str, *, only_held: bool = False) -> tuple[Box, FoundLetter]:
        *others, last = self._boxes()
        for box in others:
            try:
                return box, find_letter(box, name, only_held=only_held)
            except NotFound:
                continue
        return last, find_letter(last, name, only_held=only_held)

    def _box(self) -> Box:
        return Box(self._store, self._leader.state.incarnation)


def _time_of(block: BlockId) -> LeaseTime:
    return LeaseTime(block_time_ns(block))


def _errors(
    outcomes: Iterable[object], *, but: type[MaarError] | None = None
) -> Iterator[MaarError]:
    for outcome in outcomes:
        if isinstance(outcome, MaarError) and not (but and isinstance(outcome, but)):
            yield outcome
