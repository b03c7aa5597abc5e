"""The worker around its keeper, with a small metastore and a runner of threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from maar.model.errors import Unavailable
from maar.model.ids import (
    MAIN_STORE,
    NO_TENANT,
    FencingToken,
    Incarnation,
    PlanId,
    Shard,
    WorkerId,
)
from maar.model.plan import Account, LeasedPlan, PlanKind, PlanResult, QueueKey
from maar.ports.calls import Caller, LocalPort
from maar.ports.plan_board import Kept, Outcome, PlanBoard, PollReply, PollRequest, Renewal, Report
from maar.ports.runner import AttemptFailed, RunnerDied
from maar.services.compact.rules import COMPACT
from maar.worker.keeper import LEAVING
from maar.worker.service import FAULTS_MAX, Worker
from maar.worker.settings import WorkerSettings
from support.clock.virtual_time import Gate, LoopClock, Meeting, run_virtually

RESULT = PlanResult(kind=COMPACT, outputs=(), account=Account(kept=1, duplicates=0, quarantined=0))
INCARNATION = Incarnation("0badcafe")
BRISK = WorkerSettings(
    poll_interval_ms=10,
    call_timeout_ms=50,
    retry_min_ms=1,
    retry_most_ms=10,
    fault_least_ms=20,
    drain_ms=2000,
    cancel_ms=500,
)
LEASE_MS = 400
PATIENCE_S = 60


@dataclass
class SmallMetastore(LocalPort):
    """Leases, tokens and reports by the rules, for plans that are only numbers."""

    waiting: list[int] = field(default_factory=list)
    lease_ns: int = LEASE_MS * 1_000_000
    leased: dict[PlanId, FencingToken] = field(default_factory=dict)
    done: dict[PlanId, FencingToken] = field(default_factory=dict)
    failures: list[tuple[str, bool]] = field(default_factory=list)  # causes, and whether own
    polls: list[PollRequest] = field(default_factory=list)
    away: bool = False
    missed: int = 0  # polls while away
    loses_replies: int = 0
    _index: int = 0

    def renewals(self) -> list[Renewal]:
        return [renewal for poll in list(self.polls) for renewal in poll.renewals]

    async def poll(self, request: PollRequest) -> PollReply:
        if self.away:
            self.missed += 1
            raise Unavailable("The metastore does not answer.")
        self.polls.append(request)
        reply = PollReply(
            granted=(), kept=self._kept(request), outcomes=tuple(map(self._settle, request.reports))
        )
        granted = tuple(
            self._grant(self.waiting.pop(0))
            for _ in range(min(request.capacity, len(self.waiting)))
        )
        if self.loses_replies:
            self.loses_replies -= 1
            raise Unavailable("The answer was lost on the way.")
        return PollReply(granted=granted, kept=reply.kept, outcomes=reply.outcomes)

    def take_away(self, plan: int) -> None:
        """Somebody else is granted the plan."""
        self._grant(plan)

    def _kept(self, request: PollRequest) -> tuple[Kept, ...]:
        return tuple(
            Kept(renewal.plan, renewal.token, self.lease_ns)
            for renewal in request.renewals
            if self.leased.get(renewal.plan) == renewal.token
        )

    def _settle(self, report: Report) -> Outcome:
        plan, token = report.plan, report.token
        if self.done.get(plan) == token:
            return Outcome(plan, token, True)
        if self.leased.get(plan) != token:
            return Outcome(plan, token, False, "another token is newer")
        del self.leased[plan]
        if report.result is None:
            self.failures.append((report.failure, report.plan_at_fault))
        else:
            self.done[plan] = token
        return Outcome(plan, token, True)

    def _grant(self, number: int) -> LeasedPlan:
        self._index += 1
        token = FencingToken(INCARNATION, self._index)
        self.leased[PlanId(number, 0)] = token
        return LeasedPlan(
            id=PlanId(number, 0),
            kind=COMPACT,
            token=token,
            key=QueueKey(MAIN_STORE, NO_TENANT, Shard(1), 0),
            inputs=(),
            target_block_bytes=1 << 20,
            lease_ns=self.lease_ns,
        )


Work = Callable[[LeasedPlan, Gate], PlanResult]


class ThreadRunner:
    """Runs plans in the calling thread; the work is given a flag that says it was cancelled."""

    def __init__(self, work: Work, *, slots: int = 2) -> None:
        self._work = work
        self.free = slots
        self.cancelled: dict[FencingToken, Gate] = {}
        self.may_warm = Gate()
        self.may_warm.set()
        self.may_tell = Gate()
        self.may_tell.set()
        self.dead = False
        self.active = 0
        self.most_active = 0
        self._lock = threading.Lock()

    def warm(self) -> None:
        self.may_warm.wait()

    def kinds(self) -> tuple[PlanKind, ...]:
        return (COMPACT,)

    def slots(self) -> int:
        if self.dead:
            raise RunnerDied("The engine is gone.")
        self.may_tell.wait()
        return self.free

    def run(self, plan: LeasedPlan) -> PlanResult:
        flag = self.cancelled.setdefault(plan.token, Gate())
        with self._lock:
            self.active += 1
            self.most_active = max(self.most_active, self.active)
        try:
            return self._work(plan, flag)
        finally:
            with self._lock:
                self.active -= 1

    def cancel(self, plan: LeasedPlan) -> None:
        self.cancelled[plan.token].set()

    def close(self) -> None:
        self.dead = True


def at_once(_plan: LeasedPlan, _cancelled: Gate) -> PlanResult:
    return RESULT


def until_cancelled(_plan: LeasedPlan, cancelled: Gate) -> PlanResult:
    cancelled.wait()
    raise AttemptFailed("The plan was cancelled.", stopped=True)


def worker_of(
    metastore: Caller[PlanBoard],
    runner: ThreadRunner,
    registry: CollectorRegistry | None = None,
    settings: WorkerSettings = BRISK,
) -> Worker:
    return Worker(
        settings, metastore, runner, LoopClock(), registry or CollectorRegistry(), WorkerId("w1")
    )


@asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[Worker]:
    async with asyncio.timeout(PATIENCE_S):
        running = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.stop()
            await running


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


async def more_polls(metastore: SmallMetastore, number: int = 5) -> None:
    """Time for the worker to say what it should not."""
    seen = len(metastore.polls)
    await until(lambda: len(metastore.polls) >= seen + number)


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

    hasty = msgspec.structs.replace(BRISK, fault_least_ms=1, fault_most_ms=2)

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
    patient = msgspec.structs.replace(BRISK, fault_least_ms=3_600_000, fault_most_ms=3_600_000)

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
