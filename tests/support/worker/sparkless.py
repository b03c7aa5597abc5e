"""A worker whose tasks are threads of its own process: the real one, but for Spark.

Run as `python -m support.worker.sparkless PARENT SECTION.NAME=VALUE…`. It starts in a second, so
that a test can kill it and start another. What Spark adds is tested with Spark.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from random import Random

from prometheus_client import CollectorRegistry

from maar.adapters.rpc import MetastoreClient
from maar.adapters.stores.open import open_store
from maar.adapters.system_clock import SystemClock
from maar.app.health.troubles import Troubles
from maar.app.processes import logs
from maar.app.processes.process import die_with
from maar.app.settings.config import Settings, load_here
from maar.background import cancel
from maar.cli.input.settings import given_settings
from maar.model.errors import LeaseLost, Retryable
from maar.model.ids import FencingToken, PlanId, WorkerId
from maar.model.plan import LeasedPlan, PlanKind, PlanResult
from maar.ports.plans.runner import AttemptFailed
from maar.ports.stores.stores import Stores
from maar.services.compact.rules import COMPACT
from maar.services.repair.rules import REPAIR
from maar.services.runs import carry_out, task_of
from maar.worker.service import Worker
from maar.worker.store_runner import Undoing

NOT_OWN = (Retryable, OSError, LeaseLost)


class ThreadRunner:
    """A JobRunner; a plan that is cancelled writes nothing more, and ends at its next write."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._cancelled: set[tuple[PlanId, FencingToken]] = set()
        self._lock = threading.Lock()

    def warm(self) -> None:
        for kind in self.kinds():
            task_of(kind).load()

    def kinds(self) -> tuple[PlanKind, ...]:
        return (COMPACT, REPAIR)

    def slots(self) -> int:
        return 2

    def run(self, plan: LeasedPlan) -> PlanResult:
        def check() -> None:
            with self._lock:
                if (plan.id, plan.token) in self._cancelled:
                    raise LeaseLost("the plan was cancelled")

        with tempfile.TemporaryDirectory(prefix="maar-task-") as scratch:
            try:
                return carry_out(
                    plan,
                    store=self._stores,
                    attempt=f"thread-{secrets.token_hex(6)}",
                    scratch=Path(scratch),
                    wall_ns=time.time_ns(),
                    guard=check,
                )
            except Exception as error:  # as of a Spark task
                at_fault = not isinstance(error, NOT_OWN)
                cause = f"{type(error).__name__}: {error}"
                raise AttemptFailed(cause, stopped=True, plan_at_fault=at_fault) from error

    def cancel(self, plan: LeasedPlan) -> None:
        with self._lock:
            self._cancelled.add((plan.id, plan.token))

    def close(self) -> None: ...


def main() -> None:
    parent, *settings = sys.argv[1:]
    die_with(int(parent))
    logs.configure(role="worker", form="text", level="info")
    given = given_settings(tuple(settings))
    asyncio.run(work(load_here(file=None, flags=given, roles_here=False)))


async def work(settings: Settings) -> None:
    metastore = MetastoreClient(settings.roles.metastore)
    troubles = Troubles()
    stores = Stores(settings.store_places(), open_store, told=troubles.note)
    runner, clock = ThreadRunner(stores), SystemClock()
    worker = Worker(
        settings.worker,
        metastore,
        runner,
        clock,
        CollectorRegistry(),
        WorkerId(f"thread-{secrets.token_hex(4)}"),
        random=Random(secrets.randbits(64)),
        undo=Undoing(metastore, lambda: stores, clock, asyncio.get_running_loop()).roll_back,
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    telling = asyncio.create_task(troubles.tell(metastore))
    await asyncio.to_thread(runner.warm)
    await worker.run()
    await cancel(telling)
    await metastore.close()


if __name__ == "__main__":
    main()
