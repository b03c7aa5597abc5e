"""What a kind of plan decides: when it is due, what it takes, which result it accepts, its words.

The fold, the scheduler, the views and the command line ask a kind through this interface and know
none by name. Rules only read, and the time is an argument, so that every replica comes to the same
answer. They see the lake as a `Board`, and so know nothing of how the metastore keeps it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from maar.model.block import NO_DAY, BlockMeta, BlockOutline
from maar.model.ids import NO_TENANT, BlockId, Shard, StoreName, TenantId
from maar.model.keys import date_text
from maar.model.lane import Front, Item
from maar.model.plan import (
    RENEWALS_PER_LEASE,
    JobId,
    LeasedPlan,
    Plan,
    PlanKind,
    PlanResult,
    PlanSpec,
    QueueKey,
)
from maar.model.policy import Policy
from maar.model.refusal import Refusal
from maar.model.schedule import Schedule
from maar.model.stores import StoreSet
from maar.model.time import LeaseTime, WallTime
from maar.model.token_range import TokenRange
from maar.services.repair.history import RangeTimes, VnodeHistory

Listed = TypeVar("Listed", covariant=True)
NO_SHARD = Shard(0)


class Listing(Protocol[Listed]):
    """In an order of its own; nothing is looked at that nobody asks for."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Listed]: ...


class WaitingBlocks(Protocol):
    """Blocks that no plan owns yet, in lanes; a lane belongs to a line of the kind that merges."""

    def oldest_first(self, line: int) -> Listing[Front]:
        """All lanes of a line, by the age of their oldest block."""
        ...

    def full_lanes(self, line: int) -> Listing[Front]:
        """Those that are closed by what they hold, oldest first."""
        ...

    def items(self, key: QueueKey) -> Iterator[Item]:
        """The blocks of a lane, in its order."""
        ...

    def count_unjoined(self, key: QueueKey) -> int:
        """How many blocks of a lane are not segments that a plan made of others."""
        ...

    def place(self, block: BlockId) -> Item | None:
        """Where a block stands, or would stand again if its plan gave it back."""
        ...

    def ahead(self, block: BlockId) -> int:
        """How many wait in the lane of a queued block before it."""
        ...


class PendingPlans(Protocol):
    """Plans on the schedule."""

    def removable_plans(self) -> Iterator[Plan]: ...

    def rollback_plans(self) -> Iterator[Plan]: ...

    def abandoned_plans(self, now: LeaseTime) -> Iterator[Plan]:
        """Plans that stay, whose last attempt has begun to write and whose lease has expired."""
        ...

    def has_pending(self, kind: PlanKind) -> bool:
        """Whether a plan of the kind is on the schedule."""
        ...

    def of_kind(self, kind: PlanKind) -> Iterator[Plan]:
        """The plans of a kind that are on the schedule."""
        ...


class Setback(NamedTuple):
    """Removable plans of a scope started and had to be rolled back."""

    failures: int  # in a row
    until: LeaseTime  # no plan of the scope is due before


class DayWindow(NamedTuple):
    """What a tenant has of one day, in one store and zone, in sums."""

    key: QueueKey  # shard and level are 0
    blocks: int  # finished and not clustered; those that a plan owns count too
    bytes: int
    times_ns: int  # the lease times of those blocks, added up
    queued: int  # blocks that compaction still wants
    clustered: int  # blocks
    clustered_bytes: int


class RepairBoard(Protocol):
    """What repairs may see beside that."""

    @property
    def stores(self) -> StoreSet: ...

    def stores_away(self) -> Collection[StoreName]:
        """Stores with copies that the settings do not have; ranges of theirs wait."""
        ...

    def tenants_with_blocks(self) -> Collection[TenantId]:
        """Those whose blocks have, or may have, copies."""
        ...

    def to_copy(self, tenant: TenantId, *, down: Collection[StoreName] = ()) -> Iterator[BlockId]:
        """Those blocks, oldest first; without those that only stores lack that are down."""
        ...

    def all_copied_at(self, tenant: TenantId) -> LeaseTime | None:
        """When the last repair began that left none of those."""
        ...

    def homes_of(self, tenant: TenantId) -> Iterable[StoreName]:
        """The home stores of a tenant's blocks."""
        ...

    def tokens_of(
        self,
        tenant: TenantId,
        stores: tuple[StoreName, ...],
        vnodes: Collection[int],
        within: TokenRange | None = None,
    ) -> Iterator[tuple[int, int]]:
        """Token and bytes of the tenant's blocks in these ranges, or in a part of them, that
        exactly these stores should hold.
        """
        ...

    def blocks_of(self, tenant: TenantId, stores: tuple[StoreName, ...]) -> int:
        """How many there are of those in all ranges."""
        ...

    def repair_history(
        self, tenant: TenantId, stores: tuple[StoreName, ...]
    ) -> Mapping[int, VnodeHistory]:
        """What is known of ranges, by their number."""
        ...

    def repair_times(
        self, tenant: TenantId, stores: tuple[StoreName, ...], *, whole_only: bool
    ) -> RangeTimes:
        """When each range was last repaired as a whole; cheap to ask."""
        ...

    def repair_asked(self, job: JobId) -> LeaseTime | None:
        """When somebody asked for a repair that is not done yet."""
        ...

    def repairs_asked(self) -> Iterator[JobId]:
        """All such repairs."""
        ...


