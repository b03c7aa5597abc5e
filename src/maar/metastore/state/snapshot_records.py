"""The records of a snapshot: each is a part of the state, of bounded size."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from maar.metastore.records.entries import AttemptKey
from maar.metastore.state.index import (
    PartitionKey,
)
from maar.metastore.state.repairs import AskedRepair, HistoryKey, LostCopies
from maar.metastore.state.retired import Cause
from maar.metastore.state.state import (
    Anchor,
    RaisedLimit,
    RetentionHold,
    SetbackScope,
)
from maar.model.block import Kind
from maar.model.ids import BlockId, Incarnation, StoreName, TenantId
from maar.model.plan import JobId, Plan, QueueKey
from maar.model.policy import Policy
from maar.model.predicate import Predicate
from maar.model.ring import Ring
from maar.model.schedule import Alarm, ClockOffset, JobRecord, RunPolicy, ScheduleRule
from maar.model.stores import NO_STORES, StoreSet
from maar.model.time import LeaseTime, WallTime
from maar.services.repair.history import VnodeHistory


class Core(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The values that a state has exactly one of."""

    index: int
    version: int
    incarnation: Incarnation
    term: int
    leader: str
    lease_time: LeaseTime
    wall_time: WallTime
    registration_floor: LeaseTime
    policy: Policy
    profiles_added: int
    duplicates_removed: int
    profiles_quarantined: int
    plans_completed: int
    profiles_expired: int
    raised: RaisedLimit
    anchor: Anchor
    adopting: tuple[Incarnation, ...]
    blocks_adopted: int
    blocks_missed: int
    profiles_missed: int
    former: tuple[Incarnation, ...]
    clock: Anchor
    confirmed_ns: int
    hold: RetentionHold
    blocks_lost: int
    profiles_lost: int
    adopted_at: LeaseTime
    profiles_deleted: int = 0
    stores: StoreSet = NO_STORES
    offsets: tuple[ClockOffset, ...] = ()


