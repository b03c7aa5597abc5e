"""Creates in the store: a bounded number at once, a slow one hedged, a store that lags noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from maar.background import Threads
from maar.model.errors import AlreadyExists
from maar.model.token_bucket import Refill, TokenBucket
from maar.ports.clock import Clock
from maar.ports.stores.object_store import ObjectStore
from maar.segment.metrics import SegmentMetrics

USUAL_SHARE = 0.2  # of the newest in the mean of what creates take

T = TypeVar("T")
Running = set[asyncio.Future[None]]  # creates that a thread is still at, and their bytes with it


class Uploads:
    """The threads in which one writer talks to its store."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        metrics: SegmentMetrics,
        *,
        at_once: int,
        hedge_after_s: float,
        hedges: Refill,
    ) -> None:
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._at_once = at_once
        self._hedge_after_s = hedge_after_s
        self._hedges, self._hedging = TokenBucket(clock.monotonic_ns()), hedges
        self._slots = asyncio.Semaphore(at_once)
        self._seconds = 0  # hedges that a thread is at
        self._waiting: dict[object, int] = {}  # since when, oldest first
        self._began: dict[asyncio.Future[None], int] = {}  # first tries, by their begin
        self._usual_ns = 0.0  # that a create takes
        self._threads = Threads(2 * at_once, "upload")

    async def create(self, key: str, body: bytes, running: Running) -> None:
        """Returns when the object is in the store. `running` has what may outlive this call.

        May be repeated: the key is ours alone by 64 random bits, so that whatever has its size is
        what an earlier or a parallel try has written. It is one object, and leaves nothing behind.
        """
        place = object()
        self._waiting[place] = self._clock.monotonic_ns()
        try:
            await self._slots.acquire()
        finally:
            del self._waiting[place]

        def second() -> asyncio.Future[None] | None:
            now_ns = self._clock.monotonic_ns()
            if self._seconds >= self._at_once:
                return None
            if not self._hedges.take(1, self._hedging, now_ns=now_ns):
                return None
            self._metrics.hedges.inc()
            self._seconds += 1
            work = self._start(key, body, running)
            work.add_done_callback(self._second_ended)
            return work

        first = self._start(key, body, running)
        self._began[first] = self._clock.monotonic_ns()
        first.add_done_callback(self._first_ended)
        _, won = await hedge(first, second, after_s=self._hedge_after_s)
        if won:
            self._metrics.hedge_wins.inc()

    def behind(self, *, limit_ns: int) -> bool:
        """Whether one more would wait so long: those before it have, or will, or all are stuck."""
        now_ns = self._clock.monotonic_ns()
        waits = next(iter(self._waiting.values()), now_ns)
        stuck = max(self._began.values()) if len(self._began) >= self._at_once else now_ns
        expected_ns = len(self._waiting) * self._usual_ns / self._at_once
        return max(now_ns - min(waits, stuck), expected_ns) > limit_ns

    def close(self) -> None:
        self._threads.close()

    def _start(self, key: str, body: bytes, running: Running) -> asyncio.Future[None]:
        """In a thread. It is counted until the thread ends, not until nobody waits for it."""
        self._metrics.puts.inc()
        work = self._threads.start(self._create, key, body)
        running.add(work)
        work.add_done_callback(running.discard)
        return work

    def _first_ended(self, work: asyncio.Future[None]) -> None:
        took_ns = self._clock.monotonic_ns() - self._began.pop(work)
        self._usual_ns += USUAL_SHARE * (took_ns - self._usual_ns)
        self._slots.release()

    def _second_ended(self, _: asyncio.Future[None]) -> None:
        self._seconds -= 1

    def _create(self, key: str, body: bytes) -> None:
        try:
            self._store.create(key, body)
        except AlreadyExists:
            if self._store.size(key) != len(body):
                raise


async def hedge(
    first: Awaitable[T],
    second: Callable[[], Awaitable[T] | None],
    *,
    after_s: float,
) -> tuple[T, bool]:
    """The result, and whether it is the second's. Fails as the first did, once both have failed.

    `second` gives None when it may not be tried now. What loses goes on by itself, unheard.
    """
    tries = [asyncio.ensure_future(first)]
    try:
        await asyncio.wait(tries, timeout=after_s)
        if not tries[0].done() and (other := second()) is not None:
            tries.append(asyncio.ensure_future(other))
        waiting = set(tries)
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                if each.exception() is None:
                    return each.result(), each is not tries[0]
        return tries[0].result(), False
    finally:
        for each in tries:
            each.add_done_callback(_ignore_failure)


def _ignore_failure(attempt: asyncio.Future[T]) -> None:
    """Ignore its failure: the other try counts."""
    if not attempt.cancelled():
        attempt.exception()
