"""A cleaning: one step schedules the rollbacks that are due, then all pending ones are executed.

Rollbacks are plans of their own, under leases of their own: two cleanings at once, or a cleaning
and somebody who executes the target, get in each other's way nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

from maar.model.errors import LeaseLost, MaarError, Retryable
from maar.model.ids import WorkerId
from maar.model.plan import ROLLBACK, Account, LeasedPlan, PlanResult, Rollback
from maar.ports.calls import Call
from maar.ports.plans.board import (
    CleanStep,
    PlanBoard,
    PollRequest,
    Report,
    RollbackRef,
    ScheduleRollbacks,
)
from maar.services.clean.rules import CLEAN
from maar.services.rollback.run import Tools, roll_back

R = TypeVar("R")


class Ask(Protocol):
    """A call of the metastore that blocks."""

    def __call__(self, request: Call[PlanBoard, R], /) -> R: ...


class Cleaned(NamedTuple):
    """What a cleaning did."""

    step: CleanStep
    executed: tuple[RollbackRef, ...]
    result: PlanResult


def clean(
    plan: LeasedPlan,
    *,
    ask: Ask,
    worker: WorkerId,
    tools: Callable[[Rollback], Tools],
    cancelled: Callable[[], bool] = lambda: False,
) -> Cleaned:
    """LeaseLost when somebody else has the cleaning."""
    step = ask(ScheduleRollbacks(plan.id, plan.token))
    removed, executed = 0, []
    for pending in step.pending:
        if cancelled():
            raise LeaseLost(f"the cleaning {plan.id} was stopped")
        gone = execute(pending, ask=ask, worker=worker, tools=tools)
        if gone is not None:
            removed += gone
            executed.append(pending)
    nothing = Account(0, 0, 0)
    result = PlanResult(kind=CLEAN, outputs=(), account=nothing, removed=removed)
    return Cleaned(step, tuple(executed), result)


def execute(
    pending: RollbackRef, *, ask: Ask, worker: WorkerId, tools: Callable[[Rollback], Tools]
) -> int | None:
    """How many objects a rollback deleted; None when somebody else is at it, or it failed, which is
    reported: the next cleaning tries again.
    """
    reply = ask(PollRequest(worker, 1, kinds=(ROLLBACK,), execute=pending.rollback))
    if not reply.granted:
        return None
    (rollback,) = reply.granted[0].rollbacks
    try:
        result = roll_back(rollback, tools(rollback))
    except LeaseLost:
        return None
    except MaarError as error:
        at_fault = not isinstance(error, Retryable)
        failed = Report(rollback.plan, rollback.token, None, str(error), at_fault)
        ask(PollRequest(worker, 0, reports=(failed,)))
        return None
    reply = ask(PollRequest(worker, 0, reports=(Report(rollback.plan, rollback.token, result),)))
    return result.removed if reply.outcomes[0].accepted else None
