"""What the other roles ask of the metastore, as plain values; refusals are values too."""

from __future__ import annotations

from typing import Protocol

import msgspec

from maar.model.block import BlockMeta, Damage
from maar.model.ids import (
    BlockId,
    FencingToken,
    Incarnation,
    NodeId,
    PlanId,
    TenantId,
    WorkerId,
    Zone,
)
from maar.model.plan import LeasedPlan, Plan, PlanResult
from maar.model.ring import Ring, Writer
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
    own: bool = True  # False: the engine or the store was at fault, not the plan (S11)


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
    letters: tuple[BlockId, ...] = ()  # blocks of dead letters that were found before (S20)


class IndexView(msgspec.Struct, frozen=True):
    """An immutable answer as of one index: sources or their output, never both, never neither."""

    index: int
    blocks: tuple[BlockMeta, ...]
    letters: tuple[BlockId, ...] = ()  # of those asked about, the ones that the index has not seen


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


class RetentionStatus(msgspec.Struct, frozen=True):
    """How long profiles are kept, and by which clock (S2)."""

    default_ns: int  # 0: for ever
    tenants: dict[str, int]  # those that differ
    now_ns: int  # the time that retention goes by
    wall_ns: int  # what the leader's clock says
    trouble: str  # '' when the clocks agree
    paused: str = ""  # why nothing goes just now
    held: bool = False  # it waits for a person
    expired: int = 0  # blocks that it took and that can still be brought back
    expired_delay_ns: int = 0  # how long they can, from when they were taken


class ZoneStatus(msgspec.Struct, frozen=True):
    """A zone's ring in numbers."""

    zone: Zone
    writers: dict[str, int]  # by state; those that are dead count as that alone
    shards: int
    changed_at: int
    complete: bool  # False: it is not yet known who is dead


class LettersStatus(msgspec.Struct, frozen=True):
    """Dead letters in numbers, as the leader saw them last (S20)."""

    waiting: int = 0  # to be delivered
    oldest_s: float = 0.0  # the age of the oldest of them
    held: int = 0  # cannot be delivered: a person must look
    foreign: int = 0  # of other incarnations of the log: left alone
    delivered: int = 0  # by this leader
    drained_s: float = -1.0  # since the last complete look began; -1: there was none yet
    trouble: str = ""  # why looking fails


class Letter(msgspec.Struct, frozen=True):
    """A dead letter, for people."""

    name: str  # the block's id; or the object's name, when it is not a letter's
    key: str
    standing: str  # waiting, held, foreign
    cause: str  # why it is held, or waits; '' when it is about to be delivered
    size: int
    meta: BlockMeta | None = None  # None: it cannot be read, or is of another log


class LettersPage(msgspec.Struct, frozen=True):
    """Held ones first, then those that wait, then those of other logs."""

    status: LettersStatus
    letters: tuple[Letter, ...]
    more: bool  # than are listed


class LetterRetried(msgspec.Struct, frozen=True):
    """A held letter was delivered after all."""

    name: str
    block: BlockId  # in the index by now
    rewritten: bool  # below the floor: its segment was written again, and is another block


class ReplicaStatus(msgspec.Struct, frozen=True):
    """One replica of the metastore, as it sees itself; asked of each, not of the leader alone."""

    name: str
    address: str
    standing: str  # leader, follower, starting, in doubt, stopped, unreachable
    term: int = 0  # of the last entry that began one
    index: int = 0  # folded so far
    head: int = 0  # of the log, when it was last seen
    behind_s: float = 0.0  # since it was last known to have folded everything
    leader: str = ""  # the address of the one that it takes for the leader
    knows: int = 0  # the newest version of the log that its program can read
    version: int = 0  # that is active
    incarnation: str = ""
    wall_ns: int = 0
    hashed_at: int = 0  # the last entry whose state was hashed for comparison
    digest: bytes = b""  # this replica's, there
    fault: str = ""  # why it stopped or doubts
    snapshot_index: int = 0  # of the one that it began with
    log: str = ""  # where the log is kept


class Vote(msgspec.Struct, frozen=True):
    """The hash of a replica's state at an index."""

    replica: str
    at: int
    digest: bytes


class Status(msgspec.Struct, frozen=True):
    """The truth as of one index, for people."""

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
    litter: int  # ended attempts whose remains are still looked for
    failure_limit: int  # in force now
    limit_raised_s: float  # it is raised, and will be for so long; 0: it is not
    retention: RetentionStatus
    blocked: tuple[str, ...]  # what clean could not do, and why
    snapshot_index: int
    log_first: int
    state_items: dict[str, int]  # size of every bounded collection (S21)
    zones: tuple[ZoneStatus, ...] = ()  # that have writers, by name
    letters: LettersStatus = LettersStatus()
    leader: str = ""
    replicas: tuple[ReplicaStatus, ...] = ()  # as the leader last heard of them, itself included
    adopting: bool = False  # restored from a snapshot, and the store is not looked through yet
    blocks_adopted: int = 0  # after restores, since genesis; as are those that were missed
    blocks_missed: int = 0
    profiles_missed: int = 0
    blocks_lost: int = 0  # given up by a person, since genesis
    profiles_lost: int = 0


