"""A process that was busy and no longer is gives back the memory that it has freed.

Allocators keep what is freed for the next burst, which may never come; while pushes go on, giving
it back would only cost the pages anew.
"""

from __future__ import annotations

import asyncio
import logging
import time

from maar.background import Loop
from maar.runner.give_back import give_back_freed

log = logging.getLogger("maar.processes")

LOOK_S = 2.0
IDLE_SHARE = 0.2  # of a core; a process that uses less of it is idle


class Idleness:
    """Decides when to give back, from the CPU that the process has used so far."""

    def __init__(self, *, cpu_s: float, now_s: float) -> None:
        self._cpu_s = cpu_s
        self._now_s = now_s
        self._was_busy = True  # it has just started, which takes more than it needs later

    def has_begun(self, *, cpu_s: float, now_s: float) -> bool:
        """Whether it was busy before the last look, and idle since."""
        share = (cpu_s - self._cpu_s) / max(now_s - self._now_s, 1e-9)
        self._cpu_s, self._now_s = cpu_s, now_s
        was_busy, self._was_busy = self._was_busy, share >= IDLE_SHARE
        return was_busy and not self._was_busy


async def give_back_when_idle() -> None:
    """For as long as the process lives."""
    idleness = Idleness(cpu_s=time.process_time(), now_s=time.monotonic())

    async def look() -> None:
        if idleness.has_begun(cpu_s=time.process_time(), now_s=time.monotonic()):
            await asyncio.to_thread(give_back_freed)

    looking = Loop(look, failed="freed memory not given back", log=log, every_s=LOOK_S)
    await looking.run(first_after_s=LOOK_S)