class Board(RepairBoard, Protocol):
    """What a kind may see of the lake. It grows by what the next kind needs to know."""

    @property
    def policy(self) -> Policy: ...

    @property
    def queue(self) -> WaitingBlocks: ...

    @property
    def stores(self) -> StoreSet:
        """Those that the log knows; none while there is only one, which then is `main`."""
        ...

    def setback(self, kind: PlanKind, key: QueueKey) -> Setback | None:
        """How the removable plans of a scope failed lately."""
        ...

    @property
    def plans(self) -> PendingPlans: ...

    def oldest_dead_at(self) -> LeaseTime | None:
        """When the first attempt ended that left something and was not rolled back yet."""
        ...

    def last_success(self, kind: PlanKind, key: QueueKey) -> LeaseTime | None:
        """When a plan that owns nothing was last completed for a scope."""
        ...

    def run_started(self, job: JobId) -> LeaseTime | None:
        """When the present run of a job began: its first session since it was last done."""
        ...

    def wall_at(self, now: LeaseTime) -> WallTime:
        """What the leader's clock shows by now, as far as the log knows."""
        ...

    def windows_before(self, day: int) -> Iterator[DayWindow]:
        """Windows of earlier days with a block that is not clustered and another one, oldest day
        first.
        """
        ...

    def windows_of(self, tenant: TenantId, day: int) -> Iterator[DayWindow]:
        """Those of one tenant's day: one in each store and zone."""
        ...

    def tenants_to_cluster(self) -> Collection[TenantId]:
        """Tenants that have a window with a block that is not clustered, and another one."""
        ...

    def windows_to_cluster(self, tenant: TenantId) -> Iterator[DayWindow]:
        """Those windows of a tenant, oldest day first."""
        ...

    def finished_blocks(self, window: QueueKey) -> Iterator[BlockOutline]:
        """The blocks of a window that no lane wants any more and no plan owns, clustered ones
        too.
        """
        ...

    def outlines(self, blocks: Iterable[BlockId]) -> Iterator[BlockOutline]:
        """Those of live blocks, by their ids."""
        ...


class JobState(msgspec.Struct, frozen=True, gc=False):
    """What a kind knows of one of its jobs now. Times are lease time."""

    id: JobId
    # The oldest success over what can run now, not over what cannot: a part that waits for a store
    # that is away must not make the rest look late. None: there was none yet, and the schedule
    # assumes one.
    last_success: LeaseTime | None
    resources: tuple[str, ...] = ()  # that its next session occupies, sorted
    nothing: str = ""  # why there is nothing to do, in a sentence; then it counts as done
    why_not: str = ""  # why it cannot run now, although there is something to do
    unfinished: bool = False  # something is to be done already, due or not
    waiting_since: LeaseTime | None = None  # there was nothing to do before: no alarm counts it
    expected_ns: int = 0  # how long the work takes; 0: as long as the last time
    done: int = 0  # parts that are done in the present run …
    parts: int = 0  # … of so many
    on_demand: bool = False  # an operator waits for it: highest weight, and not paced
    never_whole: bool = False  # some parts were never done: what `last_success` says is assumed

    @property
    def succeeded_at(self) -> LeaseTime | None:
        """Its last success, if there was one; an assumed one is none."""
        return None if self.never_whole else self.last_success


class PlanScope(NamedTuple):
    """What somebody asks a plan about; what a kind does not know of is left at its default."""

    tenant: TenantId = NO_TENANT
    shard: Shard = NO_SHARD
    level: int = 0
    day: int = NO_DAY

    def __str__(self) -> str:
        parts = {"tenant": self.tenant, "shard": self.shard, "level": self.level}
        named = [f"{name} {value}" for name, value in parts.items() if value]
        if self.day != NO_DAY:
            named.append(f"day {date_text(self.day)}")
        return ", ".join(named) or "the whole lake"


