"""Plans that anybody schedules and executes: outcomes, JSON and exit codes."""

from __future__ import annotations

import msgspec
import pytest

from maar.cli.commands import execution
from maar.metastore.records.entries import (
    PlanBisected,
    PlanExcluded,
    PlansScheduled,
    PolicySet,
)
from maar.metastore.state.timeline import NEVER
from maar.model import keys
from maar.model.errors import Unavailable
from maar.model.ids import MAIN_STORE, BlockId, Shard, StoreName, TenantId
from maar.model.plan import LeasedPlan, PlanResult, PlanSpec, QueueKey
from maar.model.trouble import Trouble
from maar.ports.plans.runner import AttemptFailed, RunnerDied
from maar.ports.stores.object_store import ObjectStore
from maar.runner.settings import SparkSettings
from maar.services.ingest.rules import INGEST
from support.clock.virtual_time import Gate
from support.http.command_line import Say
from support.http.executing_commands import (
    LIFE,
    Engines,
    answer_to,
    board,
    engines,
    front,
    in_virtual_time,
    merge,
    say,
    store,
)
from support.http.front import Front
from support.metastore.asked_plans import (
    LEASE_S,
    OTHER,
    add_segments,
    compact_plan,
    lease,
    leave_object,
)
from support.metastore.board import FoldBoard
from support.metastore.fold import result

__all__ = ["board", "engines", "front", "in_virtual_time", "say", "store"]


# ── run now ────────────────────────────────────────────────────────────────────────────────────


def test_a_worker_is_asked_to_execute_a_plan_now(say: Say, board: FoldBoard) -> None:
    plan = compact_plan(board)
    code, found = answer_to(say, "plans", "run-now", str(plan))
    assert (code, found["plan"], found["outcome"], found["workers"]) == (0, str(plan), "asked", 1)
    code, out, _ = say("plans", "run-now", str(plan))
    assert code == 0
    assert out == f"the next worker with room that carries out compact gets plan {plan}\n"
    lease(board, plan)
    code, found = answer_to(say, "plans", "run-now", str(plan))
    assert (code, found["outcome"], found["holder"]) == (3, "lease_live", OTHER)
    code, out, err = say("plans", "run-now", "999.0")
    assert (code, out) == (1, "")
    assert err.startswith("maar: not_found: there is no plan 999.0")


def test_a_backfill_is_left_to_the_command_that_opened_it(say: Say, board: FoldBoard) -> None:
    key = QueueKey(MAIN_STORE, TenantId("acme"), Shard(0), 0)
    board.fold.put(PlansScheduled((PlanSpec(INGEST, True, key, (), 2),)))
    (plan,) = board.fold.state.plans
    for verb in ("execute", "run-now"):
        code, found = answer_to(say, "plans", verb, str(plan))
        assert (code, found["plan"], found["outcome"]) == (1, str(plan), "wrong_kind")
        assert "only by whoever has its source" in found["why"]


# ── schedule ───────────────────────────────────────────────────────────────────────────────────


def test_a_plan_is_scheduled_once_however_often_it_is_asked_for(say: Say, board: FoldBoard) -> None:
    add_segments(board, 1, 2)
    wish = ("plans", "schedule", "compact", "--shard", "1", "--level", "0")
    code, first = answer_to(say, *wish)
    (plan,) = board.fold.state.plans
    assert (code, first) == (
        0,
        {"plan": str(plan), "kind": "compact", "state": "requested", "created": True},
    )
    code, second = answer_to(say, *wish)
    assert (code, second) == (0, {**first, "created": False})
    code, out, _ = say(*wish)
    assert (code, out) == (0, f"plan {plan} (compact) was there already (requested)\n")


def test_the_same_request_id_finds_the_plan_also_when_it_is_done(
    say: Say, board: FoldBoard
) -> None:
    add_segments(board, 1, 2)
    wish = ("plans", "schedule", "compact", "--shard", "1", "--request-id", "dag-7")
    plan = answer_to(say, *wish)[1]["plan"]
    assert answer_to(say, "plans", "execute", plan)[0] == 0
    add_segments(board, 3, 4)
    code, again = answer_to(say, *wish)
    assert code == 0
    assert (again["plan"], again["state"], again["created"]) == (plan, "completed", False)


