"""What the fold did: the shell answers, logs and counts from these and decides nothing anew."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import msgspec

from maar.model.ids import BlockId, FencingToken, Incarnation, PlanId, TenantId, WorkerId
from maar.model.plan import AttemptEnd
from maar.model.ring import Ring
from maar.model.time import LeaseTime


class Refusal(StrEnum):
    """Why an item changed nothing; each is a sentence for a person."""

    NO_GENESIS = "the log has no genesis yet"
    SECOND_GENESIS = "the log has a genesis already"
    OLD_TERM = "a later term has begun"
    VERSION = "this version is not active"
    UNKNOWN_PLAN = "there is no such plan, or it was archived"
    STALE_TOKEN = "the lease is not held under this token any more"
    COMPLETED_BY_OTHER = "the plan was completed under another token"
    LEASE_LIVE = "somebody else's lease is live"
    NOT_ELIGIBLE = "the plan cannot be handed out now"
    INPUT_GONE = "an input is not live any more"
    INPUT_OWNED = "an input belongs to another plan"
    INPUT_REPEATED = "an input is named twice, or there is none"
    INPUT_KEY = "an input is not of this plan's store, tenant, shard and level"
    ACCOUNT = "the account does not cover every input profile"
    SHARE = "a tenant has nothing left of a day, or more than came: a copy goes only if one is kept"
    OUTPUT = "an output is not of this plan's store, shard, tenant or level"
    OUTPUT_KEY = "an output lists an object that this attempt did not write"
    OUTPUT_FILES = "an output lacks a file of its kind, or a file has no bytes or no location"
    OUTPUT_TAKEN = "an output has the id of another block"
    TOO_MANY = "a bound of the state is reached"
    NOT_RETIRED = "the block is not retired"
    NOT_DIVISIBLE = "the plan cannot be divided there"
    OUTDATED = "the state has moved on"
    NOT_SET_ASIDE = "the plan is neither excluded nor parked"
    NOT_FAILED = "the plan has not failed, or somebody works on it"
    TOO_YOUNG = "the block holds profiles newer than the boundary"
    RING = "the writers or their shards are not those of a ring"
    INCARNATION = "the log has or had this incarnation already, or adopts too many"
    NOT_ADOPTING = "the log is not adopting what the store holds"
    ADOPTING = "nothing is deleted until everything in the store was adopted"
    RETENTION_HELD = "retention waits for a person"
    UNEXPLAINED = "time alone does not explain why the block is too old; a person has to say so"
    NOT_EXPIRED = "the block was not taken by retention, or not so lately that it can come back"


class Registered(msgspec.Struct, frozen=True, gc=False):
    """A block is in the index ('' also when it was before), or why it is not."""

    block: BlockId
    refusal: str
    profiles: int = 0  # that are new by it


@dataclass(frozen=True, slots=True)
class Scheduled:
    plan: PlanId
    level: int


@dataclass(frozen=True, slots=True)
class Leased:
    plan: PlanId
    token: FencingToken
    worker: WorkerId


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
    """Also for a repeated report, which retires nothing more."""

    plan: PlanId
    token: FencingToken
    retired: tuple[BlockId, ...] = ()
    added: tuple[BlockId, ...] = ()


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    plan: PlanId
    token: FencingToken
    end: AttemptEnd
    cause: str = ""
    counted: bool = True  # as a failure of the plan's own


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
    """Retention waits for a person ('' when it does not any more)."""

    why: str


@dataclass(frozen=True, slots=True)
class Lost:
    """A block was given up by a person, who saw what is wrong with it."""

    block: BlockId
    profiles: int
    note: str


@dataclass(frozen=True, slots=True)
class Swept:
    attempts: int


@dataclass(frozen=True, slots=True)
class RingReplaced:
    """A zone's ring gave way to another; one without writers stands for none."""

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
    """The log goes on from a snapshot, as another than it was."""

    adopts: tuple[Incarnation, ...]  # earlier lives whose objects are looked for
    after: Incarnation


@dataclass(frozen=True, slots=True)
class Adopted:
    """A block that the store held is in the index ('' also when it was before), or why not."""

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
    """An item that did not find what it presumed."""

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
class Diverged:
    """Below version 4, where there are no votes: the folds do not agree, whoever is right."""

    at: int
    theirs: bytes
    ours: bytes


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
    | Refused
    | Compared
    | Voted
    | Diverged
)
Effects: TypeAlias = tuple[Effect, ...]
