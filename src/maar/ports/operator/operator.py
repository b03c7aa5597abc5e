"""What an operator asks of the metastore, and what it changes by hand."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, ClassVar, Protocol

import msgspec

from maar.model.block import BlockMeta, Damage
from maar.model.ids import BlockId, FencingToken, Incarnation, NodeId, PlanId, Zone
from maar.model.plan import Plan
from maar.model.ring import Ring
from maar.model.schedule import Alarm
from maar.model.time import LeaseTime
from maar.ports.calls import Call
from maar.ports.metastore.call import MetastoreCall
from maar.ports.metastore.log_time import LogTime
from maar.ports.metastore.replica import ReplicaStatus
from maar.ports.operator.dead_letters import LetterOperator, LettersStatus
from maar.ports.operator.retention import RetentionOperator, RetentionStatus
from maar.ports.plans.board import Execution
from maar.ports.writer.membership import RingReader


class LevelStatus(msgspec.Struct, frozen=True):
    level: int
    kind: str  # segment, block, quarantine
    blocks: int
    bytes: int
    profiles: int
    queued: int  # waiting for a plan
    queued_bytes: int
    oldest_queued_s: float
    held: int  # in excluded or parked plans


class ZoneStatus(msgspec.Struct, frozen=True):
    """A zone's ring in numbers."""

    zone: Zone
    writers: dict[str, int]  # by state; those that are dead count as that alone
    shards: int
    changed_at: int
    complete: bool  # False: it is not yet known who is dead


class Status(msgspec.Struct, frozen=True):
    """The state of the metastore as of one index."""

    incarnation: Incarnation
    term: int
    index: int
    lease_time: LeaseTime
    wall_time_ns: int
    levels: tuple[LevelStatus, ...]
    plans: dict[str, int]  # by state
    running: int  # plans under a live lease
    leased: tuple[Plan, ...]  # the oldest of them, with lease and token
    failed: tuple[Plan, ...]  # the newest of those excluded, parked, or with failures
    completed: int  # since genesis
    retired: int  # blocks replaced and not yet deleted
    profiles_added: int
    duplicates_removed: int
    profiles_quarantined: int
    profiles_expired: int
    parked: int  # plans
    leftovers: int  # ended attempts whose leftovers are still searched for
    failure_limit: int  # in force now
    limit_raised_s: float  # it is raised, and will be for so long; 0: it is not
    retention: RetentionStatus
    blocked: tuple[str, ...]  # what could not be cleaned up, and why
    snapshot_index: int
    log_first: int
    state_items: dict[str, int]  # size of every bounded collection (S21)
    zones: tuple[ZoneStatus, ...] = ()  # that have writers, by name
    letters: LettersStatus = LettersStatus()
    leader: str = ""
    replicas: tuple[ReplicaStatus, ...] = ()  # as the leader last heard of them, itself included
    adopting: bool = False  # restored from a snapshot, and the store is still being searched
    alarms: tuple[Alarm, ...] = ()  # that are not over, oldest first
    blocks_adopted: int = 0  # after restores, since genesis; as are those that were missed
    blocks_missed: int = 0
    profiles_missed: int = 0
    blocks_lost: int = 0  # given up by an operator, since genesis
    profiles_lost: int = 0
    rollbacks: int = 0  # that wait to be executed
    dead: int = 0  # attempts that have left objects to be rolled back
    deletions: int = 0  # by predicate, that are not carried out everywhere yet
    profiles_deleted: int = 0  # by them, since genesis


class PlanRollback(msgspec.Struct, frozen=True):
    """An attempt of a plan that is or was rolled back."""

    rollback: PlanId  # the plan that does it
    token: FencingToken | None  # of the attempt; None: the plan went before it had begun
    state: str  # of the rollback


class PlanDetail(msgspec.Struct, frozen=True):
    """A plan with what an operator needs to judge it."""

    plan: Plan
    now: LeaseTime
    failure_limit: int  # in force now, raised or not
    inputs: tuple[BlockMeta, ...]  # those that are still known
    rollbacks: tuple[PlanRollback, ...] = ()  # of this plan, oldest first
    execution: Execution | None = None  # what whoever wants to execute it now would be told
    slots: int = 1  # of an engine, that it takes