def test_a_scope_is_a_shard_and_a_level_and_may_name_tenant_and_day(
    say: Say, board: FoldBoard
) -> None:
    add_segments(board, 1, 2)
    wish = ("plans", "schedule", "compact", "--shard", "1")
    segments = answer_to(say, *wish, "--tenant", "acme")[1]
    assert segments["created"], "segments are of all tenants"
    assert answer_to(say, "plans", "execute", segments["plan"])[0] == 0
    level1 = (*wish, "--level", "1")
    day, before = "2024-10-04", "2024-10-03"
    assert answer_to(say, *level1, "--tenant", "other")[1]["plan"] is None
    assert answer_to(say, *level1, "--window", before)[1]["plan"] is None
    found = answer_to(say, *level1, "--tenant", "acme", "--window", day)[1]
    assert found["created"]
    for more in ((), ("--tenant", "acme"), ("--window", day)):
        assert answer_to(say, *level1, *more)[1] == {**found, "created": False}
    code, found = answer_to(say, "plans", "schedule", "compact")
    assert (code, found["plan"]) == (1, None)
    assert "say which" in found["why"]


def test_nothing_to_do_is_a_refusal_that_says_why(say: Say) -> None:
    code, found = answer_to(say, "plans", "schedule", "compact", "--shard", "3")
    assert code == 1
    assert found["plan"] is None
    assert "no block waits to be merged in shard 3" in found["why"]
    code, out, err = say("plans", "schedule", "compact", "--shard", "3")
    assert (code, out) == (1, "")
    assert "no block waits" in err


def test_what_cannot_be_asked_is_wrong_use(say: Say) -> None:
    assert say("plans", "schedule", "brew")[0] == 2
    assert say("plans", "schedule", "compact", "--window", "yesterday")[0] == 2
    assert say("plans", "execute", "seven")[0] == 2


# ── execute ────────────────────────────────────────────────────────────────────────────────────


def test_a_plan_is_executed_under_a_lease_and_a_second_time_it_was_done_already(
    say: Say, board: FoldBoard, engines: Engines
) -> None:
    plan = compact_plan(board)
    code, found = answer_to(say, "plans", "execute", str(plan))
    assert code == 0
    assert (found["plan"], found["outcome"]) == (str(plan), "completed")
    made = board.fold.state.finished[plan].result
    assert made is not None
    assert [block["id"] for block in found["outputs"]] == [made.outputs[0].id]
    (attempt,) = board.fold.state.finished[plan].attempts
    assert attempt.started_at is not None, "told before it began"
    code, again = answer_to(say, "plans", "execute", str(plan))
    assert code == 0
    assert again == {**found, "outcome": "already_completed"}
    assert len(engines.started) == 1, "a plan that is done needs no engine"


def test_a_live_lease_is_respected_and_named(say: Say, board: FoldBoard) -> None:
    plan = compact_plan(board)
    lease(board, plan)
    board.pass_time(5)
    code, found = answer_to(say, "plans", "execute", str(plan))
    assert code == 3
    assert (found["outcome"], found["holder"]) == ("lease_live", OTHER)
    assert found["seconds_left"] == pytest.approx(10)
    code, out, err = say("plans", "execute", str(plan))
    assert (code, out) == (3, "")
    assert f"{OTHER} executes plan {plan}" in err


def test_without_the_guard_a_live_lease_is_taken_over_and_its_holder_can_complete_nothing(
    say: Say, board: FoldBoard, front: Front
) -> None:
    plan = compact_plan(board)
    before = lease(board, plan, started=True)
    policy = msgspec.structs.replace(board.fold.policy, execution_guard=False)
    board.fold.put(PolicySet(policy))
    assert answer_to(say, "plans", "execute", str(plan))[1]["outcome"] == "completed"
    late = {"token": str(before), "cause": "it was paused"}
    reply = front.post(f"/api/v1/plans/{plan}/fail", json=late)
    assert (reply.status_code, reply.json()["outcome"]) == (409, "lost")
    ends = [each["end"] for each in answer_to(say, "plans", "show", str(plan))[1]["attempts"]]
    assert ends == ["fenced", "completed"]


