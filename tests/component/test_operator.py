"""An operator's day on a real server, by the command line; the test itself is the worker."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from maar.adapters.rpc import MetastoreClient
from maar.model.ids import WorkerId
from maar.model.plan import LeasedPlan
from maar.model.time import DAY_NS
from maar.ports.plans.board import PollReply, PollRequest, Renewal, Report
from maar.services.compact.rules import COMPACT
from support.load.crowd import profile
from support.processes.serving import Served, living, run_server, wait_for

pytestmark = [pytest.mark.component, pytest.mark.timeout(280)]

SETTINGS = (
    "compaction.level_counts=2,2,2",
    "compaction.level_ages_s=36000,36000,36000",
    "services.compact.lease_s=3600",
    "compaction.retry_s=0",
    "segment.flush_interval_ms=50",
)
WORKER = WorkerId("the-test")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with run_server(tmp_path, *SETTINGS, roles="metastore,query,front") as running:
        everyone = running.everyone()
        yield running
    assert not living(everyone)


def ok(server: Served, *arguments: str) -> str:
    said = server.cli(*arguments)
    assert said.returncode == 0, (arguments, said)
    return said.stdout


def as_json(server: Served, *arguments: str) -> Any:
    return json.loads(ok(server, *arguments, "--json"))


def refused(server: Served, *arguments: str) -> str:
    said = server.cli(*arguments)
    assert said.returncode == 1, (arguments, said)
    return said.stderr


def pushed(server: Served, tmp_path: Path, name: str, *, age_ns: int = 0, tenant: str) -> str:
    """The block that one profile has become."""
    before = {block["id"] for block in as_json(server, "blocks")["blocks"]}
    file = tmp_path / f"{name}.pb"
    file.write_bytes(profile(function=name, time_ns=time.time_ns() - age_ns))
    ok(server, "push", str(file), "--service", "shop", "--tenant", tenant)
    (new,) = {block["id"] for block in as_json(server, "blocks")["blocks"]} - before
    return str(new)


def polled(
    tmp_path: Path,
    *,
    capacity: int = 0,
    renewals: tuple[Renewal, ...] = (),
    reports: tuple[Report, ...] = (),
) -> PollReply:
    async def poll() -> PollReply:
        client = MetastoreClient(f"unix:{tmp_path}/metastore", deadline_s=60)
        try:
            return await client.call(
                PollRequest(WORKER, capacity, renewals, reports, kinds=(COMPACT,))
            )
        finally:
            await client.close()

    return asyncio.run(poll())


def metrics_of(server: Served) -> str:
    return httpx.get(f"{server.url}/metrics", trust_env=False, verify=False, timeout=60).text


def granted(tmp_path: Path) -> LeasedPlan:
    (plan,) = polled(tmp_path, capacity=1).granted
    return plan


def test_a_plan_from_queue_to_exclusion_and_back(server: Served, tmp_path: Path) -> None:
    first = pushed(server, tmp_path, "first", tenant="acme")
    waiting = ok(server, "explain", "block", first)
    assert f"{first} (queued)" in waiting
    assert "closes at 2 blocks (now 1)" in waiting
    pushed(server, tmp_path, "second", tenant="acme")
    assert "closed (by count: 2 of 2 blocks)" in ok(server, "explain", "block", first)
    assert as_json(server, "status")["levels"][0]["queued"] == 2

    leased = granted(tmp_path)
    plan = str(leased.id)
    assert f"Worker {WORKER} holds it under token {leased.token}" in ok(
        server, "explain", "block", first
    )
    (listed,) = as_json(server, "plans", "--state", "requested", "--level", "0")["plans"]
    assert listed["id"] == plan
    assert as_json(server, "plans", "--state", "parked") == {"plans": []}
    shown = ok(server, "plans", "show", plan)
    assert str(WORKER) in shown
    assert first in shown
    assert "only an excluded or a parked plan" in refused(server, "plans", "requeue", plan)

    ok(server, "plans", "exclude", plan, "--reason", "bad host")
    lost = polled(tmp_path, renewals=(Renewal(leased.id, leased.token),))
    assert lost.kept == (), "the worker is fenced"
    assert polled(tmp_path, capacity=1).granted == ()
    held = ok(server, "explain", "block", first)
    assert "(held)" in held
    assert "was excluded by hand, 'bad host'" in held
    assert "1 excluded" in ok(server, "status")
    counted = 'maar_metastore_plans{state="excluded"} 1.0'
    wait_for(lambda: counted in metrics_of(server), 60, server.log)

    ok(server, "plans", "requeue", plan)
    again = granted(tmp_path)
    assert (again.id, again.inputs) == (leased.id, leased.inputs)
    assert again.token > leased.token
    polled(tmp_path, reports=(Report(again.id, again.token, failure="no memory left"),))
    (failing,) = as_json(server, "plans", "--failing")["plans"]
    assert (failing["id"], failing["failures"]) == (plan, 1)
    assert "no memory left" in ok(server, "plans", "--failing")
    assert "1 of at most 3" in ok(server, "plans", "show", plan)

    ok(server, "plans", "limit", "9", "--for", "1h")
    assert "1 of at most 9" in ok(server, "plans", "show", plan)
    assert "the failure limit is raised to 9" in ok(server, "status")
    ok(server, "plans", "limit", "--reset")
    assert "1 of at most 3" in ok(server, "plans", "show", plan)
    assert "raised" not in ok(server, "status")

    assert "(HTTP 404)" in refused(server, "plans", "requeue", "999999.0")
    assert "(HTTP 404)" in refused(server, "explain", "block", "0" * 32)
    assert "(HTTP 400)" in refused(server, "plans", "limit", "2", "--for", "1h")


def test_retention_by_tenant_with_a_preview(server: Served, tmp_path: Path) -> None:
    assert "default: 90.0 days" in ok(server, "retention", "get")
    old = pushed(server, tmp_path, "old", age_ns=20 * DAY_NS, tenant="short")
    new = pushed(server, tmp_path, "new", tenant="short")
    assert "0 blocks would go" in ok(server, "retention", "preview")
    assert "at least 1 hour" in refused(server, "retention", "set", "short", "5m", "--yes")
    assert ok(server, "retention", "set", "short", "7d", "--yes") == "short: 7.0 days\n"
    assert as_json(server, "retention", "get")["tenants"] == {"short": 7 * 86_400}
    found = as_json(server, "retention", "preview")
    went = {block["id"] for block in found["blocks"]}
    # Retention may have come first, on a slow machine; it takes the same block and no other.
    assert went == {old} or "Retention took it" in ok(server, "explain", "block", old)
    assert "(queued)" in ok(server, "explain", "block", new)
    assert ok(server, "retention", "set", "short", "forever") == "short: for ever\n"
    assert "0 blocks would go" in ok(server, "retention", "preview")
    ok(server, "retention", "set", "short", "default", "--yes")
    assert as_json(server, "retention", "get", "short")["is_default"] is True
