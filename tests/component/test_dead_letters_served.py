"""A server whose metastore stops answering, with dead letters: pushes go on, nothing is lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from maar.cli.client import Server
from support.load.crowd import FAST, check_exactly_once, level0, profile
from support.processes.serving import Served, run_server, wait_for

pytestmark = [pytest.mark.component, pytest.mark.timeout(280)]

LETTERS = ("dead_letters.enabled=true", "dead_letters.after_ms=500")


def push(server: Served, *names: str) -> set[str]:
    with contextlib.closing(Server(server.url)) as api:
        for name in names:
            api.push([("service_name", "hardy")], profile(function=name, value=1))
    return set(names)


def letters(server: Served) -> list[Path]:
    return sorted((server.directory / "data" / "store" / "dlq").rglob("*.msgpack"))


@contextlib.contextmanager
def paused(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_pushes_go_on_while_the_metastore_is_away(tmp_path: Path) -> None:
    with run_server(tmp_path, *FAST, *LETTERS) as server:
        acknowledged = push(server, "lane_before")
        with paused(server.children()["metastore"]):
            acknowledged |= push(server, *(f"lane_paused_{n}" for n in range(4)))
            assert len(letters(server)) >= 1
        check_exactly_once(server, acknowledged)  # delivered or not
        wait_for(lambda: not letters(server), 60, server.log)
        check_exactly_once(server, acknowledged)
        os.kill(server.children()["metastore"], signal.SIGKILL)
        acknowledged |= push(server, *(f"lane_killed_{n}" for n in range(2)))
        wait_for(lambda: _answers(server), 60, server.log)
        check_exactly_once(server, acknowledged)
        wait_for(lambda: not letters(server), 60, server.log)
        wait_for(lambda: level0(server) == 0, 90, server.log)
        check_exactly_once(server, acknowledged)
        said = server.cli("dead-letters", "--json")
        assert json.loads(said.stdout)["letters"] == []
        assert "0 wait to be delivered" in server.cli("status").stdout


def _answers(server: Served) -> bool:
    """Both who ask the metastore have found it again: the query role, and the API for itself."""
    return server.cli("query", "types").returncode == 0 and server.cli("blocks").returncode == 0
