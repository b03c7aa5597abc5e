"""One term of office: stamps entries with lease time, appends them in turn, folds what was stored.

There is never more than one append under way. When its outcome is unknown, no other begins until
a linearizable read has settled it (S6).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator

from maar.metastore.effects import Effect
from maar.metastore.entries import (
    VERSION,
    Entry,
    Genesis,
    PolicySet,
    Stored,
    TermStarted,
    VersionActivated,
    encode,
    encode_entry,
)
from maar.metastore.lease_clock import LeaseClock
from maar.metastore.policy import Policy
from maar.metastore.replica import Replica
from maar.metastore.state import MetaState
from maar.model import keys
from maar.model.errors import (
    AlreadyExists,
    HeadMoved,
    OutcomeUnknown,
    Retryable,
    Unavailable,
)
from maar.model.ids import Incarnation
from maar.model.time import LeaseTime, WallTime
from maar.ports.clock import Clock
from maar.ports.log import BATCH_BYTES_MAX, ENTRY_BYTES_MAX, Head, Log, Term, follow
from maar.ports.object_store import ObjectStore

log_ = logging.getLogger("maar.metastore")

SETTLE_S = 0.2
INLINE_BYTES_MAX = ENTRY_BYTES_MAX - 1024  # the envelope needs a little room


class Leader:
    def __init__(self, log: Log, store: ObjectStore, clock: Clock, replica: Replica) -> None:
        self._log = log
        self._store = store
        self._clock = clock
        self._replica = replica
        self._term = Term(0)
        self._lease_clock = LeaseClock(
            stall_ns=replica.state.policy.stall_ns, monotonic_ns=clock.monotonic_ns()
        )
        self._lease_clock.follow(replica.state.lease_time)
        self._moved = asyncio.Event()
        self.appended_bytes = 0
        self.settling = False

    @property
    def state(self) -> MetaState:
        return self._replica.state

    @property
    def term(self) -> Term:
        return self._term

    def now(self) -> LeaseTime:
        return self._lease_clock.now(self._clock.monotonic_ns())

    async def take_office(
        self, candidate: str, policy: Policy, entropy: Callable[[int], bytes]
    ) -> None:
        """Lead, fold what others wrote, and say so in the log before anything else."""
        self._term = await self._log.campaign(candidate)
        await self._replica.catch_up(self._log)
        self._lease_clock.follow(self.state.lease_time)
        opening: list[Entry] = []
        if not self.state.incarnation:
            opening.append(Genesis(Incarnation(entropy(4).hex())))
        opening.append(TermStarted(self._term, candidate))
        if self.state.version < VERSION:
            opening.append(VersionActivated(VERSION))
        await self.commit(opening, now=self.now())
        self._lease_clock.allow_stalls(policy.stall_ns)
        if self.state.policy != policy:
            await self.commit([PolicySet(policy)], now=self.now())

    async def commit(self, entries: Iterable[Entry], *, now: LeaseTime) -> list[Effect]:
        """Append and fold; the effects tell what each entry did. Raises when some were not stored.

        `now` is the time by which the entries were prepared: what they presume, the fold sees.
        """
        wall = WallTime(self._clock.wall_ns())
        bodies = []
        for index, entry in enumerate(entries, start=self.state.index + 1):
            body = await self._fitting(encode_entry(entry), index)
            bodies.append(encode(self.state.version, now, wall, body))
        effects: list[Effect] = []
        for batch in _batches(bodies):
            effects += await self._append(batch)
        return effects

    async def reached(self, index: int) -> None:
        """Return when the state is at least at this index."""
        while self.state.index < index:
            moved = self._moved
            await moved.wait()

    async def _append(self, bodies: list[bytes]) -> list[Effect]:
        before = self._replica.head
        records = follow(before, bodies, self._term)
        try:
            await self._log.append(bodies, term=self._term, head=before)
        except OutcomeUnknown as error:
            log_.warning("append unsettled after=%d cause=%s", before.index, error)
            if not await self._was_stored(records[-1].index, records[-1].hash):
                raise Unavailable("the log did not store the change; send it again") from error
        effects = await self._replica.fold(records)
        self.appended_bytes += sum(map(len, bodies))
        self._moved.set()
        self._moved = asyncio.Event()
        return effects

    async def _was_stored(self, index: int, hash_: bytes) -> bool:
        """Ask the log until it answers; nothing else is appended meanwhile."""
        self.settling = True
        try:
            head = await self._head_at_last()
        finally:
            self.settling = False
        if head == self._replica.head:
            return False
        if head.index == index and head.hash == hash_:
            return True
        raise HeadMoved(f"somebody else wrote entry {head.index} of the log")

    async def _head_at_last(self) -> Head:
        while True:
            try:
                return await self._log.head()
            except Retryable as error:
                log_.warning("append still unsettled cause=%s", error)
                await asyncio.sleep(SETTLE_S)

    async def _fitting(self, body: bytes, index: int) -> bytes:
        """The entry itself, or, when it is too large for the log, where its bytes are (S12)."""
        if len(body) <= INLINE_BYTES_MAX:
            return body
        digest = hashlib.sha256(body).digest()
        key = keys.stored_entry(incarnation=self.state.incarnation, index=index, sha256=digest)
        try:
            await asyncio.to_thread(self._store.create, key, body)
        except AlreadyExists:
            pass  # an earlier try of ours: the name holds the hash of these very bytes
        return encode_entry(Stored(key, len(body), digest))


def _batches(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    """As many as the log takes at once."""
    batch: list[bytes] = []
    size = 0
    for body in bodies:
        if batch and size + len(body) > BATCH_BYTES_MAX:
            yield batch
            batch, size = [], 0
        batch.append(body)
        size += len(body)
    if batch:
        yield batch
