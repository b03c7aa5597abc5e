"""`maar ring` and /api/v1/ring: who takes which shards, who is dead, and how one is removed."""

from __future__ import annotations

import json

import pytest

from maar.model.ids import HOME, NodeId, Zone
from maar.model.ring import Writer, WriterState
from maar.ports.operator.operator import ZoneStatus
from maar.ports.writer.membership import Beat
from support.http.command_line import Say, speaker
from support.http.front import Front
from support.http.pushed import run

EAST = Zone("east")


@pytest.fixture
def front() -> Front:
    return Front()


@pytest.fixture
def say(front: Front, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    return speaker(front, monkeypatch, capsys)


def beat(
    front: Front, node: str, *, zone: Zone = HOME, state: WriterState = WriterState.ACTIVE
) -> None:
    one = Writer(NodeId(node), f"{node}.example:4044", "s1", 4, state)
    assert run(front.metastore.beat(Beat(zone, one))).refusal == ""


def test_the_api_tells_zones_writers_and_owners(front: Front) -> None:
    for node in ("a", "b"):
        beat(front, node)
    beat(front, "c", zone=EAST, state=WriterState.JOINING)
    front.metastore.dead.add(NodeId("b"))
    east, home = front.get("/api/v1/ring").json()["zones"]
    assert (home["zone"], home["shards"], home["complete"]) == ("home", 8, True)
    assert sorted(home["owners"]) == ["a"] * 4 + ["b"] * 4
    assert home["writers"] == [
        {
            "node": node,
            "state": state,
            "said": "active",
            "address": f"{node}.example:4044",
            "shards": 4,
            "wants": 4,
            "session": "s1",
            "silent_s": 0.0,
        }
        for node, state in (("a", "active"), ("b", "dead"))
    ]
    assert east["owners"] == []
    assert [(w["state"], w["shards"], w["wants"]) for w in east["writers"]] == [("joining", 0, 4)]


def test_nobody_has_registered(front: Front, say: Say) -> None:
    assert front.get("/api/v1/ring").json() == {"zones": []}
    assert say("ring")[:2] == (0, "no segment writer has registered\n")
    assert say("ring", "--zone", "x")[:2] == (0, "no segment writer has registered in zone x\n")


def test_the_list_shows_every_writer_and_its_standing(front: Front, say: Say) -> None:
    for node in ("a", "b"):
        beat(front, node)
    beat(front, "c", zone=EAST, state=WriterState.JOINING)
    front.metastore.dead.add(NodeId("b"))
    code, out, _ = say("ring")
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["zone", "node", "state", "shards", "address", "heard"]
    assert lines[1][:7] == ["east", "c", "joining", "0", "of", "4", "c.example:4044"]
    assert lines[2][:5] == ["home", "a", "active", "4", "a.example:4044"]
    assert lines[3][:4] == ["home", "b", "dead", "4"]
    assert "zone home: 8 shards of 2 writers, 1 dead" in out
    _, out, _ = say("ring", "--zone", "east")
    assert "home" not in out
    _, out, _ = say("ring", "--zone", "east", "--json")
    assert [zone["zone"] for zone in json.loads(out)["zones"]] == ["east"]


def test_a_new_metastore_is_told(front: Front, say: Say) -> None:
    beat(front, "a")
    front.metastore.complete = False
    assert "does not know yet which writers are dead" in say("ring")[1]


def test_a_dead_writer_is_removed(front: Front, say: Say) -> None:
    for node in ("a", "b"):
        beat(front, node)
    front.metastore.dead.add(NodeId("b"))
    code, out, _ = say("ring", "remove", "b", "--zone", "home")
    assert (code, out) == (
        0,
        "writer b is no longer in zone home, which has 4 shards of 1 writers now\n",
    )
    front.metastore.dead.add(NodeId("a"))
    _, out, _ = say("ring", "remove", "a", "--json")
    assert json.loads(out)["writers"] == 0
    assert run(front.metastore.rings()) == ()


def test_one_that_lives_is_not_and_the_reason_is_said(front: Front, say: Say) -> None:
    beat(front, "a")
    code, _, err = say("ring", "remove", "a")
    assert code == 1
    assert "stop its process first" in err


def test_the_zone_is_guessed_only_when_there_is_no_doubt(front: Front, say: Say) -> None:
    beat(front, "a")
    beat(front, "a", zone=EAST)
    front.metastore.dead.add(NodeId("a"))
    code, _, err = say("ring", "remove", "a")
    assert code == 1
    assert "the zones east, home have a writer a" in err
    assert say("ring", "remove", "x")[0] == 1
    assert say("ring", "remove", "a", "--zone", "east")[0] == 0
    assert say("ring", "remove", "a")[0] == 0


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"node": 7}, 400),
        ({"node": "x"}, 404),
        ({"node": "x", "zone": "home"}, 404),
        ({"node": "a", "force": True}, 400),
        ({"node": "a"}, 409),
    ],
)
def test_orders_that_cannot_be_carried_out_are_refused(
    front: Front, body: dict[str, object], status: int
) -> None:
    beat(front, "a")
    reply = front.post("/api/v1/ring/remove", json=body)
    assert reply.status_code == status
    assert reply.json()["message"]


def test_options_of_the_list_are_not_lost_on_what_follows(say: Say) -> None:
    code, _, err = say("ring", "--zone", "home", "remove", "a")
    assert code == 2
    assert "give --zone after remove" in err


def test_the_status_has_a_line_for_each_ring_and_one_for_the_dead(front: Front, say: Say) -> None:
    front.metastore.zone_status = (
        ZoneStatus(EAST, {"joining": 1}, 0, 9, complete=False),
        ZoneStatus(HOME, {"active": 2, "dead": 1}, 12, 8, complete=True),
    )
    code, out, _ = say("status")
    assert code == 0
    assert "ring of zone home: 12 shards; writers: 2 active, 1 dead\n" in out
    assert "ring of zone east: 0 shards; writers: 1 joining (the leader is new" in out
    assert "TROUBLE 1 segment writers of zone home are not heard from" in out
    assert "zone east are not heard from" not in out
