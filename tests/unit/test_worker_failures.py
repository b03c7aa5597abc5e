"""What a worker does about attempts that fail, engines that die and a metastore that is away."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from maar.model.ids import PlanId
from maar.model.plan import LeasedPlan, PlanResult
from maar.ports.plans.board import PollReply, PollRequest
from maar.ports.plans.runner import AttemptFailed, RunnerDied
from maar.worker.service import FAULTS_MAX
from support.clock.virtual_time import Gate, run_virtually
from support.worker.stand_ins import (
    BRISK,
    PATIENCE_S,
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


def test_an_engine_that_hangs_on_many_cancels_is_still_seen_to_die() -> None:
    plans = 2 * 32 + 2  # more than asyncio has threads of its own
    metastore = SmallMetastore(waiting=list(range(plans)))
    runner = ThreadRunner(until_cancelled, slots=plans)
    thawed = Gate()
    asked: list[PlanId] = []

    def hangs(plan: LeasedPlan) -> None:
        asked.append(plan.id)
        thawed.wait()
        ThreadRunner.cancel(runner, plan)

    runner.cancel = hangs  # type: ignore[method-assign]

    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_S):
            running = asyncio.create_task(worker_of(metastore, runner).run())
            await until(lambda: runner.active == plans)
            for plan in range(plans):
                metastore.take_away(plan)
            await until(lambda: len(asked) >= 32)
            runner.dead = True
            try:
                with pytest.raises(RunnerDied):
                    await running
            finally:
                thawed.set()

    run_virtually(scenario())


def test_a_failure_that_was_seen_to_stop_is_reported_with_its_cause() -> None:
    metastore = SmallMetastore(waiting=[1])

    def fails(_plan: LeasedPlan, _cancelled: Gate) -> PlanResult:
        raise AttemptFailed("Segment x is corrupt.", stopped=True)

    async def scenario() -> None:
        async with working(worker_of(metastore, ThreadRunner(fails))):
            await until(lambda: bool(metastore.failures))

    run_virtually(scenario())
    assert metastore.failures == [("Segment x is corrupt.", True)]


def test_a_failure_that_was_never_the_plans_own_is_reported_as_such() -> None:
    metastore = SmallMetastore(waiting=[1])
    runs: list[PlanId] = []

    def store_is_away(plan: LeasedPlan, _cancelled: Gate) -> PlanResult:
        runs.append(plan.id)
        raise AttemptFailed("The store does not answer.", stopped=True, plan_at_fault=False)

    hasty = msgspec.structs.replace(BRISK, fault_min_ms=1, fault_max_ms=2)

    async def scenario() -> None:
        async with working(worker_of(metastore, ThreadRunner(store_is_away), settings=hasty)):
            await until(lambda: bool(metastore.failures))

    run_virtually(scenario())
    assert metastore.failures == [("The store does not answer.", False)]
    assert len(runs) == FAULTS_MAX + 1


def test_a_failure_that_was_not_seen_to_stop_is_not_mentioned() -> None:
    metastore = SmallMetastore(waiting=[1])

    def stray(_plan: LeasedPlan, _cancelled: Gate) -> PlanResult:
        raise AttemptFailed("Nobody knows.", stopped=False)

    runner = ThreadRunner(stray)

    async def scenario() -> None:
        async with working(worker_of(metastore, runner)):
            await until(lambda: bool(runner.cancelled) and runner.active == 0)
            await more_polls(metastore)

    run_virtually(scenario())
    assert not any(poll.reports for poll in metastore.polls)
    assert PlanId(1, 0) in metastore.leased


def test_a_plan_outlives_faults_that_are_not_its_own_while_nothing_else_is_asked_for() -> None:
    metastore = SmallMetastore(waiting=[1])
    runs: list[PlanId] = []
    registry = CollectorRegistry()

    def store_is_away_at_first(plan: LeasedPlan, _cancelled: Gate) -> PlanResult:
        runs.append(plan.id)
        if len(runs) <= 2:
            raise AttemptFailed("The store does not answer.", stopped=True, plan_at_fault=False)
        return RESULT

    runner = ThreadRunner(store_is_away_at_first, slots=2)

    async def scenario() -> None:
        async with working(worker_of(metastore, runner, registry)):
            await until(lambda: len(runs) == 1)
            metastore.waiting.append(2)
            await until(lambda: len(metastore.done) == 2)

    run_virtually(scenario())
    assert runs[:3] == [PlanId(1, 0)] * 3  # the second plan was not asked for meanwhile
    assert metastore.failures == []
    assert registry.get_sample_value("maar_worker_faults_total") == 2


def test_a_plan_that_is_lost_while_it_waits_is_not_run_again() -> None:
    metastore = SmallMetastore(waiting=[1])
    runs: list[PlanId] = []

    def store_is_away(plan: LeasedPlan, _cancelled: Gate) -> PlanResult:
        runs.append(plan.id)
        metastore.take_away(1)
        raise AttemptFailed("The store does not answer.", stopped=True, plan_at_fault=False)

    registry = CollectorRegistry()

    def lost() -> float | None:
        labels = {"service": "compact", "end": "lost"}
        return registry.get_sample_value("maar_worker_task_seconds_count", labels)

    # It would wait for an hour: what ends that is the loss of the plan, however slow the machine.
    patient = msgspec.structs.replace(BRISK, fault_min_ms=3_600_000, fault_max_ms=3_600_000)

    async def scenario() -> None:
        runner = ThreadRunner(store_is_away)
        async with working(worker_of(metastore, runner, registry, patient)):
            await until(lambda: lost() == 1)  # and on its end it reports what it has to report

    run_virtually(scenario())
    assert len(runs) == 1
    assert not any(poll.reports for poll in metastore.polls)


def test_an_outage_shorter_than_the_lease_costs_nothing() -> None:
    metastore = SmallMetastore(waiting=[1, 2])
    end = Gate()

    def waits(_plan: LeasedPlan, cancelled: Gate) -> PlanResult:
        end.wait()
        assert not cancelled.is_set()
        return RESULT

    runner = ThreadRunner(waits)

    async def scenario() -> None:
        async with working(worker_of(metastore, runner)):
            await until(lambda: runner.active == 2)
            metastore.away = True
            end.set()
            await until(lambda: metastore.missed >= 3)
            assert metastore.done == {}
            metastore.away = False
            await until(lambda: len(metastore.done) == 2)

    run_virtually(scenario())


def test_a_plan_past_its_lease_without_contact_is_cancelled() -> None:
    metastore = SmallMetastore(waiting=[1])
    runner = ThreadRunner(until_cancelled)

    async def scenario() -> None:
        async with working(worker_of(metastore, runner)):
            await until(lambda: runner.active == 1)
            metastore.away = True
            await until(lambda: runner.active == 0)
            metastore.away = False
            await more_polls(metastore)

    run_virtually(scenario())
    assert not any(poll.reports for poll in metastore.polls)


def test_a_report_whose_answer_was_lost_is_sent_again_and_counted_once() -> None:
    metastore = SmallMetastore(waiting=[1])
    registry = CollectorRegistry()

    def loses_the_next_reply(_plan: LeasedPlan, _cancelled: Gate) -> PlanResult:
        metastore.loses_replies = 1
        return RESULT

    async def scenario() -> None:
        async with working(worker_of(metastore, ThreadRunner(loses_the_next_reply), registry)):
            await until(lambda: sum(bool(poll.reports) for poll in metastore.polls) >= 2)

    run_virtually(scenario())
    assert registry.get_sample_value("maar_worker_completed_total") == 1


def test_a_metastore_that_hangs_is_asked_again() -> None:
    metastore = SmallMetastore(waiting=[1])
    hangs = [True]

    class Hanging(SmallMetastore):
        async def poll(self, request: PollRequest) -> PollReply:
            if hangs.pop() if hangs else False:
                await asyncio.sleep(60)
            return await metastore.poll(request)

    async def scenario() -> None:
        async with working(worker_of(Hanging(), ThreadRunner(at_once))):
            await until(lambda: len(metastore.done) == 1)

    run_virtually(scenario())


def test_the_death_of_the_engine_in_a_run_ends_the_worker() -> None:
    def dies(_plan: LeasedPlan, _cancelled: Gate) -> PlanResult:
        raise RunnerDied("Spark's JVM is gone.")

    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await worker_of(SmallMetastore(waiting=[1]), ThreadRunner(dies)).run()

    with pytest.raises(RunnerDied, match="JVM is gone"):
        run_virtually(scenario())


def test_the_death_of_an_idle_engine_ends_the_worker() -> None:
    runner = ThreadRunner(at_once)
    metastore = SmallMetastore()

    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_S):
            running = asyncio.create_task(worker_of(metastore, runner).run())
            await until(lambda: bool(metastore.polls))
            runner.dead = True
            await running

    with pytest.raises(RunnerDied):
        run_virtually(scenario())