class Explanation(msgspec.Struct, frozen=True):
    """Where a block stands on its way up, and what it waits for, in sentences."""

    block: BlockId
    standing: str  # finished, queued, owned, held, quarantined, retired
    sentences: tuple[str, ...]
    meta: BlockMeta | None = None
    plan: PlanId | None = None


class Loss(msgspec.Struct, frozen=True):
    """What giving a block up costs, after a look at its objects."""

    block: BlockMeta
    damages: tuple[Damage, ...]  # none: it is intact
    plan: PlanId | None = None  # that owns it, and is cancelled
    returning: tuple[BlockId, ...] = ()  # blocks that it replaced, still intact: they come back


class OrphanObject(msgspec.Struct, frozen=True):
    key: str
    size: int
    kind: str  # segment, output, intent


class FoundOrphans(msgspec.Struct, frozen=True):
    """Objects that no entry names: those that a sweep would delete, or has deleted."""

    objects: int
    bytes: int
    first: tuple[OrphanObject, ...]  # as many as were asked for
    complete: bool  # False: the store is large, or nothing may be swept, and there may be more
    kept: tuple[str, ...] = ()  # sentences: what is not swept, and why


class Operator(LogTime, RingReader, RetentionOperator, LetterOperator, Protocol):
    """Reads are answered by any replica, the rest by the leader."""

    async def blocks(
        self, *, level: int = -1, tenant: str = "", limit: int = 1000
    ) -> tuple[BlockMeta, ...]:
        """Live blocks, newest first (level -1: all levels)."""
        ...

    async def block(self, block: BlockId) -> BlockMeta:
        """One live block, or NotFound."""
        ...

    async def plans(self, wanted: ListPlans) -> tuple[Plan, ...]:
        """Plans on the timeline, newest first."""
        ...

    async def plan(self, plan: PlanId) -> PlanDetail:
        """One plan with its attempts, or NotFound."""
        ...

    async def requeue(self, plan: PlanId) -> Plan:
        """Try an excluded or parked plan again, with failures reset; else Rejected."""
        ...

    async def exclude(self, plan: PlanId, *, note: str) -> Plan:
        """Exclude a plan by hand; the worker that holds it is fenced."""
        ...

    async def raise_limit(self, failure_limit: int, *, for_ns: int) -> LeaseTime:
        """Let plans fail more often for a while (0 ns: no longer); until when."""
        ...

    async def explain(self, block: BlockId) -> Explanation:
        """Why a block is not compacted yet; NotFound when nothing is known of it."""
        ...

    async def loss(self, block: BlockId) -> Loss:
        """What giving a live block up would cost, after a look at its objects; else NotFound."""
        ...

    async def lose(self, block: BlockId, *, note: str, force: bool = False) -> Loss:
        """Give a damaged block up (with `force` an intact one too); else Rejected or NotFound."""
        ...

    async def remove_writer(self, zone: Zone, node: NodeId) -> Ring:
        """Give the shards of a writer that will not come back to others; else NotFound."""
        ...

    async def find_orphans(self, *, limit: int = 100) -> FoundOrphans:
        """What the next sweeps of orphans would delete; changes nothing."""
        ...

    async def sweep_orphans(self, *, limit: int = 100) -> FoundOrphans:
        """Sweep orphans now, as far as that goes in some seconds; what was deleted."""
        ...

    async def status(self) -> Status: ...


class ListPlans(MetastoreCall[Operator, tuple[Plan, ...]], frozen=True):
    """Which plans; what is left out matches all."""

    any_replica: ClassVar[bool] = True
    rows: ClassVar[str | None] = ""

    state: str = ""
    service: str = ""  # the kind of plan
    tenant: str = ""
    level: int = -1
    shard: int = 0
    failing: bool = False  # with failures, excluded or parked
    limit: int = 1000

    def answer(self, port: Operator) -> Awaitable[tuple[Plan, ...]]:
        return port.plans(self)


