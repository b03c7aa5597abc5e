"""`maar worker`, a process of its own: what it refuses, what it does, what it outlives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from maar.app.processes.watcher import session_members
from maar.cli.client import Server
from maar.cli.main import run
from maar.cli.output.failure import EXIT_USAGE
from support.load.crowd import FAST, check_exactly_once, level0, profile
from support.network.ports import free_port
from support.processes.serving import Served, living, processes, run_server, wait_for

pytestmark = [pytest.mark.component, pytest.mark.timeout(600)]

PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """All but a worker, with a metastore that can be reached from elsewhere."""
    address = f"roles.metastore=127.0.0.1:{free_port()}"
    directory = tmp_path_factory.mktemp("alone")
    with run_server(directory, *FAST, address, roles="metastore,query,front") as running:
        yield running


def metastore_of(server: Served) -> str:
    (pair,) = (pair for pair in server.settings if pair.startswith("roles.metastore="))
    return pair.partition("=")[2]


def store_of(server: Served) -> str:
    return (server.directory / "data" / "store").as_uri()


class Alone:
    """A worker by itself, and its log."""

    def __init__(self, directory: Path, server: Served) -> None:
        self.log_file = directory / "worker.log"
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "maar.cli.main", "worker"),
                    *("--metastore", metastore_of(server), "--store", store_of(server)),
                    *("--spark-master", "local[1]", "--data", str(directory / "data")),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def get(self, path: str) -> httpx.Response:
        line = next(line for line in self.log().splitlines() if "maar starts" in line)
        url = line.partition("url=")[2].split()[0]
        return httpx.get(f"{url}{path}", trust_env=False, verify=False, timeout=30)

    def ready(self) -> bool:
        ended = self.process.poll()
        assert ended is None, f"it ended with {ended}\n{self.log()[-8000:]}"
        try:
            return "maar starts" in self.log() and self.get("/ready").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False  # between two lives of its driver

    def driver(self) -> int:
        """The process that holds Spark; 0 when there is none just now."""
        mine = f"maar.app.processes.child worker {self.process.pid} "
        return next((pid for pid, command in processes().items() if mine in command), 0)


def test_a_metastore_that_is_not_there_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"127.0.0.1:{free_port()}"
    assert run(["worker", "--metastore", address, "--store", tmp_path.as_uri()]) == 3
    said = capsys.readouterr().err
    assert f"no metastore answers at {address}" in said
    assert "--metastore" in said
    assert len(said.splitlines()) == 1


def test_another_store_than_the_metastores_is_refused_in_a_sentence(
    server: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = (tmp_path / "other").as_uri()
    code = run(["worker", "--metastore", metastore_of(server), "--store", other])
    said = capsys.readouterr().err
    assert code == EXIT_USAGE
    assert f"{other} is not the store of the metastore at {metastore_of(server)}" in said
    assert "--store" in said
    assert len(said.splitlines()) == 1


def test_a_worker_elsewhere_compacts_outlives_its_engine_and_leaves_nobody_behind(
    server: Served, tmp_path: Path
) -> None:
    worker = Alone(tmp_path, server)
    try:
        wait_for(worker.ready, PATIENCE_S, worker.log)
        push(server, "before")
        wait_for(lambda: level0(server) == 0, PATIENCE_S, worker.log)
        driver = worker.driver()
        (jvm,) = (
            pid
            for pid in session_members(driver)
            if "org.apache.spark.deploy.SparkSubmit" in processes().get(pid, "")
        )
        os.kill(jvm, signal.SIGKILL)
        wait_for(lambda: worker.driver() not in (0, driver), PATIENCE_S, worker.log)
        wait_for(worker.ready, PATIENCE_S, worker.log)
        assert "maar_worker_restarts 1.0" in worker.get("/metrics").text
        push(server, "after")
        wait_for(lambda: level0(server) == 0, PATIENCE_S, worker.log)
        check_exactly_once(server, {"lane_before", "lane_after"})
        everyone = {worker.process.pid, *session_members(worker.driver())}
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(PATIENCE_S) == 0, worker.log()
        wait_for(lambda: not living(everyone), PATIENCE_S, worker.log)
    finally:
        worker.process.kill()
        worker.process.wait(PATIENCE_S)


def push(server: Served, name: str) -> None:
    api = Server(server.url)
    try:
        api.push([("service_name", "hardy")], profile(function=f"lane_{name}", value=1))
    finally:
        api.close()
