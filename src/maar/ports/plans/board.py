"""What whoever executes plans asks of the metastore: plans, leases to keep, and what may go."""

from __future__ import annotations

from collections.abc import Awaitable
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from maar.model.block import NO_DAY
from maar.model.ids import FencingToken, PlanId, StoreName, WorkerId
from maar.model.plan import LeasedPlan, PlanKind, PlanResult
from maar.model.repair import RangeResult
from maar.model.token_range import TokenRange
from maar.ports.calls import Call
from maar.ports.metastore.call import MetastoreCall


class Renewal(msgspec.Struct, frozen=True, array_like=True):
    """Renews a lease. `started` says once that the work has begun."""

    plan: PlanId
    token: FencingToken
    started: bool = False


class Report(msgspec.Struct, frozen=True, array_like=True):
    """How an attempt ended: a result, or a failure, which is only a hint."""

    plan: PlanId
    token: FencingToken
    result: PlanResult | None = None
    failure: str = ""
    plan_at_fault: bool = True  # False: the engine or the store was at fault, not the plan (S11)


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """A renewed lease."""

    plan: PlanId
    token: FencingToken
    lease_ns: int
    stop: str = ""  # why the work should end after its present task, in a sentence


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a report: accepted, or why not. Repeated, it gets the same answer."""

    plan: PlanId
    token: FencingToken
    accepted: bool
    refusal: str = ""


class Answer(StrEnum):
    """What comes of the wish to execute one plan; nobody ever waits for another."""

    GRANTED = "granted"
    ASKED = "asked"  # the next worker that can carry it out gets it
    ALREADY_COMPLETED = "already_completed"
    LEASE_LIVE = "lease_live"
    BUSY = "busy"
    MUST_BE_ROLLED_BACK = "must_be_rolled_back"
    ROLLED_BACK = "rolled_back"
    EXCLUDED = "excluded"
    CANCELLED = "cancelled"
    NOT_FOUND = "not_found"
    WRONG_KIND = "wrong_kind"  # whoever asks cannot carry it out


class Execution(msgspec.Struct, frozen=True):
    """The answer to the wish to execute a plan, with what a caller needs to act on it."""

    plan: PlanId
    answer: Answer
    sentence: str = ""  # why not, and what to do
    holder: str = ""  # of a live lease
    seconds_left: float = 0.0  # of that lease
    children: tuple[PlanId, ...] = ()  # that a cancelled plan was divided into
    result: PlanResult | None = None  # of a completed plan
    workers: int = 0  # heard of lately, that can carry out a plan that was asked for


def not_open(plan: PlanId, kind: PlanKind) -> Execution:
    """Of a plan whose source only the program has that opened it."""
    return Execution(
        plan,
        Answer.WRONG_KIND,
        f"plan {plan} ({kind}) is carried out only by whoever has its source: run the same command "
        "again that opened it",
    )


class PollReply(msgspec.Struct, frozen=True):
    granted: tuple[LeasedPlan, ...]
    kept: tuple[Kept, ...]  # a running plan that is not in here is lost: stop working on it
    outcomes: tuple[Outcome, ...]
    execution: Execution | None = None  # if one plan was asked for by its id


class ScheduledPlan(msgspec.Struct, frozen=True):
    """What came of the wish to schedule a plan."""

    plan: PlanId | None  # None: there is nothing to do
    kind: PlanKind
    state: str = ""
    created: bool = False  # False: the same wish was there already
    why: str = ""  # there is nothing to do


class RollbackRef(msgspec.Struct, frozen=True):
    rollback: PlanId
    target: PlanId


class SkippedPlan(msgspec.Struct, frozen=True):
    plan: PlanId
    why: str  # live_lease, too_young, immutable


class RollbackReply(msgspec.Struct, frozen=True):
    """What came of the wish to roll one plan back."""

    target: PlanId
    outcome: str  # scheduled, nothing_to_do, lease_live
    rollback: PlanId | None = None  # pending: to be executed


class CleanStep(msgspec.Struct, frozen=True):
    """The first step of a cleaning, decided in one step."""

    scheduled: tuple[RollbackRef, ...]  # now, or, in a dry run, those that would be
    skipped: tuple[SkippedPlan, ...]
    pending: tuple[RollbackRef, ...]  # all rollbacks that wait to be executed, old and new


class PartCommitted(msgspec.Struct, frozen=True):
    """What came of a part of a session that its worker has carried out."""

    accepted: bool
    refusal: str = ""  # the lease is gone, or the whole part was no good
    refused: tuple[str, ...] = ()  # blocks of it that are not what they were, and why
    stop: str = ""  # why the session should end here; '': it may go on
    down: tuple[StoreName, ...] = ()  # stores that the metastore knows to be away


class PlanBoard(Protocol):
    """Answered by the leader."""

    async def poll(self, request: PollRequest) -> PollReply: ...

    async def schedule_plan(self, request: SchedulePlan) -> ScheduledPlan:
        """Put a plan on the schedule that somebody asks for; the same wish finds the same plan."""
        ...

    async def run_now(self, plan: PlanId) -> Execution:
        """Have the next worker that polls and can carry the plan out given it, rested or not."""
        ...

    async def roll_back(self, plan: PlanId) -> RollbackReply:
        """Fence a plan's ended attempts, and schedule the rollback of what they wrote."""
        ...

    async def schedule_rollbacks(self, request: ScheduleRollbacks) -> CleanStep:
        """The first step of a cleaning."""
        ...

    async def commit_part(self, request: CommitPart) -> PartCommitted:
        """Put part of a session's result into the log, under its lease, which is renewed."""
        ...

    async def confirm_deletes(self, request: ConfirmDeletes) -> tuple[str, ...]:
        """Renew the lease of a rollback, and say which of the objects may be deleted; LeaseLost
        when it is not held any more.
        """
        ...