class GetPlan(MetastoreCall[Operator, PlanDetail], frozen=True):
    """One plan with its attempts."""

    any_replica: ClassVar[bool] = True

    plan: PlanId

    def answer(self, port: Operator) -> Awaitable[PlanDetail]:
        return port.plan(self.plan)


class RequeuePlan(MetastoreCall[Operator, Plan], frozen=True):
    """Give an excluded or parked plan another chance."""

    plan: PlanId

    def answer(self, port: Operator) -> Awaitable[Plan]:
        return port.requeue(self.plan)


class ExcludePlan(MetastoreCall[Operator, Plan], frozen=True):
    """Set a plan aside by hand."""

    plan: PlanId
    note: str

    def answer(self, port: Operator) -> Awaitable[Plan]:
        return port.exclude(self.plan, note=self.note)


class RaiseLimit(MetastoreCall[Operator, LeaseTime], frozen=True):
    """Let plans fail more often for a while."""

    failure_limit: int
    for_ns: int

    def answer(self, port: Operator) -> Awaitable[LeaseTime]:
        return port.raise_limit(self.failure_limit, for_ns=self.for_ns)


class ListBlocks(MetastoreCall[Operator, tuple[BlockMeta, ...]], frozen=True):
    """Live blocks, newest first (level -1: all levels)."""

    any_replica: ClassVar[bool] = True
    rows: ClassVar[str | None] = ""

    level: int = -1
    tenant: str = ""
    limit: int = 1000

    def answer(self, port: Operator) -> Awaitable[tuple[BlockMeta, ...]]:
        return port.blocks(level=self.level, tenant=self.tenant, limit=self.limit)


class GetBlock(MetastoreCall[Operator, BlockMeta], frozen=True):
    """One live block."""

    any_replica: ClassVar[bool] = True

    block: BlockId

    def answer(self, port: Operator) -> Awaitable[BlockMeta]:
        return port.block(self.block)


class ExplainBlock(MetastoreCall[Operator, Explanation], frozen=True):
    """Why a block is not compacted yet."""

    any_replica: ClassVar[bool] = True

    block: BlockId

    def answer(self, port: Operator) -> Awaitable[Explanation]:
        return port.explain(self.block)


class WeighLoss(MetastoreCall[Operator, Loss], frozen=True):
    """What giving a live block up would cost."""

    block: BlockId

    def answer(self, port: Operator) -> Awaitable[Loss]:
        return port.loss(self.block)


class LoseBlock(MetastoreCall[Operator, Loss], frozen=True):
    """Give a damaged block up; with force an intact one too."""

    block: BlockId
    note: str
    force: bool = False

    def answer(self, port: Operator) -> Awaitable[Loss]:
        return port.lose(self.block, note=self.note, force=self.force)


class RemoveWriter(MetastoreCall[Operator, Ring], frozen=True):
    """Give the shards of a writer that will not come back to others."""

    zone: Zone
    node: NodeId

    def answer(self, port: Operator) -> Awaitable[Ring]:
        return port.remove_writer(self.zone, self.node)


class ListOrphans(MetastoreCall[Operator, FoundOrphans], frozen=True):
    """A dry run of the sweep of orphans: how much there is, and the first of them."""

    limit: int = 100

    def answer(self, port: Operator) -> Awaitable[FoundOrphans]:
        return port.find_orphans(limit=self.limit)


class SweepOrphans(MetastoreCall[Operator, FoundOrphans], frozen=True):
    """Delete orphans now; the leader would do it within minutes."""

    limit: int = 100

    def answer(self, port: Operator) -> Awaitable[FoundOrphans]:
        return port.sweep_orphans(limit=self.limit)


class GetStatus(MetastoreCall[Operator, Status], frozen=True):
    """The state of the metastore as of one index."""

    def answer(self, port: Operator) -> Awaitable[Status]:
        return port.status()


CALLS: tuple[type[Call[Operator, Any]], ...] = (
    ListPlans,
    GetPlan,
    RequeuePlan,
    ExcludePlan,
    RaiseLimit,
    ListBlocks,
    GetBlock,
    ExplainBlock,
    WeighLoss,
    LoseBlock,
    RemoveWriter,
    ListOrphans,
    SweepOrphans,
    GetStatus,
)
