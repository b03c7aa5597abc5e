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
from enum import Enum
from functools import partial
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

import msgspec
import xxhash

from maar.block import dead_letter
from maar.metastore import prepare, registration
from maar.metastore.inbox import Prepare
from maar.metastore.metrics import Metrics
from maar.metastore.state import NO_FLOOR, MetaState
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import (
    AlreadyExists,
    Corrupt,
    InvalidInput,
    MaarError,
    NotFound,
    Rejected,
    Unavailable,
)
from maar.model.ids import BlockId, Incarnation, StoreName, block_time_ns, segment_id
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.metastore import Letter, LetterRetried, Letters, LettersStatus
from maar.ports.object_store import ObjectInfo, ObjectStore

log_ = logging.getLogger("maar.metastore")

DRAIN_S = 15.0  # from the end of one look to the next
RETRY_S = 5.0  # after one that failed
SURVEY_S = 300.0  # held and foreign letters come and go rarely
THREADS = 8
LISTED_AT_ONCE = 64  # letters in memory
ADDED_BYTES_MAX = 256 << 10  # of letters in one step of the loop: others wait meanwhile
SURVEYED_MAX = 100_000  # more are not counted

Append = Callable[[Prepare], Awaitable[int]]  # by the leader's loop; the index after it
Item = TypeVar("Item")
Made = TypeVar("Made")


# ── decisions: they only read ──────────────────────────────────────────────────────────────────


class Found(NamedTuple):
    """A letter as it was read: its metadata, or why it has none that can be trusted."""

    info: ObjectInfo
    name: str
    meta: BlockMeta | None
    trouble: str = ""
    absent: str = ""  # what is wrong with its segment


class Fate(Enum):
    DELIVER = "deliver"  # its block can be added
    DELIVERED = "delivered"  # the index knows its block: the letter may go
    WAITS = "waits"  # its block cannot be added yet
    HELD = "held"  # nor ever: a person must look


class Verdict(NamedTuple):
    fate: Fate
    cause: str = ""


def verdict(state: MetaState, letter: Found, *, now: LeaseTime) -> Verdict:
    """What is to become of a letter.

    A known block comes first: when it has been merged and its objects are gone, all is well.
    """
    if letter.meta is None:
        return Verdict(Fate.HELD, letter.trouble)
    if registration.known(state, letter.meta.id):
        return Verdict(Fate.DELIVERED)
    if cause := registration.never(state, letter.meta) or letter.absent:
        return Verdict(Fate.HELD, cause)
    if cause := registration.not_now(state, letter.meta, now=now):
        return Verdict(Fate.WAITS, cause)
    return Verdict(Fate.DELIVER)


def deliverable(state: MetaState, letters: Iterable[Found], *, now: LeaseTime) -> list[BlockMeta]:
    return [
        letter.meta
        for letter in letters
        if letter.meta is not None and verdict(state, letter, now=now).fate is Fate.DELIVER
    ]


def second_chance(state: MetaState, letter: Found, *, now: LeaseTime) -> bool:
    """Whether a letter is held only because its block is below the floor: then its profiles may
    come back as another block.
    """
    meta = letter.meta
    return (
        meta is not None
        and not registration.known(state, meta.id)
        and not registration.malformed(meta, version=state.version)
        and not letter.absent
        and registration.below_floor(state, meta.id)
        and not registration.not_now(state, meta, now=now)
    )


def reach(*, began: LeaseTime, margin_ns: int, left: Iterable[BlockId]) -> LeaseTime:
    """How far the floor may go after a complete look for letters (S4).

    A letter that was acknowledged is in the store soon after the time that names its segment, at
    the latest when the writer's deadline ends. So a look that began much later has seen all that
    were named before, and what it left where it was is younger than the floor.
    """
    oldest = min((block_time_ns(block) for block in left), default=None)
    limit = began - margin_ns
    return LeaseTime(max(NO_FLOOR, limit if oldest is None else min(limit, oldest - 1)))


def in_steps(letters: Iterable[Found]) -> Iterator[list[Found]]:
    """Together as many as are folded in a moment."""
    step: list[Found] = []
    size = 0
    for letter in letters:
        if step and size + letter.info.size > ADDED_BYTES_MAX:
            yield step
            step, size = [], 0
        step.append(letter)
        size += letter.info.size
    if step:
        yield step


def rewritten(meta: BlockMeta, *, block: BlockId, key: str) -> BlockMeta:
    """The same segment as another block, whose object has another key."""
    (file,) = meta.files
    (at,) = file.locations
    copy = msgspec.structs.replace(at, key=key)
    file = msgspec.structs.replace(file, locations=(copy,))
    return msgspec.structs.replace(meta, id=block, files=(file,))


# ── what is done with the store, in threads ────────────────────────────────────────────────────


