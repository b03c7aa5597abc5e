"""What came of the one plan that a worker was started for."""

from __future__ import annotations

from dataclasses import dataclass

from maar.model.errors import Unavailable
from maar.model.plan import PlanResult
from maar.ports.plans.board import Answer, Execution, Outcome
from maar.ports.plans.outcome import OutcomeName, PlanOutcome, refusal_of, report_refused
from maar.worker.keeper import End


@dataclass(slots=True)
class Executed:
    """What came of the one plan that a worker was started for."""

    execution: Execution | None = None  # None: the metastore was not reached
    end: End = None
    lost: bool = False  # its lease went while it was worked on
    cause: str = ""  # of the last failure, told to the metastore or not
    outcome: Outcome | None = None  # of its report

    def plan_outcome(self) -> PlanOutcome:
        """What came of it; Unavailable when the metastore was never reached."""
        execution = self.execution
        if execution is None:
            raise Unavailable("the metastore did not answer; nothing was executed, ask again")
        plan = execution.plan
        if execution.answer is not Answer.GRANTED:
            return refusal_of(execution)
        if self.lost:
            return PlanOutcome(plan, OutcomeName.LOST, why="its lease went while it was executed")
        if not isinstance(self.end, PlanResult):
            cause = self.end.cause if self.end else f"{self.cause}; not all of it was seen to stop"
            return PlanOutcome(plan, OutcomeName.FAILED, cause=cause)
        if self.outcome is None:
            return PlanOutcome(plan, OutcomeName.LOST, why="its result was not answered in time")
        if not self.outcome.accepted:
            return report_refused(plan, self.outcome.refusal)
        return PlanOutcome(plan, OutcomeName.COMPLETED, outputs=self.end.outputs)
