"""A standalone Spark on loopback: a master and workers, each a JVM and a session of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyspark

from maar.app.processes.watcher import session_members
from maar.runner import class_archive
from support.processes.serving import wait_for

PATIENCE_S = 120.0
HOME = Path(pyspark.__file__).parent
QUICK_JVM = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 {class_archive.options()}".strip()
_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = "Successfully registered with master"


class Daemon:
    """A master or a worker, and whatever it started: executors and their Python processes."""

    def __init__(self, log_file: Path, *command: str, env: dict[str, str]) -> None:
        self._log_file = log_file
        with log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [str(HOME / "bin" / "spark-class"), *command],
                env=env,
                cwd=log_file.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def log(self) -> str:
        return self._log_file.read_text(errors="replace")

    def says(self, pattern: str) -> re.Match[str]:
        """Wait until the log has it."""

        def find() -> re.Match[str] | None:
            assert self._process.poll() is None, self.log()
            return re.search(pattern, self.log())

        match: re.Match[str] = until(find, self.log)
        return match

    def executors(self) -> list[int]:
        """The JVMs that run tasks here."""
        return [
            pid
            for pid in session_members(self.pid)
            if pid != self.pid and b"CoarseGrainedExecutorBackend" in _command(pid)
        ]

    def kill(self) -> None:
        """kill -9 of the daemon alone; what it started is on its own then."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """End the daemon and all of its session, frozen or not, and see them gone."""

        def is_gone() -> bool:
            members = session_members(self.pid)
            for member in members:
                with suppress(ProcessLookupError):
                    os.kill(member, signal.SIGKILL)
            return not members

        self.kill()
        until(is_gone)


class Cluster:
    """A master and its workers; `url` is for --spark-master."""

    def __init__(self, directory: Path, *, cores: int = 1, memory: str = "1g") -> None:
        self._directory = directory
        self._cores = cores
        self._memory = memory
        self._workers_made = 0
        self._master = Daemon(
            directory / "master.log",
            *("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1"),
            *("--port", "0", "--webui-port", "0"),
            env=_environment(directory),
        )
        self.workers: list[Daemon] = []
        self.url = ""

    def start(self, workers: int) -> None:
        self.url = self._master.says(_MASTER_URL.pattern)[1]
        for _ in range(workers):
            self.add_worker()
        for worker in self.workers:
            worker.says(_REGISTERED)

    def add_worker(self) -> Daemon:
        number = self._workers_made
        self._workers_made += 1
        worker = Daemon(
            self._directory / f"worker-{number}.log",
            *("org.apache.spark.deploy.worker.Worker", self.url, "--host", "127.0.0.1"),
            *("--port", "0", "--webui-port", "0"),
            *("--cores", str(self._cores), "--memory", self._memory),
            *("--work-dir", str(self._directory / f"work-{number}")),
            env=_environment(self._directory),
        )
        self.workers.append(worker)
        return worker

    def executors(self) -> dict[int, Daemon]:
        """Process ids of the executors, and whose they are."""
        return {pid: worker for worker in self.workers for pid in worker.executors()}

    def end(self) -> None:
        for daemon in (*self.workers, self._master):
            daemon.end()


@contextmanager
def cluster(directory: Path, *, workers: int = 2, cores: int = 1) -> Iterator[Cluster]:
    spark = Cluster(directory, cores=cores)
    try:
        spark.start(workers)
        yield spark
    finally:
        spark.end()


def until(
    condition: Callable[[], Any],
    log: Callable[[], str] = lambda: "",
    *,
    patience_s: float = PATIENCE_S,
    pause_s: float = 0.05,
) -> Any:
    """What the condition gives once it is true."""
    found: list[Any] = []

    def is_true() -> bool:
        found[:] = [condition()]
        return bool(found[0])

    wait_for(is_true, patience_s, log, look_s=pause_s)
    return found[0]


def _environment(directory: Path) -> dict[str, str]:
    """As clean as an executor's host: nothing of this test's Python or its path."""
    (directory / "local").mkdir(exist_ok=True)
    kept = {name: os.environ[name] for name in ("JAVA_HOME", "LANG") if name in os.environ}
    return kept | {
        "PATH": f"/usr/local/bin:/usr/bin:/bin:{sys.base_prefix}/bin",
        "HOME": str(directory),
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        # A worker that is silent for so many seconds is lost to the master.
        "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_JVM} -Dspark.worker.timeout=12",
    }


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