class Box(NamedTuple):
    """The letters of one log in a store."""

    store: ObjectStore
    incarnation: Incarnation

    def waiting(self) -> Iterator[ObjectInfo]:
        """Oldest first: names begin with the time."""
        return self.store.list(keys.dead_letters(self.incarnation))

    def held(self) -> Iterator[ObjectInfo]:
        return self.store.list(keys.held_letters(self.incarnation))

    def read(self, info: ObjectInfo) -> Found:
        """NotFound when it is gone; what cannot be trusted is a value."""
        _, _, name = keys.letter_place(info.key)
        try:
            meta = self._opened(info, name)
        except Corrupt as error:
            return Found(info, name, None, str(error))
        return Found(info, name, meta, absent=dead_letter.absent(self.store, meta))

    def _opened(self, info: ObjectInfo, name: str) -> BlockMeta:
        if keys.letter_block(name) is None:
            raise Corrupt(f"{info.key} is not named like a dead letter")
        if info.size > dead_letter.BYTES_MAX:
            raise Corrupt(f"{info.key} has {info.size} bytes, too many for a dead letter")
        return dead_letter.checked(
            dead_letter.decode(self.store.read(info.key), key=info.key),
            key=info.key,
            name=name,
            incarnation=self.incarnation,
            store=StoreName(self.store.settings().name),
        )

    def hold(self, letter: Found) -> bool:
        """Move it aside: first the copy, then the original goes.

        False: it is too large to move, or has a name that no writer and no store of ours gives.
        """
        if letter.info.size > dead_letter.BYTES_MAX:
            return False
        try:
            body = self.store.read(letter.info.key)
            self._create_held(letter.name, body)
        except InvalidInput:
            return False
        self.store.delete(letter.info.key)
        return True

    def _create_held(self, name: str, body: bytes) -> None:
        key = keys.held_letter(incarnation=self.incarnation, name=name)
        try:
            self.store.create(key, body)
        except AlreadyExists:
            if self.store.read(key) != body:  # else a move that was broken off
                stem, dot, ending = name.rpartition(".")
                self._create_held(f"{stem}-{xxhash.xxh3_64_hexdigest(body)}{dot}{ending}", body)

    def copy_segment(self, meta: BlockMeta, key: str) -> None:
        """Its segment once more, under another key."""
        try:
            self.store.create(key, self.store.read(meta.files[0].locations[0].key))
        except AlreadyExists:
            pass  # an earlier try of ours: the name is ours alone by 64 random bits

    def survey(self) -> tuple[int, int]:
        """How many are held, and how many are of other logs."""
        held = foreign = 0
        for info in islice(self.store.list(keys.DEAD_LETTERS), SURVEYED_MAX):
            incarnation, aside, _ = keys.letter_place(info.key)
            foreign += incarnation != self.incarnation
            held += aside and incarnation == self.incarnation
        return held, foreign

    def strangers(self) -> Iterator[ObjectInfo]:
        for info in self.store.list(keys.DEAD_LETTERS):
            if keys.letter_place(info.key)[0] != self.incarnation:
                yield info


# ── the leader's loop ──────────────────────────────────────────────────────────────────────────


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
        read = await self._each(partial(_read_ours, box), infos[:limit])
        for error in _errors(read, but=NotFound):
            raise error
        letters = [self._shown(box, one) for one in read if isinstance(one, Found)]
        return Letters(self.status(), tuple(letters), more=len(infos) > limit)

    async def one(self, name: str) -> Letter:
        box = self._box()
        return self._shown(box, await self._do(lambda: _named(box, name)))

    async def retry(self, name: str) -> LetterRetried:
        """Deliver a held letter, if what was wrong with it has been mended.

        Below the floor its block might have been merged and forgotten, so that it cannot come back
        as what it was. Its profiles can: its segment is written again, as another block. Should
        they be in the lake already, they show once all the same (S9).
        """
        async with self._retrying:
            box = self._box()
            letter = await self._do(lambda: _named(box, name, only_held=True))
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


def _read_ours(box: Box, info: ObjectInfo) -> Found:
    incarnation, _, name = keys.letter_place(info.key)
    return box.read(info) if incarnation == box.incarnation else Found(info, name, None)


def _named(box: Box, name: str, *, only_held: bool = False) -> Found:
    """The letter of a block, or whatever lies there under that name."""
    places = (keys.held_letters, keys.dead_letters)[: 1 if only_held else 2]
    for place in places:
        for ending in (".msgpack", ""):
            key = f"{place(box.incarnation)}{name}{ending}"
            try:
                return box.read(ObjectInfo(key, box.store.size(key)))
            except NotFound:
                continue
    which = "held dead letter" if only_held else "dead letter"
    raise NotFound(f"there is no {which} {name[:80]!r}; it may have been delivered")


def _errors(
    outcomes: Iterable[object], *, but: type[MaarError] | None = None
) -> Iterator[MaarError]:
    for outcome in outcomes:
        if isinstance(outcome, MaarError) and not (but and isinstance(outcome, but)):
            yield outcome
