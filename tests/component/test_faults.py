"""The world misbehaves around a running server: its disk is full."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from maar.cli.client import Server
from maar.cli.output.failure import EXIT_UNAVAILABLE, CommandFailed
from support.load.crowd import FAST, check_exactly_once, level0, profile
from support.processes.serving import Served, run_server, wait_for

pytestmark = [pytest.mark.component, pytest.mark.timeout(280)]


def push(server: Served, names: list[str]) -> set[str]:
    """Push one profile per name; the names that were acknowledged."""
    acknowledged = set()
    with contextlib.closing(Server(server.url)) as api:
        for name in names:
            with contextlib.suppress(CommandFailed):
                api.push([("service_name", "hardy")], profile(function=name, value=1))
                acknowledged.add(name)
    return acknowledged


def all_compacted(server: Served) -> bool:
    return level0(server) == 0 and server.get("/api/v1/status")["completed"] > 0


def test_a_full_store_refuses_pushes_loses_nothing_and_recovers(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    small_disk = (
        *("unshare", "--map-root-user", "--mount", "sh", "-c"),
        f'mount -t tmpfs -o size=16m tmpfs "{store}" && exec "$@"',
        "sh",
    )
    settings = (*FAST, f"store.url={store.as_uri()}")
    with run_server(tmp_path, *settings, wrapper=small_disk) as server:
        acknowledged = push(server, [f"lane_before_{n}" for n in range(5)])
        assert len(acknowledged) == 5
        inside = Path(f"/proc/{server.pid}/root{store}")
        filler = inside / "filler"
        _fill(filler)
        with contextlib.closing(Server(server.url)) as api, pytest.raises(CommandFailed) as refused:
            api.push([("service_name", "hardy")], profile(function="lane_full"))
        assert refused.value.exit_code == EXIT_UNAVAILABLE
        # By the reserve; or by the disk, if the push came before anybody had looked at it.
        by_reserve = "left: nothing can be written until some is freed"
        by_disk = "nothing was written. Free some space and try again"
        assert any(words in str(refused.value) for words in (by_reserve, by_disk))
        wait_for(lambda: _ready(server, "push") == _ready(server) == 503, 30, server.log)
        assert _ready(server, "query") == 200
        assert "TROUBLE the disk of" in server.cli("status").stdout
        check_exactly_once(server, acknowledged)
        os.kill(server.children()["metastore"], signal.SIGKILL)
        wait_for(lambda: _answers(server), 30, server.log)
        check_exactly_once(server, acknowledged)
        filler.unlink()
        deadline = time.monotonic() + 30
        while not (later := push(server, ["lane_after"])):
            assert time.monotonic() < deadline, server.log()[-4000:]
        acknowledged |= later
        wait_for(lambda: _ready(server) == 200, 30, server.log)
        assert "TROUBLE the disk" not in server.cli("status").stdout
        wait_for(lambda: all_compacted(server), 90, server.log)
        check_exactly_once(server, acknowledged)


def _ready(server: Served, purpose: str = "") -> int:
    asked = {"for": purpose} if purpose else {}
    url = f"{server.url}/ready"
    return httpx.get(url, params=asked, trust_env=False, verify=False, timeout=30).status_code


def _answers(server: Served) -> bool:
    return server.cli("query", "types").returncode == 0


def _fill(file: Path) -> None:
    """Take all the room there is, to the last page."""
    with file.open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"\0" * 4096)
