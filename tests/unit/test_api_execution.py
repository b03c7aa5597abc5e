"""The lease protocol over HTTP: what each step answers, and with which status."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from maar.adapters.http_board import HttpBoard
from maar.model.errors import InvalidInput, LeaseLost, NotFound, Rejected, Unavailable
from maar.model.ids import FencingToken, PlanId, WorkerId
from maar.model.plain import plain
from maar.model.plan import Account, LeasedPlan, PlanResult
from maar.ports.metastore.log_time import GetNow
from maar.ports.plans.board import (
    Answer,
    ConfirmDeletes,
    PollReply,
    PollRequest,
    Renewal,
    Report,
    RollBackPlan,
    ScheduledPlan,
    SchedulePlan,
    ScheduleRollbacks,
)
from maar.ports.stores.object_store import StoreSettings
from maar.services.clean.rules import CLEAN
from maar.services.compact.rules import COMPACT
from support.http.front import Front
from support.http.pushed import run
from support.metastore.asked_plans import add_segments, compact_plan
from support.metastore.board import FoldBoard
from support.metastore.fold import result

ME = WorkerId("me-1")
LEASE_S = 15


@pytest.fixture
def front() -> Front:
    secret = (("access_key_id", "AK"), ("region", "eu-1"), ("secret_access_key", "shh"))
    return Front(store=StoreSettings("main", "s3://bucket/maar", secret))


@pytest.fixture
def board(front: Front) -> FoldBoard:
    return front.metastore.board


def asked(front: Front, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    reply = front.post(f"/api/v1/{path}", json=body)
    return reply.status_code, reply.json()


def granted(front: Front, plan: PlanId, worker: str = ME) -> str:
    status, found = asked(front, f"plans/{plan}/grant", {"worker": worker})
    assert status == 200
    token: str = found["token"]
    return token


# ── by hand ────────────────────────────────────────────────────────────────────────────────────


def test_a_plan_from_schedule_to_result_by_any_language(front: Front, board: FoldBoard) -> None:
    add_segments(board, 1, 2)
    wish = {"kind": "compact", "shard": 1, "request_id": "dag-1"}
    status, found = asked(front, "plans", wish)
    assert (status, found["created"]) == (200, True)
    plan = PlanId.parse(found["plan"])
    status, found = asked(front, f"plans/{plan}/grant", {"worker": ME})
    assert (status, found["lease_s"]) == (200, LEASE_S)
    assert found["plan"]["id"] == str(plan)
    assert [block["kind"] for block in found["plan"]["inputs"]] == ["segment", "segment"]
    token = found["token"]
    step = {"plan": str(plan), "token": token, "lease_s": LEASE_S}
    assert asked(front, f"plans/{plan}/start", {"token": token}) == (200, step)
    board.pass_time(10)
    assert asked(front, f"plans/{plan}/renew", {"token": token}) == (200, step)
    leased = board.leased_plan(plan)
    made = plain(result(plan, leased.token, leased.inputs))
    completion = {"token": token, "result": made}
    status, found = asked(front, f"plans/{plan}/complete", completion)
    assert (status, found["outcome"]) == (200, "completed")
    assert asked(front, f"plans/{plan}/complete", completion)[0] == 200, "said twice, done once"
    status, found = asked(front, f"plans/{plan}/grant", {"worker": "other"})
    assert (status, found["outcome"]) == (200, "already_completed")
    assert found["outputs"] == made["outputs"]


def test_refusals_have_a_status_a_message_and_the_outcome(front: Front, board: FoldBoard) -> None:
    plan = compact_plan(board)
    granted(front, plan)
    reply = front.post(f"/api/v1/plans/{plan}/grant", json={"worker": "other"})
    found = reply.json()
    assert (reply.status_code, found["code"]) == (409, "failed_precondition")
    assert (found["outcome"], found["holder"], found["plan"]) == ("lease_live", ME, str(plan))
    assert found["message"] == found["why"]
    assert reply.headers["Retry-After"] == "1"
    status, found = asked(front, "plans/999.0/grant", {"worker": ME})
    assert (status, found["code"], found["outcome"]) == (404, "not_found", "not_found")
    status, found = asked(front, "plans", {"kind": "compact", "shard": 9})
    assert (status, found["plan"]) == (409, None)
    assert found["why"]


def test_run_now_asks_a_worker(front: Front, board: FoldBoard) -> None:
    plan = compact_plan(board)
    status, found = asked(front, f"plans/{plan}/run-now", {})
    assert (status, found["plan"], found["outcome"]) == (200, str(plan), "asked")
    assert found["workers"] == 1
    assert board.fold.state.plans[plan].urgent
    assert board.fold.state.plans[plan].lease is None
    granted(front, plan)
    status, found = asked(front, f"plans/{plan}/run-now", {})
    assert (status, found["outcome"], found["holder"]) == (409, "lease_live", ME)
    assert asked(front, "plans/999.0/run-now", {})[0] == 404
    assert asked(front, f"plans/{plan}/run-now", {"token": "x"})[0] == 400


def test_who_says_which_kinds_it_carries_out_is_granted_no_other(
    front: Front, board: FoldBoard
) -> None:
    plan = compact_plan(board)
    wish = {"worker": ME, "kinds": ["logcompact", "cluster"]}
    status, found = asked(front, f"plans/{plan}/grant", wish)
    assert (status, found["outcome"]) == (409, "wrong_kind")
    assert "carries out cluster, logcompact only" in found["why"]
    wish = {"worker": ME, "kinds": ["logcompact", "compact"]}
    assert asked(front, f"plans/{plan}/grant", wish)[0] == 200


def test_only_what_may_succeed_later_says_when_to_come_again(
    front: Front, board: FoldBoard
) -> None:
    plan = compact_plan(board)
    stale = granted(front, plan)
    board.pass_time(LEASE_S + 1)
    granted(front, plan, "other")
    lost = front.post(f"/api/v1/plans/{plan}/renew", json={"token": stale})
    assert (lost.status_code, lost.json()["outcome"]) == (409, "lost")
    assert "Retry-After" not in lost.headers, "a token that is gone never comes back"


def test_a_stale_token_can_do_nothing(front: Front, board: FoldBoard) -> None:
    plan = compact_plan(board)
    stale = granted(front, plan)
    board.pass_time(LEASE_S + 1)
    leased = board.leased_plan(plan)
    newer = granted(front, plan, "other")
    for verb, more in (
        ("renew", {}),
        ("start", {}),
        ("fail", {"cause": "late"}),
        ("complete", {"result": plain(result(plan, leased.token, leased.inputs))}),
    ):
        status, found = asked(front, f"plans/{plan}/{verb}", {"token": stale, **more})
        assert (status, found["outcome"]) == (409, "lost"), verb
    assert asked(front, f"plans/{plan}/renew", {"token": newer})[0] == 200


def test_a_failure_is_told_with_its_cause(front: Front, board: FoldBoard) -> None:
    plan = compact_plan(board)
    body = {"token": granted(front, plan), "cause": "no disk", "plan_at_fault": False}
    status, found = asked(front, f"plans/{plan}/fail", body)
    assert (status, found) == (200, {"plan": str(plan), "outcome": "failed", "cause": "no disk"})
    failed = board.fold.state.plans[plan]
    assert (failed.failures, failed.attempts[0].cause) == (0, "no disk")


def test_the_same_worker_that_asks_again_has_the_same_lease(front: Front, board: FoldBoard) -> None:
    plan = compact_plan(board)
    assert granted(front, plan) == granted(front, plan)


def test_bodies_that_are_not_understood_are_400(front: Front, board: FoldBoard) -> None:
    plan = compact_plan(board)
    token = granted(front, plan)
    for path, body in (
        ("plans", {}),
        ("plans", {"kind": "brew"}),
        ("plans", {"kind": "compact", "window": "soon"}),
        (f"plans/{plan}/grant", {"worker": ""}),
        (f"plans/{plan}/renew", {"token": "x"}),
        (f"plans/{plan}/complete", {"token": token, "result": {"kind": "compact"}}),
        ("plans/one/grant", {"worker": ME}),
        ("clean", {"schedule_only": True, "rollbacks_only": True}),
    ):
        status, found = asked(front, path, body)
        assert (status, found["code"]) == (400, "invalid_argument"), (path, body)


def test_an_executor_is_told_the_store_and_no_secret(front: Front) -> None:
    reply = front.get("/api/v1/executor")
    store = {
        "name": "main",
        "url": "s3://bucket/maar",
        "options": {"region": "eu-1"},
        "region": "",
        "zones": [],
    }
    assert reply.json() == {
        "store": store,
        "stores": [store],
        "zone": "",
        "metastore": "127.0.0.1:4041",
        "incarnation": "1234abcd",
    }
    assert "shh" not in reply.text


def test_plans_are_listed_by_their_kind(front: Front) -> None:
    front.get("/api/v1/plans?kind=clean")
    assert front.metastore.wanted.service == "clean"
    front.get("/api/v1/plans?service=compact")
    assert front.metastore.wanted.service == "compact"


# ── the same as a plan board ───────────────────────────────────────────────────────────────────


class Boards:
    """The board over HTTP and the one behind it, asked the same."""

    def __init__(self, front: Front) -> None:
        self.far = HttpBoard("http://maar", transport=httpx.ASGITransport(front.app))
        self.near = front.metastore.board


def poll(plan: PlanId) -> PollRequest:
    return PollRequest(ME, 1, execute=plan)


def test_a_grant_over_http_is_the_grant_itself(front: Front, board: FoldBoard) -> None:
    async def ask() -> None:
        boards = Boards(front)
        plan = compact_plan(board)
        board.pass_time(1)
        first = await boards.near.poll(poll(plan))  # an attempt that dies
        (dead,) = first.granted
        start = PollRequest(ME, 0, renewals=(Renewal(plan, dead.token, started=True),))
        assert await boards.far.call(start) == await boards.near.poll(start)
        board.pass_time(LEASE_S + 1)
        reply = await boards.far.call(poll(plan))
        (leased,) = reply.granted
        assert leased == board.leased_plan(plan)
        assert leased.rollbacks[0].tokens == (dead.token,)
        assert reply.execution is not None
        assert reply.execution.answer is Answer.GRANTED
        stale = PollRequest(ME, 0, renewals=(Renewal(plan, dead.token),))
        assert (await boards.far.call(stale)).kept == ()
        await _complete(boards, leased)

    run(ask())


async def _complete(boards: Boards, leased: LeasedPlan) -> None:
    report = Report(leased.id, leased.token, result(leased.id, leased.token, leased.inputs))
    late = Report(leased.id, FencingToken(leased.token.incarnation, 1), report.result)
    reply: PollReply = await boards.far.call(PollRequest(ME, 0, reports=(report, late)))
    assert [(outcome.accepted, bool(outcome.refusal)) for outcome in reply.outcomes] == [
        (True, False),
        (False, True),
    ]
    again = await boards.far.call(PollRequest(ME, 1, execute=leased.id))
    assert again == await boards.near.poll(PollRequest(ME, 1, execute=leased.id))


def test_wishes_and_cleanings_over_http_are_those_of_the_board(
    front: Front, board: FoldBoard
) -> None:
    async def ask() -> None:
        boards = Boards(front)
        add_segments(board, 1, 2)
        wish = SchedulePlan(COMPACT, shard=1)
        made = await boards.far.call(wish)
        assert made.created
        assert await boards.far.call(wish) == await boards.near.schedule_plan(wish)
        nothing = SchedulePlan(COMPACT, shard=7)
        assert await boards.far.call(nothing) == await boards.near.schedule_plan(nothing)
        assert made.plan is not None
        undone = await boards.far.call(RollBackPlan(made.plan))
        assert (undone.outcome, undone.rollback) == ("nothing_to_do", None)
        with pytest.raises(NotFound, match=r"there is no plan 9\.9"):
            await boards.far.call(RollBackPlan(PlanId(9, 9)))
        old = compact_plan(board, 11, removable=True)
        board.pass_time(600)
        await _clean(boards, old)

    run(ask())


def held_cleaning(board: FoldBoard) -> tuple[PlanId, FencingToken]:
    """A cleaning that somebody else is at."""
    made = run(board.schedule_plan(SchedulePlan(CLEAN)))
    assert made.plan is not None
    (held,) = run(board.poll(PollRequest(WorkerId("cleaner"), 1, execute=made.plan))).granted
    return made.plan, held.token


def test_a_cleaning_waits_a_moment_for_another_one_to_end(
    front: Front, board: FoldBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resident cleaner may take the plan that a cleaning by hand has just scheduled."""
    plan, token = held_cleaning(board)
    asks = []

    async def another_ends(request: PollRequest) -> PollReply:
        reply = await FoldBoard.poll(board, request)
        if request.execute is None:
            return reply
        asks.append(reply.granted)
        if not reply.granted:
            done = Report(plan, token, PlanResult(CLEAN, (), Account(0, 0, 0)))
            await FoldBoard.poll(board, PollRequest(WorkerId("cleaner"), 0, reports=(done,)))
        return reply

    monkeypatch.setattr(board, "poll", another_ends)
    status, found = asked(front, "clean", {})
    assert (status, found["scheduled"], len(asks)) == (200, [], 2)
    assert "outcome" not in found