def test_after_the_lease_ran_out_the_plan_is_executed_and_the_dead_attempt_rolled_back_first(
    say: Say, board: FoldBoard, store: ObjectStore
) -> None:
    plan = compact_plan(board)
    dead = lease(board, plan, started=True)
    written = leave_object(store, plan, dead)
    board.pass_time(LEASE_S + 1)
    code, found = answer_to(say, "plans", "execute", str(plan))
    assert (code, found["outcome"]) == (0, "completed")
    assert not [info for info in store.list(written)]
    shown = answer_to(say, "plans", "show", str(plan))[1]
    (undone,) = shown["rollbacks"]
    assert (undone["token"], undone["state"]) == (str(dead), "completed")
    assert (shown["kind"], shown["removable"], shown["state"]) == ("compact", False, "completed")
    assert [attempt["end"] for attempt in shown["attempts"]] == ["expired", "completed"]
    assert shown["scheduled_at"] == 0
    assert shown["result"]["kind"] == "compact"
    assert str(dead) in say("plans", "show", str(plan))[1].partition("rolled back:")[2]


def test_a_removable_plan_that_has_begun_must_be_rolled_back(say: Say, board: FoldBoard) -> None:
    plan = compact_plan(board, removable=True)
    lease(board, plan, started=True)
    board.pass_time(LEASE_S + 1)
    code, found = answer_to(say, "plans", "execute", str(plan))
    assert (code, found["outcome"]) == (1, "must_be_rolled_back")
    assert answer_to(say, "plans", "rollback", str(plan))[0] == 0
    code, found = answer_to(say, "plans", "execute", str(plan))
    assert (code, found["outcome"]) == (1, "rolled_back")


def test_a_removable_plan_that_was_leased_and_never_begun_is_executed(
    say: Say, board: FoldBoard
) -> None:
    plan = compact_plan(board, removable=True)
    lease(board, plan)
    board.pass_time(LEASE_S + 1)
    assert answer_to(say, "plans", "execute", str(plan))[1]["outcome"] == "completed"


def test_an_excluded_plan_waits_for_an_operator(say: Say, board: FoldBoard) -> None:
    plan = compact_plan(board)
    board.fold.put(PlanExcluded(plan, None, NEVER, note="bad host"))
    code, found = answer_to(say, "plans", "execute", str(plan))
    assert (code, found["outcome"]) == (1, "excluded")
    assert "requeue" in found["why"]


def test_a_cancelled_plan_names_its_children(say: Say, board: FoldBoard) -> None:
    plan = compact_plan(board)
    board.fold.put(PlanBisected(plan, None, 1))
    children = [str(child) for child in board.fold.state.plans]
    code, found = answer_to(say, "plans", "execute", str(plan))
    assert (code, found["outcome"]) == (1, "cancelled")
    assert found["children"] == children
    assert len(children) == 2


def test_copies_that_an_executor_could_not_read_reach_the_leader(
    say: Say, board: FoldBoard, engines: Engines, front: Front
) -> None:
    met = [
        Trouble(BlockId("b1"), StoreName("eu"), "lake/k1", "missing", "it is gone", True),
        Trouble(BlockId("b2"), StoreName("us"), "lake/k2", "damaged", "a byte differs", True),
        Trouble(BlockId("b3"), StoreName("us"), "lake/k3", "away", "no answer", True),
    ]

    def fall_over(plan: LeasedPlan, gate: Gate) -> PlanResult:
        for each in met:
            engines.tell(each)
        return merge(plan, gate)

    engines.work = fall_over
    code, found = answer_to(say, "plans", "execute", str(compact_plan(board)))
    assert (code, found["outcome"]) == (0, "completed")
    assert front.metastore.damaged == tuple(met)


