"""The metastore's whole state: only the fold changes it, and every part is bounded (S21)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from maar.metastore.records.entries import AttemptKey
from maar.metastore.records.packs import outline
from maar.metastore.state.index import Index
from maar.metastore.state.marks import KnownMarks, Marked
from maar.metastore.state.queue import Queue
from maar.metastore.state.repairs import Repairs
from maar.metastore.state.retired import RetiredBlocks
from maar.metastore.state.rows import Ids
from maar.metastore.state.timeline import Timeline
from maar.metastore.state.tombstones import Tombstones
from maar.metastore.state.windows import Window, WindowSum, window_of
from maar.model.block import BlockOutline, Kind
from maar.model.ids import (
    BlockId,
    FencingToken,
    Incarnation,
    PlanId,
    StoreName,
    TenantId,
    Zone,
)
from maar.model.plan import JobId, Plan, PlanKind, QueueKey
from maar.model.policy import Policy
from maar.model.predicate import AskedBy, Predicate
from maar.model.ring import Ring
from maar.model.schedule import Alarm, ClockOffset, JobRecord, RunPolicy, ScheduleRule
from maar.model.stores import StoreSet, is_copied
from maar.model.time import LeaseTime, WallTime
from maar.model.token_range import TokenRange
from maar.services.kinds import KINDS, Kinds
from maar.services.repair.history import RangeTimes, VnodeHistory
from maar.services.rules import DayWindow, Setback

NO_INCARNATION = Incarnation("")
GENESIS_TIME = LeaseTime(0)
NO_WALL_TIME = WallTime(0)
NO_FLOOR = LeaseTime(-1)
ANY_STORE = StoreName("")


class Pin(NamedTuple):
    """A reader may hold what was live at an entry."""

    entry: int
    expires_at: LeaseTime


class RaisedLimit(NamedTuple):
    """Plans may fail this often, for a while."""

    failure_limit: int
    until: LeaseTime


class Anchor(NamedTuple):
    """The newest profile time that data has shown, and when: retention's second clock (S2)."""

    data_ns: int
    at: LeaseTime

    def reading(self, now: LeaseTime) -> int:
        """What this clock shows; without data, a time that nothing is older than."""
        return self.data_ns + max(0, now - self.at)


class RetentionHold(NamedTuple):
    """Why retention is on hold until an operator releases it, and since when; '' when it is not."""

    why: str
    at: LeaseTime


class Spent(NamedTuple):
    """Blocks of a tenant that retention took although passing time alone does not explain it."""

    hours: tuple[tuple[int, int], ...]  # of lease time, and how many in each; the last day's


class EndedAttempt(msgspec.Struct, frozen=True, gc=False):
    """What is known of an attempt that has ended and may have left objects."""

    ended_at: LeaseTime
    completed: bool
    dead: bool = False  # it had begun to write, did not complete, and was not rolled back yet
    store: StoreName = ANY_STORE  # that it may have written to


class Leftovers(Marked[AttemptKey, EndedAttempt]):
    """Ended attempts, oldest end first; the dead among them are found without a search."""

    __slots__ = ("dead",)

    def __init__(self) -> None:
        super().__init__()
        self.dead: dict[AttemptKey, None] = {}  # oldest end first

    def __setitem__(self, key: AttemptKey, value: EndedAttempt) -> None:
        super().__setitem__(key, value)
        if value.dead:
            self.dead[key] = None
        else:
            self.dead.pop(key, None)

    def __delitem__(self, key: AttemptKey) -> None:
        super().__delitem__(key)
        self.dead.pop(key, None)

    def pop(self, key: AttemptKey, *default: Any) -> Any:
        self.dead.pop(key, None)
        return super().pop(key, *default)


