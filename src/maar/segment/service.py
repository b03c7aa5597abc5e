"""A push is acknowledged when its segment is in the store and in the index; else it is refused."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

import msgspec
from prometheus_client import CollectorRegistry

from maar.block.segment import SegmentBytes, segment_meta, write_segment
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import AlreadyExists, MaarError, Retryable, StoreFull, Unavailable
from maar.model.ids import Shard, StoreName, segment_id
from maar.model.profile import RawProfile
from maar.ports.clock import Clock
from maar.ports.metastore import Metastore, Now
from maar.ports.object_store import ObjectStore
from maar.segment.buffer import Bounds, Buffer, Memory, held_bytes
from maar.segment.metrics import SegmentMetrics

log = logging.getLogger("maar.segment")

ANCHOR_AGE_NS_MAX = 10_000_000_000  # how long a reading of the log's time is extrapolated
BACKOFF_S_FIRST = 0.05
BACKOFF_S_MAX = 1.0

T = TypeVar("T")


class SegmentSettings(msgspec.Struct, frozen=True):
    flush_interval_ms: int = 500
    segment_bytes_max: int = 16 << 20
    index_bytes_max: int = 192 << 10  # well below what a log entry may hold
    buffered_bytes_max: int = 256 << 20  # beyond this, push answers 429
    writes_in_flight_max: int = 8
    ack_deadline_ms: int = 10_000  # far shorter than the lag of the floor (S4)

    def bounds(self) -> Bounds:
        return Bounds(
            flush_interval_ns=self.flush_interval_ms * 1_000_000,
            segment_bytes_max=self.segment_bytes_max,
            index_bytes_max=self.index_bytes_max,
        )


@dataclass(eq=False)
class _Open:
    """The segment that a shard is collecting, and those who wait for it."""

    buffer: Buffer
    done: asyncio.Future[None]
    timer: asyncio.TimerHandle | None = None


@dataclass(eq=False)
class _Flight:
    """A segment on its way: cut, not yet acknowledged."""

    shard: Shard
    profiles: tuple[RawProfile, ...]
    done: asyncio.Future[None]
    held: int = field(init=False)
    trouble: str = ""  # the last failure, for the answer when time runs out

    def __post_init__(self) -> None:
        self.held = sum(map(held_bytes, self.profiles))


class SegmentService:
    """The segment writer of one node, for all its shards."""

    def __init__(
        self,
        settings: SegmentSettings,
        store: ObjectStore,
        metastore: Metastore,
        clock: Clock,
        random: Random,
        registry: CollectorRegistry,
        node: str,
    ) -> None:
        self._settings = settings
        self._bounds = settings.bounds()
        self._store = store
        self._store_name = StoreName(store.settings().name)
        self._metastore = metastore
        self._clock = clock
        self._random = random
        self._node = node
        self._memory = Memory(settings.buffered_bytes_max)
        self._open: dict[Shard, _Open] = {}
        self._flights: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(settings.writes_in_flight_max)
        self._threads = ThreadPoolExecutor(
            settings.writes_in_flight_max, thread_name_prefix="segment"
        )
        self._anchor: tuple[Now, int] | None = None
        self._stopping = False
        self._metrics = SegmentMetrics(registry)
        self._metrics.buffered_bytes.set_function(lambda: self._memory.held)
        self._metrics.in_flight.set_function(lambda: len(self._flights))

    async def start(self) -> None:
        """Learn the log's time; a metastore that is still away only delays the first flush."""
        try:
            await self._now()
        except Retryable as error:
            log.warning("metastore not reachable yet cause=%s", error)

    async def stop(self) -> None:
        """Refuse what is new, write what is buffered, and return when everyone has an answer."""
        self._stopping = True
        for shard in list(self._open):
            self._cut(shard)
        while self._flights:
            await asyncio.wait(self._flights)
        self._threads.shutdown(wait=False)

    async def push(self, shard: Shard, profiles: tuple[RawProfile, ...]) -> None:
        if self._stopping:
            raise Unavailable(
                "the server is shutting down and takes no new profiles; send it again"
            )
        self._memory.take(sum(map(held_bytes, profiles)))
        loop = asyncio.get_running_loop()
        now_ns = self._clock.monotonic_ns()
        waits: list[asyncio.Future[None]] = []
        for profile in profiles:
            segment = self._opened(shard)
            segment.buffer.add(profile, now_ns=now_ns)
            if segment.timer is None:
                wait_s = (segment.buffer.due_ns - now_ns) / 1e9
                segment.timer = loop.call_later(wait_s, self._cut, shard)
            if not waits or waits[-1] is not segment.done:
                waits.append(segment.done)
            if segment.buffer.full():
                self._cut(shard)
        for done in waits:
            await asyncio.shield(done)  # a client that hangs up must not take its neighbours along

    def _opened(self, shard: Shard) -> _Open:
        segment = self._open.get(shard)
        if segment is None:
            done = asyncio.get_running_loop().create_future()
            segment = _Open(Buffer(self._bounds), done)
            self._open[shard] = segment
        return segment

    def _cut(self, shard: Shard) -> None:
        """Send the open segment on its way. The next one opens with the next profile."""
        segment = self._open.pop(shard)
        if segment.timer is not None:
            segment.timer.cancel()
        flight = _Flight(shard, segment.buffer.cut(), segment.done)
        task = asyncio.create_task(self._fly(flight), name=f"segment-{shard}")
        self._flights.add(task)
        task.add_done_callback(self._flights.discard)

    async def _fly(self, flight: _Flight) -> None:
        """Write, announce, answer. Whatever happens, the waiters hear and the memory is free."""
        began_ns = self._clock.monotonic_ns()
        failure: MaarError | None = None
        try:
            async with asyncio.timeout(self._settings.ack_deadline_ms / 1000):
                meta = await self._write(flight)
        except TimeoutError:
            failure = Unavailable(
                f"the segment was not acknowledged within {self._settings.ack_deadline_ms} ms "
                f"({flight.trouble or 'the store or the metastore is slow'}); send it again"
            )
        except MaarError as error:
            failure = error if isinstance(error, Retryable) else _given_up(error)
        except Exception as error:  # the edge of the task: whatever it was, waiters must hear
            log.exception("segment failed shard=%d", flight.shard)
            failure = _given_up(error)
        else:
            seconds = (self._clock.monotonic_ns() - began_ns) / 1e9
            self._metrics.written(meta, seconds)
            log.debug("segment written block=%s profiles=%d", meta.id, meta.profiles)
        self._memory.give_back(flight.held)
        if failure is None:
            flight.done.set_result(None)
            return
        self._anchor = None  # the log may have a new life; ask again
        self._metrics.failed(failure)
        log.warning(
            "segment not acknowledged shard=%d profiles=%d cause=%s",
            flight.shard,
            len(flight.profiles),
            failure,
        )
        flight.done.set_exception(failure)
        flight.done.exception()  # seen, also when every client has hung up

    async def _write(self, flight: _Flight) -> BlockMeta:
        written = await self._blocking(write_segment, flight.profiles)
        now = await self._retried(flight, self._now)
        block = segment_id(lease_time_ns=now.lease_time, entropy=self._random.getrandbits(64))
        key = keys.segment(shard=flight.shard, block=block, incarnation=now.incarnation)
        await self._retried(flight, lambda: self._create(key, written))
        meta = segment_meta(
            written,
            block=block,
            shard=flight.shard,
            store=self._store_name,
            key=key,
            created_by=self._node,
            created_at_ns=self._clock.wall_ns(),
        )
        await self._retried(flight, lambda: self._announce(meta))
        return meta

    async def _create(self, key: str, written: SegmentBytes) -> None:
        """Repeated under the same key, which is ours alone by 64 random bits.

        So an earlier try whose outcome nobody knew is the same object, and leaves no litter.
        """
        try:
            await self._blocking(self._store.create, key, written.body)
        except AlreadyExists:
            if await self._blocking(self._store.size, key) != len(written.body):
                raise

    async def _announce(self, meta: BlockMeta) -> None:
        reply = await self._metastore.add_blocks((meta,))
        if reply.refusals[0]:
            raise _Refused(f"the index refused the segment: {reply.refusals[0]}; send it again")

    async def _now(self) -> Now:
        """The log's time: what it said last, plus what our own monotonic clock measured since."""
        anchor = self._anchor
        if anchor is None or self._clock.monotonic_ns() - anchor[1] > ANCHOR_AGE_NS_MAX:
            asked_ns = self._clock.monotonic_ns()
            anchor = self._anchor = (await self._metastore.now(), asked_ns)
        said, at_ns = anchor
        passed_ns = self._clock.monotonic_ns() - at_ns
        return msgspec.structs.replace(said, lease_time=said.lease_time + passed_ns)

    async def _retried(self, flight: _Flight, step: Callable[[], Awaitable[T]]) -> T:
        """Repeat a step while it may still succeed; the flight's deadline ends it."""
        backoff_s = BACKOFF_S_FIRST
        while True:
            try:
                return await step()
            except (StoreFull, _Refused):
                raise  # neither heals within seconds
            except Retryable as error:
                flight.trouble = str(error)
                self._metrics.retries.inc()
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, BACKOFF_S_MAX)

    async def _blocking(self, call: Callable[..., T], *arguments: object) -> T:
        """Run in a thread. The slot is free when the thread is, not when we stop waiting for it."""
        await self._slots.acquire()
        work = asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)
        work.add_done_callback(lambda _: self._slots.release())
        return await asyncio.shield(work)


class _Refused(Unavailable):
    """The index will not take this segment; the profiles may come again in another."""


def _given_up(error: Exception) -> Unavailable:
    return Unavailable(f"the segment could not be written ({error}); send it again")
