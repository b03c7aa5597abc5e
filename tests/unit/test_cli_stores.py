"""`maar stores` and /api/v1/stores: what each store holds, lacks and has damaged."""

from __future__ import annotations

import json

import pytest

from support.http.command_line import Say, speaker
from support.http.front import Front


@pytest.fixture
def front() -> Front:
    return Front()


@pytest.fixture
def say(front: Front, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    return speaker(front, monkeypatch, capsys)


def test_stores_are_told_with_what_they_hold_and_lack(front: Front) -> None:
    eu, us = front.get("/api/v1/stores").json()["stores"]
    assert (eu["name"], eu["region"], eu["zones"]) == ("eu", "europe", ["fra"])
    assert (eu["blocks"], eu["bytes"], eu["missing"], eu["damaged"]) == (12, 3_400_000, 0, 0)
    assert (us["missing"], us["damaged"], us["leaving"]) == (2, 1, True)


def test_one_tenants_share_can_be_asked_for(front: Front) -> None:
    assert len(front.get("/api/v1/stores?tenant=one").json()["stores"]) == 1
    assert front.get("/api/v1/stores?tenant=a%20b").status_code == 400


def test_people_get_a_table_and_sentences_and_scripts_json(say: Say) -> None:
    _, out, _ = say("stores")
    assert "europe" in out
    assert "leaving" in out
    assert "store us is not in the settings of the leader, and counts as away" in out
    _, out, _ = say("stores", "--json")
    assert [each["name"] for each in json.loads(out)["stores"]] == ["eu", "us"]
    _, out, _ = say("stores", "--tenant", "one", "--json")
    assert [each["name"] for each in json.loads(out)["stores"]] == ["eu"]
