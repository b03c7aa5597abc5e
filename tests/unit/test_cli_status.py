"""`maar status` and `maar metastore status`: the backlog, the limits and every trouble."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from maar.model.errors import Unavailable
from maar.model.time import DAY_NS, SECOND_NS, LeaseTime
from maar.ports.metastore.replica import ReplicaStatus
from maar.ports.operator.operator import LevelStatus, Status
from support.http.command_line import Say, speaker
from support.http.front import Front

NOW = 100 * SECOND_NS


@pytest.fixture
def front() -> Front:
    front = Front()
    front.metastore.lease_time = LeaseTime(NOW)
    return front


@pytest.fixture
def say(front: Front, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    return speaker(front, monkeypatch, capsys)


def told(front: Front, **changes: Any) -> None:
    """Let the metastore answer another status."""
    plain = front.metastore.status

    async def status() -> Status:
        return msgspec.structs.replace(await plain(), **changes)

    front.metastore.status = status  # type: ignore[method-assign]


def test_a_status_without_trouble_has_none(say: Say) -> None:
    code, out, _ = say("status")
    assert code == 0
    assert "TROUBLE" not in out
    assert "raised" not in out
    assert "profiles are kept 90.0 days" in out


def test_the_status_tells_backlog_limits_and_troubles(front: Front, say: Say) -> None:
    front.metastore.trouble = "the clock is a year ahead"
    front.metastore.periods["acme"] = DAY_NS
    told(
        front,
        levels=(LevelStatus(0, "segment", 9, 900, 90, 7, 4096, 65.0, 2),),
        plans={"inflight": 3, "parked": 2},
        parked=2,
        leftovers=12,
        retired=4,
        failure_limit=9,
        limit_raised_s=120.0,
        blocked=tuple(f"block {n} is kept: its output is missing" for n in range(12)),
        profiles_expired=5,
        blocks_adopted=1500,
        blocks_missed=2,
        profiles_missed=30,
        rollbacks=2,
        dead=3,
    )
    out = say("status")[1]
    level = next(line for line in out.splitlines() if " segment " in line)
    assert level.split()[5:] == ["90", "7", "4.0", "KiB", "1.1", "min", "2"]
    for text in (
        "5 expired; after a restore 1,500 blocks were adopted and 2 missed (30 profiles)",
        "plans: 3 inflight, 2 parked",
        "the failure limit is raised to 9 for another 2.0 min",
        "4 replaced blocks and leftovers of 12 attempts wait for deletion",
        "2 rollbacks wait; 3 attempts failed and are not rolled back yet",
        "1 tenants differ",
        "TROUBLE 2 plans are parked",
        "TROUBLE retention: the clock is a year ahead",
        "TROUBLE cleanup: block 0 is kept",
        "TROUBLE cleanup: 2 more like these",
    ):
        assert text in out, text


def test_a_lone_metastore_has_no_list_of_replicas(front: Front, say: Say) -> None:
    told(front, leader="unix:/run/m", replicas=(ReplicaStatus("m", "unix:/run/m", "leader"),))
    out = say("status")[1]
    assert "led by" not in out
    assert "replicas" not in out
    assert "adopted" not in out
    assert "TROUBLE" not in out


def test_the_status_tells_of_replicas_and_what_is_wrong_with_them(front: Front, say: Say) -> None:
    told(
        front,
        leader="m1:4041",
        adopting=True,
        replicas=(
            ReplicaStatus("one", "m1:4041", "leader", index=1200, head=1200, knows=4),
            ReplicaStatus("two", "m2:4041", "follower", index=1100, head=1200, behind_s=2.0),
            ReplicaStatus("three", "m3:4041", "stopped", index=9, fault="hashes differ at 9"),
            ReplicaStatus("four", "m4:4041", "in doubt", index=9, fault="no vote yet"),
            ReplicaStatus("", "m5:4041", "unreachable", fault="connection refused"),
        ),
    )
    out = say("status")[1]
    assert ", led by m1:4041" in out.splitlines()[0]
    rows = {line.split()[0]: line.split() for line in out.splitlines() if ":4041 " in line}
    assert rows["one"] == ["one", "m1:4041", "leader", "1,200", "0", "4"]
    assert rows["two"] == ["two", "m2:4041", "follower", "1,100", "100", "(2.00", "s)", "-"]
    assert rows["-"] == ["-", "m5:4041", "unreachable", "-", "-", "-"]
    for text in (
        "TROUBLE replica three has stopped: hashes differ at 9",
        "TROUBLE replica four doubts its state and does not answer: no vote yet",
        "TROUBLE replica m5:4041 does not answer: connection refused",
        "TROUBLE the metastore was restored from a snapshot",
    ):
        assert text in out, text
    assert "maar metastore rebuild" in out
    assert json.loads(say("status", "--json")[1])["replicas"][2]["digest"] == ""


def test_how_far_a_replica_is_behind_is_unknown_when_it_cannot_see_the_log(
    front: Front, say: Say
) -> None:
    told(
        front,
        replicas=(
            ReplicaStatus("one", "m1:4041", "follower", index=9, head=9, behind_s=0.1),
            ReplicaStatus("two", "m2:4041", "follower", index=9, head=9, behind_s=42.0),
            ReplicaStatus("three", "m3:4041", "starting"),
        ),
    )
    rows = {line.split()[0]: line.split() for line in say("status")[1].splitlines() if line}
    assert rows["one"][4] == "0"
    assert rows["two"][4:7] == ["unknown", "(42.00", "s)"]
    assert rows["three"][4] == "unknown"


def test_a_process_that_hung_is_told_for_a_day(front: Front, say: Say) -> None:
    at_ns = 1_000_000 * SECOND_NS
    told(front, wall_time_ns=at_ns + 60 * SECOND_NS)
    assert "hung" not in say("status")[1]
    front.processes.append({"process": "metastore", "restarts": 3, "hangs": 2, "hung_at_ns": at_ns})
    said = say("status")[1]
    assert "TROUBLE the process metastore hung and was restarted 1.0 min ago (2 hangs" in said
    assert "docs/operating.md#a-process-hangs" in said
    assert json.loads(say("status", "--json")[1])["processes"] == front.processes
    told(front, wall_time_ns=at_ns + 90_000 * SECOND_NS)
    assert "hung" not in say("status")[1]


def test_the_metastores_status_is_asked_of_a_server_when_no_replica_is_named(
    front: Front, say: Say, tmp_path: Path
) -> None:
    told(front, replicas=(ReplicaStatus("one", "unix:/run/x.sock", "leader", index=3, head=3),))
    code, out, err = say("metastore", "status", "--data", str(tmp_path))
    assert (code, err) == (0, "")
    assert out.splitlines()[1].split() == ["one", "unix:/run/x.sock", "leader", "3", "0", "-"]

    async def hangs() -> Status:
        raise Unavailable("the metastore hangs")

    front.metastore.status = hangs  # type: ignore[method-assign]
    code, _, err = say("metastore", "status", "--data", str(tmp_path))
    assert (code, "the metastore hangs" in err) == (3, True)


def test_fronts_that_share_the_port_are_shown_and_one_that_is_gone_is_trouble(
    front: Front, say: Say
) -> None:
    told(front, wall_time_ns=1_000_000 * SECOND_NS)
    well = {"restarts": 0, "hangs": 0, "hung_at_ns": 0, "runs": True}
    front.processes.append({"process": "front", **well})
    assert "share the port" not in say("status")[1]
    front.processes[:] = [
        {"process": "front-1", **well},
        {"process": "front-2", **well, "restarts": 3, "runs": False},
    ]
    said = say("status")[1]
    assert "2 fronts share the port: front-1, front-2 (3 restarts)" in said
    assert "TROUBLE the process front-2 has ended and is being started again" in said
