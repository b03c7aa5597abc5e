"""A process that executes one plan, or cleans: the real worker, without Spark.

`python -m support.processes.executing ADDRESS STORE NAME execute PLAN [HOLD]`, or `… clean [HOLD]`.
If a file HOLD is named, a plan is held after it has written everything, and a cleaning before it
looks for what was left, until that file exists; that it has come so far is told by HOLD.reached.
The last line that it says is a JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from maar.adapters.rpc import MetastoreClient
from maar.adapters.stores.local import LocalStore
from maar.adapters.stores.open import open_store
from maar.adapters.system_clock import SystemClock
from maar.model.errors import MaarError
from maar.model.ids import MAIN_STORE, PlanId, WorkerId
from maar.model.plan import LeasedPlan, PlanKind, PlanResult
from maar.ports.object_store import ObjectInfo, ObjectStore, StoreSettings
from maar.ports.plan_board import SchedulePlan
from maar.ports.runner import AttemptFailed, JobRunner
from maar.services.clean.rules import CLEAN
from maar.services.kinds import KINDS
from maar.services.publish import always
from maar.services.runs import task_of
from maar.worker.service import Worker
from maar.worker.settings import WorkerSettings
from maar.worker.store_runner import StoreRunner, Undoing
from support.processes.serving import wait_for

SETTINGS = WorkerSettings(poll_interval_ms=100, call_timeout_ms=5000, drain_ms=5000)
PATIENCE_S = 90.0


class HeldStore(LocalStore):
    """Whoever looks for what an attempt left is held before it sees it."""

    def __init__(self, url: str, hold: Path) -> None:
        settings = StoreSettings(MAIN_STORE, url)
        store = open_store(settings)
        assert isinstance(store, LocalStore)
        super().__init__(store.root, settings)
        self._hold = hold

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        _hold_here(self._hold)
        return super().list(prefix)


def _hold_here(hold: Path) -> None:
    hold.with_suffix(".reached").touch()
    wait_for(hold.exists, PATIENCE_S)


class PlainRunner:
    """Carries plans out in the calling thread."""

    def __init__(self, store: ObjectStore, name: str, hold: Path | None) -> None:
        self._store = store
        self._name = name
        self._hold = hold

    def warm(self) -> None:
        """What a plan needs is loaded when it runs: most of these processes are given none."""

    def kinds(self) -> tuple[PlanKind, ...]:
        return KINDS.on_engine()

    def slots(self) -> int:
        return 1

    def run(self, plan: LeasedPlan) -> PlanResult:
        try:
            with tempfile.TemporaryDirectory() as scratch:
                made = task_of(plan.kind).run(
                    plan,
                    store=self._store,
                    attempt=f"0-1-{self._name}",
                    scratch=Path(scratch),
                    wall_ns=time.time_ns(),
                    guard=always,
                )
        except MaarError as error:
            raise AttemptFailed(str(error), stopped=True) from error
        if self._hold is not None:
            _hold_here(self._hold)
        return made

    def cancel(self, plan: LeasedPlan) -> None:
        """It cannot be reached: a zombie goes on."""

    def close(self) -> None: ...


async def _run(address: str, url: str, name: str, plan: PlanId | None, hold: Path | None) -> None:
    metastore = MetastoreClient(address)
    store = open_store(StoreSettings(MAIN_STORE, url))
    if plan is None and hold is not None:
        store = HeldStore(url, hold)
    who = WorkerId(name)
    undoing = Undoing(metastore, lambda: store, SystemClock(), asyncio.get_running_loop())
    runner: JobRunner = PlainRunner(store, name, hold)
    if plan is None:
        runner = StoreRunner(undoing, who)
        plan = (await metastore.call(SchedulePlan(CLEAN))).plan
    worker = Worker(
        SETTINGS,
        metastore,
        runner,
        SystemClock(),
        CollectorRegistry(),
        who,
        undo=undoing.roll_back,
        execute=plan,
    )
    await worker.run()
    await metastore.close()
    seen = worker.executed
    said = {
        "answer": seen.execution.answer if seen.execution else "",
        "lost": seen.lost,
        "accepted": bool(seen.outcome and seen.outcome.accepted),
    }
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a plan that is held has a thread that nobody waits for


class ExecutorProcess:
    """One of them, from outside."""

    def __init__(
        self,
        address: str,
        store: str,
        name: str,
        plan: PlanId | None = None,
        hold: Path | None = None,
    ) -> None:
        what = ["clean"] if plan is None else ["execute", str(plan)]
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "support.processes.executing", address, store, name),
                *(*what, *([str(hold)] if hold else [])),
            ],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._hold = hold

    def has_written(self) -> None:
        """Wait until it is held."""
        wait_for(self.is_held, PATIENCE_S)

    def is_held(self) -> bool:
        assert self._hold is not None
        code = self._process.poll()
        assert code is None, f"it ended with {code}: {self._process.communicate()[1][-4000:]}"
        return self._hold.with_suffix(".reached").exists()

    def let_go(self) -> None:
        assert self._hold is not None
        self._hold.touch()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def said(self) -> dict[str, Any]:
        out, err = self._process.communicate(timeout=PATIENCE_S)
        assert self._process.returncode == 0, err[-4000:]
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    def end(self) -> None:
        """Nothing of it is left: one that nobody listened to has pipes that are still open."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


if __name__ == "__main__":
    given = sys.argv[1:]
    executes = given[3] == "execute"
    target = PlanId.parse(given[4]) if executes else None
    rest = given[4 + executes :]
    asyncio.run(_run(given[0], given[1], given[2], target, Path(rest[0]) if rest else None))
