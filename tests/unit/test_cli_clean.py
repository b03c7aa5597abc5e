"""Plans that anybody rolls back and cleans up after: outcomes, JSON and exit codes."""

from __future__ import annotations

import json
import re

import pytest

from maar.metastore.records.entries import (
    PlanCompleted,
)
from maar.model import keys
from maar.model.errors import Unavailable
from maar.model.ids import PlanId
from maar.model.plan import ROLLBACK, Account, PlanResult
from maar.ports.operator.operator import FoundOrphans, OrphanObject
from maar.ports.plans.board import PollReply, PollRequest
from maar.ports.stores.object_store import ObjectStore
from support.http.command_line import Say
from support.http.executing_commands import (
    answer_to,
    board,
    engines,
    front,
    in_virtual_time,
    say,
    store,
)
from support.http.front import Front
from support.metastore.asked_plans import (
    LEASE_S,
    OTHER,
    compact_plan,
    lease,
    leave_object,
)
from support.metastore.board import FoldBoard

__all__ = ["board", "engines", "front", "in_virtual_time", "say", "store"]


# ── roll back ──────────────────────────────────────────────────────────────────────────────────


def test_a_rollback_deletes_what_dead_attempts_wrote_and_the_plan_stays(
    say: Say, board: FoldBoard, store: ObjectStore
) -> None:
    plan = compact_plan(board)
    written = leave_object(store, plan, lease(board, plan, started=True))
    code, found = answer_to(say, "plans", "rollback", str(plan))
    assert (code, found) == (
        3,
        {"rollback": None, "target": str(plan), "outcome": "lease_live"},
    )
    board.pass_time(LEASE_S + 1)
    code, found = answer_to(say, "plans", "rollback", str(plan))
    assert (code, found["target"], found["outcome"]) == (0, str(plan), "completed")
    assert board.fold.state.finished[PlanId.parse(found["rollback"])].rolls_back == plan
    assert not [info for info in store.list(written)]
    assert plan in board.fold.state.plans
    code, found = answer_to(say, "plans", "rollback", str(plan))
    assert (code, found) == (
        0,
        {"rollback": None, "target": str(plan), "outcome": "nothing_to_do"},
    )


def test_a_rollback_of_a_plan_that_never_was_is_not_found(say: Say) -> None:
    code, found = answer_to(say, "plans", "rollback", "999.0")
    assert (code, found) == (1, {"rollback": None, "target": "999.0", "outcome": "not_found"})


def test_a_rollback_passes_the_delay_by(say: Say, board: FoldBoard) -> None:
    plan = compact_plan(board, removable=True)
    found = answer_to(say, "clean", "--dry-run")[1]
    assert found["skipped"] == [{"plan": str(plan), "why": "too_young"}]
    assert answer_to(say, "plans", "rollback", str(plan))[1]["outcome"] == "completed"
    assert plan not in board.fold.state.plans


# ── clean ──────────────────────────────────────────────────────────────────────────────────────


def messy(board: FoldBoard, store: ObjectStore) -> tuple[PlanId, PlanId, PlanId, str]:
    """An abandoned removable plan with leftovers, one with a live lease, and one that stays."""
    old = compact_plan(board, 1, removable=True)
    written = leave_object(store, old, lease(board, old, started=True))
    board.pass_time(600)
    stays, held = compact_plan(board, 11), compact_plan(board, 21, removable=True)
    lease(board, held)
    return old, held, stays, written


def test_a_dry_run_shows_all_and_changes_nothing(
    say: Say, board: FoldBoard, store: ObjectStore
) -> None:
    old, held, stays, _written = messy(board, store)
    before, objects = board.fold.state.index, list(store.list(""))
    code, found = answer_to(say, "clean", "--dry-run")
    assert code == 0
    assert found == {
        "scheduled": [{"rollback": None, "target": str(old)}],
        "executed": [{"rollback": None, "target": str(old)}],
        "skipped": [
            {"plan": str(stays), "why": "immutable"},
            {"plan": str(held), "why": "live_lease"},
        ],
        "orphans": {"objects": 0, "bytes": 0},
    }
    assert (board.fold.state.index, list(store.list(""))) == (before, objects)


def test_a_cleaning_schedules_and_executes(say: Say, board: FoldBoard, store: ObjectStore) -> None:
    old, held, stays, written = messy(board, store)
    code, found = answer_to(say, "clean")
    assert code == 0
    (scheduled,) = found["scheduled"]
    assert scheduled["target"] == str(old)
    assert found["executed"] == [scheduled]
    assert {each["plan"] for each in found["skipped"]} == {str(held), str(stays)}
    assert not [info for info in store.list(written)]
    kinds = {plan.kind for plan in board.fold.state.finished.values()}
    assert {"clean", "rollback"} <= kinds, "it is a plan itself"
    code, found = answer_to(say, "clean")
    assert (code, found["scheduled"], found["executed"]) == (0, [], [])


def test_its_two_steps_can_be_taken_apart(say: Say, board: FoldBoard, store: ObjectStore) -> None:
    _old, _held, _stays, written = messy(board, store)
    code, found = answer_to(say, "clean", "--schedule-only")
    (scheduled,) = found["scheduled"]
    assert (code, found["executed"]) == (0, [])
    assert [info for info in store.list(written)]
    code, found = answer_to(say, "clean", "--rollbacks-only")
    assert (code, found["scheduled"], found["executed"]) == (0, [], [scheduled])
    assert not [info for info in store.list(written)]
    assert say("clean", "--schedule-only", "--rollbacks-only")[0] == 2


