"""What a worker asks of the metastore: plans to carry out, and leases to keep."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

import msgspec

from maar.model.ids import FencingToken, PlanId, WorkerId
from maar.model.plan import LeasedPlan, PlanKind, PlanResult
from maar.ports.calls import Call
from maar.ports.metastore_call import MetastoreCall


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


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a report: accepted, or why not. Repeated, it gets the same answer."""

    plan: PlanId
    token: FencingToken
    accepted: bool
    refusal: str = ""


class PollReply(msgspec.Struct, frozen=True):
    granted: tuple[LeasedPlan, ...]
    kept: tuple[Kept, ...]  # a running plan that is not in here is lost: stop working on it
    outcomes: tuple[Outcome, ...]


class PlanBoard(Protocol):
    """Answered by the leader."""

    async def poll(self, request: PollRequest) -> PollReply: ...


class PollRequest(MetastoreCall[PlanBoard, PollReply], frozen=True):
    """A worker's turn: leases to renew, attempts that ended, and room for more plans."""

    worker: WorkerId
    capacity: int  # free slots
    renewals: tuple[Renewal, ...] = ()
    reports: tuple[Report, ...] = ()
    kinds: tuple[PlanKind, ...] = ()  # of plans that it can carry out; it is given no others

    def answer(self, port: PlanBoard) -> Awaitable[PollReply]:
        return port.poll(self)


CALLS: tuple[type[Call[PlanBoard, Any]], ...] = (PollRequest,)
