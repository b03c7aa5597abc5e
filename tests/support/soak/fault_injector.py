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

from support.soak.processes import Processes


class Fault(NamedTuple):
    weight: int
    whom: Callable[[Processes], list[int]]
    how: signal.Signals


FAULTS = {
    "kill worker": Fault(10, Processes.workers, signal.SIGKILL),
    "kill task": Fault(8, Processes.tasks, signal.SIGKILL),
    "kill metastore": Fault(1, Processes.metastores, signal.SIGKILL),
    "kill spark": Fault(1, Processes.sparks, signal.SIGKILL),
    "restart worker": Fault(4, Processes.workers, signal.SIGTERM),
    "restart metastore": Fault(1, Processes.metastores, signal.SIGTERM),
    "stop worker": Fault(10, Processes.workers, signal.SIGSTOP),
    "stop task": Fault(4, Processes.tasks, signal.SIGSTOP),
    "stop metastore": Fault(1, Processes.metastores, signal.SIGSTOP),
    "stop spark": Fault(1, Processes.sparks, signal.SIGSTOP),
}


class FaultInjector:
    """Makes trouble for a time, and then takes back what can be taken back."""

    def __init__(self, everyone: Processes, random: Random, *, lease_s: float) -> None:
        self.done: Counter[str] = Counter()
        self._processes = everyone
        self._random = random
        self._lease_s = lease_s
        self._wake: list[tuple[float, int]] = []  # stopped processes, by when they go on

    def inject(self, seconds: float, *, meanwhile: Callable[[], None]) -> None:
        """The duration bounds the faults, whatever the machine can do in it."""
        weights = [fault.weight for fault in FAULTS.values()]
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            (name,) = self._random.choices(list(FAULTS), weights)
            self.done[name] += self._hit(FAULTS[name])
            self._pause(meanwhile)
        self._wake_due(float("inf"))

    def inject_each(self, *, meanwhile: Callable[[], None]) -> None:
        """Every fault once, in the order of their list: no chance has a say in what is done."""
        for name, fault in FAULTS.items():
            if not name.endswith("spark"):  # its start takes longer than all the others together
                while not self.done[name]:
                    self.done[name] += self._hit(fault)
                    self._pause(meanwhile)
        while self._wake:
            self._pause(meanwhile)

    def _pause(self, meanwhile: Callable[[], None]) -> None:
        until = time.monotonic() + self._random.uniform(0.3, 1.5)
        while time.monotonic() < until:
            self._wake_due(time.monotonic())
            self._processes.revive()
            meanwhile()
            time.sleep(0.05)

    def _hit(self, fault: Fault) -> int:
        """Somebody, if there is one who is not stopped; how many were hit."""
        stopped = {pid for _, pid in self._wake}
        pids = [pid for pid in fault.whom(self._processes) if pid not in stopped]
        if not pids:
            return 0
        pid = self._random.choice(pids)
        if fault.how is signal.SIGSTOP:  # for longer than a lease
            until = time.monotonic() + self._lease_s * self._random.uniform(1.2, 2.2)
            heapq.heappush(self._wake, (until, pid))
        _send(pid, fault.how)
        return 1

    def _wake_due(self, now: float) -> None:
        while self._wake and self._wake[0][0] <= now:
            _send(heapq.heappop(self._wake)[1], signal.SIGCONT)


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