def test_a_rollback_that_somebody_is_at_is_left_to_him(
    say: Say, board: FoldBoard, store: ObjectStore
) -> None:
    messy(board, store)
    rollback = answer_to(say, "clean", "--schedule-only")[1]["scheduled"][0]["rollback"]
    lease(board, PlanId.parse(rollback))
    code, found = answer_to(say, "clean")
    assert (code, found["executed"]) == (0, [])
    assert {"plan": rollback, "why": "live_lease"} in found["skipped"]


def test_a_rollback_that_somebody_finishes_meanwhile_counts_as_executed(
    say: Say, board: FoldBoard, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    messy(board, store)
    (scheduled,) = answer_to(say, "clean", "--schedule-only")[1]["scheduled"]
    rollback = PlanId.parse(scheduled["rollback"])
    token = lease(board, rollback)
    asked = []

    async def done_when_asked_twice(request: PollRequest) -> PollReply:
        asked.append(request)
        if len(asked) == 2:
            nothing = PlanResult(ROLLBACK, (), Account(0, 0, 0))
            board.fold.put(PlanCompleted(rollback, token, nothing))
        return await FoldBoard.poll(board, request)

    monkeypatch.setattr(board, "poll", done_when_asked_twice)
    code, found = answer_to(say, "clean", "--rollbacks-only")
    assert (code, found["executed"]) == (0, [scheduled])


def test_a_cleaning_that_somebody_holds_is_not_waited_for_long(
    say: Say, board: FoldBoard, store: ObjectStore
) -> None:
    messy(board, store)
    cleaning = answer_to(say, "plans", "schedule", "clean")[1]["plan"]
    lease(board, PlanId.parse(cleaning))
    code, out, err = say("clean", "--json")
    assert code == 3
    assert json.loads(out)["scheduled"] == []
    assert f"{OTHER} executes plan {cleaning}" in err
    board.pass_time(LEASE_S + 1)
    assert answer_to(say, "plans", "execute", cleaning)[1]["outcome"] == "completed"
    assert answer_to(say, "clean", "--dry-run")[1]["scheduled"] == []


ORPHANS = [
    OrphanObject("segments/v1/shard=1/x.parquet", 7, "segment"),
    OrphanObject("attempts/v1/7.0/1234abcd.8/a1-0", 2000, "intent"),
]


def test_orphans_are_counted_in_a_dry_run_and_swept_by_a_whole_cleaning(
    say: Say, front: Front
) -> None:
    front.metastore.orphans = list(ORPHANS)
    for part in ("--dry-run", "--schedule-only", "--rollbacks-only"):
        code, found = answer_to(say, "clean", part)
        assert (code, found["orphans"]) == (0, {"objects": 2, "bytes": 2007})
    assert front.metastore.orphans == ORPHANS
    code, found = answer_to(say, "clean")
    assert (code, found["orphans"]) == (0, {"objects": 2, "bytes": 2007})
    assert front.metastore.orphans == []
    assert answer_to(say, "clean")[1]["orphans"] == {"objects": 0, "bytes": 0}


def test_people_see_which_orphans_there_are_and_what_stays(say: Say, front: Front) -> None:
    front.metastore.orphans = list(ORPHANS)
    code, out, _ = say("clean", "--dry-run")
    assert code == 0
    for each in ORPHANS:
        assert f"{each.key}  {each.kind}" in re.sub(r" {2,}", "  ", out)
    assert "2 orphans of 2.0 KiB found, which the next sweep deletes\n" in out
    front.metastore.kept = ("markers/v1/x: nothing is swept: another log has marked this store",)
    _, out, _ = say("clean")
    assert "2 orphans of 2.0 KiB deleted; there may be more\n" in out
    assert "left: markers/v1/x: nothing is swept" in out
    assert ORPHANS[0].key not in out
    _, out, err = say("clean", "--json")
    assert err == f"maar: left: {front.metastore.kept[0]}\n", "a script is told too"
    assert "markers" not in out


def test_a_sweep_of_orphans_that_fails_does_not_fail_the_cleaning(
    say: Say, front: Front, board: FoldBoard, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    messy(board, store)

    async def away(*, limit: int = 100) -> FoundOrphans:
        raise Unavailable(f"asked for {limit}, and the store is away")

    monkeypatch.setattr(front.metastore, "sweep_orphans", away)
    code, out, _ = say("clean")
    assert code == 0
    assert "1 rollbacks scheduled, 1 executed" in out
    assert "left: orphans were not looked for: asked for 100" in out


def test_a_rollback_that_fails_says_why(say: Say, board: FoldBoard, store: ObjectStore) -> None:
    old, _held, _stays, _written = messy(board, store)
    token = board.fold.state.plans[old].attempts[0].token
    bad = keys.intent(plan=old, token=token, attempt="a2", ordinal=0)
    store.create(bad, b"segments/of-somebody-else")
    code, _, err = say("clean", "--json")
    assert code == 3
    assert "is not followed" in err


def test_people_read_tables_and_sentences(say: Say, board: FoldBoard, store: ObjectStore) -> None:
    old, _held, stays, _written = messy(board, store)
    code, out, _ = say("clean", "--dry-run")
    assert code == 0
    assert f"(new)               {old}" in out
    assert "1 rollbacks would be scheduled, 1 would be executed, 2 plans left alone" in out
    assert say("plans", "execute", str(stays))[1] == f"plan {stays} is completed: 1 blocks\n"
    out = say("plans", "rollback", str(old))[1]
    assert out.startswith(f"plan {old} is rolled back, by plan ")
