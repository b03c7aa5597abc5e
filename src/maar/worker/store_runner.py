"""Plans that need the store and the metastore only, carried out in this process.

It is the runner of the cleaner beside the metastore's leader, and of whoever rolls back or cleans
by hand. Rollbacks that a worker finishes before it starts a plan go through here too.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TypeVar

from maar.model.errors import LeaseLost, MaarError, Rejected, Retryable, Unavailable
from maar.model.ids import FencingToken, PlanId, WorkerId
from maar.model.plan import ROLLBACK, LeasedPlan, PlanKind, PlanResult, Rollback
from maar.ports.calls import Call, Caller
from maar.ports.clock import Clock
from maar.ports.plans.board import ConfirmDeletes, PlanBoard
from maar.ports.plans.runner import AttemptFailed
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores
from maar.services.clean.rules import CLEAN
from maar.services.clean.run import Cleaned, clean
from maar.services.rollback.run import Tools, roll_back

R = TypeVar("R")

ANSWER_S = 10.0  # a metastore that has not answered by then is away


class Undoing:
    """Rollbacks, in a thread of a worker whose event loop talks to the metastore."""

    def __init__(
        self,
        board: Caller[PlanBoard],
        store: Callable[[], ObjectStore | Stores],
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._board = board
        self._store = store
        self._clock = clock
        self._loop = loop

    def ask(self, request: Call[PlanBoard, R], /) -> R:
        """A call from a thread; Unavailable when there is no answer in time."""
        asked = asyncio.run_coroutine_threadsafe(self._board.call(request), self._loop)
        try:
            return asked.result(ANSWER_S)
        except FutureTimeoutError:
            asked.cancel()
            raise Unavailable("the metastore does not answer; ask again") from None

    def tools(self, rollback: Rollback) -> Tools:
        def confirm(keys: Sequence[str]) -> Sequence[str]:
            return self.ask(ConfirmDeletes(rollback.plan, rollback.token, tuple(keys)))

        return Tools(self._store(), confirm, self._clock.monotonic_ns)

    def roll_back(self, rollback: Rollback) -> PlanResult:
        return roll_back(rollback, self.tools(rollback))


class StoreRunner:
    """A JobRunner without an engine."""

    def __init__(self, undoing: Undoing, worker: WorkerId, *, slots: int = 1) -> None:
        self._undoing = undoing
        self._worker = worker
        self._slots = slots
        self._lock = threading.Lock()
        self._cancelled: set[tuple[PlanId, FencingToken]] = set()
        self.cleaned: Cleaned | None = None  # the last cleaning, for whoever asked for it

    def warm(self) -> None:
        """There is nothing to start."""

    def kinds(self) -> tuple[PlanKind, ...]:
        return ROLLBACK, CLEAN

    def slots(self) -> int:
        return self._slots

    def run(self, plan: LeasedPlan) -> PlanResult:
        try:
            return self._run(plan)
        except Retryable as error:
            raise AttemptFailed(str(error), stopped=True, plan_at_fault=False) from error
        except LeaseLost as error:
            raise AttemptFailed(str(error), stopped=True, plan_at_fault=False) from error
        except MaarError as error:
            raise AttemptFailed(str(error), stopped=True) from error

    def _run(self, plan: LeasedPlan) -> PlanResult:
        if plan.kind == ROLLBACK:
            (rollback,) = plan.rollbacks
            return self._undoing.roll_back(rollback)
        if plan.kind != CLEAN:
            raise Rejected(f"plans of the kind {plan.kind} need Spark")
        self.cleaned = clean(
            plan,
            ask=self._undoing.ask,
            worker=self._worker,
            tools=self._undoing.tools,
            cancelled=lambda: self._is_cancelled(plan),
        )
        return self.cleaned.result

    def cancel(self, plan: LeasedPlan) -> None:
        """A rollback notices by itself: its next batch is not confirmed."""
        with self._lock:
            self._cancelled.add((plan.id, plan.token))

    def _is_cancelled(self, plan: LeasedPlan) -> bool:
        with self._lock:
            return (plan.id, plan.token) in self._cancelled

    def close(self) -> None:
        """There is nothing to end."""