class SetbackScope(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What plans of a kind are about."""

    kind: PlanKind
    key: QueueKey


NOT_RAISED = RaisedLimit(0, GENESIS_TIME)
NO_ANCHOR = Anchor(0, GENESIS_TIME)
NO_HOLD = RetentionHold("", GENESIS_TIME)
NOTHING = WindowSum()  # never changed


@dataclass(slots=True)
class CountsSinceGenesis:
    """Counted since genesis."""

    profiles_added: int = 0
    duplicates_removed: int = 0
    profiles_quarantined: int = 0
    plans_completed: int = 0
    profiles_expired: int = 0
    blocks_adopted: int = 0
    blocks_missed: int = 0
    profiles_missed: int = 0
    blocks_lost: int = 0
    profiles_lost: int = 0
    profiles_deleted: int = 0


@dataclass(slots=True)
class MetaState:
    index: int = 0
    version: int = 1
    incarnation: Incarnation = NO_INCARNATION
    term: int = 0
    leader: str = ""
    lease_time: LeaseTime = GENESIS_TIME
    wall_time: WallTime = NO_WALL_TIME
    registration_floor: LeaseTime = NO_FLOOR
    policy: Policy = field(default_factory=Policy)
    tally: CountsSinceGenesis = field(default_factory=CountsSinceGenesis)
    blocks: Index = field(default_factory=Index)
    queue: Queue = field(default_factory=Queue)
    owners: dict[BlockId, PlanId] = field(default_factory=dict)
    plans: Timeline = field(default_factory=Timeline)  # requested, inflight, excluded
    finished: dict[PlanId, Plan] = field(default_factory=dict)  # the rest, oldest end first
    retired: RetiredBlocks = field(default_factory=RetiredBlocks)  # oldest first
    repairs: Repairs = field(default_factory=Repairs)
    tombstones: Tombstones = field(default_factory=Tombstones)  # copies that wait for their store
    remembered: Ids = field(default_factory=Ids)  # gone, above the floor
    pins: dict[str, Pin] = field(default_factory=dict)
    parked: dict[PlanId, Plan] = field(default_factory=dict)  # they own their inputs
    leftovers: Leftovers = field(default_factory=Leftovers)  # oldest end first
    setbacks: Marked[SetbackScope, Setback] = field(default_factory=Marked)  # oldest scope first
    successes: Marked[SetbackScope, LeaseTime] = field(
        default_factory=Marked
    )  # of plans without inputs
    retention: Marked[TenantId, int] = field(default_factory=Marked)  # of tenants that differ
    predicates: Marked[int, Predicate] = field(default_factory=Marked)  # oldest first
    # By the names of their requests, also those that are carried out; oldest first.
    asked_deletions: Marked[AskedBy, Predicate] = field(default_factory=Marked)
    rings: Marked[Zone, Ring] = field(default_factory=Marked)  # of the zones that have writers
    raised: RaisedLimit = NOT_RAISED
    anchor: Anchor = NO_ANCHOR
    # The incarnations of the log whose objects are to be adopted. Until the store has been searched
    # for them, nothing is deleted (S5). () when the index knows everything.
    adopting: tuple[Incarnation, ...] = ()
    former: tuple[Incarnation, ...] = ()  # writers of these incarnations may still leave letters
    adopted_at: LeaseTime = GENESIS_TIME  # when the last adoption ended
    # The fields of retention; see metastore/fold/deleting/trust.py.
    clock: Anchor = NO_ANCHOR  # the wall clock when it was last confirmed
    confirmed_ns: int = 0  # the default period that nobody needs to confirm any more; 0: for ever
    hold: RetentionHold = NO_HOLD
    spent: Marked[TenantId, Spent] = field(default_factory=Marked)
    # The schedule; see metastore/fold/jobs.py.
    schedules: Marked[JobId, ScheduleRule] = field(default_factory=Marked)  # by pattern
    run_policies: Marked[int, RunPolicy] = field(default_factory=Marked)  # oldest first
    jobs: Marked[JobId, JobRecord] = field(default_factory=Marked)
    alarms: Marked[JobId, Alarm] = field(default_factory=Marked)  # oldest first
    offsets: tuple[ClockOffset, ...] = ()  # of the wall clock, when terms began; oldest first
    known_marks: KnownMarks = field(
        default_factory=KnownMarks
    )  # of plans; a cache, not part of the state
    kinds: Kinds = KINDS  # of plans that this program knows; not of the log

    def __post_init__(self) -> None:
        self.plans.kinds = self.kinds
        self.queue.rules = self.kinds.queue

    @property
    def stores(self) -> StoreSet:
        """The stores that the log knows of the settings."""
        return self.blocks.copies.stores

    def token(self) -> FencingToken:
        """The token of leases that the entry being folded grants (S3)."""
        return FencingToken(self.incarnation, self.index)

    def setback(self, kind: PlanKind, key: QueueKey) -> Setback | None:
        """How the removable plans of a scope failed lately."""
        return self.setbacks.get(SetbackScope(kind, key))

    def last_success(self, kind: PlanKind, key: QueueKey) -> LeaseTime | None:
        """When a plan that owns nothing was last completed for a scope."""
        return self.successes.get(SetbackScope(kind, key))

    def run_started(self, job: JobId) -> LeaseTime | None:
        """When the present run of a job began."""
        record = self.jobs.get(job)
        return record.run_started if record else None

    def oldest_dead_at(self) -> LeaseTime | None:
        """When the first attempt ended that left something and was not rolled back yet."""
        oldest = next(iter(self.leftovers.dead), None)
        return self.leftovers[oldest].ended_at if oldest is not None else None

    def wall_at(self, now: LeaseTime) -> WallTime:
        """What the leader's clock shows by now: as in the last entry, and as much later."""
        return WallTime(self.wall_time + max(0, now - self.lease_time))

    def windows_before(self, day: int) -> Iterator[DayWindow]:
        """Windows of earlier days that may be due, oldest day first."""
        return (self._window(key, window) for key, window in self.blocks.windows.before(day))

    def windows_of(self, tenant: TenantId, day: int) -> Iterator[DayWindow]:
        """Those of one tenant's day: one in each store and zone."""
        keys = {window_of(meta) for meta in self._blocks_of(tenant, day)}
        for key in sorted(key for key in keys if key is not None):
            window = self.blocks.windows.get(key)
            assert window is not None
            yield self._window(key, window)

    def tenants_to_cluster(self) -> Collection[TenantId]:
        """Tenants that have a window with a block that is not clustered, and another one."""
        return list(self.blocks.windows.of_tenant)

    def windows_to_cluster(self, tenant: TenantId) -> Iterator[DayWindow]:
        """Those windows of a tenant, oldest day first."""
        windows = self.blocks.windows
        for key in sorted(windows.of_tenant.get(tenant, ()), key=lambda key: (key.day, key)):
            yield self._window(key, windows.by_key[key])

    def _window(self, key: QueueKey, window: Window) -> DayWindow:
        """Finished is what no lane has a place for."""
        fresh, placed = window.fresh, self.queue.placed.get(key, NOTHING)
        return DayWindow(
            key,
            fresh.blocks - placed.blocks,
            fresh.bytes - placed.bytes,
            fresh.times_ns - placed.times_ns,
            placed.blocks,
            window.clustered.blocks,
            window.clustered.bytes,
        )

    def finished_blocks(self, window: QueueKey) -> Iterator[BlockOutline]:
        """The blocks of a window that no lane wants any more and no plan owns."""
        for meta in self._blocks_of(window.tenant, window.day):
            wanted = meta.id in self.queue.places or meta.id in self.owners
            if window_of(meta) == window and not wanted:
                yield meta

    def outlines(self, blocks: Iterable[BlockId]) -> Iterator[BlockOutline]:
        return (found.outline for found in self.blocks.find_live(blocks).values())

    # ── for repairs ──

    def tenants_with_blocks(self) -> Collection[TenantId]:
        """Those that have blocks, in no order that matters."""
        return list(self.blocks.copies.of_tenant)

    def homes_of(self, tenant: TenantId) -> Iterable[StoreName]:
        """The home stores of a tenant's blocks."""
        return self.blocks.copies.homes(tenant)

    def tokens_of(
        self,
        tenant: TenantId,
        stores: tuple[StoreName, ...],
        vnodes: Collection[int],
        within: TokenRange | None = None,
    ) -> Iterator[tuple[int, int]]:
        """Token and bytes of the tenant's blocks in these ranges, or in a part of them, that
        exactly these stores should hold. Others are not unpacked.
        """
        for chunk, at in self.blocks.in_vnodes(tenant, vnodes, within):
            meta = outline(chunk.row(at))
            if is_copied(meta) and self.stores.wanted_stores(tenant, meta.store) == stores:
                yield chunk.token(at), meta.size

    def blocks_of(self, tenant: TenantId, stores: tuple[StoreName, ...]) -> int:
        """How many there are of those in all ranges."""
        return self.blocks.copies.blocks_wanted_in(tenant, stores)

    def to_copy(self, tenant: TenantId, *, down: Collection[StoreName] = ()) -> Iterator[BlockId]:
        """The tenant's blocks that are not at all their stores yet, oldest first; without those
        that only stores lack that are down.
        """
        return self.blocks.copies.lacking_of(tenant, down=down)

    def all_copied_at(self, tenant: TenantId) -> LeaseTime | None:
        """When the last repair began that left none of those."""
        return self.repairs.copied.get(tenant)

    def repair_history(
        self, tenant: TenantId, stores: tuple[StoreName, ...]
    ) -> Mapping[int, VnodeHistory]:
        return self.repairs.of(tenant, stores)

    def repair_times(
        self, tenant: TenantId, stores: tuple[StoreName, ...], *, whole_only: bool
    ) -> RangeTimes:
        return self.repairs.history.times(tenant, stores, whole_only=whole_only)

    def repair_asked(self, job: JobId) -> LeaseTime | None:
        """When somebody asked for a repair that is not done yet."""
        asked = self.repairs.asked.get(job)
        return asked.at if asked is not None else None

    def repairs_asked(self) -> Iterator[JobId]:
        return iter(self.repairs.asked)

    def stores_away(self) -> Collection[StoreName]:
        """Stores with copies that the settings do not have any more."""
        if not self.stores.stores:
            return ()
        return self.blocks.copies.holders().difference(self.stores.names())

    def _blocks_of(self, tenant: TenantId, day: int) -> Iterator[BlockOutline]:
        return (meta for meta in self.blocks.of_day(tenant, day) if meta.kind is Kind.BLOCK)

    def raised_limit(self, now: LeaseTime) -> int:
        """How often an operator lets plans fail for a while; 0 when none is in force."""
        return self.raised.failure_limit if now <= self.raised.until else 0

    def room(self) -> int:
        """How many more blocks the state may know of."""
        known = len(self.blocks) + len(self.retired) + len(self.remembered)
        return self.policy.blocks_max - known


class Bound(NamedTuple):
    limit: str  # the field of the policy, or the collection that it cannot outgrow
    trimmed_by: tuple[str, ...]  # kinds of entries


BOUNDS: dict[str, Bound] = {
    "blocks.where": Bound("blocks_max", ("PlanCompleted",)),
    "blocks.tenants": Bound("blocks.where", ("PlanCompleted",)),
    "blocks.totals": Bound("blocks.where", ("PlanCompleted",)),
    "blocks.windows.by_key": Bound("blocks.where", ("PlanCompleted",)),
    "blocks.windows.mixed": Bound("blocks.where", ("PlanCompleted",)),
    "blocks.windows.of_tenant": Bound("blocks.where", ("PlanCompleted",)),
    "blocks.copies.sums": Bound("blocks.where", ("PlanCompleted",)),
    "blocks.copies.of_tenant": Bound("blocks.copies.sums", ("PlanCompleted",)),
    "blocks.copies.of_store": Bound("blocks.copies.sums", ("PlanCompleted",)),
    "blocks.copies.lacking": Bound("blocks.where", ("SubrangeRepaired", "PlanCompleted")),
    "queue.places": Bound("blocks.where", ("PlanCompleted",)),
    "queue.placed": Bound("queue.places", ("PlanCompleted",)),
    "queue.lanes": Bound("queue.places", ("PlansScheduled",)),
    "queue.fronts": Bound("queue.lanes", ("PlansScheduled",)),
    "queue.full": Bound("queue.lanes", ("PlansScheduled",)),
    "queue.waiting": Bound("queue.lanes", ("PlansScheduled",)),
    "owners": Bound("blocks.where", ("PlanCompleted",)),
    "plans.by_id": Bound("plans_max", ("PlanCompleted", "PlansParked")),
    "plans.lines": Bound("plans.by_id", ("PlanCompleted", "PlansParked")),
    "plans.held": Bound("plans.by_id", ("PlanCompleted", "PlansParked")),
    "plans.removable": Bound("plans.by_id", ("PlanCompleted", "RollbacksScheduled")),
    "plans.urgent": Bound("plans.by_id", ("PlansLeased", "PlanCompleted")),
    "plans.rollbacks": Bound("plans.by_id", ("PlanCompleted",)),
    "finished": Bound("finished_max", ("PlansArchived", "PlanCompleted")),
    "retired": Bound("blocks_max", ("BlocksForgotten",)),
    "repairs.history": Bound("ranges_max", ("SubrangeRepaired",)),
    "repairs.asked": Bound("scopes_max", ("SubrangeRepaired", "RepairAsked")),
    "repairs.answered": Bound("scopes_max", ("SubrangeRepaired", "RepairAsked")),
    "repairs.copied": Bound("tenants_max", ("SubrangeRepaired",)),
    "repairs.lost": Bound("blocks.where", ("SubrangeRepaired",)),
    "tombstones": Bound("tombstones_max", ("TombstonesEnded",)),  # so many in each store
    "remembered": Bound("blocks_max", ("RegistrationFloor",)),
    "pins": Bound("pins_max", ("PinsDropped",)),
    "parked": Bound("parked_max", ("PlansUnparked", "PlanRequeued", "BlocksExpired", "BlocksLost")),
    "leftovers": Bound("leftovers_max", ("LeftoversSwept",)),
    "setbacks": Bound("scopes_max", ("PlanCompleted", "RollbacksScheduled")),
    "successes": Bound("scopes_max", ("PlanCompleted",)),
    "retention": Bound("tenants_max", ("RetentionSet",)),
    "spent": Bound("tenants_max", ("BlocksExpired", "RetentionHeld")),
    "predicates": Bound("predicates_max", ("PredicatesDropped",)),
    "schedules": Bound("schedules_max", ("ScheduleRemoved",)),
    "run_policies": Bound("run_policies_max", ("RunPolicyRemoved",)),
    "jobs": Bound("jobs_max", ("JobsForgotten",)),
    "alarms": Bound("jobs_max", ("AlarmsChanged", "JobsForgotten")),
    "plans.occupied": Bound("plans.by_id", ("PlanCompleted", "PlansParked")),
    "plans.of_job": Bound("plans.by_id", ("PlanCompleted", "PlansParked")),
    "asked_deletions": Bound("finished_max", ("PredicateAdded",)),
    "rings": Bound("zones_max", ("RingChanged",)),  # each is one value; see metastore/fold/ring.py
}


def sizes(state: MetaState) -> dict[str, int]:
    """How many items every bounded collection holds."""
    found = {}
    for name in BOUNDS:
        value: object = state
        for part in name.split("."):
            value = getattr(value, part)
        found[name] = len(value)  # type: ignore[arg-type]
    return found
