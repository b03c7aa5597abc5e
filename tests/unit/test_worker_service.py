"""The worker around its keeper, with a small metastore and a runner of threads."""

from __future__ import annotations

import asyncio

import msgspec
from prometheus_client import CollectorRegistry

from maar.model.plan import LeasedPlan, PlanResult
from maar.ports.plans.board import PollReply, PollRequest
from maar.worker.keeper import LEAVING
from support.clock.virtual_time import Gate, Meeting, run_virtually
from support.worker.stand_ins import (
    BRISK,
    RESULT,
    SmallMetastore,
    ThreadRunner,
    at_once,
    more_polls,
    until,
    until_cancelled,
    worker_of,
    working,
)


def test_every_plan_is_run_once_and_reported() -> None:
    metastore = SmallMetastore(waiting=list(range(20)))
    registry = CollectorRegistry()

    async def scenario() -> None:
        async with working(worker_of(metastore, ThreadRunner(at_once), registry)):
            await until(lambda: len(metastore.done) == 20)

    run_virtually(scenario())
    assert registry.get_sample_value("maar_worker_completed_total") == 20
    assert registry.get_sample_value("maar_worker_running") == 0
    seconds = registry.get_sample_value(
        "maar_worker_task_seconds_count", {"service": "compact", "end": "completed"}
    )
    assert seconds == 20


def test_nothing_is_asked_for_before_the_runner_is_warm() -> None:
    metastore = SmallMetastore(waiting=[1])
    runner = ThreadRunner(at_once)
    runner.may_warm.clear()

    async def scenario() -> None:
        async with working(worker_of(metastore, runner)) as worker:
            await asyncio.sleep(0.05)
            assert all(poll.capacity == 0 for poll in metastore.polls)
            assert worker.ready() == "the engine is warming up"
            runner.may_warm.set()
            await until(lambda: len(metastore.done) == 1)
            assert worker.ready() == ""

    run_virtually(scenario())


def test_no_more_plans_run_at_once_than_there_are_slots() -> None:
    metastore = SmallMetastore(waiting=list(range(12)))

    together = Meeting(3)

    def short(_plan: LeasedPlan, _cancelled: Gate) -> PlanResult:
        together.wait()
        return RESULT

    runner = ThreadRunner(short, slots=3)

    async def scenario() -> None:
        async with working(worker_of(metastore, runner)):
            await until(lambda: len(metastore.done) == 12)

    run_virtually(scenario())
    assert runner.most_active == 3


def test_a_long_plan_is_renewed_until_it_is_done() -> None:
    metastore = SmallMetastore(waiting=[1])

    end = Gate()

    def longer_than_the_lease(_plan: LeasedPlan, cancelled: Gate) -> PlanResult:
        end.wait()
        assert not cancelled.is_set()
        return RESULT

    async def scenario() -> None:
        async with working(worker_of(metastore, ThreadRunner(longer_than_the_lease))):
            await until(lambda: len(metastore.renewals()) >= 8)  # a third of a lease apart
            end.set()
            await until(lambda: len(metastore.done) == 1)

    run_virtually(scenario())
    began, *others = metastore.renewals()
    assert began.started, "the first says that the work has begun"
    assert not any(renewal.started for renewal in others)


def test_a_plan_that_was_given_to_another_is_cancelled_and_not_reported() -> None:
    metastore = SmallMetastore(waiting=[1])
    runner = ThreadRunner(until_cancelled)
    registry = CollectorRegistry()

    async def scenario() -> None:
        async with working(worker_of(metastore, runner, registry)):
            await until(lambda: runner.active == 1)
            metastore.take_away(1)
            await until(lambda: runner.active == 0)
            await more_polls(metastore)

    run_virtually(scenario())
    assert not any(poll.reports for poll in metastore.polls)
    assert registry.get_sample_value("maar_worker_lost_total") == 1


