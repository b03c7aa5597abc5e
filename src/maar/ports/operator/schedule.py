"""What people ask of the metastore about its schedule, and what they set of it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, ClassVar, Protocol

import msgspec

from maar.model.plan import JobId
from maar.model.schedule import Alarm, RunPolicy, Schedule, ScheduleRule
from maar.model.time import WallTime
from maar.ports.calls import Call
from maar.ports.metastore.call import MetastoreCall


class JobView(msgspec.Struct, frozen=True):
    """A job as it stands. Times are wall time, since people read them."""

    job: JobId
    state: str  # COMPLETED, ON_TIME, LATE, OVERDUE, BLOCKED
    priority: int  # -1: it is not due
    last_success: WallTime | None  # None: there was none yet
    next: WallTime | None  # when it is due; None: only when somebody asks
    why: str  # it does not run now, in a sentence; '' when it runs or is next
    running: str  # who works on it
    age_s: float  # since it last succeeded while there was something to do
    done: int  # parts, in this run …
    parts: int  # … of so many; 0: it has no parts
    schedule: Schedule


class Ruling(msgspec.Struct, frozen=True):
    """Whether the jobs of a tenant and kind may run at a time, and which policies say no."""

    allowed: bool
    by: tuple[RunPolicy, ...]
    why: str
    wait_s: float


class ScheduleOperator(Protocol):
    """Answered by the leader, which keeps the jobs by urgency."""

    async def jobs(self, *, tenant: str, kind: str, limit: int) -> tuple[JobView, ...]: ...

    async def explain_job(self, job: JobId) -> tuple[str, ...]:
        """Why a job runs or does not, in sentences; NotFound when there is none."""
        ...

    async def rules(self) -> tuple[ScheduleRule, ...]: ...

    async def set_schedule(self, rule: ScheduleRule) -> None: ...

    async def remove_schedule(self, jobs: JobId) -> None: ...

    async def run_policies(self) -> tuple[RunPolicy, ...]: ...

    async def add_policy(self, policy: RunPolicy) -> RunPolicy: ...

    async def remove_policy(self, policy: int) -> None: ...

    async def test_policy(self, job: JobId, *, at: WallTime | None) -> Ruling: ...

    async def alarms(self) -> tuple[Alarm, ...]: ...


class ListJobs(MetastoreCall[ScheduleOperator, tuple[JobView, ...]], frozen=True):
    """The most urgent first; '' matches all."""

    rows: ClassVar[str | None] = ""

    tenant: str = ""
    kind: str = ""
    limit: int = 1000

    def answer(self, port: ScheduleOperator) -> Awaitable[tuple[JobView, ...]]:
        return port.jobs(tenant=self.tenant, kind=self.kind, limit=self.limit)


class ExplainJob(MetastoreCall[ScheduleOperator, tuple[str, ...]], frozen=True):
    """Why a job runs, or does not."""

    job: JobId

    def answer(self, port: ScheduleOperator) -> Awaitable[tuple[str, ...]]:
        return port.explain_job(self.job)


class ListRules(MetastoreCall[ScheduleOperator, tuple[ScheduleRule, ...]], frozen=True):
    """What was set by command."""

    rows: ClassVar[str | None] = ""

    def answer(self, port: ScheduleOperator) -> Awaitable[tuple[ScheduleRule, ...]]:
        return port.rules()


class SetSchedule(MetastoreCall[ScheduleOperator, None], frozen=True):
    """Set when the jobs of a pattern are due."""

    rule: ScheduleRule

    def answer(self, port: ScheduleOperator) -> Awaitable[None]:
        return port.set_schedule(self.rule)


class RemoveSchedule(MetastoreCall[ScheduleOperator, None], frozen=True):
    """Take back what was set by command for a pattern."""

    jobs: JobId

    def answer(self, port: ScheduleOperator) -> Awaitable[None]:
        return port.remove_schedule(self.jobs)


class ListRunPolicies(MetastoreCall[ScheduleOperator, tuple[RunPolicy, ...]], frozen=True):
    """When jobs do not run."""

    rows: ClassVar[str | None] = ""

    def answer(self, port: ScheduleOperator) -> Awaitable[tuple[RunPolicy, ...]]:
        return port.run_policies()


class AddRunPolicy(MetastoreCall[ScheduleOperator, RunPolicy], frozen=True):
    """Keep jobs from running at a time of day; the reply has its id."""

    policy: RunPolicy

    def answer(self, port: ScheduleOperator) -> Awaitable[RunPolicy]:
        return port.add_policy(self.policy)


class RemoveRunPolicy(MetastoreCall[ScheduleOperator, None], frozen=True):
    """Let jobs run at that time again."""

    policy: int

    def answer(self, port: ScheduleOperator) -> Awaitable[None]:
        return port.remove_policy(self.policy)


class AskPolicies(MetastoreCall[ScheduleOperator, Ruling], frozen=True):
    """Whether a job may run at a time; None: now."""

    job: JobId
    at: WallTime | None = None

    def answer(self, port: ScheduleOperator) -> Awaitable[Ruling]:
        return port.test_policy(self.job, at=self.at)


class ListAlarms(MetastoreCall[ScheduleOperator, tuple[Alarm, ...]], frozen=True):
    """Those that are not over, oldest first."""

    rows: ClassVar[str | None] = ""

    def answer(self, port: ScheduleOperator) -> Awaitable[tuple[Alarm, ...]]:
        return port.alarms()


CALLS: tuple[type[Call[ScheduleOperator, Any]], ...] = (
    ListJobs,
    ExplainJob,
    ListRules,
    SetSchedule,
    RemoveSchedule,
    ListRunPolicies,
    AddRunPolicy,
    RemoveRunPolicy,
    AskPolicies,
    ListAlarms,
)
