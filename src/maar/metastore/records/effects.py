"""What applying an entry did: replies, log lines and metrics are made from these alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from maar.model.ids import (
    BlockId,
    FencingToken,
    Incarnation,
    PlanId,
    StoreName,
    TenantId,
    WorkerId,
)
from maar.model.plan import AttemptEnd, JobId, PlanKind
from maar.model.predicate import Predicate
from maar.model.refusal import Refusal
from maar.model.ring import Ring
from maar.model.schedule import Alarm
from maar.model.stores import StoreSet
from maar.model.time import LeaseTime


class Registered(msgspec.Struct, frozen=True, gc=False):
    """A block is in the index ('' also when it already was), or why it is not."""

    block: BlockId
    refusal: str
    profiles: int = 0  # that this registration added


@dataclass(frozen=True, slots=True)
class Scheduled:
    plan: PlanId


@dataclass(frozen=True, slots=True)
class Leased:
    plan: PlanId
    token: FencingToken
    worker: WorkerId
    before: PlanId | None = None  # it is a rollback, to be finished before this plan starts


@dataclass(frozen=True, slots=True)
class Renewed:
    plan: PlanId
    token: FencingToken


@dataclass(frozen=True, slots=True)
class Started:
    plan: PlanId
    token: FencingToken


@dataclass(frozen=True, slots=True)
class Completed:
    """A plan is complete; also the answer to a repeated report, which retires nothing more."""

    plan: PlanId
    token: FencingToken
    retired: tuple[BlockId, ...] = ()
    added: tuple[BlockId, ...] = ()
    again: bool = field(default=False, compare=False)  # it had been complete before


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    plan: PlanId
    token: FencingToken
    end: AttemptEnd
    cause: str = ""
    counted: bool = True  # as a failure of the plan itself


@dataclass(frozen=True, slots=True)
class Bisected:
    plan: PlanId
    children: tuple[PlanId, PlanId]


@dataclass(frozen=True, slots=True)
class Excluded:
    plan: PlanId
    eligible_at: LeaseTime


@dataclass(frozen=True, slots=True)
class Requeued:
    plan: PlanId


@dataclass(frozen=True, slots=True)
class Parked:
    plan: PlanId


@dataclass(frozen=True, slots=True)
class Unparked:
    plan: PlanId


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A plan ended because retention took some of its inputs."""

    plan: PlanId


@dataclass(frozen=True, slots=True)
class RollbackScheduled:
    """A rollback is pending, and the attempts that it undoes are fenced."""

    rollback: PlanId
    target: PlanId


@dataclass(frozen=True, slots=True)
class RolledBack:
    """A removable plan left the schedule, and its inputs are free again."""

    plan: PlanId
    kind: PlanKind


@dataclass(frozen=True, slots=True)
class LimitSet:
    failure_limit: int
    until: LeaseTime


@dataclass(frozen=True, slots=True)
class RetentionChanged:
    tenant: TenantId


@dataclass(frozen=True, slots=True)
class Expired:
    blocks: int
    profiles: int


@dataclass(frozen=True, slots=True)
class Returned:
    """Blocks that retention had taken are live again."""

    blocks: int
    profiles: int


@dataclass(frozen=True, slots=True)
class HoldChanged:
    """Retention is on hold until an operator releases it ('' when it was released)."""

    why: str


@dataclass(frozen=True, slots=True)
class Lost:
    """An operator gave a block up, having seen what is wrong with it."""

    block: BlockId
    profiles: int
    note: str


@dataclass(frozen=True, slots=True)
class Swept:
    attempts: int


@dataclass(frozen=True, slots=True)
class RingReplaced:
    """A zone's ring was replaced; a ring without writers means that the zone has none."""

    before: Ring
    after: Ring


@dataclass(frozen=True, slots=True)
class Pinned:
    reader: str


@dataclass(frozen=True, slots=True)
class Forgotten:
    blocks: int


