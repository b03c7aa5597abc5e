"""The whole pipeline as separate processes, over etcd, S3 and a Spark of the worker's own.

Profiles are pushed, compacted and asked for while the metastore's leader is killed and, later, an
etcd member. Nobody who pushes or asks sees an error, nothing is lost, and nothing counts twice.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from maar.app.processes.watcher import session_members
from support.load.crowd import CPU
from support.network.ports import free_port
from support.processes.fleet import SMALL, Loading, totals
from support.processes.serving import Served, processes, wait_for
from support.replicas.processes import Replicas, replicas
from support.stores.s3_server import S3Server, apart

pytestmark = [pytest.mark.component, pytest.mark.long(42), pytest.mark.timeout(600)]

PATIENCE_S = 120.0
PUSHES, PLANS, ANSWERS = 20, 2, 4  # after each blow
COMPACTION = (
    "compaction.level_counts=8,4,4",
    "compaction.level_ages_s=1,3,5",
    "services.compact.lease_s=10",
)
PROFILES = ("--samples", "8", "--services", "4", "--pods", "2", "--rate", "12", "--seconds", "600")


def settings_of(s3: S3Server) -> tuple[str, ...]:
    """A bucket of its own, as the settings of every process name it."""
    store = s3.bucket()
    options = (f"store.{name}={value}" for name, value in store.options)
    return (f"store.url={store.url}", "store.allow_http=true", *options)


class Worker:
    """`maar worker`; that plans run on a cluster as well is tested in test_spark_fleet.py."""

    def __init__(self, directory: Path, metastore: str, *settings: str) -> None:
        directory.mkdir()
        self._log = directory / "worker.log"
        chosen = (*settings, "spark.driver_memory=512m", "worker.poll_interval_ms=200")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "maar.cli.main", "worker"),
                    *("--metastore", metastore, "--spark-master", "local[1]"),
                    *("--data", str(directory / "data")),
                    *(text for pair in chosen for text in ("--set", pair)),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def ready(self) -> bool:
        ended = self._process.poll()
        assert ended is None, f"it ended with {ended}\n{self.log()[-8000:]}"
        line = next((x for x in self.log().splitlines() if "maar starts" in x), "")
        if not line:
            return False
        url = line.partition("url=")[2].split()[0]
        with suppress(httpx.HTTPError):
            return (
                httpx.get(f"{url}/ready", trust_env=False, verify=False, timeout=30).status_code
                == 200
            )
        return False

    def end(self) -> None:
        mine = f"maar.app.processes.child worker {self._process.pid} "
        drivers = [pid for pid, command in processes().items() if mine in command]
        self._process.kill()
        self._process.wait()
        for pid in {each for driver in drivers for each in session_members(driver)}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Pipeline:
    """Who is there: replicas, `front` (writer, distributor, api), a query role, a worker."""

    def __init__(self, directory: Path, metastore: Replicas, store: tuple[str, ...]) -> None:
        self._directory = directory
        self._store = store
        self._query = f"127.0.0.1:{free_port()}"
        self.metastore = metastore
        self.query = self._launched("query", "query")
        writer = f"roles.segment_writer=127.0.0.1:{free_port()}"
        self.front = self._launched("front", "segment-writer,distributor,api", writer)
        self.worker: Worker | None = None

    def _launched(self, name: str, roles: str, *settings: str) -> Served:
        home = self._directory / name
        home.mkdir()
        member = Served(
            home,
            *self._store,
            f"roles.metastore={self.metastore.addresses}",
            f"roles.query={self._query}",
            *SMALL,
            "query.timeout_s=120",  # on a busy machine no query may be stopped for that
            *settings,
            roles=roles,
        )
        member.launch()
        return member

    def work(self) -> None:
        self.worker = Worker(self._directory / "worker", self.metastore.addresses, *self._store)

    def settle(self) -> None:
        self.query.settle()
        self.front.settle()
        assert self.worker is not None
        wait_for(self.worker.ready, PATIENCE_S, self.log)

    def status(self) -> Any:
        return self.front.get("/api/v1/status")

    def total(self, service: str) -> int:
        """What a query says; an error is the querier's."""
        now_ms = time.time_ns() // 1_000_000
        asked: dict[str, str | int] = {
            "profileTypeID": CPU,
            "labelSelector": f'{{service_name="{service}"}}',
            "start": now_ms - 3_600_000,
            "end": now_ms + 60_000,
        }
        url = f"{self.front.url}/api/v1/top"
        answer = httpx.get(url, params=asked, trust_env=False, verify=False, timeout=150)
        assert answer.status_code == httpx.codes.OK, answer.text
        return int(answer.json()["total"])

    def log(self) -> str:
        """The last of everyone's words."""
        worker = self.worker.log()[-3000:] if self.worker else ""
        roles = "\n".join(each.log()[-2500:] for each in (self.front, self.query))
        return f"{roles}\n── worker ──\n{worker}\n{self.metastore.log()}"

    def end(self) -> None:
        if self.worker is not None:
            self.worker.end()
        for role in (self.front, self.query):
            if role.exit_code() is None:
                role.stop(signal.SIGKILL)


