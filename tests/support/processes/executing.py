"""Processes that execute one plan each, or clean: the real worker, without Spark.

`python -m support.processes.executing SOCKET PARENT` has everything loaded, and forks one for each
order: to start, kill and ask many costs little. If a file `hold` is named, a plan is held after it
has written everything, and a cleaning before it looks for what was left, until that file exists;
that it has come so far is told by the file hold.reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import NoReturn

import msgspec
from prometheus_client import CollectorRegistry

from maar.adapters.rpc import MetastoreClient
from maar.adapters.stores.local import LocalStore
from maar.adapters.stores.open import open_store
from maar.adapters.system_clock import SystemClock
from maar.app.processes.process import die_with
from maar.block.decode import to_tables
from maar.model.errors import MaarError
from maar.model.ids import MAIN_STORE, PlanId, WorkerId
from maar.model.plan import LeasedPlan, PlanKind, PlanResult
from maar.ports.plans.board import SchedulePlan
from maar.ports.plans.runner import AttemptFailed, JobRunner
from maar.ports.stores.object_store import ObjectInfo, ObjectStore, StoreSettings
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


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What one of them does, where, and under which name."""

    metastore: str  # the address
    store: str  # the URL
    name: str
    plan: str = ""  # '': it cleans
    hold: str = ""


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended."""

    answer: str
    lost: bool
    accepted: bool


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


async def _run(order: Order) -> Said:
    metastore = MetastoreClient(order.metastore)
    hold = Path(order.hold) if order.hold else None
    store = open_store(StoreSettings(MAIN_STORE, order.store))
    if not order.plan and hold is not None:
        store = HeldStore(order.store, hold)
    who = WorkerId(order.name)
    undoing = Undoing(metastore, lambda: store, SystemClock(), asyncio.get_running_loop())
    plan: PlanId | None
    runner: JobRunner
    if order.plan:
        plan, runner = PlanId.parse(order.plan), PlainRunner(store, order.name, hold)
    else:
        plan, runner = (await metastore.call(SchedulePlan(CLEAN))).plan, StoreRunner(undoing, who)
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
    return Said(
        answer=seen.execution.answer if seen.execution else "",
        lost=seen.lost,
        accepted=bool(seen.outcome and seen.outcome.accepted),
    )


# ── the process that forks them ────────────────────────────────────────────────────────────────


def main() -> None:
    path, parent = sys.argv[1], int(sys.argv[2])
    die_with(parent)
    to_tables.warm()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the dead
    forks = os.getpid()
    with Listener(path, family="AF_UNIX", backlog=64) as listener:
        while True:
            connection = listener.accept()
            if os.fork() == 0:
                _live(connection, forks)
            connection.close()


def _live(connection: Connection, forks: int) -> NoReturn:
    code = 1
    try:
        die_with(forks)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        order = msgspec.msgpack.decode(connection.recv_bytes(), type=Order)
        connection.send_bytes(msgspec.msgpack.encode(os.getpid()))
        connection.send_bytes(msgspec.msgpack.encode(asyncio.run(_run(order))))
        code = 0
    except BaseException:  # noqa: BLE001  # the edge of the process
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # a plan that is held has a thread that nobody waits for


class Forks:
    """The process that forks them, from outside."""

    def __init__(self, directory: Path) -> None:
        self.socket = directory / "forks"
        self._log_file = directory / "forks.log"
        with self._log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(self.socket), str(os.getpid())],
                cwd=Path(__file__).parents[2],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"},
            )
        wait_for(self._is_up, PATIENCE_S, self.log)

    def _is_up(self) -> bool:
        assert self._process.poll() is None, self.log()[-4000:]
        return self.socket.exists()

    def log(self) -> str:
        return self._log_file.read_text(errors="replace")

    def close(self) -> None:
        """And with it all that it forked."""
        self._process.kill()
        self._process.wait(PATIENCE_S)


class ExecutorProcess:
    """One of them, from outside; the connection ends when it does."""

    def __init__(self, forks: Forks, order: Order) -> None:
        self._forks = forks
        self._hold = Path(order.hold)
        self._connection: Connection = Client(str(forks.socket), family="AF_UNIX")
        self._connection.send_bytes(msgspec.msgpack.encode(order))
        self._pid = msgspec.msgpack.decode(self._connection.recv_bytes(), type=int)

    def has_written(self) -> None:
        """Wait until it is held."""
        wait_for(self.is_held, PATIENCE_S)

    def is_held(self) -> bool:
        """What can be read before it was let go is its end."""
        assert not self._connection.poll(), f"it ended: {self._forks.log()[-4000:]}"
        return self._hold.with_suffix(".reached").exists()

    def let_go(self) -> None:
        self._hold.touch()

    def signal(self, number: int) -> None:
        os.kill(self._pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self._connection.poll(PATIENCE_S), "it lives"

    def next_said(self) -> Said:
        assert self._connection.poll(PATIENCE_S), "it says nothing"
        try:
            return msgspec.msgpack.decode(self._connection.recv_bytes(), type=Said)
        except EOFError:
            raise AssertionError(f"it ended: {self._forks.log()[-4000:]}") from None

    def end(self) -> None:
        """Nothing of it is left."""
        if not self._connection.poll():
            with contextlib.suppress(ProcessLookupError):
                self.kill()
        self._connection.close()


if __name__ == "__main__":
    main()
