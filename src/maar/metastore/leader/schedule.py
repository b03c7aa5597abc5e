"""What the leader answers about its schedule, and what it lets people set."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from maar.metastore.decide.jobs import JobBook, Moment
from maar.metastore.leader.inbox import Prepare, Reply
from maar.metastore.records.effects import Effect, Refused, ScheduleChanged
from maar.metastore.records.entries import (
    Entry,
    RunPolicyAdded,
    RunPolicyRemoved,
    ScheduleRemoved,
    ScheduleSet,
)
from maar.metastore.state.state import MetaState
from maar.metastore.views import schedule
from maar.model.errors import NotFound, Overloaded
from maar.model.plan import JobId
from maar.model.refusal import Refusal
from maar.model.schedule import RunPolicy, ScheduleRule
from maar.model.time import LeaseTime, WallTime
from maar.ports.operator.schedule import JobView, Ruling
from maar.scheduling import windows

SEEN_AT_ONCE = 200  # jobs, before others of the loop have a turn


T = TypeVar("T")


class ScheduleTerm(Protocol):
    """What the answers need of a leader's term."""

    @property
    def state(self) -> MetaState: ...

    @property
    def book(self) -> JobBook: ...

    def moment(self) -> Moment: ...

    async def command(self, prepare: Prepare, reply: Reply[T]) -> T: ...


class LeaderSchedule:
    def __init__(self, term: ScheduleTerm) -> None:
        self._term = term

    @property
    def _state(self) -> MetaState:
        return self._term.state

    async def jobs(self, *, tenant: str, kind: str, limit: int) -> tuple[JobView, ...]:
        at, found = self._term.moment(), []
        for number, known in enumerate(
            schedule.matching_jobs(self._term.book, tenant=tenant, kind=kind)
        ):
            found.append(schedule.view(self._state, known, at))
            if number % SEEN_AT_ONCE == SEEN_AT_ONCE - 1:
                await asyncio.sleep(0)
        found.sort(key=lambda each: (-each.priority, -each.age_s, each.job))
        return tuple(found[:limit])

    def explain(self, job: JobId) -> tuple[str, ...]:
        return schedule.explain(self._state, self._term.book, job, self._term.moment())

    async def set(self, rule: ScheduleRule) -> None:
        await self._change(lambda state: ScheduleSet(schedule.checked_rule(state, rule)))

    async def remove(self, jobs_: JobId) -> None:
        await self._change(lambda _: ScheduleRemoved(jobs_))

    async def add_policy(self, policy: RunPolicy) -> RunPolicy:
        at = self._term.moment()
        made = await self._change(
            lambda state: RunPolicyAdded(schedule.checked_policy(state, policy, at))
        )
        return self._state.run_policies[made.policy]

    async def remove_policy(self, policy: int) -> None:
        await self._change(lambda _: RunPolicyRemoved(policy))

    def test_policy(self, job: JobId, *, at: WallTime | None) -> Ruling:
        schedule.check_kind(self._state, job.kind)
        now = self._term.moment()
        found = windows.verdict(
            self._state.run_policies.values(),
            job,
            now.wall if at is None else at,
            offset_of=now.offset_of,
        )
        return Ruling(found.allowed, found.by, found.why, found.wait_ns / 1e9)

    async def _change(self, make: Callable[[MetaState], Entry]) -> ScheduleChanged:
        def prepare(state: MetaState, _now: LeaseTime) -> list[Entry]:
            return [make(state)]

        def reply(effects: Sequence[Effect], _state: MetaState) -> ScheduleChanged:
            for effect in effects:
                match effect:
                    case ScheduleChanged():
                        return effect
                    case Refused(why=Refusal.TOO_MANY):
                        raise Overloaded("the schedule has as many rules as it may; remove some")
                    case _:
                        pass
            raise NotFound("there is no such schedule or run policy")

        return await self._term.command(prepare, reply)