class Plans(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """On the schedule; they own their inputs."""

    plans: tuple[Plan, ...]


class Finished(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """In the order in which they ended."""

    plans: tuple[Plan, ...]


class RetiredBlock(msgspec.Struct, frozen=True, array_like=True):
    entry: int
    at: LeaseTime
    outputs: tuple[BlockId, ...]
    packed: bytes
    cause: Cause


class RetiredPart(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """In the order in which they were replaced."""

    blocks: tuple[RetiredBlock, ...]


class Remembered(msgspec.Struct, frozen=True, array_like=True, tag=7):
    blocks: tuple[BlockId, ...]


class PinRecord(msgspec.Struct, frozen=True, array_like=True):
    reader: str
    entry: int
    expires_at: LeaseTime


class Pins(msgspec.Struct, frozen=True, array_like=True, tag=8):
    pins: tuple[PinRecord, ...]


class PackedBlocks(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Live blocks of one partition, sorted by id, with what is known of them without unpacking."""

    key: PartitionKey
    ids: bytes  # 16 of each
    levels: bytes  # one of each
    min_time_ns: int
    max_time_ns: int
    largest: int
    size: int  # of the msgpack array of blocks, each as bytes
    zstd: bytes  # of that array


class LevelTotal(msgspec.Struct, frozen=True, array_like=True):
    level: int
    kind: Kind
    blocks: int
    bytes: int
    profiles: int


class Sums(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """The totals and hashes of blocks and places, which the fold keeps up to date."""

    blocks_hash: bytes
    places_hash: bytes
    totals: tuple[LevelTotal, ...]


class PackedPlaces(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Block (16 bytes), entry (8), ordinal (4), added_at (8) and size (8) of each, big-endian."""

    key: QueueKey
    places: bytes


class ParkedPart(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """In the order in which they left the schedule."""

    plans: tuple[Plan, ...]


class EndedAttemptRecord(msgspec.Struct, frozen=True, array_like=True):
    attempt_key: AttemptKey
    ended_at: LeaseTime
    completed: bool
    dead: bool
    store: StoreName


class LeftoversPart(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """In the order in which the attempts ended."""

    attempts: tuple[EndedAttemptRecord, ...]


class SetbackRecord(msgspec.Struct, frozen=True, array_like=True):
    scope: SetbackScope
    failures: int
    until: LeaseTime


class Setbacks(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """Scopes whose removable plans failed, in the order in which they first did."""

    setbacks: tuple[SetbackRecord, ...]


class SuccessRecord(msgspec.Struct, frozen=True, array_like=True):
    scope: SetbackScope
    at: LeaseTime


class Successes(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """Scopes of plans that own nothing, in the order in which they last succeeded."""

    successes: tuple[SuccessRecord, ...]


class PeriodRecord(msgspec.Struct, frozen=True, array_like=True):
    tenant: TenantId
    period_ns: int


class Periods(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """Of tenants whose retention is not the default."""

    periods: tuple[PeriodRecord, ...]


class ZoneRing(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """A zone's writers and their shards."""

    ring: Ring


class SpentRecord(msgspec.Struct, frozen=True, array_like=True):
    tenant: TenantId
    hours: tuple[tuple[int, int], ...]


class Takings(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """Per tenant, what retention took although passing time alone does not explain it."""

    spent: tuple[SpentRecord, ...]


class WindowRecord(msgspec.Struct, frozen=True, array_like=True):
    """A window's blocks that are not clustered yet, then those that are: count, bytes, times."""

    key: QueueKey
    fresh: tuple[int, int, int]
    clustered: tuple[int, int, int]


class WindowSums(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """Of every tenant and day; one part at least, also when there are none."""

    windows: tuple[WindowRecord, ...]


class Predicates(msgspec.Struct, frozen=True, array_like=True, tag=25):
    """Deletions that are not carried out everywhere yet, oldest first."""

    predicates: tuple[Predicate, ...]


class CopySumRecord(msgspec.Struct, frozen=True, array_like=True):
    tenant: TenantId
    home: StoreName
    stores: tuple[StoreName, ...]
    blocks: int
    bytes: int


class CopySums(msgspec.Struct, frozen=True, array_like=True, tag=26):
    """How many blocks are held by which stores; one part at least, also when there are none."""

    sums: tuple[CopySumRecord, ...]


class LackingBlocks(msgspec.Struct, frozen=True, array_like=True, tag=27):
    """The blocks of a tenant that are not yet in all the stores that should hold them."""

    tenant: TenantId
    ids: bytes  # 16 of each
    stores: tuple[StoreName, ...] = ()  # that lack them, sorted


class TombstoneRecord(msgspec.Struct, frozen=True, array_like=True):
    store: StoreName
    key: str
    block: BlockId
    entry: int
    at: LeaseTime
    outputs: tuple[BlockId, ...]
    packed: bytes
    cause: Cause


class TombstonePart(msgspec.Struct, frozen=True, array_like=True, tag=28):
    """In the order in which they were made."""

    tombstones: tuple[TombstoneRecord, ...]


class ScheduleRules(msgspec.Struct, frozen=True, array_like=True, tag=30):
    """By pattern."""

    rules: tuple[ScheduleRule, ...]


class RunPolicies(msgspec.Struct, frozen=True, array_like=True, tag=31):
    policies: tuple[RunPolicy, ...]


class JobRecords(msgspec.Struct, frozen=True, array_like=True, tag=32):
    jobs: tuple[JobRecord, ...]


class Alarms(msgspec.Struct, frozen=True, array_like=True, tag=33):
    """In the order in which they were raised."""

    alarms: tuple[Alarm, ...]


class AskedDeletions(msgspec.Struct, frozen=True, array_like=True, tag=29):
    """Deletions that were asked for by a name, carried out or not, oldest first."""

    predicates: tuple[Predicate, ...]


class RangeRecord(msgspec.Struct, frozen=True, array_like=True):
    key: HistoryKey
    history: VnodeHistory


class RepairedRanges(msgspec.Struct, frozen=True, array_like=True, tag=40):
    """What is known of ranges, in the order in which they were last repaired."""

    ranges: tuple[RangeRecord, ...]


class AskedRecord(msgspec.Struct, frozen=True, array_like=True):
    job: JobId
    asked: AskedRepair


class AskedRepairs(msgspec.Struct, frozen=True, array_like=True, tag=41):
    """Repairs that somebody asked for: those that go on, and the last of each job that ended."""

    asked: tuple[AskedRecord, ...]


class CopiedRecord(msgspec.Struct, frozen=True, array_like=True):
    tenant: TenantId
    at: LeaseTime


class AllCopied(msgspec.Struct, frozen=True, array_like=True, tag=42):
    """Per tenant, when the last repair began after which every store had all its blocks."""

    tenants: tuple[CopiedRecord, ...]


class LostRecord(msgspec.Struct, frozen=True, array_like=True):
    block: BlockId
    lost: LostCopies


class LostBlocks(msgspec.Struct, frozen=True, array_like=True, tag=43):
    """Blocks of which no copy is whole."""

    blocks: tuple[LostRecord, ...]


Part: TypeAlias = (
    Core
    | Plans
    | Finished
    | RetiredPart
    | Remembered
    | Pins
    | PackedBlocks
    | Sums
    | PackedPlaces
    | ParkedPart
    | LeftoversPart
    | Periods
    | ZoneRing
    | Takings
    | Setbacks
    | Successes
    | WindowSums
    | Predicates
    | CopySums
    | LackingBlocks
    | TombstonePart
    | ScheduleRules
    | RunPolicies
    | JobRecords
    | Alarms
    | AskedDeletions
    | RepairedRanges
    | AskedRepairs
    | AllCopied
    | LostBlocks
)
