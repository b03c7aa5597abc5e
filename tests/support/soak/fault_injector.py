"""What is done to whom, and when it is undone: chosen by chance, carried out by kill."""

from __future__ import annotations

import heapq
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import NamedTuple

from support.soak.processes import Cast


class Torment(NamedTuple):
    weight: int
    whom: Callable[[Cast], list[int]]
    how: signal.Signals


TORMENTS = {
    "kill worker": Torment(10, Cast.workers, signal.SIGKILL),
    "kill task": Torment(8, Cast.tasks, signal.SIGKILL),
    "kill metastore": Torment(1, Cast.metastores, signal.SIGKILL),
    "kill spark": Torment(1, Cast.sparks, signal.SIGKILL),
    "restart worker": Torment(4, Cast.workers, signal.SIGTERM),
    "restart metastore": Torment(1, Cast.metastores, signal.SIGTERM),
    "stop worker": Torment(10, Cast.workers, signal.SIGSTOP),
    "stop task": Torment(4, Cast.tasks, signal.SIGSTOP),
    "stop metastore": Torment(1, Cast.metastores, signal.SIGSTOP),
    "stop spark": Torment(1, Cast.sparks, signal.SIGSTOP),
}


class Tormentor:
    """Makes trouble for a time, and then takes back what can be taken back."""

    def __init__(self, cast: Cast, random: Random, *, lease_s: float) -> None:
        self.done: Counter[str] = Counter()
        self._cast = cast
        self._random = random
        self._lease_s = lease_s
        self._wake: list[tuple[float, int]] = []  # stopped processes, by when they go on

    def torment(self, seconds: float, *, meanwhile: Callable[[], None]) -> None:
        """The duration bounds the torment, whatever the machine can do in it."""
        weights = [torment.weight for torment in TORMENTS.values()]
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            (name,) = self._random.choices(list(TORMENTS), weights)
            self.done[name] += self._hit(TORMENTS[name])
            pause_until = time.monotonic() + self._random.uniform(0.3, 1.5)
            while time.monotonic() < pause_until:
                self._wake_due(time.monotonic())
                self._cast.revive()
                meanwhile()
                time.sleep(0.05)
        self._wake_due(float("inf"))

    def _hit(self, torment: Torment) -> int:
        """Somebody, if there is one who is not stopped; how many were hit."""
        stopped = {pid for _, pid in self._wake}
        pids = [pid for pid in torment.whom(self._cast) if pid not in stopped]
        if not pids:
            return 0
        pid = self._random.choice(pids)
        if torment.how is signal.SIGSTOP:  # for longer than a lease
            until = time.monotonic() + self._lease_s * self._random.uniform(1.2, 2.2)
            heapq.heappush(self._wake, (until, pid))
        _send(pid, torment.how)
        return 1

    def _wake_due(self, now: float) -> None:
        while self._wake and self._wake[0][0] <= now:
            _send(heapq.heappop(self._wake)[1], signal.SIGCONT)


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
