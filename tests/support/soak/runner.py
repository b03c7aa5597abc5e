"""A JobRunner whose tasks are processes of the fork server: as separate as Spark's, and cheap."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress

from maar.model.ids import FencingToken, PlanId
from maar.model.plan import LeasedPlan, PlanKind, PlanResult
from maar.ports.plans.runner import AttemptFailed
from maar.services.compact.rules import COMPACT
from support.soak.orders import Child, Done, Surroundings, Task

Key = tuple[PlanId, FencingToken]  # plans that were granted in one entry share its token


class ForkServerRunner:
    def __init__(self, around: Surroundings, *, slots: int, pause_s: float) -> None:
        self._around = around
        self._slots = slots
        self._pause_s = pause_s
        self._tasks: dict[Key, Child] = {}
        self._cancelled: set[Key] = set()
        self._lock = threading.Lock()

    def warm(self) -> None:
        """The fork server is."""

    def kinds(self) -> tuple[PlanKind, ...]:
        return (COMPACT,)

    def slots(self) -> int:
        return self._slots

    def run(self, plan: LeasedPlan) -> PlanResult:
        key = (plan.id, plan.token)
        until_ns = time.monotonic_ns() + int(self._around.write_s * 1e9)
        order = Task(self._around, plan, pause_s=self._pause_s, write_until_ns=until_ns)
        try:
            child = Child(self._around.fork_server, order)
        except (OSError, EOFError) as error:
            raise AttemptFailed(f"no task could be started: {error}", stopped=True) from error
        try:
            with self._lock:
                self._tasks[key] = child
                cancelled = key in self._cancelled
            if cancelled:
                self.cancel(plan)
            answer = child.answer()
        except (OSError, EOFError) as error:  # its connection closes when it is gone, not before
            raise AttemptFailed("the task's process died", stopped=True) from error
        finally:
            with self._lock:
                del self._tasks[key]
                self._cancelled.discard(key)
            child.close()
        if isinstance(answer, Done):
            return answer.result
        raise AttemptFailed(answer.cause, stopped=True, plan_at_fault=answer.own)

    def cancel(self, plan: LeasedPlan) -> None:
        with self._lock:
            self._cancelled.add((plan.id, plan.token))
            child = self._tasks.get((plan.id, plan.token))
            if child is not None:
                with suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)

    def close(self) -> None: ...
