"""A stranger at the log: copies every entry as it comes, folds it, and judges what it says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from maar.metastore.fold.apply import Indexed, apply
from maar.metastore.records import entries
from maar.metastore.records.entries import Envelope, StateHashed, TermStarted
from maar.metastore.state.digest import digest
from maar.metastore.state.state import MetaState
from maar.model.errors import Retryable
from maar.ports.metastore.log import EMPTY, Head, Log, Record, verify
from support.oracles.log_audit import Audit

PAUSE_S = 0.2


@dataclass
class Tail:
    """From the first entry on: whoever snapshots and truncates must not take it unseen."""

    head: Head = EMPTY
    records: list[Record] = field(default_factory=list)
    state: MetaState = field(default_factory=MetaState)
    diverged: list[str] = field(default_factory=list)
    digests: dict[int, bytes] = field(default_factory=dict)  # ours, where a leader stated its own

    @asynccontextmanager
    async def following(self, log: Log) -> AsyncIterator[None]:
        task = asyncio.create_task(self._follow(log))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled() and (error := task.exception()):
            raise error

    async def _follow(self, log: Log) -> None:
        while True:
            try:
                await self.read_on(log)
            except Retryable:
                pass  # a fault was injected into etcd
            await asyncio.sleep(PAUSE_S)

    async def read_on(self, log: Log) -> None:
        """Up to the head as it is now."""
        while records := await log.read(after=self.head.index):
            self.head = verify(self.head, records)
            for record in records:
                self._take(record)

    def _take(self, record: Record) -> None:
        self.records.append(record)
        envelope = entries.decode(record.body, index=record.index)
        if isinstance(envelope.entry, StateHashed):
            self._compare(record.index, envelope.entry)
        apply(self.state, Indexed(record.index, envelope))

    def _compare(self, index: int, stated: StateHashed) -> None:
        """A leader's hash is of the state before it; the others' votes on it come later."""
        if not stated.replica:
            self.digests[stated.at] = digest(self.state)
        if self.digests[stated.at] != stated.digest:
            whose = stated.replica or f"the leader of term {self.records[-1].term}"
            self.diverged.append(f"entry {index}: {whose} had another state at {stated.at}")

    def envelopes(self) -> list[tuple[int, Envelope]]:
        return [(one.index, entries.decode(one.body, index=one.index)) for one in self.records]

    def audit(self) -> Audit:
        """What the entries make true by the rules alone, with all that is wrong about them."""
        audit = Audit.of(self.envelopes())
        audit.faults += self.diverged
        audit.faults += self._terms()
        return audit

    def _terms(self) -> list[str]:
        """A former leader writes nothing more, and each term begins with its own entry."""
        faults = []
        term = 0
        for record in self.records:
            entry = entries.decode(record.body, index=record.index).entry
            if record.term < term:
                faults.append(f"entry {record.index} is of term {record.term}, after {term} began")
            if record.term > term and not isinstance(entry, TermStarted | entries.Genesis):
                faults.append(f"entry {record.index} is the first of its term and does not say so")
            term = max(term, record.term)
        return faults
