"""A log in memory that several replicas of one test share; it passes the log's own suite."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from maar.model.errors import HeadMoved, NotFound, Rejected, TermLost, Unavailable
from maar.ports.metastore.log import (
    BATCH_BYTES_MAX,
    EMPTY,
    Candidate,
    Head,
    Leadership,
    Record,
    Term,
    check_limits,
    follow,
    verify,
)

LOOK_S = 0.05
NO_TERM = Term(0)


@dataclass
class SharedLog:
    """What all of them see; a test may take leadership away, or cut everybody off."""

    base: Head = EMPTY
    records: list[Record] = field(default_factory=list)
    term: Term = NO_TERM
    leader_term: Leadership | None = None
    sealed: str = ""
    copying: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def head(self) -> Head:
        return Head(self.records[-1].index, self.records[-1].hash) if self.records else self.base

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def depose(self) -> None:
        """As if the leader's lease had run out."""
        self.leader_term = None
        self.wake()


class MemoryLog:
    """One replica's door to the shared log; also a `LogCopy`."""

    def __init__(self, shared: SharedLog, *, writes: bool = True) -> None:
        self.shared = shared
        self._writes = writes
        self.cut = False  # nothing comes through

    async def campaign(self, candidate: Candidate) -> Term:
        while True:
            self._check_open()
            if self.shared.leader_term is None:
                break
            await self.shared.changed.wait()
        self.shared.term = Term(self.shared.term + 1)
        self.shared.leader_term = Leadership(self.shared.term, candidate)
        self.shared.wake()
        return self.shared.term

    def hold(self, term: Term) -> None:
        leader_term = self.shared.leader_term
        if leader_term is None or leader_term.term != term:
            raise TermLost(f"term {term} does not lead any more")

    async def resign(self, term: Term) -> None:
        leader_term = self.shared.leader_term
        if leader_term is not None and leader_term.term == term:
            self.shared.depose()

    async def leadership(self) -> Leadership | None:
        self._reach()
        return self.shared.leader_term

    async def append(
        self,
        bodies: Sequence[bytes],
        *,
        term: Term,
        head: Head,
        reserve: bool = False,  # noqa: ARG002
    ) -> Head:
        check_limits(bodies)
        self._check_open()
        await asyncio.sleep(0)
        self.hold(term)
        if self.shared.head != head:
            raise HeadMoved(f"the log's head is {self.shared.head.index}, not {head.index}")
        self.shared.records += follow(head, bodies, term)
        self.shared.wake()
        return self.shared.head

    async def read(self, *, after: int, limit_bytes: int = BATCH_BYTES_MAX) -> list[Record]:
        self._reach()
        await asyncio.sleep(0)
        shared = self.shared
        if after < shared.base.index:
            raise NotFound(f"entries up to {shared.base.index} were truncated")
        if after > shared.head.index:
            raise NotFound(f"there is no entry {after} yet")
        at = after - shared.base.index
        found: list[Record] = []
        size = 0
        for record in shared.records[at:]:
            size += len(record.body)
            if found and size > limit_bytes:
                break
            found.append(record)
        before = shared.records[at - 1] if at else None
        verify(Head(before.index, before.hash) if before else shared.base, found)
        return found

    async def wait_change(self, *, after: int) -> None:
        event = self.shared.changed
        if self.cut or self.shared.head.index <= after:
            try:
                async with asyncio.timeout(LOOK_S):
                    await event.wait()
            except TimeoutError:
                pass  # a while has passed

    async def head(self) -> Head:
        self._reach()
        await asyncio.sleep(0)
        return self.shared.head

    async def first(self) -> int:
        self._reach()
        return self.shared.records[0].index if self.shared.records else 0

    async def truncate(self, *, before: int, term: Term) -> None:
        self._check_open()
        self.hold(term)
        going = [record for record in self.shared.records if record.index < before]
        if going:
            self.shared.base = Head(going[-1].index, going[-1].hash)
            self.shared.records = self.shared.records[len(going) :]

    async def seal(self, note: str) -> None:
        self._check_writes()
        if self.shared.leader_term is not None:
            raise Rejected("somebody leads")
        self.shared.sealed = self.shared.sealed or note
        self.shared.wake()

    async def seal_note(self) -> str:
        return self.shared.sealed

    async def begin(self, base: Head, *, term: Term) -> Head:
        self._check_writes()
        shared = self.shared
        if not shared.copying:
            if shared.head != EMPTY or shared.leader_term or shared.sealed:
                raise Rejected("the log is not empty")
            shared.base, shared.copying = base, True
        elif shared.base != base:
            raise Rejected("another copy was begun")
        shared.term = Term(max(shared.term, term))
        return shared.head

    async def add(self, records: Sequence[Record]) -> Head:
        self._check_writes()
        if not self.shared.copying:
            raise Rejected("no copy was begun")
        verify(self.shared.head, records)
        self.shared.records += records
        self.shared.term = Term(max(self.shared.term, *(record.term for record in records)))
        return self.shared.head

    async def finish(self) -> None:
        self.shared.copying = False
        self.shared.wake()

    async def close(self) -> None: ...

    def _reach(self) -> None:
        if self.cut:
            raise Unavailable("the log does not answer")

    def _check_writes(self) -> None:
        self._reach()
        if not self._writes:
            raise Rejected("the log was opened for reading only")

    def _check_open(self) -> None:
        self._check_writes()
        if self.shared.sealed:
            raise Rejected(f"the log was sealed: {self.shared.sealed}")
        if self.shared.copying:
            raise Rejected("the log is being copied into")
