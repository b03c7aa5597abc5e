"""A push is acknowledged when its segment is in the store and in the index; else it is refused."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from prometheus_client import CollectorRegistry

from maar.model.errors import (
    Draining,
    InvalidInput,
    MaarError,
    Overloaded,
    Retryable,
    StoreFull,
    Unavailable,
)
from maar.model.ids import HOME, Shard, StoreName, Zone
from maar.model.profile import RawProfile
from maar.model.token_bucket import Refill
from maar.ports.calls import Caller, LocalPort
from maar.ports.clock import Clock
from maar.ports.stores.object_store import ObjectStore
from maar.ports.writer.registrar import BlockRegistrar
from maar.segment.buffer import Buffer
from maar.segment.early import PutBudget, ShardSpending
from maar.segment.encode import dataset_of
from maar.segment.memory import Memory, load_of
from maar.segment.metrics import SegmentMetrics
from maar.segment.pace import Arrivals
from maar.segment.registrar import Registrar, SegmentRefused
from maar.segment.settings import SegmentSettings
from maar.segment.uploads import Uploads
from maar.segment.writing import Failed, Flight, LetterRules, Writing

log = logging.getLogger("maar.segment")

SHARDS_REMEMBERED = 1024
NO_ROOM_RETRY_S = 30.0  # freeing a disk takes a while


@dataclass(eq=False)
class _Open:
    """The segment that a shard is collecting, and those who wait for it."""

    buffer: Buffer
    done: asyncio.Future[Failed]
    timer: asyncio.TimerHandle | None = None
    timer_ns: int = 0


@dataclass(eq=False)
class _Known:
    """What is remembered of a shard from one segment to the next."""

    arrivals: Arrivals
    spending: ShardSpending
    interval_ns: int = 0


class SegmentService(LocalPort):
    """The segment writer of one node, for all its shards."""

    def __init__(
        self,
        settings: SegmentSettings,
        store: ObjectStore,
        metastore: Caller[BlockRegistrar],
        clock: Clock,
        random: Random,
        registry: CollectorRegistry,
        node: str,
        *,
        zone: Zone = HOME,
        dead_letter_after_ms: int | None = None,  # None: there are none (S20)
        registration_floor_lag_ms: int = 3_600_000,
        no_room: Callable[[], str] = lambda: "",  # on the disks that a push needs; '': there is
        shards_remembered: int = SHARDS_REMEMBERED,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._deadline_ns = settings.ack_deadline_ms * 1_000_000
        self._memory = Memory(settings)
        self._budget = PutBudget(settings)
        self._open: dict[Shard, _Open] = {}
        self._known: dict[Shard, _Known] = {}
        self._shards_remembered = shards_remembered
        self._flights: set[asyncio.Task[None]] = set()
        self._refusal = ""
        self._no_room = no_room
        self._metrics = SegmentMetrics(registry)
        self._metrics.buffered_bytes.set_function(lambda: self._memory.size)
        self._metrics.buffered_profiles.set_function(lambda: self._memory.profiles)
        self._metrics.tenants_held.set_function(lambda: self._memory.tenants)
        self._metrics.in_flight.set_function(lambda: len(self._flights))
        self._metrics.flush_interval.set_function(self._interval_s)
        self._registrar = Registrar(metastore, clock)
        self._uploads = Uploads(
            store,
            clock,
            self._metrics,
            at_once=settings.writes_in_flight_max,
            hedge_after_s=settings.hedge_after_ms / 1000,
            hedges=Refill(settings.hedges_per_s, settings.hedges_burst),
        )
        letters = None
        if dead_letter_after_ms is not None:
            # Named without the metastore, a segment must neither be ahead of the log nor below its
            # floor when it is heard of: so our own measure is good for less than the floor's lag.
            letters = LetterRules(
                dead_letter_after_ms * 10**6, registration_floor_lag_ms * 10**6 // 2
            )
        self._writing = Writing(
            node,
            zone,
            StoreName(store.settings().name),
            self._uploads,
            self._registrar,
            clock,
            random,
            self._metrics,
            letters,
        )

    async def start(self) -> None:
        """Learn the log's time; a metastore that is still away only delays the first flush."""
        try:
            await self._registrar.now()
        except Retryable as error:
            log.warning("metastore not reachable yet cause=%s", error)

    def refuse(self, why: str) -> None:
        """Accept nothing new from now on; buffered profiles are still written."""
        self._refusal = self._refusal or why

    async def stop(self) -> None:
        """Refuse what is new, write what is buffered, and return when everyone has an answer."""
        self.refuse("the segment writer is shutting down and takes no new profiles; send it again")
        for shard in list(self._open):
            self._cut(shard, "drain")
        while self._flights:
            await asyncio.wait(self._flights)
        self._writing.close()
        self._uploads.close()

    async def push(self, shard: Shard, profiles: tuple[RawProfile, ...]) -> None:
        self._admit(shard, profiles)
        waits = self._buffer(shard, profiles)
        mine = {dataset_of(profile) for profile in profiles}
        del profiles  # their payloads may go as soon as the segment is encoded
        for done in waits:
            # A client that disconnects must not fail the others of the same segment.
            failed = await asyncio.shield(done)
            for name in mine & failed.keys():
                raise failed[name]

    def _admit(self, shard: Shard, profiles: tuple[RawProfile, ...]) -> None:
        """Make room for a push, or refuse it at once, with nothing kept of it."""
        if shard < 1:
            raise InvalidInput(f"there is no shard {shard}; they count from 1", reason="shard")
        if self._refusal:
            self._metrics.refusals.labels("draining").inc()
            raise Draining(self._refusal)
        if why := self._no_room():
            self._metrics.refusals.labels("disk").inc()
            raise StoreFull(f"{why}; send it again later", retry_after_s=NO_ROOM_RETRY_S)
        if self._uploads.behind(limit_ns=self._deadline_ns // 2):
            self._metrics.refusals.labels("store").inc()
            raise Overloaded(
                "segments have waited for the store for half of their time, and a new one would "
                "not be written in the rest; the store is too slow or hangs: send it again later"
            )
        refusal = self._memory.take(load_of(profiles), now_ns=self._clock.monotonic_ns())
        if refusal is not None:
            self._metrics.refusals.labels(refusal.reason).inc()
            raise refusal.error

    def _buffer(
        self, shard: Shard, profiles: tuple[RawProfile, ...]
    ) -> list[asyncio.Future[Failed]]:
        """Into the shard's segment, or several; what their waiters have to wait for."""
        now_ns = self._clock.monotonic_ns()
        known = self._state_of(shard, now_ns)
        known.arrivals.push(now_ns)
        if known.spending.push(now_ns):
            self._metrics.fixed_cuts.inc()
        waits: dict[asyncio.Future[Failed], None] = {}
        for profile in profiles:
            segment = self._open.get(shard)
            if segment is None:
                buffer = Buffer(
                    self._settings, opened_ns=now_ns, pays=known.arrivals.on_open(now_ns)
                )
                segment = _Open(buffer, asyncio.get_running_loop().create_future())
                self._open[shard] = segment
                if known.spending.on_open(now_ns):
                    self._metrics.fixed_cuts.inc()
            segment.buffer.add(profile)
            waits[segment.done] = None
            if segment.buffer.full():
                self._cut(shard, "size")
        if (last := self._open.get(shard)) is not None and last.buffer.looks is not None:
            last.buffer.looks.push(now_ns)
            if last.buffer.opened_ns == now_ns and known.spending.is_alone:
                self._cut(shard, "early")
        self._arm(shard, now_ns)
        return list(waits)

    @property
    def shards_known(self) -> int:
        """Shards whose pace is remembered."""
        return len(self._known)

    def _state_of(self, shard: Shard, now_ns: int) -> _Known:
        known = self._known.get(shard)
        if known is None:
            if len(self._known) >= self._shards_remembered:
                self._known = {  # one that is late to be cut may seem silent
                    s: k
                    for s, k in self._known.items()
                    if s in self._open or not k.arrivals.silent(now_ns)
                }
            known = self._known[shard] = _Known(
                Arrivals(self._settings), ShardSpending(self._settings, self._budget)
            )
        return known

    def _arm(self, shard: Shard, now_ns: int) -> None:
        """Set the open segment's timer; a push that made it worth its PUT sets it earlier."""
        segment = self._open.get(shard)
        if segment is None:
            return
        due_ns = segment.buffer.due_ns
        if due_ns <= now_ns:
            self._on_due(shard)
        elif segment.timer is None or due_ns != segment.timer_ns:
            if segment.timer is not None:
                segment.timer.cancel()
            wait_s = (due_ns - now_ns) / 1e9
            segment.timer = asyncio.get_running_loop().call_later(wait_s, self._on_due, shard)
            segment.timer_ns = due_ns

    def _on_due(self, shard: Shard) -> None:
        """The open segment's interval is over, or it is time to look whether to cut it early."""
        looks = self._open[shard].buffer.looks
        # The loop's clock may be a little ahead of ours, or late by whatever it had to do.
        now_ns = max(self._clock.monotonic_ns(), self._open[shard].buffer.due_ns)
        while looks is not None and looks.next_ns <= now_ns < looks.end_ns:
            if looks.look(self._known[shard].spending):
                self._cut(shard, "early")
                return
        if looks is None or now_ns >= looks.end_ns:
            self._cut(shard, "interval")
        else:
            self._arm(shard, now_ns)

    def _cut(self, shard: Shard, cause: str) -> None:
        """Send the open segment on its way. The next one opens with the next profile."""
        segment = self._open.pop(shard)
        if segment.timer is not None:
            segment.timer.cancel()
        now_ns = self._clock.monotonic_ns()
        if cause != "drain" and (known := self._known.get(shard)) is not None:
            known.interval_ns = now_ns - segment.buffer.opened_ns
            known.spending.on_cut(early=cause == "early", full=cause == "size")
        self._metrics.cuts.labels(cause).inc()
        flight = Flight(shard, segment.buffer.profiles, segment.done, now_ns, self._clock.wall_ns())
        task = asyncio.create_task(self._write_segment(flight), name=f"segment-{shard}")
        self._flights.add(task)
        task.add_done_callback(self._flights.discard)

    def _interval_s(self) -> float:
        now_ns = self._clock.monotonic_ns()
        awake = [k.interval_ns for k in self._known.values() if not k.arrivals.silent(now_ns)]
        return sum(awake) / len(awake) / 1e9 if awake else 0.0

    async def _write_segment(self, flight: Flight) -> None:
        """Write, register, answer. Whatever happens, waiters get an answer and memory is freed."""
        failure: MaarError | None = None
        try:
            async with asyncio.timeout(self._settings.ack_deadline_ms / 1000):
                meta = await self._writing.write(flight)
            if self._age_ns(flight) > self._deadline_ns:  # the process was paused in between
                raise TimeoutError
        except TimeoutError:
            failure = Unavailable(
                f"the segment was not acknowledged within {self._settings.ack_deadline_ms} ms "
                f"({flight.trouble or 'the store or the metastore is slow'}); send it again"
            )
        except MaarError as error:
            failure = _answer(error)
        except Exception as error:  # whatever it was, waiters must get an answer
            log.exception("segment failed shard=%d", flight.shard)
            failure = _write_failure(error)
        else:
            if meta is not None:
                self._metrics.segments.inc()
                self._metrics.profiles.inc(meta.profiles)
                self._metrics.bytes.inc(meta.size)
                self._metrics.seconds.observe(self._age_ns(flight) / 1e9)
                log.debug("segment written block=%s profiles=%d", meta.id, meta.profiles)
        self._free(flight)
        if failure is None:
            flight.done.set_result(flight.failed)
            return
        self._registrar.doubt()
        self._metrics.failures.labels(type(failure).__name__.strip("_").lower()).inc()
        log.warning(
            "segment not acknowledged shard=%d profiles=%d cause=%s",
            flight.shard,
            flight.load.profiles,
            failure,
        )
        flight.done.set_exception(failure)
        flight.done.exception()  # mark it as retrieved, also when every client is gone

    def _age_ns(self, flight: Flight) -> int:
        """Since the cut, by the clock that saw more: one of them stands still in a suspended VM."""
        return max(
            self._clock.monotonic_ns() - flight.began_ns,
            self._clock.wall_ns() - flight.began_wall_ns,
        )

    def _free(self, flight: Flight) -> None:
        """Give the memory back when no thread holds the bytes any more, as one that hangs does."""
        flight.profiles = []
        left = set(flight.running)
        if not left:
            self._memory.give_back(flight.load)

        def on_end(work: asyncio.Future[None]) -> None:
            left.discard(work)
            if not left:
                self._memory.give_back(flight.load)

        for work in tuple(left):
            work.add_done_callback(on_end)


def _answer(error: MaarError) -> MaarError:
    """The error that a waiter gets, of a class that also crosses the network."""
    if isinstance(error, SegmentRefused):
        return Unavailable(str(error))
    return error if isinstance(error, Retryable) else _write_failure(error)


def _write_failure(error: Exception) -> Unavailable:
    return Unavailable(f"the segment could not be written ({error}); send it again")
