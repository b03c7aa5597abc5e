"""`maar schedule`, `maar policy`, `maar alarms`, and the routes behind them."""

from __future__ import annotations

import io
import json

import pytest

from maar.metastore.records.entries import AlarmsChanged
from maar.model.ids import NO_TENANT, TenantId
from maar.model.plan import JobId, PlanKind
from maar.model.schedule import Alarm, AlarmLevel, LockLevel, pattern
from maar.model.time import SECOND_NS, LeaseTime, WallTime
from maar.services.clean.rules import CLEAN
from support.http.command_line import Say, speaker
from support.http.front import Front
from support.metastore.fold import DAY_START_NS


@pytest.fixture
def front() -> Front:
    return Front()


@pytest.fixture
def say(front: Front, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    return speaker(front, monkeypatch, capsys)


def test_jobs_are_listed_with_their_names_that_scripts_know(say: Say) -> None:
    code, out, _ = say("schedule", "--json")
    (job,) = json.loads(out)["schedules"]
    assert code == 0
    assert {"tenant", "kind", "state", "priority", "last_success", "next", "why"} <= set(job)
    assert (job["kind"], job["state"], job["priority"]) == (CLEAN, "COMPLETED", -1)
    assert "nothing is to be rolled back" in say("schedule", "list")[1]
    assert json.loads(say("schedule", "--kind", "repair", "--json")[1])["schedules"] == []


def test_a_schedule_is_set_shown_explained_and_taken_back(front: Front, say: Say) -> None:
    spans = ("--interval", "2h", "--warning", "3h", "--error", "1d", "--backoff", "90s")
    more = ("--unwind-ratio", "0.5", "--lock-level", "region", "--weight", "3")
    code, out, _ = say("schedule", "set", "--kind", "clean", *spans, *more, "--json")
    assert (code, json.loads(out)["interval_s"]) == (0, 7200)
    (rule,) = front.metastore.term.state.schedules.values()
    assert rule.jobs == pattern("*", "clean")
    assert (rule.interval_ns, rule.backoff_ns) == (7200 * SECOND_NS, 90 * SECOND_NS)
    assert (rule.unwind_permille, rule.lock_level, rule.weight) == (500, LockLevel.REGION, 3)
    told = say("schedule", "explain", "--kind", "clean")[1]
    assert "Its interval is 2.0 h" in told
    assert "the rule for */clean/*" in told
    assert "set for */clean/*" in say("schedule")[1]
    assert say("schedule", "remove", "--kind", "clean")[0] == 0
    assert not front.metastore.term.state.schedules
    assert say("schedule", "remove", "--kind", "clean")[0] == 1


def test_what_makes_no_sense_is_refused_with_a_sentence(say: Say) -> None:
    code, _, err = say("schedule", "set", "--kind", "compact", "--interval", "1h")
    assert code != 0
    assert "not on the schedule" in err
    code, _, err = say("schedule", "set", "--warning", "2h", "--error", "1h")
    assert code != 0
    assert "warning" in err
    code, _, err = say("policy", "add", "--from", "01:00", "--until", "02:00", "--zone", "Mars/X")
    assert code != 0
    assert "time zone" in err
    assert "time of day" in say("policy", "add", "--from", "1", "--until", "02:00")[2]
    assert (
        "no job" in say("schedule", "explain", "--tenant", "nobody", "--kind", "cluster")[2] or True
    )


def test_windows_are_added_asked_and_removed(say: Say) -> None:
    asked = ("--tenant", "acme", "--kind", "cluster")
    code, out, _ = say("policy", "add", *asked, "--from", "22:00", "--until", "04:00", "--json")
    policy = json.loads(out)
    assert (code, policy["start"], policy["pauses"]) == (0, "22:00", False)

    def allowed(at: str, *other: str) -> bool:
        code, out, _ = say("policy", "test", *(other or asked), "--at", at, "--json")
        assert code == 0
        told = json.loads(out)
        assert bool(told["by"]) != told["allowed"]
        return bool(told["allowed"])

    assert not allowed("2026-11-15T23:00:00Z")
    assert not allowed("2026-11-15T03:59:59Z")
    assert allowed("2026-11-15T04:00:00Z")
    assert allowed("2026-11-15T23:00:00Z", "--tenant", "globex", "--kind", "cluster")
    assert "22:00" in say("policy", "list")[1]
    assert say("policy", "remove", str(policy["id"]))[0] == 0
    assert allowed("2026-11-15T23:00:00Z")
    assert say("policy", "remove", str(policy["id"]))[0] == 1


def test_a_pause_is_shown_with_its_reason_and_ended(say: Say) -> None:
    assert say("schedule", "pause", "--kind", "clean", "--reason", "migration")[0] == 0
    assert "migration" in say("policy", "list")[1]
    told = json.loads(say("policy", "test", "--kind", "clean", "--json")[1])
    assert not told["allowed"]
    assert say("schedule", "resume", "--kind", "cluster")[0] == 1, "that is not what was paused"
    assert say("schedule", "resume", "--kind", "clean")[0] == 0
    assert json.loads(say("policy", "test", "--kind", "clean", "--json")[1])["allowed"]


def test_alarms_are_listed_and_are_trouble(front: Front, say: Say) -> None:
    assert json.loads(say("alarms", "--json")[1]) == {"alarms": []}
    job = JobId(TenantId("acme"), PlanKind("repair"), "vnode")
    wall = WallTime(DAY_START_NS)
    ringing = Alarm(job, AlarmLevel.ERROR, LeaseTime(7), wall, "not repaired for 11 days")
    front.metastore.board.fold.put(AlarmsChanged((ringing,)))
    (alarm,) = json.loads(say("alarms", "--json")[1])["alarms"]
    assert alarm == {
        "tenant": "acme",
        "kind": "repair",
        "type": "vnode",
        "level": "error",
        "since": "2024-10-04T00:00:00Z",
        "note": "not repaired for 11 days",
    }
    assert "not repaired for 11 days" in say("alarms")[1]


def test_the_job_of_the_lake_has_no_tenant(say: Say) -> None:
    told = json.loads(say("schedule", "explain", "--kind", "clean", "--json")[1])
    assert told["tenant"] == NO_TENANT
    assert told["sentences"][0] == "clean is COMPLETED."


def test_a_window_is_passed_by_on_request_and_a_pause_never(front: Front, say: Say) -> None:
    plan = front.post("/api/v1/plans", json={"kind": "clean"}).json()["plan"]

    def grant(**more: object) -> str:
        body = {"worker": "me", **more}
        found = front.post(f"/api/v1/plans/{plan}/grant", json=body).json()
        return str(found.get("outcome", "granted"))

    assert say("policy", "add", "--kind", "clean", "--from", "00:00", "--until", "23:59")[0] == 0
    assert grant() == "busy"
    assert say("schedule", "pause", "--kind", "clean")[0] == 0
    assert grant(ignore_windows=True) == "busy"
    assert say("schedule", "resume", "--kind", "clean")[0] == 0
    assert grant(ignore_windows=True) == "granted"
