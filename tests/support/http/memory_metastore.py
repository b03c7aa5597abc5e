"""A metastore in memory, for tests of what asks it over HTTP."""

# ruff: noqa: ARG002 - a stand-in takes what its port is given, and needs little of it

from __future__ import annotations

from typing import Any

import msgspec

from maar.metastore.decide import membership
from maar.metastore.fold.ring import ring_of
from maar.metastore.records.effects import RingReplaced
from maar.metastore.records.entries import RingChanged
from maar.model.block import BlockMeta, Damage, Kind
from maar.model.errors import InvalidInput, MaarError, NotFound, Rejected
from maar.model.ids import BlockId, Incarnation, NodeId, PlanId, StoreName, TenantId, Zone
from maar.model.plan import JobId, Plan, PlanState
from maar.model.predicate import Mask
from maar.model.ring import Ring
from maar.model.time import DAY_NS, SECOND_NS, LeaseTime, WallTime
from maar.model.trouble import Trouble
from maar.ports.calls import LocalPort
from maar.ports.metastore.log_time import Now
from maar.ports.operator.copies import StoreStatus
from maar.ports.operator.dead_letters import Letter, LetterRetried, LettersPage, LettersStatus
from maar.ports.operator.deletions import Deletion, PendingDeletion
from maar.ports.operator.operator import (
    Explanation,
    FoundOrphans,
    ListPlans,
    Loss,
    OrphanObject,
    PlanDetail,
    Status,
    ZoneStatus,
)
from maar.ports.operator.repairs import RepairJob, RepairsStatus, RepairTold
from maar.ports.operator.retention import Expiring, RetentionStatus, Undone
from maar.ports.operator.store_removal import RemovedStore
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
from maar.ports.reader.index import IndexView, ViewRequest
from maar.ports.writer.membership import Beat, BeatReply, RingView
from maar.ports.writer.registrar import AddReply
from support.http.pushed import NOW_NS
from support.metastore.board import FoldBoard
from support.metastore.fold import Fold
from support.metastore.schedule_port import FoldSchedule


