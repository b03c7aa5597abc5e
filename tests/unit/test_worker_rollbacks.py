"""What a worker does with a grant, in its order: undo, say that it starts, run, report."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from maar.model.errors import Corrupt, LeaseLost, MaarError, Unavailable
from maar.model.ids import FencingToken, PlanId, WorkerId
from maar.model.plan import ROLLBACK, Account, LeasedPlan, PlanResult, Rollback
from maar.ports.plans.board import PollReply, PollRequest
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
UNDO = PlanId(901, 0)  # of plan 1
DEAD = FencingToken(INCARNATION, 1)


@dataclass
class WithLeftovers(SmallMetastore):
    """Every plan comes with the rollback of an earlier attempt; notes what it hears, in order."""

    heard: list[str] = field(default_factory=list)
    deaf: bool = False  # starts are not folded
    together: bool = False
    slow: asyncio.Event | None = None  # before it answers a start

    def grant(self, number: int) -> LeasedPlan:
        plan = super().grant(number)
        undo = PlanId(900 + number, 0)
        self.leased[undo] = plan.token
        self.index -= self.together  # those of one entry have one token
        return msgspec.structs.replace(
            plan, rollbacks=(Rollback(undo, plan.token, plan.id, (DEAD,)),)
        )

    async def poll(self, request: PollRequest) -> PollReply:
        started = [renewal for renewal in request.renewals if renewal.started]
        if started and self.deaf:
            raise Unavailable("the log does not answer")
        reply = await super().poll(request)
        if started and self.slow is not None:
            await self.slow.wait()
        self.heard += [f"start {renewal.plan}" for renewal in started]
        for report in request.reports:
            word = "result" if report.result else "failure"
            self.heard.append(f"{word} {report.plan}")
        return reply


class Uncancelled(ThreadRunner):
    """A plan may be cancelled that never came to run."""

    def cancel(self, plan: LeasedPlan) -> None:
        self.cancelled.setdefault(plan.token, Gate())
        super().cancel(plan)


def worker_of(
    metastore: WithLeftovers,
    undo_fails: MaarError | None = None,
    may_undo: Gate | None = None,
    free: PlanId | None = None,  # a plan that does not wait for that
    slots: int = 1,
) -> Worker:
    def undo(rollback: Rollback) -> PlanResult:
        metastore.heard.append(f"undo {rollback.plan}")
        if may_undo is not None and rollback.target != free:
            may_undo.wait()
        if undo_fails is not None:
            raise undo_fails
        return UNDONE

    def work(plan: LeasedPlan, _: Gate) -> PlanResult:
        metastore.heard.append(f"run {plan.id}")
        return RESULT

    return Worker(
        BRISK,
        metastore,
        Uncancelled(work, slots=slots),
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


def test_a_plan_that_was_lost_while_it_was_undone_does_not_keep_its_slot() -> None:
    """Nobody tells the worker any more that its start is known: it must not wait for that."""
    metastore, may_undo = WithLeftovers(waiting=[1]), Gate()

    async def test() -> None:
        async with working(worker_of(metastore, may_undo=may_undo)):
            await until(lambda: f"undo {UNDO}" in metastore.heard)
            metastore.take_away(1)
            seen = len(metastore.renewals())
            await until(lambda: len(metastore.renewals()) > seen)
            await more_polls(metastore, 0)
            may_undo.set()
            metastore.waiting.append(2)
            await until(lambda: PlanId(2, 0) in metastore.done)

    run_virtually(test())
    assert "run 1.0" not in metastore.heard


def test_the_start_of_one_plan_is_not_that_of_another_of_the_same_entry() -> None:
    """They have one token. The second begins while the start of the first is under way."""
    metastore, may_undo = WithLeftovers(waiting=[1, 2], together=True), Gate()
    worker = worker_of(metastore, may_undo=may_undo, free=PlanId(1, 0), slots=2)

    async def test() -> None:
        slow = metastore.slow = asyncio.Event()
        async with working(worker):
            await until(lambda: any(each.started for each in metastore.renewals()))
            may_undo.set()
            await until(lambda: "result 902.0" in metastore.heard)
            slow.set()
            await until(lambda: len(metastore.done) == 4)

    run_virtually(test())
    heard = metastore.heard
    assert heard.index("start 1.0") < heard.index("run 1.0")
    assert heard.index("start 2.0") < heard.index("run 2.0")
