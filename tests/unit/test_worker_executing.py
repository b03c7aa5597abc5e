"""A worker that is started for one plan: it carries that out, and stops by itself."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from maar.model.errors import Unavailable
from maar.model.ids import FencingToken, PlanId, WorkerId
from maar.model.refusal import Refusal
from maar.ports.plans.board import Answer, Execution, Outcome
from maar.worker.executed import Executed
from maar.worker.keeper import LEAVING
from maar.worker.service import ASKED_MAX, Worker
from support.clock.virtual_time import LoopClock, run_virtually
from support.metastore.asked_plans import compact_plan
from support.metastore.board import FoldBoard
from support.metastore.fold import INCARNATION, result
from support.worker.stand_ins import BRISK, RESULT, ThreadRunner, at_once

PLAN = PlanId(1, 0)
TOKEN = FencingToken(INCARNATION, 7)
GRANTED = Execution(PLAN, Answer.GRANTED)


class AwayBoard(FoldBoard):
    """A metastore that does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def poll(self, _request: object) -> object:  # type: ignore[override]
        self.asked += 1
        raise Unavailable("nobody leads")


def executor(board: FoldBoard, runner: ThreadRunner, plan: PlanId) -> Worker:
    registry, clock = CollectorRegistry(), LoopClock()
    return Worker(BRISK, board, runner, clock, registry, WorkerId("me"), execute=plan)


def test_it_stops_when_its_plan_is_done_and_takes_no_other() -> None:
    async def work() -> None:
        board = FoldBoard()
        plan, other = compact_plan(board, 1), compact_plan(board, 11)
        runner = ThreadRunner(lambda plan, _: result(plan.id, plan.token, plan.inputs))
        worker = executor(board, runner, plan)
        async with asyncio.timeout(60):
            await worker.run()
        assert worker.executed.plan_outcome().outcome == "completed"
        assert board.fold.state.plans[other].attempts == ()

    run_virtually(work())


def test_it_asks_a_silent_metastore_a_few_times_and_says_so() -> None:
    async def work() -> None:
        board = AwayBoard()
        worker = executor(board, ThreadRunner(at_once), PLAN)
        async with asyncio.timeout(60):
            await worker.run()
        assert board.asked == ASKED_MAX
        with pytest.raises(Unavailable, match="nothing was executed"):
            worker.executed.plan_outcome()

    run_virtually(work())


@pytest.mark.parametrize(
    ("executed", "outcome", "said"),
    [
        (Executed(GRANTED, RESULT, outcome=Outcome(PLAN, TOKEN, True)), "completed", ""),
        (Executed(GRANTED, RESULT), "lost", "not answered"),
        (
            Executed(GRANTED, RESULT, outcome=Outcome(PLAN, TOKEN, False, Refusal.STALE_TOKEN)),
            "lost",
            "not held under this token",
        ),
        (
            Executed(GRANTED, RESULT, outcome=Outcome(PLAN, TOKEN, False, Refusal.OUTPUT_KEY)),
            "failed",
            "did not write",
        ),
        (Executed(GRANTED, lost=True), "lost", "its lease went"),
        (Executed(GRANTED, LEAVING), "failed", "is leaving"),
        (Executed(GRANTED, None, cause="froze"), "failed", "froze; not all of it was seen"),
        (Executed(Execution(PLAN, Answer.BUSY, "too many")), "busy", "too many"),
    ],
)
def test_every_end_has_its_outcome(executed: Executed, outcome: str, said: str) -> None:
    found = executed.plan_outcome()
    assert (found.plan, found.outcome) == (PLAN, outcome)
    assert said in f"{found.why} {found.cause}"