class KindRules(ABC):
    """One kind of plan. A subclass lives in `maar.services.<kind>.rules`, its task beside it."""

    kind: PlanKind  # its name, which is also that of its folder

    # ── when it is due, and what it takes ──

    def lines(self, _policy: Policy) -> Iterable[int]:
        """Its lines of plans: the lowest number goes first, and each gets its least share."""
        return (0,)

    def line(self, _key: QueueKey) -> int:
        """In which of its lines a plan of this key waits."""
        return 0

    @abstractmethod
    def due(self, board: Board, line: int, *, now: LeaseTime) -> Iterator[PlanSpec]:
        """The plans that a line can be made into now, best first; no more is looked at than is
        asked for.
        """

    @abstractmethod
    def misfit(self, board: Board, spec: PlanSpec) -> Refusal | None:
        """Why a plan may not own these inputs, although they are live and unowned."""

    def on_request(self, _board: Board, scope: PlanScope, *, now: LeaseTime) -> PlanSpec | str:  # noqa: ARG002
        """The plan that somebody asks for, due or not; or why there is nothing to do, in a
        sentence.
        """
        return f"plans of the kind {self.kind} are not scheduled by hand"

    def is_about(self, key: QueueKey, scope: PlanScope) -> bool:
        """Whether a plan of this key is one for the scope."""
        same = (key.tenant, key.shard, key.level) == (scope.tenant, scope.shard, scope.level)
        return same and scope.day in (NO_DAY, key.day)

    # ── if it is scheduled: its jobs, and their sessions ──

    scheduled: bool = False  # its work comes due by a schedule, per tenant and type
    # Its jobs are ordered by the schedule, and `session` makes their plans. Else `due` says what
    # there is to do, in the kind's own order, and the schedule only holds it back.
    by_interval: bool = False

    def default_schedule(self, _policy: Policy, _job: JobId) -> Schedule:
        """What is in force for a job for which nobody set anything."""
        return Schedule(interval_ns=0)

    def job_of(self, key: QueueKey) -> JobId:
        """Of which job a plan of this key is a session, unless the plan says so itself."""
        return JobId(key.tenant, self.kind)

    def job_tenants(self, _board: Board) -> Collection[TenantId]:
        """Those that may have jobs. It is asked once a minute, and there may be very many: the
        answer is a list that stays as it is while the schedule goes through it, and no more.
        """
        return ()

    def job_ids(self, _board: Board, _tenant: TenantId) -> Iterable[JobId]:
        """The jobs that one of them has now."""
        return ()

    def jobs_to_wake(self, _board: Board, _tenants: Collection[TenantId]) -> Iterable[JobId]:
        """The jobs that have something to do because blocks of these tenants came."""
        return ()

    def job(
        self,
        board: Board,
        job: JobId,
        schedule: Schedule,
        *,
        now: LeaseTime,
        down: Collection[StoreName] = (),
    ) -> JobState | None:
        """How a job is now; None when there is no such job any more. It is asked after every
        session of the job, and else about once a minute. `down` are stores that do not answer, as
        the leader knows and the log does not: what a session should do about it, its plan says.
        """
        raise NotImplementedError(f"{self.kind} has no jobs")

    def session(
        self,
        board: Board,
        job: JobState,
        schedule: Schedule,
        *,
        now: LeaseTime,
        down: Collection[StoreName] = (),
    ) -> PlanSpec | None:
        """The plan of a job's next session; None when there is nothing to do after all. The
        schedule adds the job's name and resources.
        """
        raise NotImplementedError(f"{self.kind} has no jobs")

    def why_stop(self, _board: Board, _plan: Plan, _down: Collection[StoreName]) -> str:
        """Why a session that runs should end after its present task; '' when it may go on."""
        return ""

    # ── how it runs, and how it fails ──

    writes: bool = True  # objects, which an attempt that fails leaves behind
    any_store: bool = False  # it writes to any store; else only to the home store of its blocks
    on_engine: bool = True  # it needs Spark; else the store and the metastore are enough
    adopts: bool = False  # a plan of one input may leave it as it is, and only raise its level
    keeps_place: bool = False  # its one output waits where the first of its inputs waited
    open_to_all: bool = True  # whoever polls may carry it out; else only who has its source
    commits: bool = False  # what it wrote is adopted only with an object that says it was whole
    answers_again: bool = True  # when finished, it still answers the request that made it
    gives_up: bool = True  # one that keeps failing is divided or set aside; else it is tried again

    def lease_ns(self, policy: Policy) -> int:
        """How long a worker may be silent."""
        return policy.terms(self.kind).lease_ns

    def limit_ns(self, policy: Policy) -> int:
        """How long a plan may run."""
        return policy.terms(self.kind).limit_ns

    def renew_ns(self, lease_ns: int) -> int:
        """How often a lease of this length is renewed."""
        return lease_ns // RENEWALS_PER_LEASE

    def slots(self, _policy: Policy) -> int:
        """How many of a worker's slots a plan takes."""
        return 1

    def memory_bytes(self, _policy: Policy) -> int:
        """What one of its tasks may use, about; 0: as its task sees fit."""
        return 0

    def cut(self, plan: LeasedPlan) -> tuple[LeasedPlan, ...]:
        """What each of its tasks gets: the plan itself, or a part of it; () when there is nothing
        to do for it but to join no results.
        """
        return (plan,)

    def join(self, _plan: LeasedPlan, results: Sequence[PlanResult]) -> PlanResult:
        """What came of the plan, from what came of its tasks."""
        (result,) = results
        return result

    def divides_at(self, _plan: Plan) -> int | None:
        """After how many inputs a plan that fails is cut in two, to find the one at fault; None
        when it is set aside whole.
        """
        return None

    @abstractmethod
    def refusal(
        self,
        plan: Plan,
        inputs: Mapping[BlockId, BlockOutline],
        result: PlanResult,
        deletable: Mapping[TenantId, int],
    ) -> Refusal | None:
        """Why a result of its kind cannot be that of this plan, whose inputs are these.

        That the objects of the outputs are the attempt's own, and that no more than `deletable`
        profiles were deleted, all tenants together, is the fold's to see.
        """

    def takes_fresh(self, _key: QueueKey) -> bool:
        """Whether its inputs come straight from writers: how long those waited is measured."""
        return False

    # ── its words ──

    def level(self, _key: QueueKey) -> str:
        """What a plan is listed under as its level; '' when it has none."""
        return ""

    def prospects(self, _board: Board, _meta: BlockOutline, *, now: LeaseTime) -> Iterator[str]:  # noqa: ARG002
        """What it may do with a finished block that nobody owns, in sentences."""
        return iter(())

    def scope(self, key: QueueKey) -> str:
        """What a plan is about beside its tenant, shard and store, in a word or two."""
        level = self.level(key)
        return f"level {level}" if level else "no level"


