"""What a worker does with a grant, in its order: undo, say that it starts, run, report."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from maar.model.errors import Corrupt, LeaseLost, MaarError, Unavailable
from maar.model.ids import FencingToken, PlanId, WorkerId
from maar.model.plan import ROLLBACK, Account, LeasedPlan, PlanResult, Rollback
from maar.ports.plan_board import PollReply, PollRequest
from maar.worker.service import Worker
from support.clock.virtual_time import Gate, LoopClock, run_virtually
from support.worker.stand_ins import (
    BRISK,
    INCARNATION,
    RESULT,
    SmallMetastore,
    ThreadRunner,
    more_polls,
    until,
    working,
)

UNDONE = PlanResult(ROLLBACK, (), Account(0, 0, 0), removed=3)
UNDO = PlanId(900, 0)
DEAD = FencingToken(INCARNATION, 1)


@dataclass
class WithLeftovers(SmallMetastore):
    """Every plan comes with the rollback of an earlier attempt; notes what it hears, in order."""

    heard: list[str] = field(default_factory=list)
    deaf: bool = False  # starts are not folded

    def _grant(self, number: int) -> LeasedPlan:
        plan = super()._grant(number)
        self.leased[UNDO] = plan.token
        return msgspec.structs.replace(
            plan, rollbacks=(Rollback(UNDO, plan.token, plan.id, (DEAD,)),)
        )

    async def poll(self, request: PollRequest) -> PollReply:
        started = [renewal for renewal in request.renewals if renewal.started]
        if started and self.deaf:
            raise Unavailable("the log does not answer")
        reply = await super().poll(request)
        self.heard += [f"start {renewal.plan}" for renewal in started]
        for report in request.reports:
            word = "result" if report.result else "failure"
            self.heard.append(f"{word} {report.plan}")
        return reply


def worker_of(metastore: WithLeftovers, undo_fails: MaarError | None = None) -> Worker:
    def undo(rollback: Rollback) -> PlanResult:
        metastore.heard.append(f"undo {rollback.plan}")
        if undo_fails is not None:
            raise undo_fails
        return UNDONE

    def work(plan: LeasedPlan, _: Gate) -> PlanResult:
        metastore.heard.append(f"run {plan.id}")
        return RESULT

    return Worker(
        BRISK,
        metastore,
        ThreadRunner(work, slots=1),
        LoopClock(),
        CollectorRegistry(),
        WorkerId("w1"),
        undo=undo,
    )


def test_what_is_left_is_undone_and_the_start_is_known_before_anything_is_written() -> None:
    metastore = WithLeftovers(waiting=[1])

    async def test() -> None:
        async with working(worker_of(metastore)):
            await until(lambda: PlanId(1, 0) in metastore.done)

    run_virtually(test())
    assert metastore.heard == [
        f"undo {UNDO}",
        f"result {UNDO}",
        "start 1.0",
        "run 1.0",
        "result 1.0",
    ]


def test_nothing_runs_until_the_metastore_has_answered_the_start() -> None:
    metastore = WithLeftovers(waiting=[1], deaf=True, lease_ns=10**12)

    async def test() -> None:
        async with working(worker_of(metastore)):
            await until(lambda: f"result {UNDO}" in metastore.heard)
            await more_polls(metastore, 0)
            assert "run 1.0" not in metastore.heard
            metastore.deaf = False
            await until(lambda: PlanId(1, 0) in metastore.done)

    run_virtually(test())


@pytest.mark.parametrize("error", [Unavailable("the store is away"), LeaseLost("another has it")])
def test_a_plan_does_not_start_before_its_rollback_and_is_not_to_blame(error: MaarError) -> None:
    metastore = WithLeftovers(waiting=[1])

    async def test() -> None:
        async with working(worker_of(metastore, error)):
            await until(lambda: bool(metastore.failures))

    run_virtually(test())
    assert metastore.heard == [f"undo {UNDO}", "failure 1.0"]
    ((cause, own),) = metastore.failures
    assert str(error) in cause
    assert not own


def test_an_intent_that_cannot_be_followed_does_not_hold_up_the_plan() -> None:
    """The rollback fails, visibly, and waits for an operator; the plan goes on."""
    metastore = WithLeftovers(waiting=[1])

    async def test() -> None:
        async with working(worker_of(metastore, Corrupt("the intent a-0 is not followed"))):
            await until(lambda: PlanId(1, 0) in metastore.done)

    run_virtually(test())
    assert metastore.heard[:3] == [f"undo {UNDO}", f"failure {UNDO}", "start 1.0"]
    assert metastore.failures == [("the intent a-0 is not followed", True)]
