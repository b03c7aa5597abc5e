"""What comes of executing one plan, as scripts and orchestrators are told."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from maar.model.block import BlockMeta
from maar.model.ids import PlanId
from maar.model.plain import plain
from maar.model.refusal import Refusal
from maar.ports.plans.board import Execution


class OutcomeName(StrEnum):
    ASKED = "asked"  # of a worker: it is not carried out yet
    COMPLETED = "completed"
    ALREADY_COMPLETED = "already_completed"
    LEASE_LIVE = "lease_live"
    BUSY = "busy"
    LOST = "lost"  # its lease went while it was worked on
    FAILED = "failed"
    MUST_BE_ROLLED_BACK = "must_be_rolled_back"
    ROLLED_BACK = "rolled_back"
    EXCLUDED = "excluded"
    CANCELLED = "cancelled"
    NOT_FOUND = "not_found"
    WRONG_KIND = "wrong_kind"


DONE = (OutcomeName.COMPLETED, OutcomeName.ALREADY_COMPLETED)
TAKEN = (*DONE, OutcomeName.ASKED)  # what was asked for is done, or will be
# The same again may succeed without anybody's help.
ASK_AGAIN = (OutcomeName.LEASE_LIVE, OutcomeName.BUSY, OutcomeName.LOST, OutcomeName.FAILED)

CLEANED = ("scheduled", "executed", "skipped", "orphans", "failed")  # what a cleaning tells


class PlanOutcome(msgspec.Struct, frozen=True):
    """One plan, and what came of the wish to execute it."""

    plan: PlanId
    outcome: OutcomeName
    why: str = ""  # in a sentence
    outputs: tuple[BlockMeta, ...] = ()  # of a completed plan
    holder: str = ""  # of a live lease
    seconds_left: float = 0.0  # of that lease
    cause: str = ""  # of a failure
    children: tuple[PlanId, ...] = ()  # that a cancelled plan was divided into
    workers: int = 0  # heard of lately, that can carry out a plan that was asked for

    def as_json(self) -> dict[str, Any]:
        """As JSON: what belongs to its outcome, and nothing else."""
        found: dict[str, Any] = {"plan": str(self.plan), "outcome": str(self.outcome)}
        match self.outcome:
            case OutcomeName.COMPLETED | OutcomeName.ALREADY_COMPLETED:
                found["outputs"] = plain(self.outputs)
            case OutcomeName.ASKED:
                found["workers"] = self.workers
            case OutcomeName.LEASE_LIVE:
                found |= {"holder": self.holder, "seconds_left": self.seconds_left}
            case OutcomeName.FAILED:
                found["cause"] = self.cause
            case OutcomeName.CANCELLED:
                found["children"] = plain(self.children)
            case _:
                pass
        return {**found, "why": self.why} if self.why else found


def refusal_of(execution: Execution) -> PlanOutcome:
    """The outcome of a wish that was not granted; perhaps it is done already, or left to others."""
    return PlanOutcome(
        execution.plan,
        OutcomeName(execution.answer),
        why=execution.sentence,
        outputs=execution.result.outputs if execution.result else (),
        holder=execution.holder,
        seconds_left=round(execution.seconds_left, 3),
        children=execution.children,
        workers=execution.workers,
    )


def report_refused(plan: PlanId, refusal: str) -> PlanOutcome:
    """The outcome of an attempt whose report the metastore did not accept."""
    if refusal in (Refusal.STALE_TOKEN, Refusal.COMPLETED_BY_OTHER, Refusal.UNKNOWN_PLAN):
        return PlanOutcome(plan, OutcomeName.LOST, why=refusal)
    cause = f"its result was refused: {refusal}"
    return PlanOutcome(plan, OutcomeName.FAILED, why=refusal, cause=cause)
