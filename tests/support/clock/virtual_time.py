"""An event loop whose clock stands still while there is something to do.

When all tasks wait, time jumps to the first timer: an hour of waiting takes no time, and a machine
that is slow makes nobody late. While threads are at work for the loop, time passes as it does
outside, since nobody can know what they wait for.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    """Waits as long as it has to, and tells how long that was in virtual time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.threads = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        if self.threads or timeout is None:
            began = time.monotonic()
            ready = super().select(timeout)
            self.now += time.monotonic() - began
            return list(ready)
        ready = super().select(0)
        if not ready:
            self.now += max(0.0, timeout)
        return list(ready)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        work = super().run_in_executor(executor, func, *args)
        self._jumping.threads += 1
        work.add_done_callback(self._back)
        return work

    def _back(self, _work: asyncio.Future[Any]) -> None:
        self._jumping.threads -= 1


class LoopClock:
    """The clock of the loop that runs; before there is one, time has not begun."""

    def __init__(self, wall_ns: int = 1_794_000_000_000_000_000) -> None:
        self._wall_ns = wall_ns

    def monotonic_ns(self) -> int:
        try:
            return int(asyncio.get_running_loop().time() * 1e9)
        except RuntimeError:
            return 0

    def wall_ns(self) -> int:
        return self._wall_ns + self.monotonic_ns()


def run_virtually(task: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(task)