def test_stopping_finishes_what_runs_and_takes_nothing_new() -> None:
    metastore = SmallMetastore(waiting=[1, 2, 3, 4])
    end = Gate()

    def waits(_plan: LeasedPlan, _cancelled: Gate) -> PlanResult:
        end.wait()
        return RESULT

    runner = ThreadRunner(waits)
    patient = msgspec.structs.replace(BRISK, drain_ms=60_000)

    async def scenario() -> None:
        async with working(worker_of(metastore, runner, settings=patient)) as worker:
            await until(lambda: runner.active == 2)
            worker.stop()
            assert worker.ready() == "stopping"
            seen = len(metastore.renewals())  # its leases are renewed meanwhile
            await until(lambda: len(metastore.renewals()) >= seen + 8)
            end.set()

    run_virtually(scenario())
    assert len(metastore.done) == 2
    assert metastore.waiting == [3, 4]


def test_a_plan_that_is_granted_while_the_worker_leaves_goes_back_untouched() -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    class Slow(SmallMetastore):
        async def poll(self, request: PollRequest) -> PollReply:
            if request.capacity:
                asked.set()
                await answer.wait()
            return await super().poll(request)

    metastore = Slow(waiting=[1, 2])
    runner = ThreadRunner(at_once)
    patient = msgspec.structs.replace(BRISK, call_timeout_ms=60_000)

    async def scenario() -> None:
        async with working(worker_of(metastore, runner, settings=patient)) as worker:
            await asked.wait()
            worker.stop()
            answer.set()

    run_virtually(scenario())
    assert runner.most_active == 0
    assert metastore.failures == [(LEAVING.cause, False)] * 2
    assert not any(renewal.started for renewal in metastore.renewals())


def test_stopping_gives_up_after_its_deadline_and_blames_no_plan() -> None:
    metastore = SmallMetastore(waiting=[1])
    runner = ThreadRunner(until_cancelled)
    hasty = msgspec.structs.replace(BRISK, drain_ms=30, cancel_ms=60_000)

    async def scenario() -> None:
        async with working(worker_of(metastore, runner, settings=hasty)):
            await until(lambda: runner.active == 1)

    run_virtually(scenario())
    assert metastore.done == {}
    assert metastore.failures == [(LEAVING.cause, False)]


def test_the_runner_is_asked_for_its_slots_every_time() -> None:
    metastore = SmallMetastore(waiting=list(range(8)))
    runner = ThreadRunner(until_cancelled, slots=0)
    hasty = msgspec.structs.replace(BRISK, drain_ms=30, cancel_ms=60_000)

    async def scenario() -> None:
        async with working(worker_of(metastore, runner, settings=hasty)):
            for slots in (0, 1, 4):
                runner.free = slots
                await until(lambda slots=slots: runner.active == slots)  # type: ignore[misc]
            runner.free = 2
            await more_polls(metastore)
            assert metastore.polls[-1].capacity == 0

    run_virtually(scenario())
    assert runner.most_active == 4
    assert metastore.waiting == [4, 5, 6, 7]


def test_renewals_do_not_wait_for_a_runner_that_hangs_and_nothing_is_asked_for() -> None:
    metastore = SmallMetastore(waiting=[1])
    end = Gate()

    def waits(_plan: LeasedPlan, cancelled: Gate) -> PlanResult:
        end.wait()
        assert not cancelled.is_set()
        return RESULT

    runner = ThreadRunner(waits)
    slow = msgspec.structs.replace(BRISK, drain_ms=60_000)

    async def scenario() -> None:
        async with working(worker_of(metastore, runner, settings=slow)):
            await until(lambda: runner.active == 1)
            runner.may_tell.clear()
            seen = len(metastore.polls)
            await until(lambda: len(metastore.polls) >= seen + 3)
            assert all(poll.capacity == 0 for poll in metastore.polls[seen + 1 :])
            assert metastore.polls[-1].renewals
            runner.may_tell.set()
            end.set()
            await until(lambda: len(metastore.done) == 1)

    run_virtually(scenario())
