"""The schedule's port of a metastore without a leader: the real answers over a fold."""

from __future__ import annotations

from typing import TypeVar

from maar.metastore.decide.jobs import JobBook, Moment
from maar.metastore.leader.inbox import Prepare, Reply
from maar.metastore.leader.schedule import LeaderSchedule
from maar.metastore.leader.time_zones import offset_of
from maar.metastore.state.state import MetaState
from maar.model.plan import JobId
from maar.model.schedule import Alarm, RunPolicy, ScheduleRule
from maar.model.time import LeaseTime, WallTime
from maar.ports.operator.schedule import JobView, Ruling
from support.metastore.fold import Fold

T = TypeVar("T")


class FoldTerm:
    """What the answers need of a leader's term."""

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self.book = JobBook()

    @property
    def state(self) -> MetaState:
        return self._fold.state

    def moment(self) -> Moment:
        now = LeaseTime(self._fold.now)
        return Moment(now, self.state.wall_at(now), offset_of)

    async def command(self, prepare: Prepare, reply: Reply[T]) -> T:
        entries = prepare(self.state, LeaseTime(self._fold.now))
        effects = [effect for entry in entries for effect in self._fold.put(entry)]
        return reply(effects, self.state)


class FoldSchedule:
    def __init__(self, fold: Fold | None = None) -> None:
        self.term = FoldTerm(fold or Fold())
        self._answers = LeaderSchedule(self.term)

    async def jobs(self, *, tenant: str, kind: str, limit: int) -> tuple[JobView, ...]:
        self.term.book.turn(self.term.state, self.term.moment())
        return await self._answers.jobs(tenant=tenant, kind=kind, limit=limit)

    async def explain_job(self, job: JobId) -> tuple[str, ...]:
        return self._answers.explain(job)

    async def rules(self) -> tuple[ScheduleRule, ...]:
        return tuple(self.term.state.schedules.values())

    async def set_schedule(self, rule: ScheduleRule) -> None:
        await self._answers.set(rule)

    async def remove_schedule(self, jobs: JobId) -> None:
        await self._answers.remove(jobs)

    async def run_policies(self) -> tuple[RunPolicy, ...]:
        return tuple(self.term.state.run_policies.values())

    async def add_policy(self, policy: RunPolicy) -> RunPolicy:
        return await self._answers.add_policy(policy)

    async def remove_policy(self, policy: int) -> None:
        await self._answers.remove_policy(policy)

    async def test_policy(self, job: JobId, *, at: WallTime | None) -> Ruling:
        return self._answers.test_policy(job, at=at)

    async def alarms(self) -> tuple[Alarm, ...]:
        return tuple(self.term.state.alarms.values())
