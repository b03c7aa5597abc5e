"""A small metastore and a runner of threads, with a worker between them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

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
from maar.ports.calls import Caller
from maar.ports.plans.board import Kept, Outcome, PlanBoard, PollReply, PollRequest, Renewal, Report
from maar.ports.plans.runner import AttemptFailed, RunnerDied
from maar.services.compact.rules import COMPACT
from maar.worker.service import Worker
from maar.worker.settings import WorkerSettings
from support.clock.virtual_time import Gate, LoopClock
from support.worker.poll_only import PollOnly

RESULT = PlanResult(kind=COMPACT, outputs=(), account=Account(kept=1, duplicates=0, quarantined=0))
INCARNATION = Incarnation("0badcafe")
BRISK = WorkerSettings(
    poll_interval_ms=10,
    call_timeout_ms=50,
    retry_min_ms=1,
    retry_max_ms=10,
    fault_min_ms=20,
    drain_ms=2000,
    cancel_ms=500,
)
LEASE_MS = 400
PATIENCE_S = 60


@dataclass
class SmallMetastore(PollOnly):
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
    index: int = 0

    def renewals(self) -> list[Renewal]:
        return [renewal for poll in list(self.polls) for renewal in poll.renewals]

    async def poll(self, request: PollRequest) -> PollReply:
        if self.away:
            self.missed += 1
            raise Unavailable("The metastore does not answer.")
        self.polls.append(request)
        reply = PollReply(
            granted=(),
            kept=self.kept_leases(request),
            outcomes=tuple(map(self._settle, request.reports)),
        )
        granted = tuple(
            self.grant(self.waiting.pop(0)) for _ in range(min(request.capacity, len(self.waiting)))
        )
        if self.loses_replies:
            self.loses_replies -= 1
            raise Unavailable("The answer was lost on the way.")
        return PollReply(granted=granted, kept=reply.kept, outcomes=reply.outcomes)

    def take_away(self, plan: int) -> None:
        """Somebody else is granted the plan."""
        self.grant(plan)

    def kept_leases(self, request: PollRequest) -> tuple[Kept, ...]:
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

    def grant(self, number: int) -> LeasedPlan:
        self.index += 1
        token = FencingToken(INCARNATION, self.index)
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