def test_a_cleaning_that_takes_long_is_left_to_whoever_is_at_it(
    front: Front, board: FoldBoard
) -> None:
    plan, _ = held_cleaning(board)
    status, found = asked(front, "clean", {})
    assert (status, found["plan"], found["outcome"]) == (409, str(plan), "lease_live")
    assert found["scheduled"] == []


async def _clean(boards: Boards, old: PlanId) -> None:
    made: ScheduledPlan = await boards.far.call(SchedulePlan(CLEAN))
    assert made.plan is not None
    (held,) = (await boards.far.call(poll(made.plan))).granted
    dry = await boards.far.call(ScheduleRollbacks(None, None))
    assert (dry.pending, len(dry.skipped)) == ((), 1)
    with pytest.raises(LeaseLost):
        await boards.far.call(ScheduleRollbacks(held.id, FencingToken(held.token.incarnation, 1)))
    step = await boards.far.call(ScheduleRollbacks(held.id, held.token))
    (scheduled,) = step.scheduled
    assert scheduled.target == old
    assert step.pending == (scheduled,)
    (rollback,) = (await boards.far.call(poll(scheduled.rollback))).granted
    doomed = ConfirmDeletes(rollback.id, rollback.token, ("segments/of-others",))
    assert await boards.far.call(doomed) == (), "nothing that its attempts did not write"
    with pytest.raises(LeaseLost):
        await boards.far.call(ConfirmDeletes(held.id, rollback.token, ()))


def test_failures_of_the_server_are_our_errors(front: Front, board: FoldBoard) -> None:
    async def ask() -> None:
        far = HttpBoard("http://maar", transport=httpx.ASGITransport(front.app))
        front.metastore.failures = [Unavailable("nobody leads")]
        with pytest.raises(Unavailable, match="nobody leads"):
            await far.call(poll(compact_plan(board)))
        with pytest.raises(InvalidInput, match="is not a kind of plan"):
            await far.call(SchedulePlan(COMPACT.__class__("brew")))
        with pytest.raises(Rejected, match="not asked over HTTP"):
            await far.call(GetNow())  # type: ignore[arg-type]
        nobody = HttpBoard("http://127.0.0.1:9")
        with pytest.raises(Unavailable, match="does not answer"):
            await nobody.setup()
        await nobody.close()

    run(ask())