class Waits(NamedTuple):
    """What a queued block waits for, in sentences; `due` when only the scheduler can tell more."""

    due: bool
    sentences: tuple[str, ...]


class QueueRules(ABC):
    """Which blocks wait, and where; of one kind in the union, since a block waits in one place."""

    @abstractmethod
    def takes(self, meta: BlockOutline, policy: Policy) -> bool:
        """Whether a block, now or later, is worth merging: if not, it never waits."""

    @abstractmethod
    def takes_alike(self, one: Policy, other: Policy) -> bool:
        """Whether the same blocks are worth merging under both: then none is looked at."""

    @abstractmethod
    def lane(self, meta: BlockOutline) -> QueueKey:
        """Where a block waits that is worth merging."""

    @abstractmethod
    def line(self, key: QueueKey) -> int:
        """The line of a lane, which is that of the plans that will be cut from it."""

    @abstractmethod
    def line_of_level(self, level: int) -> int:
        """The line in which blocks of a level wait."""

    @abstractmethod
    def full(self, key: QueueKey, *, blocks: int, size: int, policy: Policy) -> bool:
        """Whether a lane is closed by what it holds."""

    @abstractmethod
    def closes_after_ns(self, line: int, policy: Policy) -> int | None:
        """The age at which lanes of a line close; None when they never do."""

    @abstractmethod
    def taking(
        self, board: Board, blocks: Iterable[BlockId], *, now: LeaseTime
    ) -> Iterator[PlanSpec]:
        """What becomes of blocks that another plan held, if they were free: batches of them that
        are closed. None: they are not waited for.
        """

    @abstractmethod
    def why_queued(
        self, board: Board, meta: BlockMeta, *, now: LeaseTime, looked_at_max: int
    ) -> Waits:
        """What a block in its lane waits for; behind more than so many it is only estimated."""

    @abstractmethod
    def why_finished(self, meta: BlockMeta, policy: Policy) -> str:
        """Why a block is not merged any further."""
