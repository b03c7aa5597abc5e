"""`maar stores` and /api/v1/stores: what each store holds, lacks and has damaged."""

from __future__ import annotations

import json

import click
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


def test_a_store_is_drained_or_kept_after_all(front: Front, say: Say) -> None:
    code, out, _ = say("stores", "remove", "us")
    assert (code, "us is being drained of 5 blocks" in out) == (0, True)
    _, out, _ = say("stores", "remove", "us", "--keep")
    assert "stays" in out
    assert front.metastore.store_orders == [
        ("us", False, "", False),
        ("us", False, "", True),
    ]


def test_what_only_a_lost_store_had_is_named_and_asked_for_before_it_is_given_up(
    front: Front, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(click, "confirm", lambda *_, **__: False)
    code, out, err = say("stores", "remove", "us", "--lost")
    assert (code, "nothing was changed" in err) == (1, True)
    assert "only it has 2 blocks, with 30 profiles" in out
    assert "b" * 32 in out
    assert front.metastore.store_orders == [("us", True, "", False)]
    code, out, err = say("stores", "remove", "us", "--lost", "--json")
    assert (code, out, "b" * 32 in err) == (1, "", True), "a script's output stays JSON"
    code, out, _ = say("stores", "remove", "us", "--lost", "--yes", "--json")
    assert code == 0
    assert json.loads(out)["only_here"] == 2
    assert front.metastore.store_orders[2:] == [
        ("us", True, "", False),
        ("us", True, "list of 2", False),
    ]


def test_a_list_that_changed_before_it_was_confirmed_is_shown_and_asked_for_again(
    front: Front, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    def more_is_lost_meanwhile(*_: object, **__: object) -> bool:
        front.metastore.only_in_lost = 3
        return True

    monkeypatch.setattr(click, "confirm", more_is_lost_meanwhile)
    code, out, _ = say("stores", "remove", "us", "--lost")
    assert code == 0
    assert "only it has 2 blocks" in out
    assert "only it has 3 blocks" in out
    assert [order[2] for order in front.metastore.store_orders] == ["", "list of 2", "list of 3"]


def test_to_keep_a_store_and_to_give_it_up_exclude_each_other(front: Front, say: Say) -> None:
    code, _, err = say("stores", "remove", "us", "--lost", "--keep")
    assert (code, "exclude each other" in err) == (2, True)
    reply = front.request("POST", "/api/v1/stores/us/remove", json={"keep": True, "lost": True})
    assert reply.status_code == 400
