"""Plans are data; a lease lets a worker carry one out; a token identifies the newest lease."""

from __future__ import annotations

from enum import IntEnum
from typing import NewType

import msgspec

from maar.model.block import NO_DAY, BlockMeta
from maar.model.ids import (
    NO_TENANT,
    NO_ZONE,
    BlockId,
    FencingToken,
    PlanId,
    Shard,
    StoreName,
    TenantId,
    WorkerId,
    Zone,
)
from maar.model.predicate import Mask
from maar.model.repair import LeasedRepair, RangeResult, RepairOrder
from maar.model.time import LeaseTime

PlanKind = NewType("PlanKind", str)  # what is done; the kinds that there are: services/kinds.py

RENEWALS_PER_LEASE = 3  # two may be lost before the lease is
ROLLBACK = PlanKind("rollback")  # the one kind that the fold schedules by itself


class PlanState(IntEnum):
    REQUESTED = 0
    INFLIGHT = 1
    COMPLETED = 2
    EXCLUDED = 3  # over the failure limit; visible, can be requeued
    ROLLED_BACK = 4
    CANCELLED = 5  # its inputs went to other plans (bisected, fenced by another, deleted)
    PARKED = 6  # evicted from a full schedule; still owns its inputs, visible, can be requeued


class AttemptEnd(IntEnum):
    OPEN = 0
    COMPLETED = 1
    EXPIRED = 2
    FAILED = 3
    FENCED = 4


