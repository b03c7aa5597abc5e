"""Several fronts at one port: limits and metrics hold for their sum, and one may die or hang."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import httpx
import pytest

from maar.adapters.rpc import Channel
from maar.api.protocol.wire import PushRequest
from maar.cli.client import Server
from maar.cli.output.failure import CommandFailed
from maar.ports.role import GetMetrics
from support.load.crowd import FAST, Pushers, check_exactly_once, profile
from support.processes.serving import Served, run_server, wait_for

pytestmark = [pytest.mark.component, pytest.mark.long(30), pytest.mark.timeout(280)]

FRONTS = ("front-1", "front-2")
CONNECTIONS_MAX = 60
RATE, BURST = 2_000, 4_000  # of tenant slow, in decompressed bytes


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("fronts")
    tenants = directory / "tenants.toml"
    tenants.write_text(f"[slow]\nrate_bytes = {RATE}\nburst_bytes = {BURST}\n")
    with run_server(
        directory,
        *FAST,
        "server.fronts=2",
        "server.hung_after_s=5",
        f"api.connections_max={CONNECTIONS_MAX}",
        f"tenants.file={tenants}",
    ) as running:
        yield running


def whole(server: Served) -> None:
    """Wait until no front is missing."""
    wait_for(lambda: ready(server) == "ready\n", 60, server.log)


def ready(server: Served) -> str:
    return asked(server, "/ready")


def asked(server: Served, path: str) -> str:
    """Over a connection of its own, so that any front may get it."""
    return httpx.get(server.url + path, trust_env=False, verify=False, timeout=30).text


def value_in(page: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} ([0-9.e+]+)$", page, re.MULTILINE)
    assert found is not None, f"{name} is not in\n{page}"
    return float(found[1])


def value(server: Served, name: str) -> float:
    return value_in(asked(server, "/metrics"), name)


def page_of(server: Served, front: str) -> str:
    """What one front says of itself, to the other processes only."""

    async def ask() -> str:
        channel = Channel(f"unix:{(server.directory / 'data' / 'run').readlink()}/{front}.sock")
        try:
            return await channel.call(GetMetrics())
        finally:
            await channel.close()

    return asyncio.run(ask())


def push(server: Served, body: bytes, *, tenant: str = "") -> bool:
    """Over a connection of its own."""
    api = Server(server.url, tenant=tenant)
    try:
        api.push([("service_name", "shared")], body)
    except CommandFailed:
        return False
    finally:
        api.close()
    return True


def connected(server: Served) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)))


def test_a_burst_of_connections_is_spread_and_their_bound_is_for_all(server: Served) -> None:
    whole(server)
    with ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(connected(server))
        wait_for(lambda: value(server, "maar_front_connections") >= 40, 10, server.log)
        each = [value_in(page_of(server, front), "maar_front_connections") for front in FRONTS]
        assert min(each) >= 15, f"of 40 they have {each}"
        for _ in range(60):
            with suppress(OSError):
                stack.enter_context(connected(server))
        wait_for(
            lambda: value(server, 'maar_front_refused_total{reason="connections"}') >= 40,
            10,
            server.log,
        )
        wait_for(lambda: value(server, "maar_front_connections") <= CONNECTIONS_MAX, 10, server.log)
        assert push(server, profile(function="crowded")), "an idle connection went for it"


def test_whoever_answers_tells_the_metrics_of_all_fronts(server: Served) -> None:
    whole(server)
    name = "maar_distributor_profiles_total"
    before = value(server, name)
    for number in range(12):
        assert push(server, profile(function=f"counted_{number}"))
    request = PushRequest()
    series = request.series.add()
    series.labels.add(name="service_name", value="shared")
    series.samples.add(raw_profile=profile(function="by_grpc"))
    with grpc.insecure_channel(server.url.removeprefix("http://")) as channel:
        call = channel.unary_unary("/push.v1.PusherService/Push")
        call(request.SerializeToString(), timeout=30)
    shown = [value(server, name) - before for _ in range(6)]
    assert shown == [13.0] * 6, "whichever front it was that answered"
    each = [value_in(page_of(server, front), name) for front in FRONTS]
    assert sum(each) == before + 13
    page = asked(server, "/metrics")
    assert [value_in(page, f'maar_role_up{{role="{front}"}}') for front in FRONTS] == [1, 1]
    assert value_in(page, "maar_distributor_writers") == 1, "there is one, whoever says so"
    assert re.findall("^# TYPE (maar_front_connections) ", page, re.MULTILINE) == [
        "maar_front_connections"
    ], "one page and not two"
    assert "2 fronts share the port: front-1, front-2" in server.cli("status").stdout


def test_a_tenants_rate_is_that_of_all_fronts_together(server: Served) -> None:
    whole(server)
    size = len(profile(function="x" * 10))
    began, seconds = time.monotonic(), 4.0

    def pushing(lane: int) -> int:
        taken = number = 0
        while time.monotonic() - began < seconds:
            number += 1
            body = profile(function=f"s{lane:04d}{number:05d}")
            taken += size if push(server, body, tenant="slow") else 0
        return taken

    with ThreadPoolExecutor(4) as threads:
        taken = sum(threads.map(pushing, range(4)))
    allowed = BURST + RATE * (time.monotonic() - began)
    assert taken <= allowed + size
    assert taken > 0.7 * allowed, "and it is all theirs"
    assert value(server, "maar_distributor_over_rate_total") > 0
    assert push(server, profile(function="other")), "other tenants do not notice"


def test_another_server_cannot_share_the_port(server: Served, tmp_path: Path) -> None:
    said = subprocess.run(
        [
            *(sys.executable, "-m", "maar.cli.main", "serve", "--set", "server.fronts=2"),
            *("--listen", server.url.removeprefix("http://"), "--data", str(tmp_path / "data")),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said.returncode != 0
    assert "cannot listen on" in said.stderr
    assert "stop the program that holds it" in said.stderr


def test_a_front_that_is_killed_under_load_costs_nothing_that_was_acknowledged(
    server: Served,
) -> None:
    whole(server)
    name = "maar_distributor_profiles_total"
    with Pushers(server.url) as pushers:
        wait_for(lambda: pushers.has_grown(20), 60, server.log)
        counted = value(server, name)
        killed = server.children()["front-2"]
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: "degraded: front-2" in ready(server), 20, server.log)
        assert value(server, name) >= counted, "what a dead front has counted stays counted"
        assert push(server, profile(function="meanwhile"))
        grown = len(pushers.acknowledged)
        wait_for(lambda: pushers.has_grown(grown + 20), 60, server.log)
        whole(server)
        assert server.children()["front-2"] != killed
        assert value(server, name) >= counted
        grown = len(pushers.acknowledged)
        wait_for(lambda: pushers.has_grown(grown + 20), 60, server.log)
    check_exactly_once(server, pushers.acknowledged)
    assert "front-2 (1 restarts)" in server.cli("status").stdout


def test_a_front_that_hangs_is_started_again_while_the_other_serves(server: Served) -> None:
    whole(server)
    stopped = server.children()["front-1"]
    os.kill(stopped, signal.SIGSTOP)
    for number in range(10):  # of connections that it cannot take any more
        assert push(server, profile(function=f"beside_{number}"))
    assert "degraded: front-1" in ready(server)
    wait_for(lambda: server.children().get("front-1", stopped) != stopped, 60, server.log)
    whole(server)