def test_a_leader_that_does_not_hear_of_bad_copies_costs_a_plan_nothing(
    say: Say, board: FoldBoard, engines: Engines, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deaf(_copies: tuple[Trouble, ...]) -> None:
        raise Unavailable("nobody leads")

    monkeypatch.setattr(front.metastore, "report_damage", deaf)

    def fall_over(plan: LeasedPlan, gate: Gate) -> PlanResult:
        engines.tell(Trouble(BlockId("b1"), StoreName("eu"), "k", "missing", "it is gone", True))
        return merge(plan, gate)

    engines.work = fall_over
    code, found = answer_to(say, "plans", "execute", str(compact_plan(board)))
    assert (code, found["outcome"]) == (0, "completed")


def test_a_plan_that_never_was_is_not_found(say: Say, engines: Engines) -> None:
    code, found = answer_to(say, "plans", "execute", "999.0")
    assert (code, found["plan"], found["outcome"]) == (1, "999.0", "not_found")
    assert engines.started == []


def test_too_many_ended_attempts_make_it_busy(say: Say, board: FoldBoard) -> None:
    plan = compact_plan(board)
    board.fold.put(PolicySet(msgspec.structs.replace(board.fold.policy, leftovers_max=0)))
    code, found = answer_to(say, "plans", "execute", str(plan))
    assert (code, found["outcome"]) == (3, "busy")


def test_a_failure_says_its_cause_and_the_plan_may_be_executed_again(
    say: Say, board: FoldBoard, engines: Engines
) -> None:
    def fail(_plan: LeasedPlan, _cancelled: Gate) -> PlanResult:
        raise AttemptFailed("no memory", stopped=True)

    plan = compact_plan(board)
    engines.work = fail
    code, found = answer_to(say, "plans", "execute", str(plan))
    assert (code, found) == (3, {"plan": str(plan), "outcome": "failed", "cause": "no memory"})
    assert board.fold.state.plans[plan].lease is None, "its tasks were seen to stop"
    engines.work = merge
    assert answer_to(say, "plans", "execute", str(plan))[1]["outcome"] == "completed"


def test_a_failure_whose_tasks_were_not_seen_to_stop_keeps_its_lease(
    say: Say, board: FoldBoard, engines: Engines
) -> None:
    def hang(_plan: LeasedPlan, _cancelled: Gate) -> PlanResult:
        raise AttemptFailed("the host froze", stopped=False)

    plan = compact_plan(board)
    engines.work = hang
    code, found = answer_to(say, "plans", "execute", str(plan))
    assert (code, found["outcome"]) == (3, "failed")
    assert "the host froze" in found["cause"]
    assert board.fold.state.plans[plan].lease is not None
    assert answer_to(say, "plans", "execute", str(plan))[1]["outcome"] == "lease_live"


def test_an_engine_that_dies_is_a_failure_with_its_cause(
    say: Say, board: FoldBoard, engines: Engines
) -> None:
    def die(_plan: LeasedPlan, _cancelled: Gate) -> PlanResult:
        raise RunnerDied("Spark is gone")

    plan = compact_plan(board)
    engines.work = die
    code, found = answer_to(say, "plans", "execute", str(plan))
    assert (code, found["outcome"], found["cause"]) == (3, "failed", "Spark is gone")


def test_a_plan_that_somebody_took_meanwhile_is_lost(
    say: Say, board: FoldBoard, engines: Engines
) -> None:
    def sleep_over(plan: LeasedPlan, _cancelled: Gate) -> PlanResult:
        board.pass_time(LEASE_S + 1)
        lease(board, plan.id)
        return merge(plan, _cancelled)

    plan = compact_plan(board)
    engines.work = sleep_over
    code, found = answer_to(say, "plans", "execute", str(plan))
    assert (code, found["outcome"]) == (3, "lost")
    held = board.fold.state.plans[plan].lease
    assert held is not None
    assert held.worker == OTHER


def test_a_result_that_the_log_refuses_is_a_failure(
    say: Say, board: FoldBoard, engines: Engines
) -> None:
    def miscount(plan: LeasedPlan, _cancelled: Gate) -> PlanResult:
        return result(plan.id, plan.token, plan.inputs[:1])

    plan = compact_plan(board)
    engines.work = miscount
    code, found = answer_to(say, "plans", "execute", str(plan))
    assert (code, found["outcome"]) == (3, "failed")
    assert "does not account for every input profile" in found["cause"]


def test_a_store_that_is_not_the_servers_is_refused(
    say: Say, board: FoldBoard, store: ObjectStore
) -> None:
    store.delete(keys.marker(LIFE))
    plan = compact_plan(board)
    code, _, err = say("plans", "execute", str(plan))
    assert code == 2
    assert "is not the store of the metastore" in err
    assert board.fold.state.plans[plan].lease is None


@pytest.mark.parametrize(
    ("master", "given", "takes", "slots"),
    [
        ("local[*]", 1, 4, 1),
        ("local[2]", 0, 4, 2),
        ("local[8]", 0, 4, 4),
        ("local[8]", 0, 1, 1),
        ("spark://h:7077", 0, 4, 4),
        ("spark://h:7077", 2, 4, 2),
    ],
)
def test_an_engine_has_the_slots_that_its_plan_takes(
    master: str, given: int, takes: int, slots: int
) -> None:
    spark = SparkSettings(master=master, slots=given)
    assert execution.for_one_plan(spark, takes).slots == slots
