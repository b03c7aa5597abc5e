"""The plan board of a metastore that can only be polled."""

from __future__ import annotations

from maar.model.ids import PlanId
from maar.ports.calls import LocalPort
from maar.ports.plans.board import (
    CleanStep,
    CommitPart,
    ConfirmDeletes,
    Execution,
    PartCommitted,
    RollbackReply,
    ScheduledPlan,
    SchedulePlan,
    ScheduleRollbacks,
)


class PollOnly(LocalPort):
    """Its plans are never scheduled by hand and never rolled back."""

    async def schedule_plan(self, request: SchedulePlan) -> ScheduledPlan:
        raise NotImplementedError(request)

    async def run_now(self, plan: PlanId) -> Execution:
        raise NotImplementedError(plan)

    async def roll_back(self, plan: PlanId) -> RollbackReply:
        raise NotImplementedError(plan)

    async def schedule_rollbacks(self, request: ScheduleRollbacks) -> CleanStep:
        raise NotImplementedError(request)

    async def commit_part(self, request: CommitPart) -> PartCommitted:
        raise NotImplementedError(request)

    async def confirm_deletes(self, request: ConfirmDeletes) -> tuple[str, ...]:
        raise NotImplementedError(request)
