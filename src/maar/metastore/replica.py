"""A log reader and its fold: verifies the chain, reads what was stored apart, applies in order."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from maar.metastore.apply import Indexed, apply
from maar.metastore.effects import Diverged, Effect
from maar.metastore.entries import Envelope, Stored, decode, decode_entry
from maar.metastore.state import MetaState
from maar.model.errors import Corrupt
from maar.ports.log import EMPTY, Head, Log, Record, verify
from maar.ports.object_store import ObjectStore

UNBROKEN_BYTES = 64 << 10  # of entries read or folded in one go; then others have a turn


class _Breaks:
    def __init__(self) -> None:
        self._unbroken = 0

    async def after(self, size: int) -> None:
        self._unbroken += size
        if self._unbroken >= UNBROKEN_BYTES:
            self._unbroken = 0
            await asyncio.sleep(0)


@dataclass
class Replica:
    """The state as of `head`."""

    store: ObjectStore
    state: MetaState = field(default_factory=MetaState)
    head: Head = EMPTY

    async def catch_up(self, log: Log) -> int:
        """Fold until the end of the log; how many bytes of entries there were."""
        size = 0
        while records := await log.read(after=self.head.index):
            await self.fold(records)
            size += sum(len(record.body) for record in records)
        return size

    async def fold(self, records: Sequence[Record]) -> list[Effect]:
        """What the records did. Nothing is folded when one of them is not what was written."""
        verify(self.head, records)
        breaks = _Breaks()
        envelopes = []
        for record in records:
            envelopes.append(await self._envelope(record))
            await breaks.after(len(record.body))
        effects: list[Effect] = []
        for record, envelope in zip(records, envelopes, strict=True):
            effects += apply(self.state, Indexed(record.index, envelope))
            self.head = Head(record.index, record.hash)
            await breaks.after(len(record.body))
        for effect in effects:
            if isinstance(effect, Diverged):
                raise Corrupt(
                    f"this replica's state at entry {effect.at} has the hash "
                    f"{effect.ours.hex()[:16]}, the leader's had {effect.theirs.hex()[:16]}: the "
                    "same log gave two states. Stop, keep both, and rebuild this replica."
                )
        return effects

    async def _envelope(self, record: Record) -> Envelope:
        envelope = decode(record.body, index=record.index)
        if not isinstance(envelope.entry, Stored):
            return envelope
        where = envelope.entry
        body = await asyncio.to_thread(self.store.read, where.key)
        if hashlib.sha256(body).digest() != where.sha256:
            raise Corrupt(
                f"the object {where.key} is not what entry {record.index} of the log says it is"
            )
        entry = decode_entry(body, index=record.index)
        return Envelope(envelope.version, envelope.lease_time, envelope.wall_time, entry)