class PollRequest(MetastoreCall[PlanBoard, PollReply], frozen=True):
    """A worker's turn: leases to renew, attempts that ended, and room for more plans."""

    worker: WorkerId
    capacity: int  # free slots
    renewals: tuple[Renewal, ...] = ()
    reports: tuple[Report, ...] = ()
    kinds: tuple[PlanKind, ...] = ()  # of plans that it can carry out; it is given no others
    execute: PlanId | None = None  # give it this plan and no other
    ignore_windows: bool = False  # of the schedule; pauses and resources are respected

    def answer(self, port: PlanBoard) -> Awaitable[PollReply]:
        return port.poll(self)


class SchedulePlan(MetastoreCall[PlanBoard, ScheduledPlan], frozen=True):
    """Schedule a plan and do not execute it."""

    kind: PlanKind
    tenant: str = ""
    shard: int = 0
    level: int = 0
    day: int = NO_DAY
    request_id: str = ""

    def answer(self, port: PlanBoard) -> Awaitable[ScheduledPlan]:
        return port.schedule_plan(self)


class RunPlanNow(MetastoreCall[PlanBoard, Execution], frozen=True):
    """Make a plan the next one that a worker is given."""

    plan: PlanId

    def answer(self, port: PlanBoard) -> Awaitable[Execution]:
        return port.run_now(self.plan)


class RollBackPlan(MetastoreCall[PlanBoard, RollbackReply], frozen=True):
    """Schedule the rollback of one plan."""

    plan: PlanId

    def answer(self, port: PlanBoard) -> Awaitable[RollbackReply]:
        return port.roll_back(self.plan)


class ScheduleRollbacks(MetastoreCall[PlanBoard, CleanStep], frozen=True):
    """Schedule all rollbacks that are due, under the lease of a cleaning."""

    plan: PlanId | None  # the cleaning; None in a dry run, which changes nothing
    token: FencingToken | None

    def answer(self, port: PlanBoard) -> Awaitable[CleanStep]:
        return port.schedule_rollbacks(self)


class CommitPart(MetastoreCall[PlanBoard, PartCommitted], frozen=True):
    """What one task of a session of a repair found and made; the same again changes nothing."""

    plan: PlanId
    token: FencingToken
    result: RangeResult
    empty: tuple[TokenRange, ...] = ()  # more ranges, of which there were no blocks

    def answer(self, port: PlanBoard) -> Awaitable[PartCommitted]:
        return port.commit_part(self)


class ConfirmDeletes(MetastoreCall[PlanBoard, tuple[str, ...]], frozen=True):
    """Which of these objects a rollback may delete within the next second."""

    plan: PlanId  # the rollback
    token: FencingToken
    keys: tuple[str, ...]

    def answer(self, port: PlanBoard) -> Awaitable[tuple[str, ...]]:
        return port.confirm_deletes(self)


CALLS: tuple[type[Call[PlanBoard, Any]], ...] = (
    PollRequest,
    SchedulePlan,
    RunPlanNow,
    RollBackPlan,
    ScheduleRollbacks,
    CommitPart,
    ConfirmDeletes,
)
