"""Everybody who takes part: one metastore, honest workers, zombies, and a fork server for them.

All are children or grandchildren of the main thread that starts them, and die with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from maar.adapters.stores.open import open_store
from maar.app.processes.run_with_parent import command_under
from maar.app.processes.watcher import session_members
from maar.model.ids import MAIN_STORE
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from support.processes.serving import processes, wait_for
from support.soak.orders import Child, Order, Surroundings, Work, Zombie

PATIENCE_S = 120.0
LEAVING_S = 120.0  # whoever is there later than that is left
TESTS = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """How many of each, and how they behave."""

    workers: int = 4
    zombies: int = 3
    spark_workers: int = 0
    lease_s: float = 3.0
    write_s: float = 12.0
    pause_s: float = 0.5
    settings: tuple[str, ...] = ()  # of the metastore, and of Spark's workers


class Processes:
    def __init__(self, directory: Path, parts: Parts, random: Random) -> None:
        self._directory = directory
        self._parts = parts
        self._random = random
        # Sockets need short paths; and this one is in the command line of everybody.
        self._sockets = Path(tempfile.mkdtemp(prefix="maar-soak-"))
        self._log = (directory / "soak.log").open("ab")
        self._programs: dict[str, subprocess.Popen[bytes]] = {}
        self._forked: dict[str, Child] = {}
        self._wanted: dict[str, Callable[[], None]] = {}
        self.store: ObjectStore = open_store(
            StoreSettings(MAIN_STORE, (directory / "data" / "store").as_uri())
        )
        self.around = Surroundings(
            metastore=f"unix:{self._sockets}/metastore.sock",
            store=self.store.settings(),
            fork_server=str(self._sockets / "fork_server.sock"),
            scratch=str(directory / "scratch"),
            write_s=parts.write_s,
        )

    @property
    def log_database(self) -> Path:
        return self._directory / "data" / "log" / "log.db"

    def log(self) -> str:
        return (self._directory / "soak.log").read_text(errors="replace")

    def start(self) -> None:
        Path(self.around.scratch).mkdir(parents=True)
        self._program("metastore", self._metastore_command())
        here = str(os.getpid())
        self._program(
            "fork_server", ("-m", "support.soak.fork_server", self.around.fork_server, here)
        )
        wait_for(lambda: self._up("fork_server") and self._up("metastore"), PATIENCE_S, self.log)
        self._wanted["metastore"] = lambda: self._program("metastore", self._metastore_command())
        for number in range(self._parts.workers):
            self._want(f"worker{number}", lambda name: self._work(name))
        for number in range(self._parts.zombies):
            self._want(f"zombie{number}", lambda name: self._zombie(name))
        for number in range(self._parts.spark_workers):
            self._want(f"spark{number}", lambda name: self._program(name, self._spark(name)))
        self.revive()

    def revive(self) -> None:
        """Whoever is dead and wanted lives again."""
        for name, start in self._wanted.items():
            if not self._alive(name):
                start()

    def stop_zombies(self) -> None:
        """No more zombies, once each has reported what it has in hand."""
        for name in self._zombies():
            self._wanted.pop(name, None)
            self._signal(name, signal.SIGTERM)

    def zombies_alive(self) -> bool:
        return any(self._alive(name) for name in self._zombies())

    def workers(self) -> list[int]:
        """Those who are killed and stopped; zombies are a fault themselves."""
        names = [name for name in self._wanted if name.startswith("worker")]
        return [self._pid(name) for name in names if self._alive(name)]

    def sparks(self) -> list[int]:
        """The drivers of real Spark workers, which take long to start, and all that is in them."""
        return sorted(
            pid
            for name, program in self._programs.items()
            if name.startswith("spark")
            for child in _children(program.pid)
            for pid in session_members(child)
        )

    def metastores(self) -> list[int]:
        return [self._pid("metastore")] if self._alive("metastore") else []

    def tasks(self) -> list[int]:
        """What the fork server has forked and is not one of ours."""
        fork_server = self._programs["fork_server"].pid
        known = {child.pid for child in self._forked.values()}
        return sorted(
            pid for pid in self.everyone() if pid not in known and _parent(pid) == fork_server
        )

    def everyone(self) -> set[int]:
        """All processes of this run, by their command lines."""
        return {pid for pid, command in processes().items() if str(self._sockets) in command}

    def part(self) -> dict[str, int]:
        """Send everybody home in order; how each one ended."""
        self._wanted.clear()
        for name, child in self._forked.items():
            self._signal(name, signal.SIGTERM)
            wait_for(lambda child=child: not child.alive(), PATIENCE_S, self.log)  # type: ignore[misc]
            child.close()
        self._forked.clear()
        last = ("fork_server", "metastore")  # a worker that leaves has something to say
        ended = {}
        for name in [*(name for name in self._programs if name not in last), *last]:
            # The fork server knows no end of its own.
            self._signal(name, signal.SIGKILL if name == "fork_server" else signal.SIGTERM)
            ended[name] = self._programs.pop(name).wait(PATIENCE_S)
        deadline = time.monotonic() + LEAVING_S
        while self.everyone() and time.monotonic() < deadline:
            time.sleep(0.05)
        return ended

    def end(self) -> None:
        """Whatever happened: nobody stays."""
        for child in self._forked.values():
            child.close()
        for program in self._programs.values():
            with suppress(ProcessLookupError):
                program.kill()
            program.wait(PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while (left := self.everyone()) and time.monotonic() < deadline:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        shutil.rmtree(self._sockets, ignore_errors=True)
        self._log.close()

    def _up(self, name: str) -> bool:
        assert self._alive(name), self.log()[-4000:]
        return (self._sockets / f"{name}.sock").exists()

    def _zombies(self) -> list[str]:
        return [name for name in self._forked if name.startswith("zombie")]

    def _want(self, name: str, start: Callable[[str], None]) -> None:
        self._wanted[name] = lambda: start(name)

    def _work(self, name: str) -> None:
        slots = 1 + int(name.removeprefix("worker")) % 2
        self._fork(name, Work(self.around, name, slots=slots, pause_s=self._parts.pause_s))

    def _zombie(self, name: str) -> None:
        nap_s = 0.8 * self._parts.lease_s
        seed = self._random.getrandbits(32)
        self._fork(name, Zombie(self.around, name, seed=seed, nap_s=nap_s))

    def _fork(self, name: str, order: Order) -> None:
        if name in self._forked:
            self._forked[name].close()
        self._forked[name] = Child(self.around.fork_server, order)

    def _metastore_command(self) -> tuple[str, ...]:
        data = str(self._directory / "data")
        own = ("--listen", "127.0.0.1:0", "--set", f"roles.metastore={self.around.metastore}")
        serve = ("-m", "maar.cli.main", "serve", "--roles", "metastore", "--data", data, *own)
        return (*serve, *self._settings())

    def _spark(self, name: str) -> tuple[str, ...]:
        return (
            *("-m", "maar.cli.main", "worker", "--spark-master", "local[1]"),
            *("--metastore", self.around.metastore, "--store", self.around.store.url),
            *("--data", str(self._sockets / name), "--set", "spark.driver_memory=512m"),
            *self._settings(),
        )

    def _settings(self) -> list[str]:
        chosen = (f"services.compact.lease_s={self._parts.lease_s}", *self._parts.settings)
        return [text for pair in chosen for text in ("--set", pair)]

    def _program(self, name: str, arguments: tuple[str, ...]) -> None:
        if name in self._programs:
            self._programs[name].wait(PATIENCE_S)
        path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH", ""))))
        self._programs[name] = subprocess.Popen(
            command_under(os.getpid(), sys.executable, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, "PYTHONPATH": path, "GRPC_ENABLE_FORK_SUPPORT": "0"},
            start_new_session=True,
        )

    def _alive(self, name: str) -> bool:
        if name in self._programs:
            return self._programs[name].poll() is None
        return name in self._forked and self._forked[name].alive()

    def _pid(self, name: str) -> int:
        return (self._programs.get(name) or self._forked[name]).pid

    def _signal(self, name: str, number: signal.Signals) -> None:
        if self._alive(name):
            with suppress(ProcessLookupError):
                os.kill(self._pid(name), number)


def _children(parent: int) -> list[int]:
    return [pid for pid in processes() if _parent(pid) == parent]


def _parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
