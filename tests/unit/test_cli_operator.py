"""What an operator types, and what the commands make of the server's answers."""

from __future__ import annotations

import io
import json
from typing import Any

import msgspec
import pytest

from maar.metastore.state.timeline import NEVER
from maar.model.block import Damage
from maar.model.ids import (
    BlockId,
    FencingToken,
    Incarnation,
    PlanId,
    Shard,
    StoreName,
    TenantId,
    WorkerId,
)
from maar.model.plan import (
    Account,
    Attempt,
    AttemptEnd,
    Lease,
    Plan,
    PlanResult,
    PlanState,
    QueueKey,
)
from maar.model.time import DAY_NS, SECOND_NS, LeaseTime
from maar.ports.operator.operator import ListPlans
from maar.services.compact.rules import COMPACT
from support.http.command_line import Say, speaker
from support.http.front import Front
from support.metastore.fold import segment

NOW = 100 * SECOND_NS
TOKEN = FencingToken(Incarnation("0badcafe"), 7)
WORKER = WorkerId("worker-7")


@pytest.fixture
def front() -> Front:
    front = Front()
    front.metastore.lease_time = LeaseTime(NOW)
    return front


@pytest.fixture
def say(front: Front, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    return speaker(front, monkeypatch, capsys)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def attempt(end: AttemptEnd, cause: str = "", *, counted: bool = True, at_s: int = 20) -> Attempt:
    granted = LeaseTime(at_s * SECOND_NS)
    started = LeaseTime((at_s + 1) * SECOND_NS)
    ended = None if end is AttemptEnd.OPEN else LeaseTime((at_s + 16) * SECOND_NS)
    return Attempt(TOKEN, WORKER, granted, started, ended, end, cause, counted)


def plan(number: int, state: PlanState, *inputs: BlockId, **more: Any) -> Plan:
    key = QueueKey(StoreName("main"), TenantId("acme"), Shard(2), 1)
    scheduled_at = LeaseTime(10 * SECOND_NS)
    return Plan(PlanId(number, 0), COMPACT, False, key, inputs, state, scheduled_at, **more)


def known(front: Front, *plans: Plan) -> None:
    front.metastore.known = {one.id: one for one in plans}


# ── plans ──────────────────────────────────────────────────────────────────────────────────────


def test_the_list_takes_every_filter(front: Front, say: Say) -> None:
    known(front, plan(1, PlanState.PARKED, note="it had to go"))
    code, out, _ = say(
        *("plans", "--state", "parked", "--level", "2", "--tenant", "acme", "--shard", "7"),
        *("--kind", "compact", "--failing", "--limit", "9"),
    )
    assert code == 0
    assert front.metastore.wanted == ListPlans("parked", "compact", "acme", 2, 7, True, 9)
    assert out.splitlines()[1].split()[:7] == ["1.0", "compact", "1", "acme", "2", "0", "parked"]
    assert "it had to go" in out
    say("plans")
    assert front.metastore.wanted == ListPlans(limit=50)


def test_the_list_shows_who_works_what_came_of_it_or_why_not(front: Front, say: Say) -> None:
    failed = attempt(AttemptEnd.FAILED, "no memory")
    lease = Lease(TOKEN, WORKER, LeaseTime(NOW), LeaseTime(NOW + 9 * SECOND_NS))
    known(
        front,
        plan(1, PlanState.REQUESTED, attempts=(failed,), failures=1),
        plan(2, PlanState.INFLIGHT, lease=lease, attempts=(failed,)),
        plan(3, PlanState.COMPLETED, result=PlanResult(COMPACT, (segment(1),), Account(9, 1, 0))),
    )
    _, out, _ = say("plans")
    rows = [line.rstrip() for line in out.splitlines()[1:]]
    assert rows[0].endswith("no memory")
    assert rows[1].endswith("worker-7, token 0badcafe.7")
    assert rows[2].endswith("1 blocks, 1000 B, 1 duplicates")
    out = say("plans", "--json")[1]
    assert [one["id"] for one in json.loads(out)["plans"]] == ["1.0", "2.0", "3.0"]


def test_a_plan_is_shown_with_inputs_attempts_causes_and_times(front: Front, say: Say) -> None:
    live, gone = segment(1, size=2048), segment(2)
    front.metastore.index[live.id] = live
    lease = Lease(TOKEN, WORKER, LeaseTime(NOW), LeaseTime(NOW + 9 * SECOND_NS))
    attempts = (
        attempt(AttemptEnd.FAILED, "no memory"),
        attempt(AttemptEnd.EXPIRED, "the lease expired", counted=False, at_s=40),
        attempt(AttemptEnd.OPEN, at_s=90),
    )
    one = plan(
        5, PlanState.INFLIGHT, live.id, gone.id, lease=lease, attempts=attempts, failures=1,
        excused=1, parent=PlanId(4, 0),
    )  # fmt: skip
    known(front, one)
    code, out, _ = say("plans", "show", "5.0")
    assert code == 0
    for text in (
        "5.0 (compact, inflight)",
        "acme, shard 2, level 1, store main",
        "planned 1.5 min ago, waited 10.00 s for a worker",
        "1 of at most 3; 1 more were excused",
        "worker-7 under token 0badcafe.7, 9.00 s left",
        "4.0, which was divided",
        "inputs: 2, 2.0 KiB in those still known",
    ):
        assert text in out, text
    lines = out.splitlines()
    assert any(line.startswith(live.id) and line.rstrip().endswith("2.0 KiB") for line in lines)
    assert any(line.startswith(gone.id) and "deleted" in line for line in lines)
    failed, expired, running = (line for line in lines if line.startswith("0badcafe.7"))
    assert failed.split()[-4:] == ["failed", "yes", "no", "memory"]
    assert "expired  no" in expired
    assert "after 1.00 s" in failed
    assert "16.00 s" in failed
    assert "running" in running
    _, out, _ = say("plans", "show", "5.0", "--json")
    assert json.loads(out)["failure_limit"] == 3


def test_a_finished_plan_shows_outputs_and_what_it_took(front: Front, say: Say) -> None:
    made = msgspec.structs.replace(segment(3), level=1)
    one = plan(
        6, PlanState.COMPLETED, segment(1).id, completed_at=LeaseTime(40 * SECOND_NS),
        attempts=(attempt(AttemptEnd.COMPLETED),),
        result=PlanResult(COMPACT, (made,), Account(10, 0, 0), cpu_ms=1500, wall_ms=2500),
    )  # fmt: skip
    known(front, one)
    _, out, _ = say("plans", "show", "6.0")
    assert "ended after 30.00 s, worked 2.50 s, 1.50 s CPU" in out
    assert made.id in out.partition("outputs:")[2]


@pytest.mark.parametrize(
    ("eligible_at", "says"),
    [
        (NEVER, "never, until `maar plans requeue 1.0`"),
        (NOW + 30 * SECOND_NS, "in 30.00 s"),
        (NOW, "as soon as a worker has room for it"),
    ],
)
def test_an_excluded_plan_says_when_it_is_tried_again(
    front: Front, say: Say, eligible_at: int, says: str
) -> None:
    excluded = plan(
        1, PlanState.EXCLUDED, eligible_at=LeaseTime(eligible_at), note="the host is bad"
    )
    known(front, excluded)
    _, out, _ = say("plans", "show", "1.0")
    assert says in out
    assert "the host is bad" in out


def test_requeueing_goes_on_past_one_that_cannot_be(front: Front, say: Say) -> None:
    known(
        front,
        plan(1, PlanState.EXCLUDED),
        plan(2, PlanState.INFLIGHT),
        plan(3, PlanState.PARKED),
    )
    code, out, err = say("plans", "requeue", "1.0", "2.0", "3.0")
    assert code == 1
    assert out.splitlines() == ["plan 1.0 is requeued", "plan 3.0 is requeued"]
    assert "plan 2.0 is inflight" in err
    assert "1 of 3 plans were not requeued" in err
    states = [one.state for one in front.metastore.known.values()]
    assert states == [PlanState.REQUESTED, PlanState.INFLIGHT, PlanState.REQUESTED]


def test_a_plan_is_excluded_only_with_a_reason(front: Front, say: Say) -> None:
    known(front, plan(1, PlanState.INFLIGHT))
    code, _, err = say("plans", "exclude", "1.0")
    assert (code, "--reason" in err) == (2, True)
    code, out, _ = say("plans", "exclude", "1.0", "--reason", "bad host")
    assert code == 0
    assert "`maar plans requeue 1.0` brings it back" in out
    assert front.metastore.known[PlanId(1, 0)].note == "bad host"


def test_the_limit_is_raised_for_a_while_or_reset_and_never_half_said(
    front: Front, say: Say
) -> None:
    code, out, _ = say("plans", "limit", "10", "--for", "1h")
    assert (code, out) == (0, "plans may fail 10 times for 1.0 h\n")
    assert front.metastore.raised == 10
    for half in (("10",), ("--for", "1h"), (), ("10", "--reset"), ("--reset", "--for", "1h")):
        code, _, err = say("plans", "limit", *half)
        assert code == 2, half
        assert "use `maar plans limit 10 --for 1h`" in err
    assert front.metastore.raised == 10
    assert say("plans", "limit", "--reset")[0] == 0
    assert front.metastore.raised == 0
    assert say("plans", "limit", "10", "--for", "soon")[0] == 2
    assert say("plans", "limit", "10", "--for", "0s")[0] == 2, "which would be a reset"


@pytest.mark.parametrize("given", [("--json",), ("--limit", "5"), ("--state", "parked")])
def test_an_option_of_the_list_is_not_lost_on_a_command(
    front: Front, say: Say, given: tuple[str, ...]
) -> None:
    known(front, plan(1, PlanState.EXCLUDED))
    code, _, err = say("plans", *given, "requeue", "1.0")
    assert code == 2
    assert f"give {given[0]} after requeue" in err
    assert front.metastore.known[PlanId(1, 0)].state is PlanState.EXCLUDED


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (
            ("plans", "show", "9.0"),
            1,
            "there is no plan 9.0; finished plans are archived after a while (HTTP 404)",
        ),
        (("plans", "show", "nine"), 2, "is not a plan id"),
        (("plans", "requeue"), 2, "Missing argument"),
        (("plans", "exclude", "9.0", "--reason", "x"), 1, "no plan 9.0"),
        (("explain", "block", "0" * 32), 1, "there is no block"),
        (("retention", "set", "acme", "soon"), 2, "is not a duration"),
        (("retention", "set", "acme", "0d"), 2, "use forever"),
        (("retention", "get", "no tenant"), 1, "is not allowed"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    say: Say, arguments: tuple[str, ...], code: int, says: str
) -> None:
    found, _, err = say(*arguments)
    assert found == code
    assert says in err


# ── explain and retention ──────────────────────────────────────────────────────────────────────


def test_a_block_is_explained_in_sentences(front: Front, say: Say) -> None:
    meta = segment(1, size=2048)
    front.metastore.index[meta.id] = meta
    code, out, _ = say("explain", "block", meta.id.upper())
    assert code == 0
    assert out == f"{meta.id} (queued): segment of level 0, 2.0 KiB\n  It waits.\n"
    _, out, _ = say("explain", "block", meta.id, "--json")
    assert json.loads(out)["standing"] == "queued"


def test_retention_is_read_and_set(front: Front, say: Say) -> None:
    assert say("retention", "set", "acme", "30d", "--yes")[1] == "acme: 30.0 days\n"
    assert front.metastore.periods == {"acme": 30 * DAY_NS}
    assert say("retention", "get", "acme")[1] == "acme: 30.0 days\n"
    assert say("retention", "set", "acme", "forever")[1] == "acme: for ever\n"
    assert front.metastore.periods == {"acme": 0}
    out = say("retention", "get")[1]
    assert "default: 90.0 days" in out
    assert ["acme", "for", "ever"] in [line.split() for line in out.splitlines()]
    out = say("retention", "set", "acme", "default", "--yes")[1]
    assert out == "acme: 90.0 days (the default)\n"
    assert front.metastore.periods == {}
    front.metastore.trouble = "the clock is ahead"
    assert "trouble: the clock is ahead" in say("retention", "get")[1]
    assert json.loads(say("retention", "get", "--json")[1])["default_s"] == 90 * 86_400


@pytest.mark.parametrize(
    ("now", "then", "asks"),
    [
        ("default", "30d", True),
        ("forever", "400d", True),
        ("forever", "default", True),
        ("30d", "30d", False),
        ("30d", "31d", False),
        ("30d", "default", False),
        ("30d", "forever", False),
    ],
)
def test_only_a_shorter_retention_has_to_be_confirmed(
    front: Front, say: Say, monkeypatch: pytest.MonkeyPatch, now: str, then: str, asks: bool
) -> None:
    assert say("retention", "set", "acme", now, "--yes")[0] == 0
    before = dict(front.metastore.periods)
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("click.confirm", lambda _text, **_: False)
    code, _, err = say("retention", "set", "acme", then)
    assert code == asks
    assert ("nothing was changed" in err) == ("maar retention undo" in err) == asks
    assert not asks or front.metastore.periods == before
    monkeypatch.setattr("click.confirm", lambda _text, **_: True)
    assert say("retention", "set", "acme", then)[0] == 0
    assert say("retention", "get", "acme")[1] == say("retention", "set", "acme", then, "--yes")[1]


def test_a_script_that_shortens_retention_is_not_asked(
    front: Front, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert say("retention", "set", "acme", "30d")[:2] == (0, "acme: 30.0 days\n")
    assert front.metastore.periods == {"acme": 30 * DAY_NS}


def test_retention_is_undone_held_and_released(front: Front, say: Say) -> None:
    code, out, _ = say("retention", "undo", "--tenant", "acme")
    assert code == 0
    assert "3 blocks with 30 profiles are back; retention takes nothing until" in out
    assert front.metastore.undone == ["acme"]
    assert say("retention", "hold", "--reason", "Monday")[0] == 0
    assert "Monday" in say("retention", "get")[1]
    code, out, _ = say("retention", "release")
    assert (code, out) == (0, "retention continues\n")


def test_a_lost_block_is_shown_before_it_is_given_up(front: Front, say: Say) -> None:
    meta = segment(1)
    front.metastore.index = {meta.id: meta}
    key = meta.files[0].locations[0].key
    front.metastore.damages = (Damage(meta.id, key, "is missing"),)
    code, out, _ = say("blocks", "lose", meta.id, "--dry-run")
    assert code == 0
    assert f"object {key} is missing" in out
    assert "10 profiles from 2024-10-04" in out
    assert "tenants: acme; services: checkout" in out
    assert front.metastore.lost == []
    front.metastore.damages = (Damage(meta.id, "key\x1b[2J", "is missing"),)
    assert "\x1b" not in say("blocks", "lose", meta.id, "--dry-run")[1]
    code, out, _ = say("blocks", "lose", meta.id, "--yes", "--reason", "the disk died")
    assert code == 0
    assert "is given up: queries go on without it" in out
    assert front.metastore.lost == [(meta.id, "the disk died")]


def test_nothing_is_given_up_without_a_yes_nor_a_whole_block_without_force(
    front: Front, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = segment(1)
    front.metastore.index = {meta.id: meta}
    code, out, err = say("blocks", "lose", meta.id, "--yes")
    assert (code, "--force gives it up" in err) == (1, True)
    assert "every object exists" in out
    front.metastore.damages = (Damage(meta.id, "key", "is missing"),)
    monkeypatch.setattr("click.confirm", lambda *_, **__: False)
    assert say("blocks", "lose", meta.id)[0] == 1
    assert front.metastore.lost == []
    front.metastore.damages = ()
    assert say("blocks", "lose", meta.id, "--yes", "--force")[0] == 0
    assert [block for block, _ in front.metastore.lost] == [meta.id]
    assert say("blocks", "lose", "0" * 32)[0] != 0


def test_the_preview_lists_what_would_go_with_totals(front: Front, say: Say) -> None:
    metas = [segment(n, size=1024) for n in range(3)]
    front.metastore.index = {meta.id: meta for meta in metas}
    known(front, plan(4, PlanState.REQUESTED, metas[0].id))
    out = say("retention", "preview")[1]
    assert "3 blocks would go, with 30 profiles and 3.0 KiB; 1 plans would be cancelled" in out
    assert out.splitlines()[1].rstrip().endswith("plan 4.0")
    assert "there are more" not in out
    out = say("retention", "preview", "--limit", "2")[1]
    assert "2 blocks would go" in out
    assert "there are more: raise --limit" in out
    assert json.loads(say("retention", "preview", "--json")[1])["bytes"] == 3072