class MemoryMetastore(LocalPort, FoldSchedule):
    """An index that is a dict of blocks. `failures` are raised by the next calls, one each."""

    def __init__(self) -> None:
        self.index: dict[BlockId, BlockMeta] = {}
        self.failures: list[MaarError] = []
        self.refusal = ""
        self.lease_time = LeaseTime(5_000)
        self.known: dict[PlanId, Plan] = {}
        self.wanted = ListPlans()  # what was asked for last
        self.raised = 0
        self.periods: dict[str, int] = {}
        self.trouble = ""
        self.undone: list[str] = []
        self.deleted: list[Mask] = []
        self.store_orders: list[tuple[StoreName, bool, str, bool]] = []
        self.only_in_lost = 2  # blocks that a store has that is given up
        self.deletion_requests: list[str] = []
        self.damaged: tuple[Trouble, ...] = ()
        self.repairs_asked: list[tuple[JobId, bool, bool]] = []
        self.damages: tuple[Damage, ...] = ()
        self.lost: list[tuple[BlockId, str]] = []
        self.zones = Fold()  # rings, by the real decisions
        self.heartbeats = membership.Heartbeats()
        self.dead: set[NodeId] = set()
        self.complete = True
        self.zone_status: tuple[ZoneStatus, ...] = ()
        self.posted: dict[str, Letter] = {}  # dead letters
        self.letters_status = LettersStatus()
        self.orphans: list[OrphanObject] = []
        self.kept: tuple[str, ...] = ()  # sentences about orphans that stay
        self.board = FoldBoard()  # plans that are executed, by the real decisions
        FoldSchedule.__init__(self, self.board.fold)

    async def now(self) -> Now:
        self._fail()
        return Now(Incarnation("1234abcd"), self.lease_time, len(self.index))

    async def add_blocks(self, blocks: tuple[BlockMeta, ...]) -> AddReply:
        self._fail()
        if not self.refusal:
            self.index |= {block.id: block for block in blocks}
        return AddReply(tuple(self.refusal for _ in blocks), self.lease_time)

    async def poll(self, request: PollRequest) -> PollReply:
        self._fail()
        return await self.board.poll(request)

    async def schedule_plan(self, request: SchedulePlan) -> ScheduledPlan:
        self._fail()
        return await self.board.schedule_plan(request)

    async def run_now(self, plan: PlanId) -> Execution:
        return await self.board.run_now(plan)

    async def roll_back(self, plan: PlanId) -> RollbackReply:
        return await self.board.roll_back(plan)

    async def schedule_rollbacks(self, request: ScheduleRollbacks) -> CleanStep:
        return await self.board.schedule_rollbacks(request)

    async def commit_part(self, request: CommitPart) -> PartCommitted:
        return await self.board.commit_part(request)

    async def repairs(self, *, tenant: str = "") -> RepairsStatus:
        whose, at = TenantId(tenant or "acme"), WallTime(100 * SECOND_NS)
        job = RepairJob(whose, "vnode", "ON_TIME", 50.0, at, 5.0, 7.0, "it is due")
        return RepairsStatus((job,), ())

    async def ask_repair(self, job: JobId, *, wanted: bool, dry_run: bool) -> RepairTold:
        self.repairs_asked.append((job, wanted, dry_run))
        return RepairTold(job, "would_run" if dry_run else "running", ranges=256)

    async def asked_repair(self, job: JobId) -> RepairTold:
        return RepairTold(job, "completed", 256, 12, 2, 2)

    async def confirm_deletes(self, request: ConfirmDeletes) -> tuple[str, ...]:
        return await self.board.confirm_deletes(request)

    async def view(self, request: ViewRequest) -> IndexView:
        return IndexView(len(self.index), tuple(self.index.values()))

    async def blocks(
        self, *, level: int = -1, tenant: str = "", limit: int = 1000
    ) -> tuple[BlockMeta, ...]:
        found = [block for block in self.index.values() if level in (-1, block.level)]
        return tuple(found[:limit])

    async def block(self, block: BlockId) -> BlockMeta:
        if block not in self.index:
            raise NotFound(f"there is no block {block}")
        return self.index[block]

    async def plans(self, wanted: ListPlans) -> tuple[Plan, ...]:
        self._fail()
        self.wanted = wanted
        found = [p for p in self.known.values() if wanted.state in ("", p.state.name.lower())]
        return tuple(found[: wanted.limit])

    async def plan(self, plan: PlanId) -> PlanDetail:
        if plan not in self.known:
            return await self.board.plan(plan)
        found = self._plan(plan)
        inputs = tuple(self.index[block] for block in found.inputs if block in self.index)
        return PlanDetail(found, self.lease_time, found.failure_limit, inputs)

    async def requeue(self, plan: PlanId) -> Plan:
        self._fail()
        found = self._plan(plan)
        if found.state not in (PlanState.EXCLUDED, PlanState.PARKED):
            raise Rejected(f"plan {plan} is {found.state.name.lower()}, and needs no requeueing")
        return self._put(found, state=PlanState.REQUESTED, failures=0, note="")

    async def exclude(self, plan: PlanId, *, note: str) -> Plan:
        return self._put(self._plan(plan), state=PlanState.EXCLUDED, lease=None, note=note)

    async def raise_limit(self, failure_limit: int, *, for_ns: int) -> LeaseTime:
        if for_ns and failure_limit < 1:
            raise InvalidInput(f"{failure_limit} is not a limit")
        self.raised = failure_limit if for_ns else 0
        return LeaseTime(self.lease_time + for_ns)

    async def explain(self, block: BlockId) -> Explanation:
        meta = await self.block(block)
        standing = "quarantined" if meta.kind is Kind.QUARANTINE else "queued"
        return Explanation(block, standing, ("It waits.",), meta)

    async def retention(self) -> RetentionStatus:
        return RetentionStatus(90 * DAY_NS, dict(self.periods), NOW_NS, NOW_NS, self.trouble)

    async def delete_profiles(self, mask: Mask, *, dry_run: bool, request_id: str = "") -> Deletion:
        name = None if dry_run else 7
        again = request_id and request_id in self.deletion_requests
        self.deleted += [] if dry_run or again else [mask]
        self.deletion_requests.append(request_id)
        return Deletion(name, 3, 2, at_most=mask.from_ns > 0)

    async def remove_store(
        self, store: StoreName, *, lost: bool, seen: str, keep: bool
    ) -> RemovedStore:
        self.store_orders.append((store, lost, seen, keep))
        only = self.only_in_lost if lost else 0
        done, named = not lost or seen == f"list of {only}", (BlockId("b" * 32),) * only
        return RemovedStore(store, done, 5, only, 30, named, f"list of {only}")

    async def deletions(self) -> tuple[PendingDeletion, ...]:
        return tuple(PendingDeletion(7, mask, "2 blocks to be rewritten") for mask in self.deleted)

    async def report_damage(self, copies: tuple[Trouble, ...]) -> None:
        self.damaged += copies

    async def stores(self, *, tenant: str = "") -> tuple[StoreStatus, ...]:
        eu = StoreStatus(
            StoreName("eu"), "europe", ("fra",), False, True, 12, 3_400_000, 0, 0, 0, 0
        )
        us = StoreStatus(StoreName("us"), "", (), True, False, 10, 3_000_000, 2, 400_000, 1, 5)
        return (eu,) if tenant == "one" else (eu, us)

    async def set_retention(self, tenant: TenantId, *, period_ns: int | None) -> RetentionStatus:
        self.periods.pop(tenant, None)
        if period_ns is not None:
            self.periods[tenant] = period_ns
        return await self.retention()

    async def hold_retention(self, *, why: str) -> RetentionStatus:
        self.trouble = f"retention paused: {why}"
        return await self.retention()

    async def release_retention(self) -> RetentionStatus:
        self.trouble = ""
        return await self.retention()

    async def loss(self, block: BlockId) -> Loss:
        return Loss(await self.block(block), self.damages)

    async def lose(self, block: BlockId, *, note: str, force: bool = False) -> Loss:
        loss = await self.loss(block)
        if not loss.damages and not force:
            raise Rejected(f"block {block} is whole")
        self.lost.append((block, note))
        return loss

    async def undo_retention(self, *, tenant: str = "", why: str = "") -> Undone:
        await self.hold_retention(why=why)
        self.undone.append(tenant)
        return Undone(3, 30)

    async def expiring(self, *, tenant: str = "", limit: int = 1000) -> tuple[Expiring, ...]:
        owners = {block: plan.id for plan in self.known.values() for block in plan.inputs}
        found = [
            Expiring(meta, NOW_NS, owners.get(meta.id))
            for meta in self.index.values()
            if tenant in ("", meta.tenant)
        ]
        return tuple(found[:limit])

    async def beat(self, beat: Beat) -> BeatReply:
        self._fail()
        found = membership.decide(self.zones.state, beat, self.heartbeats)
        if isinstance(found, RingChanged):
            for effect in self.zones.put(found):
                assert isinstance(effect, RingReplaced)
                self.heartbeats.follow(effect)
            found = None
        ring = ring_of(self.zones.state, beat.zone)
        if found is not None:
            return BeatReply(ring.changed_at, found.refusal)
        self.heartbeats.hear(ring, beat, self.lease_time)
        return BeatReply(ring.changed_at)

    async def rings(self) -> tuple[RingView, ...]:
        self._fail()
        return tuple(
            RingView(
                ring,
                tuple(w.node for w in ring.writers if w.node in self.dead),
                self.complete,
                tuple(0 for _ in ring.writers),
            )
            for _, ring in sorted(self.zones.state.rings.items())
        )

    async def remove_writer(self, zone: Zone, node: NodeId) -> Ring:
        """Unlike the real one it takes the dead only."""
        self._fail()
        self.heartbeats.dead_after_ns = -1 if node in self.dead else 1 << 62
        entries = membership.removal(self.zones.state, zone, node, self.heartbeats, self.lease_time)
        effects = [effect for entry in entries for effect in self.zones.put(entry)]
        return membership.ring_after_removal(effects, self.zones.state, zone)

    def _plan(self, plan: PlanId) -> Plan:
        if plan not in self.known:
            raise NotFound(f"there is no plan {plan}")
        return self.known[plan]

    def _put(self, plan: Plan, **changes: Any) -> Plan:
        self.known[plan.id] = msgspec.structs.replace(plan, **changes)
        return self.known[plan.id]

    async def letters(self, *, limit: int = 100) -> LettersPage:
        self._fail()
        found = tuple(self.posted.values())
        return LettersPage(self.letters_status, found[:limit], len(found) > limit)

    async def letter(self, name: str) -> Letter:
        if name not in self.posted:
            raise NotFound(f"there is no dead letter {name!r}")
        return self.posted[name]

    async def retry_letter(self, name: str) -> LetterRetried:
        self._fail()
        found = await self.letter(name)
        if found.meta is None:
            raise Rejected(f"{name} cannot be delivered: {found.cause}")
        del self.posted[name]
        return LetterRetried(name, found.meta.id, "floor" in found.cause)

    async def find_orphans(self, *, limit: int = 100) -> FoundOrphans:
        self._fail()
        size = sum(orphan.size for orphan in self.orphans)
        first = tuple(self.orphans[:limit])
        return FoundOrphans(len(self.orphans), size, first, not self.kept, self.kept)

    async def sweep_orphans(self, *, limit: int = 100) -> FoundOrphans:
        found = await self.find_orphans(limit=limit)
        self.orphans.clear()
        return found

    async def status(self) -> Status:
        return Status(
            incarnation=Incarnation("1234abcd"),
            term=1,
            index=len(self.index),
            lease_time=self.lease_time,
            wall_time_ns=NOW_NS,
            levels=(),
            plans={},
            running=0,
            leased=(),
            failed=(),
            completed=0,
            retired=0,
            profiles_added=0,
            duplicates_removed=0,
            profiles_quarantined=0,
            profiles_expired=0,
            parked=0,
            leftovers=0,
            failure_limit=3,
            limit_raised_s=0.0,
            retention=await self.retention(),
            blocked=(),
            snapshot_index=0,
            log_first=1,
            state_items={},
            zones=self.zone_status,
            letters=self.letters_status,
        )

    def _fail(self) -> None:
        if self.failures:
            raise self.failures.pop(0)
