"""What the other roles ask of the metastore, as plain values; refusals are values too."""

from __future__ import annotations

from typing import Protocol

import msgspec

from maar.model.block import BlockMeta
from maar.model.ids import BlockId, FencingToken, Incarnation, PlanId, Shard, TenantId, WorkerId
from maar.model.plan import LeasedPlan, Plan, PlanResult
from maar.model.time import LeaseTime, TimeRange


class Now(msgspec.Struct, frozen=True):
    """The log's own time, for those who name things by it."""

    incarnation: Incarnation
    lease_time: LeaseTime
    index: int


class Renewal(msgspec.Struct, frozen=True, array_like=True):
    """'I am still at it.' `started` says once that the work has begun."""

    plan: PlanId
    token: FencingToken
    started: bool = False


class Report(msgspec.Struct, frozen=True, array_like=True):
    """How an attempt ended: a result, or a failure, which is only a hint."""

    plan: PlanId
    token: FencingToken
    result: PlanResult | None = None
    failure: str = ""


class PollRequest(msgspec.Struct, frozen=True):
    worker: WorkerId
    capacity: int  # free slots
    renewals: tuple[Renewal, ...] = ()
    reports: tuple[Report, ...] = ()


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


class AddReply(msgspec.Struct, frozen=True):
    """One answer per block: '' when it is in the index (also since earlier), else why not."""

    refusals: tuple[str, ...]
    lease_time: LeaseTime


class ViewRequest(msgspec.Struct, frozen=True):
    """Which blocks may hold profiles of a tenant (optionally one service) in a time range."""

    tenant: TenantId
    range: TimeRange
    service: str = ""
    reader: str = ""  # pins the view for this reader until it asks again or its pin expires (S10)


class IndexView(msgspec.Struct, frozen=True):
    """An immutable answer as of one index: sources or their output, never both, never neither."""

    index: int
    blocks: tuple[BlockMeta, ...]


class LevelStatus(msgspec.Struct, frozen=True):
    level: int
    kind: str  # segment, block, quarantine
    blocks: int
    bytes: int
    profiles: int
    queued: int  # waiting for a plan
    oldest_queued_s: float
    held: int  # in excluded or parked plans


class Status(msgspec.Struct, frozen=True):
    """The truth as of one index, for people."""

    incarnation: Incarnation
    term: int
    index: int
    lease_time: LeaseTime
    wall_time_ns: int
    levels: tuple[LevelStatus, ...]
    plans: dict[str, int]  # by state
    leased: tuple[Plan, ...]  # running, with lease and token
    failed: tuple[Plan, ...]  # excluded, or with failures
    completed: int  # since genesis
    retired: int  # blocks replaced and not yet deleted
    profiles_added: int
    duplicates_removed: int
    profiles_quarantined: int
    snapshot_index: int
    log_first: int
    state_items: dict[str, int]  # size of every bounded collection (S21)


class Metastore(Protocol):
    """Every call may raise Unavailable; all may be repeated, since they name what they mean."""

    async def now(self) -> Now: ...

    async def add_blocks(self, blocks: tuple[BlockMeta, ...]) -> AddReply: ...

    async def poll(self, request: PollRequest) -> PollReply: ...

    async def view(self, request: ViewRequest) -> IndexView: ...

    async def blocks(
        self, *, level: int = -1, tenant: str = "", limit: int = 1000
    ) -> tuple[BlockMeta, ...]:
        """Live blocks, newest first (level -1: all levels)."""
        ...

    async def block(self, block: BlockId) -> BlockMeta:
        """One live block, or NotFound."""
        ...

    async def plans(self, *, state: str = "", limit: int = 1000) -> tuple[Plan, ...]:
        """Plans on the timeline, newest first."""
        ...

    async def plan(self, plan: PlanId) -> Plan:
        """One plan with its attempts, or NotFound."""
        ...

    async def status(self) -> Status: ...


class ShardAssignment(msgspec.Struct, frozen=True):
    """Who takes pushes for a shard. One node with four shards, until there is a ring."""

    shard: Shard
    node: str
