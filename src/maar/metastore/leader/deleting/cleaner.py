"""Deletes objects that nobody needs any more, and reports what it could not delete.

The decisions are made elsewhere (`removals`, `leftovers`, `retention`) and carried out here: calls
to the store run in threads, changes of the index are entries of the leader's loop. It needs neither
workers nor traffic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple, TypeVar

from maar.background import Loop, Threads
from maar.metastore.fold.deleting import retention, trust, undo
from maar.metastore.fold.plans import leftovers
from maar.metastore.leader.background import Append, Deleting, LedStores
from maar.metastore.leader.deleting import final_sweep, removals
from maar.metastore.leader.deleting.tombstone_deletes import TombstoneDeletes
from maar.metastore.leader.held_back import HeldBack
from maar.metastore.records.entries import (
    AttemptKey,
    BlocksForgotten,
    Entry,
    LeftoversSwept,
    RetentionUndone,
)
from maar.metastore.replica.metrics import MetastoreMetrics
from maar.metastore.replica.timing import TIMING, Timing
from maar.metastore.state.state import ANY_STORE, MetaState
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import NotLeading, Retryable
from maar.model.ids import BlockId, StoreName
from maar.model.policy import MINUTE_NS
from maar.model.time import LeaseTime, WallTime, utc_day
from maar.model.trouble import Trouble
from maar.ports.clock import Clock
from maar.ports.operator.retention import Undone
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores, stores_of

log_ = logging.getLogger("maar.metastore")

THREADS = 4  # of each part's own: a remote store is slow and would block the shared threads
STORE_CLOCK_NS = 60 * MINUTE_NS  # from one question for the store's clock to the next

Item = TypeVar("Item")


class CleanerBounds(NamedTuple):
    """How much is done at once, and how much that went wrong is remembered."""

    removed_at_once: int = 128  # blocks
    looked_at_once: int = 1_000  # tombstones of one store
    swept_at_once: int = 64  # attempts
    taken_at_once: int = 64  # expired blocks: folding them must not hold up the loop
    looked_at_max: int = 50_000  # blocks in one run of retention, though more may be in reach
    held_max: int = 10_000  # more failures than this are systematic
    told_max: int = 100  # sentences in a status


BOUNDS = CleanerBounds()


class Cleaner:
    """Runs removals, sweeps and retention independently of each other.

    Whatever fails for one block or attempt, a bug too, is reported and tried again later: it must
    not stop the others, which is why exceptions of every kind are caught for each.
    """

    def __init__(
        self,
        leader: Deleting,
        store: ObjectStore | Stores,
        clock: Clock,
        append: Append,
        metrics: MetastoreMetrics,
        *,
        clocks: Callable[[], trust.Clocks] = lambda: trust.ALONE,
        hear_damage: Callable[[Sequence[Trouble]], None] = lambda _: None,
        bounds: CleanerBounds = BOUNDS,
        timing: Timing = TIMING,
    ) -> None:
        """`clocks` are those of all replicas, as heard lately; the store's is read here.
        `hear_damage` has copies healed that others may not go without.
        """
        self._leader = leader
        self._stores = LedStores(leader, stores_of(store), clock)
        self._clock = clock
        self._append = append
        self._metrics = metrics
        self._clocks = clocks
        self._hear_damage = hear_damage
        self._bounds = bounds
        self._timing = timing
        self._removing = Threads(THREADS, "remove", when_closed=NotLeading)
        self._sweeping = Threads(THREADS, "sweep", when_closed=NotLeading)
        self.removal = asyncio.Lock()  # while it is held, no block is being deleted
        self._blocks: HeldBack[BlockId] = HeldBack(bounds.held_max)
        self._attempts: HeldBack[AttemptKey] = HeldBack(bounds.held_max)
        self._tombstone_deletes = TombstoneDeletes(
            *(leader, self._stores, append, hear_damage),
            limit=bounds.removed_at_once,
            looked_at=bounds.looked_at_once,
        )
        self._walk: Iterator[BlockMeta] | None = None  # retention's; the next run goes on with it
        self._expire_at_ns = clock.monotonic_ns() + timing.expire_ns
        self._told = ""  # which trouble of retention was logged last: "paused", "clocks" or none
        self._store_clock = StoreClock(self._stores.first, clock)

    @property
    def blocked(self) -> tuple[str, ...]:
        """Sentences for the status: what could not be cleaned, and why."""
        held = (*self._blocks.sentences(), *self._attempts.sentences())
        return (*self._tombstone_deletes.blocked, *held)[: self._bounds.told_max]

    async def forever(self) -> None:
        try:
            async with asyncio.TaskGroup() as parts:
                for part in (self.remove, self.sweep, self._expire_in_time, self.delete_tombstoned):
                    # objects that stay a little longer do no harm; it is tried again
                    failed = "cleanup postponed"
                    cleaning = Loop(part, failed=failed, log=log_, every_s=self._pause_s)
                    parts.create_task(cleaning.run())
        finally:
            self.close()

    def close(self) -> None:
        for threads in (self._removing, self._sweeping, self._tombstone_deletes):
            threads.close()

    async def delete_tombstoned(self) -> bool:
        """Delete copies that wait for a single store, in each by itself."""
        return await self._tombstone_deletes.delete_due()

    def _pause_s(self, more: bool | None) -> float:
        return 0.0 if more else self._timing.clean_s

    # ── retired blocks ─────────────────────────────────────────────────────────────────────────

    async def remove(self) -> bool:
        """Delete the objects of some retired blocks; whether there may be more to do."""
        if self._leader.state.adopting:
            return False  # while adopting, the index may lack their successors (S5)
        async with self.removal:
            return await self._remove()

    async def _remove(self) -> bool:
        now = self._leader.now()
        resting = self._blocks.resting(now)
        state = self._leader.state
        work = removals.due(state, now=now, limit=self._bounds.removed_at_once, resting=resting)
        bad_copies: list[Trouble] = []
        remove = partial(self._remove_one, bad_copies=bad_copies)
        done = await self._removing.each(remove, work, catching=Exception)
        self._hear_damage(bad_copies)
        every = self._stores.names(state)
        gone: dict[tuple[StoreName, ...], list[BlockId]] = {}
        failed: list[object] = []
        for _, some in groupby(zip(work, done, strict=True), key=lambda each: each[0].ids()):
            outcomes = list(some)
            removal = outcomes[0][0]
            away = [
                one.store
                for one, outcome in outcomes
                if one.store and every != (one.store,) and _is_away(outcome)
            ]
            self._stores.rest(away)
            stay = tuple(sorted({*removal.stay, *away}))
            bad = [outcome for one, outcome in outcomes if outcome and one.store not in away]
            if bad:
                self._hold_removal(removal, bad[0], now=now)
                failed += bad
            else:
                gone.setdefault(stay, []).extend(removal.ids())
        await self._forget(gone)
        _raise_retryable(failed)
        return bool(gone)  # their successors may be due now as well

    def _remove_one(self, removal: removals.Removal, bad_copies: list[Trouble]) -> str:
        """In a thread."""
        if removal.store is None:
            return ""  # it may not go from any store yet
        deleter = self._stores.deleter(removal.store)
        return removals.carry_out(deleter, removal, self._stores.open, bad_copies)

    def _hold_removal(self, removal: removals.Removal, outcome: object, *, now: LeaseTime) -> None:
        if isinstance(outcome, Exception):
            _hold_failed(self._blocks, removal.ids(), removal.title, outcome, now=now)
        else:
            self._blocks.hold(removal.ids(), str(outcome), now=now)

    async def _forget(self, gone: dict[tuple[StoreName, ...], list[BlockId]]) -> None:
        """Blocks by the stores in which their copies stay."""
        forgotten = [block for blocks in gone.values() for block in blocks]
        self._blocks.settle(forgotten)
        self._metrics.blocked.set(len(self._blocks))
        if forgotten:
            await self._append(
                lambda *_: [BlocksForgotten(tuple(some), stay) for stay, some in gone.items()]
            )
            self._metrics.cleaned.inc(len(forgotten))

    # ── leftovers of ended attempts ────────────────────────────────────────────────────────────

    async def sweep(self) -> bool:
        """Clean up finally after some ended attempts; whether there may be more to do."""
        if self._leader.state.adopting:
            return False  # what they wrote may be the only copy, not adopted yet (S5)
        now = self._leader.now()
        sweeps = await self._due_sweeps(now)
        places = [(each, store) for each in sweeps for store in self._stores_of(each)]
        found = await self._sweeping.each(self._look, places, catching=Exception)
        work = [
            (one, await self._unlisted_keys(one)) for one in found if not isinstance(one, Exception)
        ]
        done = await self._sweeping.each(self._remove_leftovers, work, catching=Exception)
        left: set[AttemptKey] = set()  # in some store at least
        failed: list[Exception] = []
        for (attempt_key, _), looked in zip(places, found, strict=True):
            if isinstance(looked, Exception) and not self._is_left_to_search(attempt_key, looked):
                _hold_failed(self._attempts, [attempt_key], _title(attempt_key), looked, now=now)
                left.add(attempt_key)
                failed.append(looked)
        for (one, _), outcome in zip(work, done, strict=True):
            attempt_key = one.attempt_key
            if one.intents.bad:
                self._attempts.hold([attempt_key], "; ".join(one.intents.bad), now=now)
            if isinstance(outcome, Exception):
                _hold_failed(self._attempts, [attempt_key], _title(attempt_key), outcome, now=now)
                failed.append(outcome)
            if isinstance(outcome, Exception) or not outcome:
                left.add(attempt_key)
        swept = [attempt_key for attempt_key in sweeps if attempt_key not in left]
        self._attempts.settle(swept)
        self._metrics.leftovers_held.set(len(self._attempts))
        if swept:
            await self._append(lambda *_: [LeftoversSwept(tuple(swept))])
        _raise_retryable(failed)
        return len(sweeps) >= self._bounds.swept_at_once and bool(swept)

    def _stores_of(self, attempt_key: AttemptKey) -> tuple[StoreName, ...]:
        """Where an attempt may have written: a repair in every store, another plan at home."""
        state = self._leader.state
        every = self._stores.names(state)
        ended = state.leftovers.get(attempt_key)
        return (ended.store,) if ended is not None and ended.store in every else every

    def _is_left_to_search(self, attempt_key: AttemptKey, outcome: Exception) -> bool:
        """Whether the search for orphans cleans up after a repair in a store that is away: it finds
        the intents there when the store is back. Repairs go on meanwhile, and what waits for one
        store must not keep the attempts at other plans from being swept.
        """
        ended = self._leader.state.leftovers.get(attempt_key)
        several = len(self._stores.names(self._leader.state)) > 1
        return several and ended is not None and ended.store == ANY_STORE and _is_away(outcome)

    def _look(self, place: tuple[AttemptKey, StoreName]) -> final_sweep.FoundLeftovers:
        attempt_key, store = place
        return final_sweep.look(self._stores.open(store), attempt_key, store)

    def _remove_leftovers(self, work: tuple[final_sweep.FoundLeftovers, list[str]]) -> bool:
        found, _ = work
        assert found.store is not None
        return final_sweep.remove(self._stores.deleter(found.store), *work)

    async def _due_sweeps(self, now: LeaseTime) -> list[AttemptKey]:
        """There may be half a million attempts, so they are searched in a thread."""
        state = self._leader.state
        look = partial(
            leftovers.due,
            state.leftovers.copy(),
            now=now,
            leftovers_ns=state.policy.leftovers_ns,
            resting=self._attempts.resting(now),
            limit=self._bounds.swept_at_once,
        )
        return await asyncio.to_thread(look) if state.leftovers else []

    async def _unlisted_keys(self, found: final_sweep.FoundLeftovers) -> list[str]:
        """The attempt has ended, so the index will never list what it does not list now."""
        await asyncio.sleep(0)  # an attempt may have written many blocks; others wait
        several = len(self._stores.names(self._leader.state)) > 1
        store = found.store if several else None
        return leftovers.unlisted_keys(self._leader.state, found.intents.written, store)

    # ── retention ──────────────────────────────────────────────────────────────────────────────

    async def _expire_in_time(self) -> bool:
        if self._clock.monotonic_ns() >= self._expire_at_ns:
            self._expire_at_ns = self._clock.monotonic_ns() + self._timing.expire_ns
            await self.expire()
        return False  # a run is capped, so that there is time to stop a mistake

    async def expire(self) -> int:
        """One run of retention; how many blocks it found too old."""
        if self._leader.state.adopting:
            return 0
        if not await self._clock_is_trusted():
            return 0
        state, now, wall = self._leader.state, self._leader.now(), self._wall()
        limits = retention.boundaries(state, now=now, wall=wall)
        walk = self._walk or retention.within_reach(state.blocks, limits)
        look = partial(
            retention.look,
            walk,
            limits,
            limit=state.policy.retention_run_max,
            looked_at_max=self._bounds.looked_at_max,
        )
        found, ended = await asyncio.to_thread(look)
        self._walk = None if ended else walk
        at_once = self._bounds.taken_at_once
        for first in range(0, len(found), at_once):
            await self._take(found[first : first + at_once])
        if found:
            today = keys.date_text(utc_day(limits.now_ns))
            log_.info("retention removed expired blocks=%d today=%s", len(found), today)
        return len(found)

    async def _take(self, blocks: Sequence[BlockId]) -> None:
        """Take blocks by the present boundaries: periods and clocks may have changed meanwhile."""

        def entries(state: MetaState, now: LeaseTime) -> list[Entry]:
            if not self._judge(state, now).takes:
                return []
            limits = retention.boundaries(state, now=now, wall=self._wall())
            return retention.expiry_entries(state, blocks, limits, now=now)

        await self._append(entries)

    async def _clock_is_trusted(self) -> bool:
        """Whether a run may begin; the verdict on the clock goes into the log (S2)."""
        await self._store_clock.ask()

        def entries(state: MetaState, now: LeaseTime) -> list[Entry]:
            return trust.verdict_entries(self._judge(state, now))

        if trust.verdict_entries(self._judge(self._leader.state, self._leader.now())):
            await self._append(entries)
        state, now, wall = self._leader.state, self._leader.now(), self._wall()
        found = retention.status(state, now=now, wall=wall, clocks=self._witnesses())
        self._tell(found.paused, found.trouble)
        return self._judge(state, now).takes

    def _judge(self, state: MetaState, now: LeaseTime) -> trust.TrustVerdict:
        return trust.judge(state, now=now, wall=self._wall(), clocks=self._witnesses())

    def _witnesses(self) -> trust.Clocks:
        return self._clocks()._replace(store_ahead_ns=self._store_clock.ahead_ns)

    def _tell(self, paused: str, trouble: str) -> None:
        """Log once per kind of trouble, since the hours in the sentence change all the time."""
        kind = "paused" if paused else "clocks" if trouble else ""
        if paused and kind != self._told:
            log_.error("%s", paused)
        elif trouble and kind != self._told:
            log_.warning("retention clocks disagree, the earlier one counts cause=%s", trouble)
        elif self._told and not kind:
            log_.info("retention resumed")
        self._told = kind

    async def undo(self, *, tenant: str, why: str) -> Undone:
        """Hold retention, then bring back what it took, some blocks at a time."""
        await self._append(lambda *_: trust.hold_entries(why))
        blocks = profiles = 0
        taken = list(self._leader.state.retired.expired)
        at_once = self._bounds.taken_at_once
        for first in range(0, len(taken), at_once):
            some = taken[first : first + at_once]
            state, now = self._leader.state, self._leader.now()
            if found := undo.returning(state, some, tenant=tenant, now=now):
                expired = state.tally.profiles_expired
                await self._append(partial(_undone, found))
                blocks += sum(block in state.blocks for block in found)
                profiles += expired - state.tally.profiles_expired
            await asyncio.sleep(0)  # there may be many, and others wait
        log_.warning("retention undone blocks=%d cause=%s", blocks, why)
        return Undone(blocks, profiles)

    def _wall(self) -> WallTime:
        return WallTime(self._clock.wall_ns())


def _is_away(outcome: object) -> bool:
    return isinstance(outcome, Retryable) and not isinstance(outcome, NotLeading)


def _undone(blocks: tuple[BlockId, ...], *_: object) -> list[Entry]:
    return [RetentionUndone(blocks)]


class StoreClock:
    """How far the object store's clock is ahead of this host's, asked once in a while.

    In between, our monotonic clock is added to the last answer: our wall clock may be set at any
    moment, and an older answer must not confirm what it shows since. A store on this host has the
    same clock, so it is no witness.
    """

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._asked_ns: int | None = None
        self._since_ns: int | None = None  # what the store shows, less our monotonic clock

    @property
    def ahead_ns(self) -> int | None:
        if self._since_ns is None:
            return None
        return self._since_ns + self._clock.monotonic_ns() - self._clock.wall_ns()

    async def ask(self) -> None:
        asked_ns = self._clock.monotonic_ns()
        fresh = self._asked_ns is not None and asked_ns - self._asked_ns < STORE_CLOCK_NS
        if fresh and abs(self.ahead_ns or 0) <= trust.SKEW_MAX_NS:
            return  # ask again soon if they disagree: the clock may be corrected at any moment
        shown_ns = await asyncio.to_thread(self._store.clock_ns)
        self._asked_ns = asked_ns
        now_ns = self._clock.monotonic_ns()
        if shown_ns is None or now_ns - asked_ns > MINUTE_NS:  # too late to be precise
            self._since_ns = None
        else:
            self._since_ns = shown_ns - now_ns


def _title(attempt_key: AttemptKey) -> str:
    return f"what plan {attempt_key.plan} wrote under {attempt_key.token}"


def _hold_failed(
    held: HeldBack[Item], items: Sequence[Item], title: str, error: Exception, *, now: LeaseTime
) -> None:
    """While the store does not answer, everything fails alike and is logged only once."""
    why = f"{title} cannot be deleted: {error}"
    held.hold(items, why, now=now, tell=not isinstance(error, Retryable))


def _raise_retryable(outcomes: Sequence[object]) -> None:
    """Raise an outcome that says that the store is unavailable, which is temporary."""
    for outcome in outcomes:
        if isinstance(outcome, Retryable):
            raise outcome
