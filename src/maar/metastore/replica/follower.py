"""Follows the log: applies what leaders append, and tracks who leads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from maar.background import run_until_first_ends
from maar.metastore.decide.lease_clock import LeaseClock
from maar.metastore.replica.log_fold import LogFold
from maar.metastore.replica.read_ahead import ReadAhead
from maar.metastore.state.state import MetaState
from maar.model.errors import Corrupt, NotFound, Retryable
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.clock import Clock
from maar.ports.metastore.log import Candidate, Head, Leadership, Log, Record

log_ = logging.getLogger("maar.metastore")

PATIENCE_S = 10.0  # a replica that is behind for so long is not ready
RETRY_S = 0.2
REST_S = 0.02  # between two reads, unless somebody waits: a busy log is applied in batches
LEADER_S = 0.5  # who leads is asked so often, and after every entry that begins a term


class LeftBehind(Exception):
    """The log was truncated past what the replica has applied: it needs a snapshot."""


class Follower:
    """Reads the log for one replica; `now` is lease time as far as it can be known here (S2)."""

    def __init__(self, log: Log, clock: Clock, replica: LogFold, candidate: Candidate) -> None:
        self._log = log
        self._clock = clock
        self._candidate = candidate
        self.replica = replica
        self.began_at = replica.head.index
        self.lease_clock = LeaseClock(
            stall_ns=replica.state.policy.stall_ns, monotonic_ns=clock.monotonic_ns()
        )
        self.lease_clock.follow(replica.state.lease_time)
        self.leader: Candidate | None = None  # somebody else; None: nobody is known to lead
        self.head = replica.head.index  # of the log, as last seen
        self.trouble = ""  # why the last read failed
        self._wanted = asyncio.Event()  # somebody waits for an entry
        self._even_ns: int | None = None  # when it had last applied everything
        self._ask_at, self._term = 0.0, 0  # when to ask who leads again, unless a term begins

    @property
    def state(self) -> MetaState:
        return self.replica.state

    @property
    def caught_up(self) -> bool:
        return self._even_ns is not None

    def behind_s(self) -> float:
        """Seconds since it was last known to have applied everything."""
        if self._even_ns is None:
            return 0.0
        return max(0, self._clock.monotonic_ns() - self._even_ns) / SECOND_NS

    def now(self) -> LeaseTime:
        self.lease_clock.stall_ns = self.state.policy.stall_ns
        return self.lease_clock.now(self._clock.monotonic_ns())

    def ready(self) -> str:
        """'' while it is up to date and somebody leads, else why not."""
        if not self.caught_up:
            return "the metastore is reading its snapshot and log"
        behind_s = self.behind_s()
        if behind_s > PATIENCE_S:
            why = self.trouble or f"it has applied {self.replica.head.index} of {self.head} entries"
            return f"this replica has been behind the log for {behind_s:.0f} s: {why}"
        if self.leader is None and self.trouble:
            return f"no replica of the metastore leads, and its log does not answer: {self.trouble}"
        return "" if self.leader else "no replica of the metastore leads"

    async def wait_for_index(self, index: int) -> None:
        """Return when the state is at least at this index."""
        if self.replica.head.index < index:
            self._wanted.set()
            await self.replica.wait_for_index(index)

    async def news(self) -> None:
        """Return when there may be new entries, or after a while."""
        await run_until_first_ends(self._wait_change, self._wanted.wait)
        self._wanted.clear()

    async def _wait_change(self) -> None:
        await asyncio.sleep(REST_S)
        try:
            await self._log.wait_change(after=self.replica.head.index)
        except Retryable as error:
            log_.debug("no hint from the log cause=%s", error)
            await asyncio.sleep(RETRY_S)

    async def look(self) -> None:
        """Apply all new entries, and see who leads. Retryable errors are kept as `trouble`."""
        try:
            await self._look()
            self.trouble = ""
        except Retryable as error:
            if not self.trouble:
                log_.warning("log cannot be read, retrying cause=%s", error)
            self.trouble = str(error)
            await asyncio.sleep(RETRY_S)
        self.now()  # lease time counts only what is measured as it passes

    async def _look(self) -> None:
        asked_ns = self._clock.monotonic_ns()
        head = await self._log.head()
        self.head = head.index
        self._check(head)
        await self._fold_to(head.index)
        self._even_ns = asked_ns
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._ask_at or self._term != self.state.term:
            self._notice(await self._log.leadership())
            self._ask_at, self._term = now_s + LEADER_S, self.state.term

    async def catch_up(self, progress: Callable[[], None]) -> None:
        """As a leader, whose log nobody else appends to: apply everything."""
        head = await self._log.head()
        self._check(head)
        await self._fold_to(head.index, progress)

    async def _fold_to(self, index: int, progress: Callable[[], None] = lambda: None) -> None:
        async with ReadAhead(self._log) as log:
            while self.replica.head.index < index:
                records = await self._next(log)
                await self.replica.fold(records)
                self.lease_clock.follow(self.state.lease_time)
                self.now()
                progress()
                if not records:  # the log server that was asked has not seen it yet
                    await asyncio.sleep(RETRY_S)

    def _check(self, head: Head) -> None:
        """Applied entries stay in the log for ever; if they are not there, it is another log."""
        ours = self.replica.head
        if head.index < ours.index or (head.index == ours.index and head.hash != ours.hash):
            raise Corrupt(
                f"the log ends with entry {head.index}, but this replica has applied {ours.index} "
                "entries of it: entries were lost, or it is another log"
            )

    async def _next(self, log: ReadAhead) -> list[Record]:
        after = self.replica.head.index
        try:
            return await log.read(after=after)
        except NotFound as error:
            if await self._log.first() != after + 1:
                raise LeftBehind(str(error)) from error
            return []

    def _notice(self, leader_term: Leadership | None) -> None:
        """Ignore a term of our own: the campaign that won it learns of it first."""
        before = self.leader
        rival = leader_term is not None and leader_term.holder != self._candidate
        self.leader = leader_term.holder if leader_term is not None and rival else None
        if self.leader is not None and self.leader != before:
            log_.info("metastore follows leader=%s index=%d", self.leader.name, self.state.index)

    def stop_leading(self) -> None:
        """After leading, everything is applied; who leads now has to be asked."""
        self._even_ns = self._clock.monotonic_ns()
        self.leader, self._ask_at = None, 0.0
