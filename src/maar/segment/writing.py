"""Writes one segment to the store and registers it, or else leaves a dead letter for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import ParamSpec, TypeVar

from maar.background import Threads
from maar.block.format import dead_letter
from maar.block.format.segment import SegmentBytes, segment_meta
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import MaarError, Retryable, StoreFull, Unavailable
from maar.model.ids import Shard, StoreName, Zone, segment_id
from maar.model.profile import RawProfile
from maar.ports.clock import Clock
from maar.ports.metastore.log_time import Now
from maar.segment.encode import DatasetName, encode_profiles
from maar.segment.memory import MemoryUse, load_of
from maar.segment.metrics import SegmentMetrics
from maar.segment.registrar import Registrar, SegmentRefused
from maar.segment.uploads import Running, Uploads

log = logging.getLogger("maar.segment")

BACKOFF_S_FIRST = 0.05
BACKOFF_S_MAX = 1.0
ENCODERS_MAX = 4

P = ParamSpec("P")
T = TypeVar("T")
Failed = dict[DatasetName, MaarError]  # what of a segment was left out


@dataclass(eq=False)
class Flight:
    """A segment on its way: cut, not yet acknowledged."""

    shard: Shard
    profiles: list[RawProfile]
    done: asyncio.Future[Failed]
    began_ns: int
    began_wall_ns: int
    load: MemoryUse = field(init=False)
    failed: Failed = field(default_factory=dict)
    running: Running = field(default_factory=set)
    metastore_ns: int = 0  # how long it has waited for the metastore
    trouble: str = ""  # the last failure, for the answer when time runs out

    def __post_init__(self) -> None:
        self.load = load_of(self.profiles)


@dataclass(frozen=True, slots=True)
class LetterRules:
    """When the metadata goes into a dead letter instead of the index (S20)."""

    after_ns: int  # so long the metastore is waited for, in one flight
    naming_ns: int  # so long a segment is named by our own measure of the log's time


class Writing:
    """Every step may be repeated until the flight's deadline; nothing is done twice by that."""

    def __init__(
        self,
        node: str,
        zone: Zone,
        store: StoreName,
        uploads: Uploads,
        registrar: Registrar,
        clock: Clock,
        random: Random,
        metrics: SegmentMetrics,
        letters: LetterRules | None,
    ) -> None:
        self._node = node
        self._zone = zone
        self._store = store
        self._uploads = uploads
        self._registrar = registrar
        self._clock = clock
        self._random = random
        self._metrics = metrics
        self._letters = letters
        self._encoders = Threads(ENCODERS_MAX, "segment")

    def close(self) -> None:
        self._encoders.close()

    async def write(self, flight: Flight) -> BlockMeta | None:
        """What the index, or a letter to it, has now; None when nothing could be written."""
        segment = await self._encode(flight)
        if segment is None:
            return None
        # With dead letters, our own measure of the log's time will do for a segment's name.
        now = await self._ask_registrar(flight, self._registrar.now) or self._known_time(flight)
        block = segment_id(lease_time_ns=now.lease_time, entropy=self._random.getrandbits(64))
        key = keys.segment(shard=flight.shard, block=block, incarnation=now.incarnation)
        await self._retry(flight, self._uploads.create, key, segment.body, flight.running)
        meta = segment_meta(
            segment,
            block=block,
            shard=flight.shard,
            store=self._store,
            key=key,
            created_by=self._node,
            created_at_ns=self._clock.wall_ns(),
        )
        if not await self._ask_registrar(flight, self._registrar.add, meta):
            key, body = (
                keys.dead_letter(incarnation=now.incarnation, block=block),
                dead_letter.encode(meta),
            )
            await self._retry(flight, self._uploads.create, key, body, flight.running)
            self._metrics.dead_letters.inc()
            log.warning("dead letter written block=%s cause=%s", block, flight.trouble)
        return meta

    async def _encode(self, flight: Flight) -> SegmentBytes | None:
        """In a thread; afterwards the profiles are in the segment's bytes alone."""
        segment, flight.failed = await self._encoders.do(
            encode_profiles, flight.profiles, self._zone
        )
        flight.profiles = []
        for name, error in flight.failed.items():
            self._metrics.datasets_failed.inc()
            log.warning(
                "dataset not written tenant=%s service=%r cause=%s",
                name.tenant,
                name.service,
                error,
            )
        return segment

    def _known_time(self, flight: Flight) -> Now:
        """The log's time without the metastore, if it was heard lately enough."""
        assert self._letters is not None
        known = self._registrar.recent_now(within_ns=self._letters.naming_ns)
        if known is None:
            raise Unavailable(
                f"the metastore does not answer ({flight.trouble}), and has not answered for so "
                "long that not even a dead letter can be written; send it again"
            )
        return known

    async def _ask_registrar(
        self, flight: Flight, step: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T | None:
        """A step that needs the metastore; None: it took too long, and dead letters are on.

        All such steps of a flight share one patience, so that time is left for the letter.
        """
        if self._letters is None:
            return await self._retry(flight, step, *args, **kwargs)
        left_ns = self._letters.after_ns - flight.metastore_ns
        if left_ns <= 0:
            return None
        began_ns = self._clock.monotonic_ns()
        try:
            async with asyncio.timeout(left_ns / 1e9):
                reply = await self._retry(flight, step, *args, **kwargs)
        except TimeoutError:
            flight.trouble = flight.trouble or "the metastore did not answer in time"
            flight.metastore_ns = self._letters.after_ns
            return None
        flight.metastore_ns += self._clock.monotonic_ns() - began_ns
        return reply

    async def _retry(
        self, flight: Flight, step: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Repeat a step while it may still succeed; the flight's deadline ends it."""
        backoff_s = BACKOFF_S_FIRST
        while True:
            try:
                return await step(*args, **kwargs)
            except (StoreFull, SegmentRefused):
                raise  # a retry within seconds would not help
            except Retryable as error:
                flight.trouble = str(error)
                self._metrics.retries.inc()
            await asyncio.sleep(backoff_s * (1 - self._random.random() / 4))
            backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)
