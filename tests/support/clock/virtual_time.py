"""An event loop whose clock stands still while there is something to do.

When all tasks wait, time jumps to the first timer: an hour of waiting takes no time, and a machine
that is slow makes nobody late. While threads are at work for the loop, time stands still too,
however long they take. A thread that waits for the story itself has to wait at a `Gate`: it is not
at work then, and time goes on without it.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE_S = 60.0  # real ones: a gate that nobody opens is a mistake in the test
DEFAULT_THREADS = 32


class _Jumping(selectors.DefaultSelector):
    """Waits only for threads; else it tells how long it would have waited, in virtual time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._given: Counter[Executor] = Counter()  # that have not ended
        self._resting: Counter[Executor] = Counter()  # of those
        self._lock = threading.Lock()

    def count(self, executor: Executor, *, given: int = 0, resting: int = 0) -> None:
        with self._lock:
            self._given[executor] += given
            self._resting[executor] += resting

    @property
    def _at_work(self) -> bool:
        """What waits for a thread that rests cannot go on before that one does."""
        with self._lock:
            return any(
                min(given, _threads_of(executor)) > self._resting[executor]
                for executor, given in self._given.items()
            )

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if ready:
            return list(ready)
        if timeout is None or (timeout > 0 and self._at_work):
            return list(super().select(None))  # whatever a thread does next wakes the loop
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)
        self._threads = ThreadPoolExecutor(DEFAULT_THREADS, thread_name_prefix="virtual")
        self.set_default_executor(self._threads)

    def time(self) -> float:
        return self._jumping.now

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        threads = executor or self._threads

        def run_here() -> T:
            _thread.works_for = self, threads
            return func(*args)

        self._jumping.count(threads, given=1)
        work = threads.submit(run_here)
        made = asyncio.wrap_future(work, loop=self)
        # Counted until the thread itself ends, and its result has been handed over before.
        work.add_done_callback(lambda _: self._tell(threads, given=-1))
        return made

    def rests(self, threads: Executor) -> None:
        self._tell(threads, resting=1)

    def goes_on(self, threads: Executor) -> None:
        self._jumping.count(threads, resting=-1)

    def _tell(self, threads: Executor, **change: int) -> None:
        """By the loop itself, which may be waiting for just this."""
        with suppress(RuntimeError):  # the loop is closed
            self.call_soon_threadsafe(partial(self._jumping.count, threads, **change))


def _threads_of(executor: Executor) -> int:
    return getattr(executor, "_max_workers", 1)


class _Thread(threading.local):
    works_for: tuple[VirtualLoop, Executor] | None = None


_thread = _Thread()


class Gate:
    """Keeps threads until it is opened; those that wait here are not at work."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._waiting: list[tuple[VirtualLoop, Executor]] = []
        self._lock = threading.Lock()

    def is_set(self) -> bool:
        return self._open.is_set()

    def set(self) -> None:
        with self._lock:
            for loop, threads in self._waiting:
                loop.goes_on(threads)
            self._waiting.clear()
            self._open.set()

    def clear(self) -> None:
        self._open.clear()

    def wait(self) -> None:
        with self._lock:
            if self._open.is_set():
                return
            if _thread.works_for is not None:
                loop, threads = _thread.works_for
                self._waiting.append((loop, threads))
                loop.rests(threads)
        assert self._open.wait(PATIENCE_S), "nobody opened the gate"


class Meeting:
    """Lets threads through when so many have come."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._came = 0
        self._gate = Gate()
        self._lock = threading.Lock()

    def wait(self) -> None:
        with self._lock:
            gate = self._gate
            self._came += 1
            if self._came == self._number:
                self._came = 0
                self._gate = Gate()
                gate.set()
        gate.wait()


class LoopClock:
    """The clock of the loop that runs, or for which this thread works; before it, time is zero."""

    def __init__(self, wall_ns: int = 1_794_000_000_000_000_000) -> None:
        self._wall_ns = wall_ns

    def monotonic_ns(self) -> int:
        try:
            return int(asyncio.get_running_loop().time() * 1e9)
        except RuntimeError:
            return int(_thread.works_for[0].time() * 1e9) if _thread.works_for else 0

    def wall_ns(self) -> int:
        return self._wall_ns + self.monotonic_ns()


async def until(condition: Callable[[], bool], *, within_s: float = 3600) -> None:
    """Wait for something that is going to happen."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.001)


class VirtualPolicy(asyncio.DefaultEventLoopPolicy):
    """For code that makes a loop of its own: `asyncio.set_event_loop_policy`."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return VirtualLoop()


def run_virtually(task: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(task)