@contextmanager
def pipeline(directory: Path) -> Iterator[Pipeline]:
    with ExitStack() as stack:
        store = settings_of(stack.enter_context(apart()))
        home = directory / "metastore"
        home.mkdir()
        metastore = stack.enter_context(replicas(home, *store, *COMPACTION))
        running = Pipeline(directory, metastore, store)
        stack.callback(running.end)
        running.work()
        running.settle()
        yield running


class Asking:
    """Somebody who asks all the time: what was acknowledged before must be in every answer."""

    def __init__(self, running: Pipeline, load: Loading) -> None:
        self._running = running
        self._load = load
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self.failures: list[str] = []
        self.answers = 0
        self.slowest_s = 0.0

    def _ask(self) -> None:
        while not self._enough.is_set():
            known = totals(self._load.read_acknowledged())
            for service, least in known.items():
                began = time.monotonic()
                try:
                    total = self._running.total(service)
                except (httpx.HTTPError, AssertionError) as error:
                    self.failures.append(f"{service}: {error!r}")
                    continue
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
                self.answers += 1
                if total < least:
                    self.failures.append(f"{service}: {total} after {least} were acknowledged")
            self._enough.wait(0.5)

    @contextmanager
    def all_the_time(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._enough.set()
            self._thread.join(PATIENCE_S)


def goes_on(running: Pipeline, load: Loading, asking: Asking) -> float:
    """Wait for more pushes, plans and answers; how long the next push took."""
    began = time.monotonic()
    acknowledged, completed, answers = load.count(), running.status()["completed"], asking.answers
    wait_for(lambda: load.count() > acknowledged, PATIENCE_S, running.log)
    gap_s = time.monotonic() - began
    wait_for(lambda: load.count() >= acknowledged + PUSHES, PATIENCE_S, running.log)
    wait_for(lambda: running.status()["completed"] >= completed + PLANS, PATIENCE_S, running.log)
    wait_for(lambda: asking.answers >= answers + ANSWERS, PATIENCE_S, running.log)
    return gap_s


def check_exactly_once(running: Pipeline, load: Loading) -> None:
    acknowledged = load.read_acknowledged()
    wanted = totals(acknowledged)
    assert Counter({service: running.total(service) for service in wanted}) == wanted
    known = running.status()
    stored = sum(level["profiles"] for level in known["levels"])
    assert len(acknowledged) == known["profiles_added"] - known["duplicates_removed"] == stored


def all_merged(running: Pipeline) -> bool:
    levels = {level["level"]: level["blocks"] for level in running.status()["levels"]}
    return not levels.get(0) and sum(levels.values()) > 0


def test_the_pipeline_goes_on_while_leaders_die(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with pipeline(tmp_path) as running:
        load = Loading(tmp_path, [running.front.url], *PROFILES, prefix="p")
        asking = Asking(running, load)
        try:
            with asking.all_the_time():
                goes_on(running, load, asking)
                leader = asyncio.run(running.metastore.leader())
                leader.kill()
                gap_s = goes_on(running, load, asking)
                running.metastore.launch(leader.name)
                heir = asyncio.run(running.metastore.leader())
                assert heir is not leader
                (member,) = (each for each in running.metastore.etcd.members if each.leads)
                member.kill()
                etcd_gap_s = goes_on(running, load, asking)
                member.start()
                report = load.end()
        finally:
            load.close()
        record_property("next_push_s", {"metastore": gap_s, "etcd": etcd_gap_s})
        record_property("slowest_answer_s", asking.slowest_s)
        assert not asking.failures, "\n".join((*asking.failures[:5], running.log()))
        told = (report["never_acknowledged"], report["retries"], report["refusals"])
        assert told == (0, 0, {}), f"{report['sentences']}\n{running.log()}"
        check_exactly_once(running, load)
        wait_for(lambda: all_merged(running), PATIENCE_S, running.log)
        check_exactly_once(running, load)