class PlanFilter(msgspec.Struct, frozen=True):
    """Which plans; what is left out matches all."""

    state: str = ""
    service: str = ""
    tenant: str = ""
    level: int = -1
    shard: int = 0
    failing: bool = False  # with failures, excluded or parked
    limit: int = 1000


class PlanDetail(msgspec.Struct, frozen=True):
    """A plan and what a person needs beside it."""

    plan: Plan
    now: LeaseTime
    failure_limit: int  # in force now, raised or not
    inputs: tuple[BlockMeta, ...]  # those that are still known


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
    damages: tuple[Damage, ...]  # none: it is whole
    plan: PlanId | None = None  # that owns it, and is cancelled
    returning: tuple[BlockId, ...] = ()  # what it replaced, still whole: it comes back instead


class Expiring(msgspec.Struct, frozen=True):
    """A block that retention would take now."""

    block: BlockMeta
    before_ns: int  # the boundary that its newest profile is older than
    plan: PlanId | None  # that would be cancelled


class Undone(msgspec.Struct, frozen=True):
    """What came back."""

    blocks: int
    profiles: int


class Beat(msgspec.Struct, frozen=True):
    """A segment writer's heartbeat: who it is and what it does now. The first one registers it."""

    zone: Zone
    writer: Writer
    leaves: bool = False  # for good: it goes from the ring, and its shards to others


class BeatReply(msgspec.Struct, frozen=True):
    changed_at: int  # of the ring of its zone
    refusal: str = ""  # another process has registered as this node since: stop taking pushes


class RingView(msgspec.Struct, frozen=True):
    """A zone's ring, and who of it was not heard from lately."""

    ring: Ring
    dead: tuple[NodeId, ...]
    complete: bool  # False: a new leader has not yet listened long enough to know the dead
    silent_ms: tuple[int, ...] = ()  # how long ago each writer was heard; -1: not by this leader


class Metastore(Protocol):
    """Every call may raise Unavailable; all may be repeated, since they name what they mean.

    Reads of the index are answered by any replica, linearizably; what changes something, and what
    only a leader hears (beats, rings, letters, the log's time), by the leader: others raise
    NotLeading with its address.
    """

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

    async def plans(self, wanted: PlanFilter) -> tuple[Plan, ...]:
        """Plans on the timeline, newest first."""
        ...

    async def plan(self, plan: PlanId) -> PlanDetail:
        """One plan with its attempts, or NotFound."""
        ...

    async def requeue(self, plan: PlanId) -> Plan:
        """Give an excluded or parked plan another chance, with no failures; else Rejected."""
        ...

    async def exclude(self, plan: PlanId, *, note: str) -> Plan:
        """Set a plan aside by hand; whoever works on it is fenced."""
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
        """Give a damaged block up (by `force` a whole one too); else Rejected or NotFound."""
        ...

    async def retention(self) -> RetentionStatus: ...

    async def set_retention(self, tenant: TenantId, *, period_ns: int | None) -> RetentionStatus:
        """How long a tenant's profiles are kept (0: for ever; None: the default again)."""
        ...

    async def expiring(self, *, tenant: str = "", limit: int = 1000) -> tuple[Expiring, ...]:
        """What retention would take now: a dry run."""
        ...

    async def hold_retention(self, *, why: str) -> RetentionStatus:
        """Have retention take nothing, and delete nothing that it took, until it is released."""
        ...

    async def release_retention(self) -> RetentionStatus:
        """A person vouches for the clock and the periods: retention goes on."""
        ...

    async def undo_retention(self, *, tenant: str = "", why: str = "") -> Undone:
        """Bring back what retention took and did not delete yet, and hold it from now on."""
        ...

    async def beat(self, beat: Beat) -> BeatReply:
        """Register a segment writer, note that it lives, or let it go."""
        ...

    async def rings(self) -> tuple[RingView, ...]:
        """The rings of all zones, by name."""
        ...

    async def remove_writer(self, zone: Zone, node: NodeId) -> Ring:
        """Give the shards of a writer that will not come back to others; else NotFound."""
        ...

    async def letters(self, *, limit: int = 100) -> LettersPage:
        """Dead letters, those that want a person first."""
        ...

    async def letter(self, name: str) -> Letter:
        """One dead letter of this log, or NotFound."""
        ...

    async def retry_letter(self, name: str) -> LetterRetried:
        """Deliver a held letter after all; else Rejected with the cause, and it stays."""
        ...

    async def status(self) -> Status: ...


class MetastoreReplica(Protocol):
    """What is asked of one replica, by the others and by an operator; never passed on."""

    async def replica(self) -> ReplicaStatus: ...

    async def vote(self, vote: Vote) -> None:
        """Have the leader put a replica's hash into the log; else NotLeading."""
        ...

    async def pin(self, reader: str) -> int:
        """Have the leader pin the index for a reader (S10); the index that covers it."""
        ...

    async def snapshot(self) -> int:
        """Have the leader get one made, checked, and the log truncated; its index."""
        ...

    async def rebuild(self) -> ReplicaStatus:
        """Forget the state and read it again from the newest good snapshot and the log."""
        ...
