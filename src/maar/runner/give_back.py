"""Memory that was freed goes back to the system, once no task has come for a while.

Allocators keep what is freed. A process that has merged large blocks would hold that much for as
long as the worker lives, in every slot. But a task that follows at once would have all its pages
made anew, which is a twentieth of the CPU that compaction takes.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

IDLE_S = 2.0


def give_back_freed() -> None:
    arrow = sys.modules.get("pyarrow")  # whoever has not loaded it, such as a driver, has none
    if arrow is not None:
        arrow.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


class GiveBackWhenIdle:
    """Of a process that carries out one task after the other."""

    def __init__(
        self,
        act: Callable[[], None] = give_back_freed,
        timer: Callable[[float, Callable[[], None]], threading.Timer] = threading.Timer,
    ) -> None:
        self._act = act
        self._timer = timer
        self._waiting: threading.Timer | None = None

    @contextmanager
    def task(self) -> Iterator[None]:
        """Around each task. What only the garbage collector frees is free when it ends."""
        if self._waiting is not None:
            self._waiting.cancel()
        try:
            yield
        finally:
            gc.collect()
            self._waiting = self._timer(IDLE_S, self._act)
            self._waiting.daemon = True
            self._waiting.start()