@dataclass(frozen=True, slots=True)
class Reborn:
    """The log continues from a snapshot, under a new incarnation."""

    adopts: tuple[Incarnation, ...]  # earlier incarnations whose objects are searched for
    after: Incarnation


@dataclass(frozen=True, slots=True)
class Adopted:
    """A block of the store is in the index ('' also when it already was), or why it is not."""

    block: BlockId
    refusal: str
    profiles: int = 0


@dataclass(frozen=True, slots=True)
class Missed:
    """Blocks left the index because the store does not hold them."""

    blocks: int
    profiles: int


@dataclass(frozen=True, slots=True)
class AdoptionOver: ...


@dataclass(frozen=True, slots=True)
class Refused:
    """An item that was refused, because the state was not what it presumed."""

    why: Refusal
    plan: PlanId | None = None
    token: FencingToken | None = None
    what: str = ""


@dataclass(frozen=True, slots=True)
class Compared:
    """What a leader's state hashed to at an entry, and this one's: equal, or votes decide."""

    at: int
    leader: str
    theirs: bytes
    ours: bytes


@dataclass(frozen=True, slots=True)
class Voted:
    """What another replica's state hashed to at an entry."""

    at: int
    replica: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class PredicateTaken:
    """From now on what it names is hidden in blocks from before it."""

    predicate: Predicate


@dataclass(frozen=True, slots=True)
class PredicateGone:
    """Nothing is left that it applies to."""

    predicate: Predicate


@dataclass(frozen=True, slots=True)
class StoresChanged:
    """The stores, or which of them are wanted for whom."""

    before: StoreSet
    after: StoreSet


@dataclass(frozen=True, slots=True)
class CopyAdded:
    """A store holds one more block."""

    block: BlockId
    store: StoreName


@dataclass(frozen=True, slots=True)
class CopyEnded:
    """A store's copy of a live block does not count any more."""

    block: BlockId
    store: StoreName
    what: str


@dataclass(frozen=True, slots=True)
class CopiesLost:
    """No copy of these blocks is whole."""

    blocks: tuple[BlockId, ...]


@dataclass(frozen=True, slots=True)
class TombstonesGone:
    """Copies that were to be deleted in a store are."""

    store: StoreName
    copies: int


@dataclass(frozen=True, slots=True)
class ScheduleChanged:
    """What is set for the jobs of a pattern, or when they may run, is another now."""

    jobs: JobId
    policy: int = 0  # the run policy that came or went


@dataclass(frozen=True, slots=True)
class AlarmRaised:
    alarm: Alarm
    before: int  # its level before; 0: there was no alarm


@dataclass(frozen=True, slots=True)
class AlarmCeased:
    alarm: Alarm


@dataclass(frozen=True, slots=True)
class RangesRepaired:
    """Part of a session of a repair is in the log."""

    tenant: TenantId
    ranges: int
    checked: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RepairWanted:
    """Somebody asked for a repair."""

    job: JobId


@dataclass(frozen=True, slots=True)
class RepairEnded:
    """A repair that somebody asked for is done, or was called off."""

    job: JobId
    outcome: str


Effect: TypeAlias = (
    Registered
    | Scheduled
    | Leased
    | Renewed
    | Started
    | Completed
    | AttemptEnded
    | Bisected
    | Excluded
    | Requeued
    | Parked
    | Unparked
    | Cancelled
    | RollbackScheduled
    | RolledBack
    | LimitSet
    | RetentionChanged
    | Expired
    | Returned
    | HoldChanged
    | Lost
    | Swept
    | RingReplaced
    | Pinned
    | Forgotten
    | Reborn
    | Adopted
    | Missed
    | AdoptionOver
    | PredicateTaken
    | PredicateGone
    | StoresChanged
    | CopyAdded
    | CopyEnded
    | CopiesLost
    | TombstonesGone
    | ScheduleChanged
    | AlarmRaised
    | AlarmCeased
    | RangesRepaired
    | RepairWanted
    | RepairEnded
    | Refused
    | Compared
    | Voted
)
Effects: TypeAlias = tuple[Effect, ...]
