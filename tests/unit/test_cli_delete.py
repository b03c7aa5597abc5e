"""`maar delete` and /api/v1/deletions: what is asked for, and what is told."""

from __future__ import annotations

import io
import json

import pytest

from maar.model.ids import TenantId
from maar.model.predicate import EVER_NS, Mask
from support.http.command_line import Say, speaker
from support.http.front import Front

MS_NS = 1_000_000


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def front() -> Front:
    return Front()


@pytest.fixture
def say(front: Front, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    return speaker(front, monkeypatch, capsys)


def test_a_dry_run_changes_nothing(front: Front, say: Say) -> None:
    code, out, _ = say("delete", "--service", "cart", "--tenant", "acme", "--dry-run", "--json")
    told = json.loads(out)
    assert code == 0
    assert told == {"predicate": None, "profiles": 3, "blocks": 2, "at_most": False}
    assert front.metastore.deleted == []
    assert "would be deleted" in say("delete", "--service", "cart", "--dry-run")[1]


def test_a_service_a_time_range_and_all_of_a_tenant(front: Front, say: Say) -> None:
    code, out, _ = say("delete", "--service", "cart", "--tenant", "acme", "--json")
    assert (code, json.loads(out)["predicate"]) == (0, "7")
    asked = ("delete", "--all-services", "--tenant", "acme")
    assert say(*asked, "--from", "1763208000", "--until", "1763208001")[0] == 0
    start = 1_763_208_000_000 * MS_NS
    acme = TenantId("acme")
    assert front.metastore.deleted == [
        Mask(acme, "cart", 0, EVER_NS),
        Mask(acme, "", start, start + 1_000 * MS_NS),
    ]
    out = say(*asked, "--from", "1763208000")[1]
    assert out.startswith("at most 3 profiles"), "an upper bound is said to be one"
    out = say("delete", "--list")[1]
    assert "2 blocks to be rewritten" in out
    listed = json.loads(say("delete", "--list", "--json")[1])["deletions"]
    assert [each["service"] for each in listed] == ["cart", "", ""]
    assert (listed[0]["until_ms"], listed[1]["from_ms"]) == (None, start // MS_NS)


@pytest.mark.parametrize("asked", [(), ("--service", "cart", "--all-services")])
def test_all_services_are_deleted_only_when_that_is_said(
    front: Front, say: Say, asked: tuple[str, ...]
) -> None:
    assert say("delete", *asked)[0] == 2
    both = {"service": "cart", "all_services": True}
    for body in ({}, both, {"service": "cart", "from_ms": -1}, {"service": "cart", "what": 1}):
        reply = front.request("POST", "/api/v1/deletions", json=body)
        assert reply.status_code == 400, reply.text
    assert front.metastore.deleted == []


def test_a_person_is_shown_what_would_go_and_asked(
    front: Front, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    code, out, _ = say("delete", "--service", "cart")
    assert code != 0
    assert "would be deleted" in out
    assert front.metastore.deleted == []
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert say("delete", "--service", "cart")[0] == 0
    assert say("delete", "--service", "cart", "--yes")[0] == 0
    assert len(front.metastore.deleted) == 2


def test_the_tenant_is_that_of_the_request_unless_one_is_named(front: Front) -> None:
    headers = {"X-Scope-OrgID": "globex"}
    for body in ({"service": "cart"}, {"service": "cart", "tenant": "acme"}):
        reply = front.request("POST", "/api/v1/deletions", json=body, headers=headers)
        assert reply.status_code == 200, reply.text
    assert [mask.tenant for mask in front.metastore.deleted] == ["globex", "acme"]


def test_a_request_id_is_passed_on(front: Front, say: Say) -> None:
    asked = ("delete", "--service", "cart", "--request-id", "gdpr-17", "--json")
    assert say(*asked) == say(*asked)
    assert front.metastore.deletion_requests == ["gdpr-17", "gdpr-17"]
    assert len(front.metastore.deleted) == 1
