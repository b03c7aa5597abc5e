"""A kind whose jobs come due by interval, need stores, and are done part by part.

It stands in for everything that is scheduled: what it has done is told by the test, not by a task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from maar.model.block import BlockOutline
from maar.model.ids import MAIN_STORE, BlockId, Shard, StoreName, TenantId
from maar.model.plan import JobId, Plan, PlanKind, PlanResult, PlanSpec, QueueKey
from maar.model.policy import Policy
from maar.model.refusal import Refusal
from maar.model.schedule import Schedule
from maar.model.time import SECOND_NS, LeaseTime
from maar.services.rules import Board, JobState, KindRules

PATROL = PlanKind("patrol")
WEEKLY = Schedule(
    interval_ns=7 * 86_400 * SECOND_NS,
    initial_delay_ns=86_400 * SECOND_NS,
    warning_ns=8 * 86_400 * SECOND_NS,
    error_ns=10 * 86_400 * SECOND_NS,
)


@dataclass
class Beat:
    """What the test says of one job."""

    stores: tuple[str, ...] = ()
    last: int | None = None
    parts: int = 1
    done: int = 0
    nothing: str = ""
    why_not: str = ""
    on_demand: bool = False
    expected_ns: int = 0


@dataclass
class Patrolling(KindRules):
    """Its jobs are those of `beats`; a session that completes does one part."""

    beats: dict[JobId, Beat] = field(default_factory=dict)
    schedule: Schedule = WEEKLY

    kind = PATROL
    scheduled = True
    by_interval = True
    writes = False
    on_engine = True

    def due(self, _board: Board, _line: int, *, now: LeaseTime) -> Iterator[PlanSpec]:  # noqa: ARG002
        return iter(())

    def lease_ns(self, _policy: Policy) -> int:
        return 600 * SECOND_NS

    def default_schedule(self, _policy: Policy, _job: JobId) -> Schedule:
        return self.schedule

    def job_tenants(self, _board: Board) -> Collection[TenantId]:
        return list(dict.fromkeys(job.tenant for job in self.beats))

    def job_ids(self, _board: Board, tenant: TenantId) -> Iterable[JobId]:
        return [job for job in self.beats if job.tenant == tenant]

    def job(
        self,
        _board: Board,
        job: JobId,
        _schedule: Schedule,
        *,
        now: LeaseTime,  # noqa: ARG002
        down: Collection[StoreName] = (),  # noqa: ARG002
    ) -> JobState | None:
        beat = self.beats.get(job)
        if beat is None:
            return None
        return JobState(
            job,
            LeaseTime(beat.last) if beat.last is not None else None,
            resources=tuple(sorted(f"store:{store}" for store in beat.stores)),
            nothing=beat.nothing,
            why_not=beat.why_not,
            expected_ns=beat.expected_ns,
            done=beat.done,
            parts=beat.parts if beat.parts > 1 else 0,
            on_demand=beat.on_demand,
        )

    def session(
        self,
        board: Board,
        job: JobState,
        _schedule: Schedule,
        *,
        now: LeaseTime,  # noqa: ARG002
        down: Collection[StoreName] = (),  # noqa: ARG002
    ) -> PlanSpec | None:
        key = QueueKey(MAIN_STORE, job.id.tenant, Shard(0), 0)
        return PlanSpec(PATROL, False, key, (), board.policy.failure_limit)

    def complete(self, job: JobId, now: int) -> None:
        """A part is done; with the last one, the job."""
        beat = self.beats[job]
        beat.done += 1
        if beat.done >= beat.parts:
            beat.done, beat.last, beat.on_demand = 0, now, False

    def misfit(self, _board: Board, spec: PlanSpec) -> Refusal | None:
        return Refusal.INPUT_KEY if spec.inputs else None

    def refusal(
        self,
        _plan: Plan,
        _inputs: Mapping[BlockId, BlockOutline],
        result: PlanResult,
        _deletable: Mapping[TenantId, int],
    ) -> Refusal | None:
        return Refusal.OUTPUT if result.outputs else None

    def scope(self, _key: QueueKey) -> str:
        return "a round"


def beat(tenant: str, type_: str = "") -> JobId:
    return JobId(TenantId(tenant), PATROL, type_)
