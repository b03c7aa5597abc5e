"""`maar worker` on a standalone cluster, started as docs/spark.md tells, and what is done to it."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq

from maar.adapters.rpc import MetastoreClient
from maar.adapters.stores.open import open_store
from maar.app.processes.watcher import session_members
from maar.model.block import Kind
from maar.model.errors import Retryable
from maar.ports.metastore.log_time import GetNow
from maar.ports.operator.operator import GetStatus, ListBlocks, Status
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from maar.ports.writer.registrar import AddBlocks
from support.processes.serving import processes
from support.spark.cluster import QUICK_JVM, Cluster, cluster, until
from support.spark.plans import alive, parent, profile, segment

DOC = Path(__file__).parents[3] / "docs" / "spark.md"
LIMIT = 100_000
SETTLED_S = 400.0
SETTINGS = (
    "compaction.level_counts=20,5,5",
    "compaction.backlog_count=0",  # many plans, so that a fault meets some
    "compaction.level_ages_s=0.5,1,2",
    "services.compact.lease_s=5",
    "compaction.retry_s=0.1",
    "retention.default_days=0",
)
CONF = (
    "spark.driver.host=127.0.0.1",
    "spark.driver.bindAddress=127.0.0.1",
    f"spark.executor.extraJavaOptions={QUICK_JVM}",
    # An executor that is silent for so long is lost; the default is two minutes.
    "spark.executor.heartbeatInterval=1s",
    "spark.storage.blockManagerHeartbeatTimeoutMs=15000",
    "spark.network.timeoutInterval=1s",
)


def commands() -> list[list[str]]:
    """What the page tells to type."""
    blocks = re.findall(r"```sh\n(.*?)```", DOC.read_text(), re.DOTALL)
    return [shlex.split(block.replace("\\\n", " ")) for block in blocks]


def below(pid: int, ancestor: int) -> bool:
    try:
        while pid not in (0, 1):
            pid = parent(pid)
            if pid == ancestor:
                return True
    except OSError:
        pass  # it ended while we looked
    return False


class Process:
    """A command of maar in a session of its own; its log is kept for failures."""

    def __init__(self, directory: Path, name: str, *arguments: str) -> None:
        self._log = directory / f"{name}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "maar.cli.main", *arguments],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def descendants(self, words: str) -> list[int]:
        """Processes below it whose command line has these words."""
        return [
            pid for pid, command in processes().items() if words in command and self._above(pid)
        ]

    def stop(self) -> int:
        """In order; whatever is left of it is killed."""
        everyone = [pid for pid in processes() if self._above(pid)]
        self.process.terminate()
        try:
            return self.process.wait(120)
        finally:
            for pid in {*everyone, *session_members(self.process.pid)}:
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)
            self.process.kill()
            self.process.wait()

    def _above(self, pid: int) -> bool:
        return pid == self.process.pid or below(pid, self.process.pid)


class Lake:
    """A metastore, a store, a cluster without maar, and a worker on it."""

    def __init__(self, directory: Path, spark: Cluster) -> None:
        self.directory = directory
        self.spark = spark
        self.address = f"unix:{directory}/m"
        self.store: ObjectStore = open_store(StoreSettings("main", (directory / "store").as_uri()))
        self._pushed = 0
        self._loop = asyncio.Runner()
        self._client: MetastoreClient | None = None
        self.metastore = Process(
            directory,
            "metastore",
            *("serve", "--roles", "metastore", "--data", str(directory / "data")),
            *("--listen", "127.0.0.1:0"),
            *("--store", self.store.settings().url, "--set", f"roles.metastore={self.address}"),
            *(text for setting in SETTINGS for text in ("--set", setting)),
        )
        self.worker: Process | None = None

    def start_worker(self, *, packed: bool) -> Process:
        """By the commands of the page, with this lake's addresses; or on this test's Python."""
        pack, worker = commands()
        if packed:
            packing = Process(self.directory, "pack", *pack[1:])
            assert packing.process.wait(240) == 0, packing.log()
        given = {
            "METASTORE:4041": self.address,
            "s3://bucket/prefix": self.store.settings().url,
            "spark://MASTER:7077": self.spark.url,
        }
        arguments = [given.get(word, word) for word in worker[1:]]
        place = next(i for i, word in enumerate(arguments) if word.startswith("spark.conf="))
        conf = msgspec.json.decode(arguments[place].removeprefix("spark.conf="))
        more = ["worker.poll_interval_ms=200", "worker.fault_max_ms=1000"]
        if packed:  # a gigabyte, which each executor unpacks: one of them shows that it can
            conf.append("spark.cores.max=1")
        else:  # later settings win
            conf = [each for each in conf if not each.startswith("spark.archives=")]
            more.append(f"spark.python={sys.executable}")
        arguments[place] = "spark.conf=" + msgspec.json.encode([*conf, *CONF]).decode()
        self.status()  # the metastore answers
        self.worker = Process(
            self.directory,
            "worker",
            *arguments,
            *(text for setting in more for text in ("--set", setting)),
        )
        return self.worker

    def wipe(self) -> None:
        """What was packed, and what the executors have unpacked: gigabytes."""
        (self.directory / "maar-spark.tar.gz").unlink(missing_ok=True)
        for application in self.directory.glob("work-*/app-*"):
            shutil.rmtree(application, ignore_errors=True)

    def push(self, count: int) -> None:
        """Segments in the store, then in the index."""

        async def add(client: MetastoreClient) -> None:
            now = await client.call(GetNow())
            metas = tuple(
                segment(self.store, number, at=now.lease_time, incarnation=now.incarnation)
                for number in range(self._pushed, self._pushed + count)
            )
            for start in range(0, count, 100):
                reply = await client.call(AddBlocks(metas[start : start + 100]))
                assert set(reply.refusals) == {""}

        self._ask(add)
        self._pushed += count

    def status(self) -> Status:
        async def status(client: MetastoreClient) -> Status:
            return await client.call(GetStatus())

        found: Status = self._ask(status)
        return found

    def wait_completed(self, plans: int) -> None:
        """Wait until so many have been completed in all."""
        assert self.worker is not None
        until(lambda: self.status().completed >= plans, self.worker.log, patience_s=SETTLED_S)

    def wait_settled(self) -> None:
        """Wait until all segments are compacted, and see every profile exactly once."""
        assert self.worker is not None

        def is_done() -> bool:
            assert self.worker is not None
            assert self.worker.process.poll() is None, self.worker.log()
            status = self.status()
            waiting = sum(status.plans.get(state, 0) for state in ("requested", "inflight"))
            segments = sum(level.blocks for level in status.levels if level.level == 0)
            return segments == 0 and waiting == 0 and status.running == 0

        until(is_done, self.worker.log, patience_s=SETTLED_S, pause_s=0.3)
        expected = sorted(profile(number).id for number in range(self._pushed))
        assert sorted(self._profile_ids()) == expected

    def _profile_ids(self) -> Iterator[bytes]:
        async def blocks(client: MetastoreClient) -> Any:
            return await client.call(ListBlocks(limit=LIMIT))

        for block in self._ask(blocks):
            assert block.kind is Kind.BLOCK, block
            key = next(file for file in block.files if file.table == "profiles").locations[0].key
            with self.store.open(key) as file:
                yield from pq.read_table(file, columns=["profile_id"])["profile_id"].to_pylist()

    def _ask(self, question: Callable[[MetastoreClient], Any]) -> Any:
        """Of the metastore, again while it does not answer: the machine may be busy."""

        async def ask() -> Any:
            if self._client is None:
                self._client = MetastoreClient(self.address)
            return await question(self._client)

        def answer() -> Any:
            try:
                return (self._loop.run(ask()),)
            except Retryable:
                return None

        return until(answer, self.metastore.log)[0]

    def close(self) -> None:
        async def close() -> None:
            if self._client is not None:
                await self._client.close()

        self._loop.run(close())
        self._loop.close()
        for process in filter(None, (self.worker, self.metastore)):
            process.stop()

    def driver(self) -> int:
        """The worker's own process, once it has one."""
        return self._of_worker("maar.app.processes.child")

    def jvm(self) -> int:
        return self._of_worker("SparkSubmit")

    def _of_worker(self, words: str) -> int:
        worker = self.worker
        assert worker is not None
        return int(until(lambda: worker.descendants(words), worker.log)[0])


