"""`maar repair` and /api/v1/repairs: what is asked for, and what is told."""

from __future__ import annotations

import json

import pytest

from maar.model.ids import TenantId
from maar.model.plan import JobId
from maar.services.repair.rules import REPAIR
from support.http.command_line import Say, speaker
from support.http.front import Front

ACME = TenantId("acme")


@pytest.fixture
def front() -> Front:
    return Front()


@pytest.fixture
def say(front: Front, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    return speaker(front, monkeypatch, capsys)


def test_one_now(front: Front, say: Say) -> None:
    code, out, _ = say("repair", "run", "--tenant", "acme", "--json")
    told = json.loads(out)
    assert code == 0
    assert set(told) == {"job", "outcome", "ranges", "checked", "copied", "damaged", "lost"}
    assert (told["job"], told["outcome"]) == ("acme/vnode", "running")
    assert front.metastore.repairs_asked == [(JobId(ACME, REPAIR, "vnode"), True, False)]


def test_it_can_be_waited_for(front: Front, say: Say) -> None:
    told = json.loads(say("repair", "run", "--tenant", "acme", "--wait", "--json")[1])
    assert (told["outcome"], told["checked"], told["copied"]) == ("completed", 12, 2)
    assert front.pauses, "it does not ask without a pause"
    assert "completed" in say("repair", "run", "--tenant", "acme", "--wait")[1]


def test_a_dry_run_and_an_end(front: Front, say: Say) -> None:
    told = json.loads(say("repair", "run", "--type", "incremental", "--dry-run", "--json")[1])
    assert told["outcome"] == "would_run"
    assert {"blocks", "bytes"} <= set(told)
    assert say("repair", "stop", "--tenant", "acme")[0] == 0
    assert [asked[1:] for asked in front.metastore.repairs_asked] == [(True, True), (False, False)]


def test_how_they_are_getting_on(say: Say) -> None:
    told = json.loads(say("repair", "status", "--json")[1])
    (job,) = told["jobs"]
    names = ("tenant", "type", "state", "percent_repaired", "max_repaired_at", "remaining_s", "why")
    assert set(names) <= set(job)
    assert job["max_repaired_at"] == "1970-01-01T00:01:40Z"
    out = say("repair", "status")[1]
    assert "50.0 %" in out
    assert "it is due" in out


def test_they_can_be_paused_and_resumed(say: Say) -> None:
    code, out, _ = say("repair", "pause", "--tenant", "acme", "--reason", "backups", "--json")
    told = json.loads(out)
    assert (code, told["tenant"], told["kind"], told["type"]) == (0, "acme", "repair", "*")
