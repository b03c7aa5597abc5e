"""Dead letters for people: the API, the command line, and the lines in a status."""

from __future__ import annotations

import json

import pytest

from maar.model.errors import Unavailable
from maar.ports.operator.dead_letters import Letter, LettersStatus
from support.http.command_line import Say, speaker
from support.http.front import Front
from support.metastore.fold import segment

GOOD = segment(1)
HELD = Letter(GOOD.id, f"dlq/v1/x-held/{GOOD.id}.msgpack", "held", "below the floor", 600, GOOD)
JUNK = Letter("a/notes.txt", "dlq/v1/x-held/a/notes.txt", "held", "it is no letter", 4)
FOREIGN = Letter("f" * 32, f"dlq/v1/y/{'f' * 32}.msgpack", "foreign", "it is of the log y", 500)


@pytest.fixture
def front() -> Front:
    front = Front()
    front.metastore.posted = {one.name: one for one in (HELD, JUNK, FOREIGN)}
    front.metastore.letters_status = LettersStatus(
        waiting=3, oldest_s=90.0, held=2, foreign=1, delivered=1234, drained_s=4.0
    )
    return front


@pytest.fixture
def say(front: Front, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    return speaker(front, monkeypatch, capsys)


# ── the API ────────────────────────────────────────────────────────────────────────────────────


def test_letters_are_listed_with_their_causes_and_numbers(front: Front) -> None:
    found = front.get("/api/v1/dead-letters").json()
    assert [(one["name"], one["standing"], one["cause"]) for one in found["letters"]] == [
        (GOOD.id, "held", "below the floor"),
        ("a/notes.txt", "held", "it is no letter"),
        ("f" * 32, "foreign", "it is of the log y"),
    ]
    assert found["letters"][0]["meta"]["profiles"] == GOOD.profiles
    assert (found["status"]["waiting"], found["status"]["delivered"]) == (3, 1234)
    assert not found["more"]
    found = front.get("/api/v1/dead-letters?limit=1").json()
    assert (len(found["letters"]), found["more"]) == (1, True)
    for limit in ("0", "1001", "x"):
        assert front.get(f"/api/v1/dead-letters?limit={limit}").status_code == 400


def test_one_letter_by_its_name_whatever_that_is(front: Front) -> None:
    assert front.get(f"/api/v1/dead-letters/{GOOD.id}").json()["key"] == HELD.key
    assert front.get("/api/v1/dead-letters/a/notes.txt").json()["cause"] == "it is no letter"
    assert front.get("/api/v1/dead-letters/nobody").status_code == 404


def test_a_letter_is_retried_by_a_json_order_only(front: Front) -> None:
    path = f"/api/v1/dead-letters/{GOOD.id}/retry"
    assert front.post(path, content=b"{}").status_code == 415
    assert front.post(path, json={"force": True}).status_code == 400
    assert front.get(path).status_code == 404
    done = front.post(path, json={}).json()
    assert done == {"name": GOOD.id, "block": GOOD.id, "rewritten": True}
    assert front.post(path, json={}).status_code == 404
    refused = front.post("/api/v1/dead-letters/a/notes.txt/retry", json={})
    assert (refused.status_code, refused.json()["code"]) == (409, "failed_precondition")
    assert "it is no letter" in refused.json()["message"]
    front.metastore.failures = [Unavailable("the index is full")]
    assert front.post("/api/v1/dead-letters/a/notes.txt/retry", json={}).status_code == 503


# ── the command line ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("words", [("dead-letters",), ("dead-letters", "list")])
def test_the_list_says_what_is_wrong_with_each(say: Say, words: tuple[str, ...]) -> None:
    code, out, _ = say(*words)
    assert code == 0
    rows = out.splitlines()
    assert rows[1].split()[:3] == [GOOD.id, "held", "10"]
    assert rows[2].rstrip().endswith("it is no letter")
    assert rows[4] == (
        "dead letters: 3 wait to be delivered, the oldest for 1.5 min; 2 held; 1 of other logs; "
        "1,234 delivered by this leader"
    )
    code, out, _ = say(*words, "--limit", "1")
    assert "there are more: raise --limit" in out
    assert len(json.loads(say(*words, "--json")[1])["letters"]) == 3
    assert say(*words, "--limit", "0")[0] == 2


def test_an_empty_list_is_a_sentence(front: Front, say: Say) -> None:
    front.metastore.posted = {}
    front.metastore.letters_status = LettersStatus()
    assert say("dead-letters")[1] == "dead letters: 0 wait to be delivered\n"
    front.metastore.letters_status = LettersStatus(trouble="the store is away")
    assert "trouble: the store is away" in say("dead-letters")[1]


def test_one_is_shown_with_its_segment_and_datasets(say: Say) -> None:
    code, out, _ = say("dead-letters", "show", GOOD.id)
    assert code == 0
    for text in ("held", "below the floor", GOOD.files[0].locations[0].key, "checkout", "writer-1"):
        assert text in out, text
    assert "it is no letter" in say("dead-letters", "show", "a/notes.txt")[1]
    assert json.loads(say("dead-letters", "show", GOOD.id, "--json")[1])["name"] == GOOD.id
    code, _, err = say("dead-letters", "show", "nobody")
    assert (code, "no dead letter" in err) == (1, True)


def test_some_are_retried_and_one_that_cannot_be_stops_no_other(front: Front, say: Say) -> None:
    code, out, err = say("dead-letters", "retry", "a/notes.txt", GOOD.id)
    assert code == 1
    assert "it is no letter" in err
    assert "1 of 2 letters were not delivered" in err
    assert f"{GOOD.id} is delivered as block {GOOD.id}, written again" in out
    assert GOOD.id not in front.metastore.posted
    code, _, err = say("dead-letters", "--limit", "5", "retry", "x")
    assert (code, "give --limit after retry" in err) == (2, True)


def test_the_status_has_a_line_and_troubles(front: Front, say: Say) -> None:
    out = say("status")[1]
    assert "dead letters: 3 wait to be delivered, the oldest for 1.5 min" in out
    assert "TROUBLE 2 dead letters cannot be delivered: maar dead-letters" in out
    front.metastore.letters_status = LettersStatus(trouble="the store is away")
    out = say("status")[1]
    assert "TROUBLE dead letters: the store is away" in out
    front.metastore.letters_status = LettersStatus()
    assert "TROUBLE" not in say("status")[1]
