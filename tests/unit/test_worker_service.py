"""The worker around its keeper, with a small metastore and a runner of threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

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
from maar.model.plan import Account, LeasedPlan, PlanResult, QueueKey, Service
from maar.ports.metastore import Kept, Outcome, PollReply, PollRequest, Report
from maar.ports.runner import PlanFailed, RunnerDied
from maar.worker.service import Worker, WorkerSettings

RESULT = PlanResult(outputs=(), account=Account(kept=1, duplicates=0, quarantined=0))
INCARNATION = Incarnation("0badcafe")
BRISK = WorkerSettings(
    poll_interval_ms=10,
    call_timeout_ms=50,
    retry_least_ms=1,
    retry_most_ms=10,
    fault_least_ms=100,
    drain_ms=2000,
    cancel_ms=500,
)
LEASE_MS = 400  # long enough that a busy machine does not lose it by chance


class RealClock:
    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        return time.time_ns()


@dataclass
class SmallMetastore:
    """Leases, tokens and reports by the rules, for plans that are only numbers."""

    waiting: list[int] = field(default_factory=list)
    lease_ns: int = LEASE_MS * 1_000_000
    leased: dict[PlanId, tuple[FencingToken, int]] = field(default_factory=dict)
    done: dict[PlanId, FencingToken] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    polls: list[PollRequest] = field(default_factory=list)
    away: bool = False
    loses_replies: int = 0
    _index: int = 0

    async def poll(self, request: PollRequest) -> PollReply:
        if self.away:
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
        until = time.monotonic_ns() + self.lease_ns
        kept = []
        for renewal in request.renewals:
            if self.leased.get(renewal.plan, (None, 0))[0] == renewal.token:
                self.leased[renewal.plan] = (renewal.token, until)
                kept.append(Kept(renewal.plan, renewal.token, self.lease_ns))
        return tuple(kept)

    def _settle(self, report: Report) -> Outcome:
        plan, token = report.plan, report.token
        if self.done.get(plan) == token:
            return Outcome(plan, token, True)
        if self.leased.get(plan, (None, 0))[0] != token:
            return Outcome(plan, token, False, "another token is newer")
        del self.leased[plan]
        if report.result is None:
            self.failures.append(report.failure)
        else:
            self.done[plan] = token
        return Outcome(plan, token, True)

    def _grant(self, number: int) -> LeasedPlan:
        self._index += 1
        token = FencingToken(INCARNATION, self._index)
        self.leased[PlanId(number, 0)] = (token, time.monotonic_ns() + self.lease_ns)
        return LeasedPlan(
            id=PlanId(number, 0),
            service=Service.COMPACT,
            token=token,
            key=QueueKey(MAIN_STORE, NO_TENANT, Shard(1), 0),
            inputs=(),
            target_block_bytes=1 << 20,
            lease_ns=self.lease_ns,
        )


Work = Callable[[LeasedPlan, threading.Event], PlanResult]


class ThreadRunner:
    """Runs plans in the calling thread; the work is given a flag that says it was cancelled."""

    def __init__(self, work: Work, *, slots: int = 2) -> None:
        self._work = work
        self._slots = slots
        self.cancelled: dict[FencingToken, threading.Event] = {}
        self.may_warm = threading.Event()
        self.may_warm.set()
        self.dead = False
        self.active = 0
        self.most_active = 0
        self._lock = threading.Lock()

    def warm(self) -> None:
        assert self.may_warm.wait(10)

    def slots(self) -> int:
        if self.dead:
            raise RunnerDied("The engine is gone.")
        return self._slots

    def run(self, plan: LeasedPlan) -> PlanResult:
        flag = self.cancelled.setdefault(plan.token, threading.Event())
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


def at_once(_plan: LeasedPlan, _cancelled: threading.Event) -> PlanResult:
    return RESULT


def until_cancelled(_plan: LeasedPlan, cancelled: threading.Event) -> PlanResult:
    assert cancelled.wait(10)
    raise PlanFailed("The plan was cancelled.", stopped=True)


def worker_of(
    metastore: SmallMetastore, runner: ThreadRunner, registry: CollectorRegistry | None = None
) -> Worker:
    return Worker(
        BRISK, metastore, runner, RealClock(), registry or CollectorRegistry(), WorkerId("w1")
    )


@asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[Worker]:
    async with asyncio.timeout(10):
        running = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.stop()
            await running


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def test_every_plan_is_run_once_and_reported() -> None:
    metastore = SmallMetastore(waiting=list(range(20)))
    registry = CollectorRegistry()

    async def scenario() -> None:
        async with working(worker_of(metastore, ThreadRunner(at_once), registry)):
            await until(lambda: len(metastore.done) == 20)

    asyncio.run(scenario())
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

    asyncio.run(scenario())


def test_no_more_plans_run_at_once_than_there_are_slots() -> None:
    metastore = SmallMetastore(waiting=list(range(12)))

    def short(_plan: LeasedPlan, cancelled: threading.Event) -> PlanResult:
        cancelled.wait(0.005)
        return RESULT

    runner = ThreadRunner(short, slots=3)

    async def scenario() -> None:
        async with working(worker_of(metastore, runner)):
            await until(lambda: len(metastore.done) == 12)

    asyncio.run(scenario())
    assert runner.most_active == 3


def test_a_long_plan_is_renewed_until_it_is_done() -> None:
    metastore = SmallMetastore(waiting=[1])

    def longer_than_the_lease(_plan: LeasedPlan, cancelled: threading.Event) -> PlanResult:
        assert not cancelled.wait(LEASE_MS * 2.5 / 1000)
        return RESULT

    async def scenario() -> None:
        async with working(worker_of(metastore, ThreadRunner(longer_than_the_lease))):
            await until(lambda: len(metastore.done) == 1)

    asyncio.run(scenario())
    renewals = [renewal for poll in metastore.polls for renewal in poll.renewals]
    assert renewals[0].started
    assert not any(renewal.started for renewal in renewals[1:])
    assert 5 <= len(renewals) <= 12


def test_a_plan_that_was_given_to_another_is_cancelled_and_not_reported() -> None:
    metastore = SmallMetastore(waiting=[1])
    runner = ThreadRunner(until_cancelled)
    registry = CollectorRegistry()

    async def scenario() -> None:
        async with working(worker_of(metastore, runner, registry)):
            await until(lambda: runner.active == 1)
            metastore.take_away(1)
            await until(lambda: runner.active == 0)
            await asyncio.sleep(0.03)

    asyncio.run(scenario())
    assert not any(poll.reports for poll in metastore.polls)
    assert registry.get_sample_value("maar_worker_lost_total") == 1


def test_a_failure_that_was_seen_to_stop_is_reported_with_its_cause() -> None:
    metastore = SmallMetastore(waiting=[1])

    def fails(_plan: LeasedPlan, _cancelled: threading.Event) -> PlanResult:
        raise PlanFailed("Segment x is corrupt.", stopped=True)

    async def scenario() -> None:
        async with working(worker_of(metastore, ThreadRunner(fails))):
            await until(lambda: bool(metastore.failures))

    asyncio.run(scenario())
    assert metastore.failures == ["Segment x is corrupt."]


def test_a_failure_that_was_not_seen_to_stop_is_not_mentioned() -> None:
    metastore = SmallMetastore(waiting=[1])

    def stray(_plan: LeasedPlan, _cancelled: threading.Event) -> PlanResult:
        raise PlanFailed("Nobody knows.", stopped=False)

    runner = ThreadRunner(stray)

    async def scenario() -> None:
        async with working(worker_of(metastore, runner)):
            await until(lambda: bool(runner.cancelled) and runner.active == 0)
            await asyncio.sleep(0.03)

    asyncio.run(scenario())
    assert not any(poll.reports for poll in metastore.polls)
    assert PlanId(1, 0) in metastore.leased


def test_a_plan_outlives_faults_that_are_not_its_own_while_nothing_else_is_asked_for() -> None:
    metastore = SmallMetastore(waiting=[1])
    runs: list[PlanId] = []
    registry = CollectorRegistry()

    def store_is_away_at_first(plan: LeasedPlan, _cancelled: threading.Event) -> PlanResult:
        runs.append(plan.id)
        if len(runs) <= 2:
            raise PlanFailed("The store does not answer.", stopped=True, own=False)
        return RESULT

    runner = ThreadRunner(store_is_away_at_first, slots=2)

    async def scenario() -> None:
        async with working(worker_of(metastore, runner, registry)):
            await until(lambda: len(runs) == 1)
            metastore.waiting.append(2)
            await until(lambda: len(metastore.done) == 2)

    asyncio.run(scenario())
    assert runs[:3] == [PlanId(1, 0)] * 3  # the second plan was not asked for meanwhile
    assert metastore.failures == []
    assert registry.get_sample_value("maar_worker_faults_total") == 2


def test_a_plan_that_is_lost_while_it_waits_is_not_run_again() -> None:
    metastore = SmallMetastore(waiting=[1])
    runs: list[PlanId] = []

    def store_is_away(plan: LeasedPlan, _cancelled: threading.Event) -> PlanResult:
        runs.append(plan.id)
        metastore.take_away(1)
        raise PlanFailed("The store does not answer.", stopped=True, own=False)

    async def scenario() -> None:
        async with working(worker_of(metastore, ThreadRunner(store_is_away))):
            await until(lambda: len(runs) == 1)
            await asyncio.sleep(0.2)

    asyncio.run(scenario())
    assert len(runs) == 1
    assert not any(poll.reports for poll in metastore.polls)


def test_an_outage_shorter_than_the_lease_costs_nothing() -> None:
    metastore = SmallMetastore(waiting=[1, 2])
    end = threading.Event()

    def waits(_plan: LeasedPlan, cancelled: threading.Event) -> PlanResult:
        assert end.wait(10)
        assert not cancelled.is_set()
        return RESULT

    runner = ThreadRunner(waits)

    async def scenario() -> None:
        async with working(worker_of(metastore, runner)):
            await until(lambda: runner.active == 2)
            metastore.away = True
            end.set()
            await asyncio.sleep(LEASE_MS / 3000)
            assert metastore.done == {}
            metastore.away = False
            await until(lambda: len(metastore.done) == 2)

    asyncio.run(scenario())


def test_a_plan_past_its_lease_without_contact_is_cancelled() -> None:
    metastore = SmallMetastore(waiting=[1])
    runner = ThreadRunner(until_cancelled)

    async def scenario() -> None:
        async with working(worker_of(metastore, runner)):
            await until(lambda: runner.active == 1)
            metastore.away = True
            await until(lambda: runner.active == 0)
            metastore.away = False
            await asyncio.sleep(0.03)

    asyncio.run(scenario())
    assert not any(poll.reports for poll in metastore.polls)


def test_a_report_whose_answer_was_lost_is_sent_again_and_counted_once() -> None:
    metastore = SmallMetastore(waiting=[1])
    registry = CollectorRegistry()

    def loses_the_next_reply(_plan: LeasedPlan, _cancelled: threading.Event) -> PlanResult:
        metastore.loses_replies = 1
        return RESULT

    async def scenario() -> None:
        async with working(worker_of(metastore, ThreadRunner(loses_the_next_reply), registry)):
            await until(lambda: sum(bool(poll.reports) for poll in metastore.polls) >= 2)

    asyncio.run(scenario())
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

    asyncio.run(scenario())


def test_stopping_finishes_what_runs_and_takes_nothing_new() -> None:
    metastore = SmallMetastore(waiting=[1, 2, 3, 4])
    end = threading.Event()

    def waits(_plan: LeasedPlan, _cancelled: threading.Event) -> PlanResult:
        assert end.wait(10)
        return RESULT

    runner = ThreadRunner(waits)

    async def scenario() -> None:
        async with working(worker_of(metastore, runner)) as worker:
            await until(lambda: runner.active == 2)
            worker.stop()
            assert worker.ready() == "stopping"
            await asyncio.sleep(LEASE_MS * 1.5 / 1000)  # and its leases are renewed meanwhile
            end.set()

    asyncio.run(scenario())
    assert len(metastore.done) == 2
    assert metastore.waiting == [3, 4]


def test_stopping_gives_up_after_its_deadline() -> None:
    metastore = SmallMetastore(waiting=[1])
    runner = ThreadRunner(until_cancelled)
    worker = Worker(
        WorkerSettings(poll_interval_ms=10, drain_ms=30, cancel_ms=5000),
        metastore,
        runner,
        RealClock(),
        CollectorRegistry(),
        WorkerId("w1"),
    )

    async def scenario() -> None:
        async with working(worker):
            await until(lambda: runner.active == 1)

    begun = time.monotonic()
    asyncio.run(scenario())
    assert time.monotonic() - begun < 2
    assert metastore.done == {}
    assert metastore.failures == []


def test_the_death_of_the_engine_in_a_run_ends_the_worker() -> None:
    def dies(_plan: LeasedPlan, _cancelled: threading.Event) -> PlanResult:
        raise RunnerDied("Spark's JVM is gone.")

    async def scenario() -> None:
        async with asyncio.timeout(10):
            await worker_of(SmallMetastore(waiting=[1]), ThreadRunner(dies)).run()

    with pytest.raises(RunnerDied, match="JVM is gone"):
        asyncio.run(scenario())


def test_the_death_of_an_idle_engine_ends_the_worker() -> None:
    runner = ThreadRunner(at_once)
    metastore = SmallMetastore()

    async def scenario() -> None:
        async with asyncio.timeout(10):
            running = asyncio.create_task(worker_of(metastore, runner).run())
            await until(lambda: bool(metastore.polls))
            runner.dead = True
            await running

    with pytest.raises(RunnerDied):
        asyncio.run(scenario())