def _executors(lake: Lake) -> list[int]:
    found: list[int] = until(lambda: list(lake.spark.executors()))
    return found


def kill_executor(lake: Lake) -> None:
    os.kill(_executors(lake)[0], signal.SIGKILL)


def kill_host(lake: Lake) -> None:
    next(worker for worker in lake.spark.workers if worker.running).kill()
    lake.spark.add_worker()


def freeze_executor(lake: Lake) -> None:
    """Nothing is lost without it, and it brings nothing twice when it thaws."""
    jvm = _executors(lake)[0]
    frozen = [jvm, *(pid for pid in session_members(os.getsid(jvm)) if below(pid, jvm))]
    signal_all(signal.SIGSTOP, *frozen)
    try:
        lake.wait_settled()
    finally:
        signal_all(signal.SIGCONT, *frozen)
    until(lambda: not any(map(alive, frozen)))


def kill_jvm(lake: Lake) -> None:
    os.kill(lake.jvm(), signal.SIGKILL)


def kill_driver(lake: Lake) -> None:
    os.kill(lake.driver(), signal.SIGKILL)


FAULTS: dict[str, Callable[[Lake], None]] = {
    "executor killed": kill_executor,
    "host killed": kill_host,
    "executor frozen": freeze_executor,
    "JVM killed": kill_jvm,
    "driver killed": kill_driver,
}


def inject(lake: Lake, name: str, *, segments: int) -> None:
    """A fault while plans run on the cluster."""
    before = lake.status().completed
    lake.push(segments)
    lake.wait_completed(before + 1)
    FAULTS[name](lake)


def signal_all(number: int, *pids: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@contextmanager
def fleet(directory: Path) -> Iterator[Lake]:
    """A cluster of two hosts and a metastore; whoever takes it starts a worker."""
    with cluster(directory, workers=2, cores=1) as spark:
        lake = Lake(directory, spark)
        try:
            yield lake
        finally:
            lake.close()
            lake.wipe()
