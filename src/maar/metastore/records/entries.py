"""The entries of the log: one closed union, each entry in a versioned envelope.

Fields are append-only and have defaults when they are new. A new kind, or a new meaning of an old
one, is a new version, which a `VersionActivated` entry must have switched on (S13). A program that
meets a version or a kind that it does not know stops, and says which: see docs/formats/log.md.
"""

from __future__ import annotations

from typing import Any, TypeAlias, Union, get_args

import msgspec

from maar.metastore.records.former_formats import MARK, FormerFormat, is_former
from maar.model.block import BlockMeta, BlockOutline
from maar.model.errors import Corrupt, InvalidInput, Rejected
from maar.model.ids import (
    BlockId,
    FencingToken,
    Incarnation,
    PlanId,
    StoreName,
    TenantId,
    WorkerId,
    Zone,
)
from maar.model.plan import JobId, PlanResult, PlanSpec
from maar.model.policy import Policy
from maar.model.predicate import DeletionRequest, Mask, Predicate
from maar.model.ring import Writer
from maar.model.schedule import Alarm, RunPolicy, ScheduleRule
from maar.model.stores import CopyBad, CopyMade, StoreSet
from maar.model.time import LeaseTime, WallTime

VERSION = 1


class Genesis(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The first entry of every log."""

    incarnation: Incarnation


class TermStarted(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The first entry of every leader; live leases get their full length again."""

    term: int
    leader: str


class PolicySet(msgspec.Struct, frozen=True, array_like=True, tag=3):
    policy: Policy


class BlocksAdded(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Segments that are written and are to become visible to queries."""

    blocks: tuple[BlockMeta, ...]


class PlansScheduled(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The nth of them gets the id (index of this entry, n)."""

    plans: tuple[PlanSpec, ...]


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """A lease for a plan whose last lease was `replaces` (None: it has none)."""

    plan: PlanId
    worker: WorkerId
    expires_at: LeaseTime
    replaces: FencingToken | None = None
    counts_as_failure: bool = (
        True  # the expired lease that it replaces, as a failure of the plan itself (S11)
    )
    by_hand: bool = False  # somebody named the plan: it need not have rested after a failure
    guarded: bool = True  # a live lease is respected; else it is taken over, its holder fenced
    ignores_windows: bool = False  # an operator wanted it although a run policy refuses


class PlansLeased(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The token of these leases is (incarnation, index of this entry)."""

    grants: tuple[Grant, ...]


class Extension(msgspec.Struct, frozen=True, array_like=True):
    plan: PlanId
    token: FencingToken
    expires_at: LeaseTime


class LeasesRenewed(msgspec.Struct, frozen=True, array_like=True, tag=7):
    extensions: tuple[Extension, ...]


class Start(msgspec.Struct, frozen=True, array_like=True):
    plan: PlanId
    token: FencingToken


class PlansStarted(msgspec.Struct, frozen=True, array_like=True, tag=8):
    starts: tuple[Start, ...]


class PlanCompleted(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """The inputs leave and the outputs come in one step, or nothing happens."""

    plan: PlanId
    token: FencingToken
    result: PlanResult


class PlanFailed(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """A worker saw its tasks stop and reports why; nothing depends on getting this report."""

    plan: PlanId
    token: FencingToken
    cause: str
    eligible_at: LeaseTime
    counts_as_failure: bool = True  # as a failure of the plan itself (S11)


class PlanBisected(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """A plan at its failure limit becomes two: its first `at` inputs, and the rest (S17)."""

    plan: PlanId
    presumes: FencingToken | None  # the expired lease that the leader saw, or none
    at: int
    counts_as_failure: bool = True  # that expired lease, as a failure of the plan itself (S11)


class PlanExcluded(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """A plan of one input at its failure limit, or one that an operator names, is set aside.

    It stays visible, and is probed again when `eligible_at` has come.
    """

    plan: PlanId
    presumes: FencingToken | None
    eligible_at: LeaseTime
    counts_as_failure: bool = True
    note: str = ""  # an operator's reason; then a live lease under `presumes` is ended too


class AttemptFenced(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """After this the token can never complete; what it wrote can be deleted (S1)."""

    plan: PlanId
    token: FencingToken
    cause: str


class RegistrationFloor(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """Segments whose ids are as old as this are refused from now on (S4)."""

    lease_time: LeaseTime


class Tick(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """Time has passed, and something waits for it: the log records the time."""


class PlansArchived(msgspec.Struct, frozen=True, array_like=True, tag=16):
    plans: tuple[PlanId, ...]


class BlocksForgotten(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """Retired blocks whose objects are deleted, but for their copies in some stores: those become
    tombstones, which wait for each store by itself.
    """

    blocks: tuple[BlockId, ...]
    copies_stay: tuple[StoreName, ...] = ()


class PinsTaken(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """Readers who hold the index as of this entry."""

    readers: tuple[str, ...]
    expires_at: LeaseTime


class PinsDropped(msgspec.Struct, frozen=True, array_like=True, tag=19):
    readers: tuple[str, ...]


class StateHashed(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """The hash of the state at an index (S13): first the leader's, then each other replica's.

    A replica whose hash differs from that of most replicas stops.
    """

    at: int
    digest: bytes
    replica: str = ""  # whose vote it is; '': the leader's, which directly follows the index


class VersionActivated(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """Entries of this version may follow: every replica can read them."""

    version: int


class Stored(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """An entry too large for the log: its bytes are an object, its hash is here (S12)."""

    key: str
    size: int
    sha256: bytes


class PlanRequeued(msgspec.Struct, frozen=True, array_like=True, tag=23):
    """An excluded or parked plan is tried again, with its failures reset to none."""

    plan: PlanId


class PlansParked(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """Failed plans leave a full schedule; they still own their inputs, and can come back."""

    plans: tuple[PlanId, ...]


class PlansUnparked(msgspec.Struct, frozen=True, array_like=True, tag=25):
    """The schedule has room again: parked plans return to it as they left."""

    plans: tuple[PlanId, ...]


class LimitRaised(msgspec.Struct, frozen=True, array_like=True, tag=26):
    """For a while, plans may fail more often before they are set aside."""

    failure_limit: int
    until: LeaseTime


class RetentionSet(msgspec.Struct, frozen=True, array_like=True, tag=27):
    """How long a tenant's profiles are kept; None: as long as everybody else's."""

    tenant: TenantId
    period_ns: int | None  # 0: for ever


class BlocksExpired(msgspec.Struct, frozen=True, array_like=True, tag=28):
    """Retention takes blocks whose newest profile is older than a boundary of wall time.

    Plans that own one are cancelled in the same step (S8); their other inputs are free again.
    """

    before_ns: int
    blocks: tuple[BlockId, ...]


class AttemptKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An attempt that has ended, by what names the objects that it may have left."""

    plan: PlanId
    token: FencingToken


class LeftoversSwept(msgspec.Struct, frozen=True, array_like=True, tag=29):
    """A listing well after their end found nothing of these attempts any more (S1)."""

    attempts: tuple[AttemptKey, ...]


class RingChanged(msgspec.Struct, frozen=True, array_like=True, tag=30):
    """A zone's ring is replaced: which writers are in it, and which takes which shard (S16).

    The leader decided the table; the fold only takes it over, if the ring is still as presumed.
    """

    zone: Zone
    presumes: int  # `changed_at` of the ring that it replaces; 0: there is none
    writers: tuple[Writer, ...]  # sorted by node; none: the zone is gone
    owners: tuple[int, ...]  # of each shard, a place in `writers`


class Reincarnated(msgspec.Struct, frozen=True, array_like=True, tag=31):
    """The log continues from a snapshot whose own log was lost (S5).

    Until the whole store has been searched, nothing is deleted: it may hold what the snapshot
    lacks.
    """

    incarnation: Incarnation
    adopts: tuple[Incarnation, ...] = ()  # incarnations to adopt objects of, beside the last one
    predicates: tuple[Predicate, ...] = ()  # that the store holds: the snapshot may lack them (S8)


class BlocksAdopted(msgspec.Struct, frozen=True, array_like=True, tag=32):
    """Blocks that the store holds and the index did not know; only while adopting."""

    blocks: tuple[BlockMeta, ...]


class BlocksMissed(msgspec.Struct, frozen=True, array_like=True, tag=33):
    """Blocks that the index knew and the store does not hold; only while adopting."""

    blocks: tuple[BlockId, ...]


class AdoptionEnded(msgspec.Struct, frozen=True, array_like=True, tag=34):
    """Everything in the store is known: deleting may go on."""


class BlocksLost(msgspec.Struct, frozen=True, array_like=True, tag=35):
    """An operator gives up blocks whose objects are lost; plans that own one are cancelled (S8)."""

    blocks: tuple[BlockId, ...]
    note: str  # what is wrong with them
    # Blocks that they replaced and that still exist: live again.
    returning: tuple[BlockId, ...] = ()


class RetentionUndone(msgspec.Struct, frozen=True, array_like=True, tag=36):
    """Blocks that retention took return to the index; only while their objects are there."""

    blocks: tuple[BlockId, ...]


class RetentionHeld(msgspec.Struct, frozen=True, array_like=True, tag=37):
    """Retention takes nothing, and deletes nothing that it took, until an operator releases it.

    An entry that does not hold it says that its wall clock is right. The leader writes one when
    witnesses confirm a clock that differs from lease time. An operator's entry also confirms the
    periods and ends a hold.
    """

    held: bool
    why: str = ""
    confirmed: bool = False  # by an operator


class RollbackWish(msgspec.Struct, frozen=True, array_like=True):
    """What ended attempts of a plan wrote is to be deleted; a removable plan itself leaves too."""

    target: PlanId
    tokens: tuple[FencingToken, ...]  # none of them can complete after this entry (S1)
    presumes: FencingToken | None  # the expired lease that the leader saw, or none
    cause: str
    # Of a removable plan that had begun or failed: before this time no plan of its scope is due.
    scope_rests_until: LeaseTime = LeaseTime(0)
    counts_as_failure: bool = False  # that lease, as a failure of the plan itself (S11)


class RollbacksScheduled(msgspec.Struct, frozen=True, array_like=True, tag=38):
    """The nth of them gets the id (index of this entry, n).

    Plans that take what removable plans held follow in the numbers: at no index are those blocks
    free for anybody else.
    """

    rollbacks: tuple[RollbackWish, ...]
    takes: tuple[PlanSpec, ...] = ()


class PlanAsked(msgspec.Struct, frozen=True, array_like=True, tag=41):
    """Somebody asked for a plan that is on the schedule already.

    From now on his request finds it, as long as it is known; or it is urgent from now on.
    """

    plan: PlanId
    request_id: str = ""  # '': none to remember
    urgent: bool = False  # the next worker that can carry it out is to get it


class PredicateAdded(msgspec.Struct, frozen=True, array_like=True, tag=39):
    """From this entry on nobody sees these profiles in blocks from before it (S8); its index is the
    id of the predicate.
    """

    mask: Mask
    request: DeletionRequest | None = None  # by which it is found again


class PredicatesDropped(msgspec.Struct, frozen=True, array_like=True, tag=40):
    """Nothing is left that these predicates apply to."""

    predicates: tuple[int, ...]


class StoresSet(msgspec.Struct, frozen=True, array_like=True, tag=42):
    """The stores of the settings, and which of them hold copies of whose blocks."""

    stores: StoreSet


class StoreLeaves(msgspec.Struct, frozen=True, array_like=True, tag=43):
    """A store is to be drained: it is wanted for nothing any more. Or it stays after all."""

    store: StoreName
    leaves: bool = True


class SubrangeRepaired(msgspec.Struct, frozen=True, array_like=True, tag=44):
    """A partial result of a repair under its current token: what it found and healed in some
    tokens. Copies that are whole cost nothing here: the range says when they were verified.
    """

    plan: PlanId
    token: FencingToken
    subrange: tuple[int, int] | None  # tokens above the first, up to the second; None: of no range
    started_at: LeaseTime
    stores: tuple[StoreName, ...]  # that were looked at
    copies: tuple[CopyMade, ...] = ()
    ended: tuple[CopyBad, ...] = ()  # before the copies come: a bad copy may be replaced at once
    lost: tuple[BlockId, ...] = ()  # no copy is whole; nothing happens to them
    checked: int = 0  # copies
    bytes: int = 0  # read
    empty: tuple[tuple[int, int], ...] = ()  # more tokens, of which there were no blocks
    work_ns: int = 0  # that it took, without pauses
    forget_before: LeaseTime = LeaseTime(0)  # repairs of ranges that are not worth remembering
    what: tuple[str, ...] = ()  # is wrong with each of the lost blocks


class CopiesEnded(msgspec.Struct, frozen=True, array_like=True, tag=45):
    """A store's copies of some live blocks are given up; never the last one of a block.

    `gone`: there are no objects any more, or nobody can reach them. Else they become tombstones.
    """

    store: StoreName
    blocks: tuple[BlockId, ...]
    gone: bool
    why: str = ""


class TombstonesEnded(msgspec.Struct, frozen=True, array_like=True, tag=46):
    """Copies that were to be deleted in a store, each by the key of its first file: they are."""

    store: StoreName
    keys: tuple[str, ...]


class ScheduleSet(msgspec.Struct, frozen=True, array_like=True, tag=50):
    """Somebody set when the jobs of a pattern are due; what was set for it before is replaced."""

    rule: ScheduleRule


class ScheduleRemoved(msgspec.Struct, frozen=True, array_like=True, tag=51):
    """The jobs of a pattern go by their configuration again."""

    jobs: JobId


class RunPolicyAdded(msgspec.Struct, frozen=True, array_like=True, tag=52):
    """When the jobs of a pattern do not run; the index of this entry is the policy's id."""

    policy: RunPolicy


class RunPolicyRemoved(msgspec.Struct, frozen=True, array_like=True, tag=53):
    policy: int


class AssumedSuccess(msgspec.Struct, frozen=True, array_like=True):
    job: JobId
    at: LeaseTime


class JobsAssumed(msgspec.Struct, frozen=True, array_like=True, tag=54):
    """Jobs that are new are taken to have succeeded at a time, so that they do not all come due
    now.
    """

    jobs: tuple[AssumedSuccess, ...]


class RunsEnded(msgspec.Struct, frozen=True, array_like=True, tag=55):
    """All parts of these jobs are done: the next session begins another run."""

    jobs: tuple[JobId, ...]


class JobsForgotten(msgspec.Struct, frozen=True, array_like=True, tag=56):
    """There are no such jobs any more."""

    jobs: tuple[JobId, ...]


class AlarmsChanged(msgspec.Struct, frozen=True, array_like=True, tag=57):
    """Alarms that are new or of another level, and those that are over."""

    raised: tuple[Alarm, ...] = ()
    ceased: tuple[JobId, ...] = ()


class RepairAsked(msgspec.Struct, frozen=True, array_like=True, tag=60):
    """Somebody wants a repair now, of all there is, whatever was repaired lately; or not any
    more. It stays until all of it was repaired after this entry.
    """

    job: JobId
    wanted: bool = True


Entry: TypeAlias = (
    Genesis
    | TermStarted
    | PolicySet
    | BlocksAdded
    | PlansScheduled
    | PlansLeased
    | LeasesRenewed
    | PlansStarted
    | PlanCompleted
    | PlanFailed
    | PlanBisected
    | PlanExcluded
    | AttemptFenced
    | RegistrationFloor
    | Tick
    | PlansArchived
    | BlocksForgotten
    | PinsTaken
    | PinsDropped
    | StateHashed
    | VersionActivated
    | Stored
    | PlanRequeued
    | PlansParked
    | PlansUnparked
    | LimitRaised
    | RetentionSet
    | BlocksExpired
    | LeftoversSwept
    | RingChanged
    | Reincarnated
    | BlocksAdopted
    | BlocksMissed
    | AdoptionEnded
    | BlocksLost
    | RetentionUndone
    | RetentionHeld
    | RollbacksScheduled
    | PredicateAdded
    | PredicatesDropped
    | StoresSet
    | StoreLeaves
    | SubrangeRepaired
    | CopiesEnded
    | TombstonesEnded
    | PlanAsked
    | ScheduleSet
    | ScheduleRemoved
    | RunPolicyAdded
    | RunPolicyRemoved
    | JobsAssumed
    | RunsEnded
    | JobsForgotten
    | AlarmsChanged
    | RepairAsked
)


class BlocksOutlined(msgspec.Struct, frozen=True, gc=False):
    """`BlocksAdded` as the fold reads it: the index keeps the bytes, and needs the outline only.

    Most of a log is registrations, and most of a registration is what each service has in it.
    """

    blocks: tuple[tuple[BlockOutline, bytes], ...]


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """An entry and the two clocks it was written by (S2)."""

    version: int
    lease_time: LeaseTime
    wall_time: WallTime
    entry: Entry | BlocksOutlined


class _Sealed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=MARK):
    """The envelope with the entry still encoded, so that the version can be checked first."""

    version: int
    lease_time: LeaseTime
    wall_time: WallTime
    entry: msgspec.Raw


_encode = msgspec.msgpack.Encoder().encode
_open = msgspec.msgpack.Decoder(_Sealed).decode
_entry_decoder: msgspec.msgpack.Decoder[Entry] = msgspec.msgpack.Decoder(Entry)
_outline = msgspec.msgpack.Decoder(BlockOutline).decode


class _BlocksUnread(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=4):
    blocks: tuple[msgspec.Raw, ...]


_OTHERS = tuple(kind for kind in get_args(Entry) if kind is not BlocksAdded)
_ToFold: Any = Union[(*_OTHERS, _BlocksUnread)]


class _SealedToFold(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=MARK):
    version: int
    lease_time: LeaseTime
    wall_time: WallTime
    entry: _ToFold


_read_to_fold = msgspec.msgpack.Decoder(_ToFold).decode
_open_to_fold = msgspec.msgpack.Decoder(_SealedToFold).decode
_UNREADABLE = (msgspec.ValidationError, msgspec.DecodeError, ValueError)


def encode(version: int, lease_time: LeaseTime, wall_time: WallTime, entry: bytes) -> bytes:
    """An entry that is encoded already, in its envelope."""
    return _encode(_Sealed(version, lease_time, wall_time, msgspec.Raw(entry)))


def encode_entry(entry: Entry) -> bytes:
    """Its bytes, or InvalidInput: what cannot be written must fail before anything is."""
    try:
        return _encode(entry)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"a value cannot be written to the log: {error}") from error


def decode_entry(body: bytes | msgspec.Raw, *, index: int) -> Entry:
    try:
        return _entry_decoder.decode(body)
    except _UNREADABLE as error:
        raise Corrupt(
            f"entry {index} of the log is not one that version {VERSION} writes: {error}. "
            "Nothing after it can be trusted; start from a snapshot and a good copy of the log."
        ) from error


def decode_to_fold(body: bytes, *, index: int) -> Entry | BlocksOutlined:
    """No more of an entry than the fold needs."""
    try:
        return _with_outlines(_read_to_fold(body))
    except _UNREADABLE:
        return decode_entry(body, index=index)  # raises an error that says what is wrong


def _with_outlines(entry: Entry | _BlocksUnread) -> Entry | BlocksOutlined:
    if not isinstance(entry, _BlocksUnread):
        return entry
    return BlocksOutlined(tuple([(_outline(raw), bytes(raw)) for raw in entry.blocks]))


def open_envelope(body: bytes, *, index: int, knows: int = VERSION) -> Envelope:
    """As `decode`, for the fold: the body is read once, and no more of it than is needed."""
    try:
        sealed = _open_to_fold(body)
        entry = _with_outlines(sealed.entry)
    except _UNREADABLE:
        return decode(body, index=index, knows=knows)  # raises an error that says what is wrong
    newest = entry.version if isinstance(entry, VersionActivated) else sealed.version
    if max(newest, sealed.version) > knows:
        return decode(body, index=index, knows=knows)  # as above
    return Envelope(sealed.version, sealed.lease_time, sealed.wall_time, entry)


def decode(body: bytes, *, index: int, knows: int = VERSION) -> Envelope:
    """The envelope of a record, or Rejected when it is of another version, or Corrupt."""
    try:
        sealed = _open(body)
    except _UNREADABLE as error:
        if is_former(body):
            raise FormerFormat(f"entry {index} of the log") from error
        raise Corrupt(f"entry {index} of the log has no readable envelope: {error}.") from error
    if sealed.version > knows:
        raise Rejected(
            f"entry {index} of the log was written by a newer maar (version {sealed.version}; "
            f"this program knows up to {knows}). Start the newer program."
        )
    entry = decode_entry(sealed.entry, index=index)
    if isinstance(entry, VersionActivated) and entry.version > knows:
        raise Rejected(
            f"entry {index} of the log activates version {entry.version}; this program knows up "
            f"to {knows}. Start the newer program."
        )
    return Envelope(sealed.version, sealed.lease_time, sealed.wall_time, entry)