class QueueKey(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Blocks are merged only with blocks of the same key."""

    store: StoreName
    tenant: TenantId
    shard: Shard
    level: int
    zone: Zone = NO_ZONE
    day: int = NO_DAY  # UTC, from level 1 on: a block is of one day


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """The right to carry a plan out, until lease time exceeds `expires_at`."""

    token: FencingToken
    worker: WorkerId
    granted_at: LeaseTime
    expires_at: LeaseTime
    lease_ns: int = 0  # its length, as granted: renewals and a new term give it again
    ignores_windows: bool = False  # an operator wanted it although a run policy refuses

    def is_expired(self, now: LeaseTime) -> bool:
        return now > self.expires_at


class Attempt(msgspec.Struct, frozen=True, array_like=True):
    """One grant of a plan and how it ended. What it wrote is known by plan and token."""

    token: FencingToken
    worker: WorkerId
    granted_at: LeaseTime
    started_at: LeaseTime | None
    ended_at: LeaseTime | None
    end: AttemptEnd
    cause: str  # why it failed, in a sentence; "" while open
    counted: bool = True  # as a failure of the plan itself (S11), if it failed


class Account(msgspec.Struct, frozen=True, array_like=True):
    """Where every input profile went. The fold refuses a result whose sums do not meet (S7)."""

    kept: int
    duplicates: int
    quarantined: int
    deleted: int = 0  # by predicates that apply to the inputs (S8)

    def total(self) -> int:
        return self.kept + self.duplicates + self.quarantined + self.deleted

    def __add__(self, other: Account) -> Account:
        return Account(
            self.kept + other.kept,
            self.duplicates + other.duplicates,
            self.quarantined + other.quarantined,
            self.deleted + other.deleted,
        )


class PlanResult(msgspec.Struct, frozen=True, array_like=True):
    """What an attempt made: the exact objects, and nothing else will ever be read (S3)."""

    kind: PlanKind  # of the task that made it
    outputs: tuple[BlockMeta, ...]
    account: Account
    collisions: int = 0  # ids re-keyed within an output (S17)
    cpu_ms: int = 0
    wall_ms: int = 0
    removed: int = 0  # objects that it deleted
    repaired: RangeResult | None = None  # of a repair
    adopted: bool = False  # nothing was written: the only input goes on at the next level as it is


class JobId(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """What is done again and again, and for whom; a kind with one way of doing it has no types."""

    tenant: TenantId  # NO_TENANT: the whole lake
    kind: PlanKind
    type: str = ""

    def __str__(self) -> str:
        what = f"{self.kind} ({self.type})" if self.type else self.kind
        return f"{what} of {self.tenant}" if self.tenant != NO_TENANT else what


class PlanJob(msgspec.Struct, frozen=True, array_like=True):
    """Of which job a plan is a session, and what follows from its end."""

    id: JobId
    unwind_permille: int = 0  # of its work, as a pause of the job after it
    backoff_ns: int = 0  # before it is tried again after a failure; 0: as all plans rest
    on_demand: bool = False  # somebody asked for it


class PlanSpec(msgspec.Struct, frozen=True, array_like=True):
    """A plan to be; it presumes that its inputs are live and unowned."""

    kind: PlanKind
    removable: bool
    key: QueueKey
    inputs: tuple[BlockId, ...]
    failure_limit: int
    eligible_at: LeaseTime = LeaseTime(0)
    resources: tuple[str, ...] = ()
    request_id: str = ""  # of whoever asked for it: the same request is the same plan
    job: PlanJob | None = None  # the schedule's, if it is a session of one
    repair: RepairOrder | None = None  # of a session of a repair


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """One piece of maintenance on the timeline."""

    id: PlanId
    kind: PlanKind = msgspec.field(name="service")  # as people and scripts are told
    removable: bool  # fixed when it is scheduled
    key: QueueKey
    inputs: tuple[BlockId, ...]  # owned by this plan while it is requested or inflight (S7)
    state: PlanState
    scheduled_at: LeaseTime
    lease: Lease | None = None
    attempts: tuple[Attempt, ...] = ()
    failures: int = 0
    failure_limit: int = 3
    eligible_at: LeaseTime = LeaseTime(
        0
    )  # not handed out before; probes of excluded plans double it
    resources: tuple[str, ...] = ()
    rolls_back: PlanId | None = None
    parent: PlanId | None = None  # the plan that was bisected into this one (S17)
    result: PlanResult | None = None  # kept longer than any client retries
    completed_at: LeaseTime | None = None
    excused: int = 0  # attempts in a row that failed without being the plan's fault
    note: str = ""  # why it is excluded, parked, cancelled or rolled back, in a sentence
    tokens: tuple[FencingToken, ...] = ()  # the attempts that it undoes, if it rolls a plan back
    request_id: str = ""  # of whoever asked for it
    other_requests: tuple[str, ...] = ()  # that found it on the schedule, newest last
    urgent: bool = False  # the next worker that can carry it out gets it, rested or not
    job: PlanJob | None = None  # the schedule's, if it is a session of one
    repair: RepairOrder | None = None  # of a session of a repair

    def answers(self, request_id: str) -> bool:
        """Whether this request made the plan, or found it."""
        return request_id in (self.request_id, *self.other_requests)


class Rollback(msgspec.Struct, frozen=True, array_like=True):
    """A leased rollback: the ended attempts of a plan whose objects are to be deleted."""

    plan: PlanId  # the rollback itself
    token: FencingToken  # under which it is held
    target: PlanId
    tokens: tuple[FencingToken, ...]
    store: StoreName = StoreName("")  # the only one that they wrote to; '': it may be any


class ProfilePlace(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A point in the order of profiles."""

    service: str
    time_us: int


class PlanPart(msgspec.Struct, frozen=True, array_like=True):
    """What one task of a plan takes: the profiles between two places."""

    number: int  # from 0, in the order of the places
    first: ProfilePlace | None  # included; None: from the first profile on
    end: ProfilePlace | None  # excluded; None: until the last
    size: int  # about as many bytes at rest


class LeasedPlan(msgspec.Struct, frozen=True, array_like=True):
    """What a worker gets with a grant: all it needs, so that it asks nothing more."""

    id: PlanId
    kind: PlanKind
    token: FencingToken
    key: QueueKey
    inputs: tuple[BlockMeta, ...]  # in queue order
    target_block_bytes: int
    lease_ns: int  # from now; the worker measures it by its own monotonic clock
    title: str = ""  # in the words of its kind, for logs and engines
    renew_ns: int = 0  # how often the lease is to be renewed; 0: three times in its length
    limit_ns: int = 0  # a plan that runs longer is given up; 0: as long as the worker lets any
    rollbacks: tuple[Rollback, ...] = ()  # to be finished first, in this order
    slots: int = 1  # how many of the worker's it takes
    memory_bytes: int = 0  # that one of its tasks may use; 0: as the kind sees fit
    part: PlanPart | None = None  # of the copy that one task gets; None: the task takes all
    masks: tuple[tuple[Mask, ...], ...] = ()  # of each input, what is to be deleted of it; (): none
    scheduled_at: LeaseTime = LeaseTime(0)  # what it writes is as old, if it has no inputs
    repair: LeasedRepair | None = None  # its parts are carried out and committed one by one

    def masks_of(self, at: int) -> tuple[Mask, ...]:
        """What is to be deleted of an input, by its place."""
        return self.masks[at] if self.masks else ()
