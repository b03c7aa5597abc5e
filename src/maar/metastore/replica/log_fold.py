"""A log reader and its fold: verifies the chain, reads what was stored apart, applies in order."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from maar.metastore.fold.apply import FoldEntry, Indexed, apply, fold_entry
from maar.metastore.records.effects import Effect
from maar.metastore.records.entries import VERSION, Envelope, Stored, decode_to_fold, open_envelope
from maar.metastore.replica.integrity import StateVotes
from maar.metastore.replica.read_ahead import ReadAhead
from maar.metastore.state.state import MetaState
from maar.model.errors import Corrupt
from maar.ports.metastore.log import EMPTY, Head, Log, Record, verify

UNBROKEN_BYTES = 64 << 10  # of entries read or folded in one go; then others have a turn


def _runs(records: Sequence[Record]) -> Iterator[list[Record]]:
    """Yield a few records at a time, so that other tasks can run in between."""
    run: list[Record] = []
    size = 0
    for record in records:
        run.append(record)
        size += len(record.body)
        if size >= UNBROKEN_BYTES:
            yield run
            run, size = [], 0
    if run:
        yield run


class ReadEntry(Protocol):
    def __call__(self, body: bytes, *, index: int, knows: int) -> Envelope: ...


class ApartReader(Protocol):
    """Where entries lie that are too large for the log: the store, or a backup of it."""

    def read(self, key: str) -> bytes: ...


class Edition(NamedTuple):
    """Which entries a program knows. A later program knows more kinds: a test runs one beside
    today's, so that upgrades are tested before the first one happens.
    """

    version: int = VERSION  # the newest one that it reads and folds
    read: ReadEntry = open_envelope
    fold: FoldEntry = fold_entry


NEWEST = Edition()


@dataclass
class LogFold:
    """The state as of `head`."""

    store: ApartReader
    state: MetaState = field(default_factory=MetaState)
    head: Head = EMPTY
    state_votes: StateVotes = field(default_factory=StateVotes)
    edition: Edition = NEWEST
    folded_bytes: int = 0  # of entries, since it was made
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    async def catch_up(self, log: Log) -> None:
        """Apply entries until the end of the log."""
        async with ReadAhead(log) as pages:
            while records := await pages.read(after=self.head.index):
                await self.fold(records)

    async def wait_for_index(self, index: int) -> None:
        """Return when the state is at least at this index."""
        while self.head.index < index:
            await self._moved.wait()

    async def fold(self, records: Sequence[Record]) -> list[Effect]:
        """Apply records and return their effects. None is applied when one of them is damaged."""
        verify(self.head, records)
        effects: list[Effect] = []
        try:
            for number, run in enumerate(_runs(records)):
                if number:
                    await asyncio.sleep(0)
                read, knows = self.edition.read, self.edition.version
                envelopes = [read(each.body, index=each.index, knows=knows) for each in run]
                for at, envelope in enumerate(envelopes):
                    if isinstance(envelope.entry, Stored):
                        envelopes[at] = await self._fetch(envelope, run[at].index)
                for record, envelope in zip(run, envelopes, strict=True):
                    did = apply(self.state, Indexed(record.index, envelope), self.edition.fold)
                    self.head = Head(record.index, record.hash)
                    self.folded_bytes += len(record.body)
                    self.state_votes.fold(did)
                    effects += did
        finally:
            self._moved.set()
            self._moved = asyncio.Event()
        return effects

    async def _fetch(self, envelope: Envelope, index: int) -> Envelope:
        """Replace a reference by the entry itself, which is stored apart from the log."""
        where = envelope.entry
        assert isinstance(where, Stored)
        body = await asyncio.to_thread(self.store.read, where.key)
        if hashlib.sha256(body).digest() != where.sha256:
            raise Corrupt(
                f"the object {where.key} does not match the hash in entry {index} of the log"
            )
        entry = decode_to_fold(body, index=index)
        return Envelope(envelope.version, envelope.lease_time, envelope.wall_time, entry)
