"""The plan board of a metastore without a leader: the real decisions over a fold, one call each."""

from __future__ import annotations

from maar.metastore.decide import execution, prepare, repairs, rollbacks, verdict, wishes
from maar.metastore.decide.jobs import JobBook, moment
from maar.metastore.leader.inbox import Poll, answer
from maar.metastore.records.effects import Effect
from maar.metastore.records.entries import Entry
from maar.metastore.views import reads
from maar.model.ids import PlanId
from maar.model.plan import LeasedPlan
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.calls import LocalPort
from maar.ports.operator.operator import PlanDetail
from maar.ports.plans.board import (
    CleanStep,
    CommitPart,
    ConfirmDeletes,
    Execution,
    PartCommitted,
    PollReply,
    PollRequest,
    RollbackReply,
    ScheduledPlan,
    SchedulePlan,
    ScheduleRollbacks,
)
from support.metastore.fold import Fold


class FoldBoard(LocalPort):
    """Time passes only when a test says so."""

    def __init__(self) -> None:
        self.fold = Fold()

    def pass_time(self, seconds: float) -> None:
        self.fold.now += int(seconds * SECOND_NS)

    async def poll(self, request: PollRequest) -> PollReply:
        effects = self._put(prepare.poll_entries(self.fold.state, [request], now=self._now))
        effects += self._put(
            prepare.executions(
                self.fold.state, [request], now=self._now, hearing_since=verdict.ALWAYS
            )
        )
        asked = Poll(request)
        at = moment(self.fold.state, self._now)
        answer([asked], effects, self.fold.state, book=JobBook(), at=at)
        return await asked.answer

    async def schedule_plan(self, request: SchedulePlan) -> ScheduledPlan:
        effects = self._put(wishes.entries(self.fold.state, request, now=self._now))
        return wishes.answer(effects, self.fold.state, request, now=self._now)

    async def run_now(self, plan: PlanId) -> Execution:
        self._put(execution.run_now_entries(self.fold.state, plan, now=self._now))
        return execution.run_now_answer(self.fold.state, plan, now=self._now, workers=1)

    async def roll_back(self, plan: PlanId) -> RollbackReply:
        self._put(rollbacks.by_hand(self.fold.state, plan, now=self._now))
        return rollbacks.by_hand_reply(self.fold.state, plan, now=self._now)

    async def schedule_rollbacks(self, request: ScheduleRollbacks) -> CleanStep:
        state = self.fold.state
        if request.plan is None:
            return rollbacks.dry_run(state, now=self._now)
        effects = self._put(rollbacks.clean_entries(state, request, now=self._now))
        return rollbacks.clean_step(effects, state, now=self._now)

    async def commit_part(self, request: CommitPart) -> PartCommitted:
        effects = self._put(repairs.commit_entries(self.fold.state, request, now=self._now))
        return repairs.commit_reply(effects, self.fold.state, request)

    async def confirm_deletes(self, request: ConfirmDeletes) -> tuple[str, ...]:
        effects = self._put(rollbacks.confirm_entries(self.fold.state, request, now=self._now))
        return rollbacks.deletable(effects, self.fold.state, request)

    async def plan(self, plan: PlanId) -> PlanDetail:
        return reads.plan(self.fold.state, plan, now=self._now)

    def leased_plan(self, plan: PlanId) -> LeasedPlan:
        return reads.leased_plan(self.fold.state, plan)

    @property
    def _now(self) -> LeaseTime:
        return LeaseTime(self.fold.now)

    def _put(self, entries: list[Entry]) -> list[Effect]:
        return [effect for entry in entries for effect in self.fold.put(entry)]
