"""A snapshot's parts made of the state, and back.

Derived data (owners, lanes, partitions) is not written but rebuilt. Blocks and places are written
as they are kept in memory, so that a million of them load quickly; whoever makes a snapshot has
them compared with the blocks themselves (`audit`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar, assert_never

from maar.metastore.records.packs import Pack, alone, outline
from maar.metastore.state.copies import CopySum, Held
from maar.metastore.state.index import (
    Chunk,
    ChunkBounds,
    PartitionKey,
    Total,
    one_pack,
)
from maar.metastore.state.queue import PLACE_BYTES
from maar.metastore.state.repairs import Repairs
from maar.metastore.state.retired import Retired
from maar.metastore.state.rows import ID_BYTES, Ids, raw_id
from maar.metastore.state.snapshot_records import (
    Alarms,
    AllCopied,
    AskedDeletions,
    AskedRecord,
    AskedRepairs,
    CopiedRecord,
    CopySumRecord,
    CopySums,
    Core,
    EndedAttemptRecord,
    Finished,
    JobRecords,
    LackingBlocks,
    LeftoversPart,
    LevelTotal,
    LostBlocks,
    LostRecord,
    PackedBlocks,
    PackedPlaces,
    ParkedPart,
    Part,
    PeriodRecord,
    Periods,
    PinRecord,
    Pins,
    Plans,
    Predicates,
    RangeRecord,
    Remembered,
    RepairedRanges,
    RetiredBlock,
    RetiredPart,
    RunPolicies,
    ScheduleRules,
    SetbackRecord,
    Setbacks,
    SpentRecord,
    Successes,
    SuccessRecord,
    Sums,
    Takings,
    TombstonePart,
    TombstoneRecord,
    WindowRecord,
    WindowSums,
    ZoneRing,
)
from maar.metastore.state.state import (
    CountsSinceGenesis,
    EndedAttempt,
    MetaState,
    Pin,
    Spent,
)
from maar.metastore.state.tombstones import CopyKey, Tombstone
from maar.metastore.state.windows import Window, WindowSum
from maar.model.errors import Corrupt
from maar.model.ids import StoreName, TenantId
from maar.model.plan import QueueKey
from maar.services.rules import Setback

PART_ITEMS = 1_000

T = TypeVar("T")


def parts_of(state: MetaState) -> Iterator[Part]:
    yield _core(state)
    for partition in state.blocks.partitions():
        for chunk in partition.chunks:
            yield _packed_blocks(partition.key, chunk)
    for key, places in sorted(state.queue.places.by_key().items()):
        yield from (PackedPlaces(key, b"".join(some)) for some in _some(places))
    yield _sums(state)
    yield from (Plans(some) for some in _some(p for _, p in sorted(state.plans.items())))
    yield from (ParkedPart(some) for some in _some(state.parked.values()))
    yield from (Finished(some) for some in _some(state.finished.values()))
    retired = (
        RetiredBlock(r.entry, r.at, r.outputs, alone(r.packed), r.cause)
        for r in state.retired.values()
    )
    yield from (RetiredPart(some) for some in _some(retired))
    yield from (Remembered(some) for some in _some(state.remembered))
    pins = (PinRecord(name, pin.entry, pin.expires_at) for name, pin in sorted(state.pins.items()))
    yield from (Pins(some) for some in _some(pins))
    leftovers = (
        EndedAttemptRecord(key, ended.ended_at, ended.completed, ended.dead, ended.store)
        for key, ended in state.leftovers.items()
    )
    yield from (LeftoversPart(some) for some in _some(leftovers))
    periods = (PeriodRecord(tenant, period) for tenant, period in sorted(state.retention.items()))
    yield from (Periods(some) for some in _some(periods))
    yield from (ZoneRing(ring) for _, ring in sorted(state.rings.items()))
    spent = (SpentRecord(tenant, *each) for tenant, each in sorted(state.spent.items()))
    yield from (Takings(some) for some in _some(spent))
    setbacks = (SetbackRecord(scope, *each) for scope, each in state.setbacks.items())
    yield from (Setbacks(some) for some in _some(setbacks))
    successes = (SuccessRecord(scope, at) for scope, at in state.successes.items())
    yield from (Successes(some) for some in _some(successes))
    yield from (ScheduleRules(some) for some in _some(state.schedules.values()))
    yield from (RunPolicies(some) for some in _some(state.run_policies.values()))
    yield from (JobRecords(some) for some in _some(state.jobs.values()))
    yield from (Alarms(some) for some in _some(state.alarms.values()))
    yield from (Predicates(some) for some in _some(state.predicates.values()))
    yield from (AskedDeletions(some) for some in _some(state.asked_deletions.values()))
    windows = (
        WindowRecord(key, _as_tuple(window.fresh), _as_tuple(window.clustered))
        for key, window in sorted(state.blocks.windows.by_key.items())
    )
    yield WindowSums(tuple(islice(windows, PART_ITEMS)))
    yield from (WindowSums(some) for some in _some(windows))
    yield from _copies(state)
    yield from _repairs(state.repairs)


def _copies(state: MetaState) -> Iterator[Part]:
    sums = (
        CopySumRecord(held.tenant, held.home, held.stores, total.blocks, total.bytes)
        for held, total in sorted(state.blocks.copies.sums.items())
    )
    yield CopySums(tuple(islice(sums, PART_ITEMS)))
    yield from (CopySums(some) for some in _some(sums))
    for tenant, lists in sorted(state.blocks.copies.lacking.items()):
        for stores, ids in sorted(lists.items()):
            yield from (LackingBlocks(tenant, bytes(some), stores) for some in ids.raw())
    tombstones = (
        TombstoneRecord(*key, t.block, t.entry, t.at, t.outputs, alone(t.packed), t.cause)
        for key, t in state.tombstones.items()
    )
    yield from (TombstonePart(some) for some in _some(tombstones))


def _repairs(repairs: Repairs) -> Iterator[Part]:
    ranges = (RangeRecord(key, found) for key, found in repairs.history.items())
    yield from (RepairedRanges(some) for some in _some(ranges))
    for asked in (repairs.asked, repairs.answered):
        records = (AskedRecord(job, each) for job, each in asked.items())
        yield from (AskedRepairs(some) for some in _some(records))
    copied = (CopiedRecord(tenant, at) for tenant, at in repairs.copied.items())
    yield from (AllCopied(some) for some in _some(copied))
    lost = (LostRecord(block, each) for block, each in repairs.lost.items())
    yield from (LostBlocks(some) for some in _some(lost))


def _load_repairs(
    repairs: Repairs, part: RepairedRanges | AskedRepairs | AllCopied | LostBlocks
) -> None:
    match part:
        case RepairedRanges():
            for one in part.ranges:
                repairs.history[one.key] = one.history
        case AskedRepairs():
            for each in part.asked:
                where = repairs.answered if each.asked.outcome else repairs.asked
                where[each.job] = each.asked
        case AllCopied():
            for tenant in part.tenants:
                repairs.copied[tenant.tenant] = tenant.at
        case LostBlocks():
            for record in part.blocks:
                repairs.lost[record.block] = record.lost


def _as_tuple(sums: WindowSum) -> tuple[int, int, int]:
    return sums.blocks, sums.bytes, sums.times_ns


def _core(state: MetaState) -> Core:
    tally = state.tally
    return Core(
        state.index,
        state.version,
        state.incarnation,
        state.term,
        state.leader,
        state.lease_time,
        state.wall_time,
        state.registration_floor,
        state.policy,
        tally.profiles_added,
        tally.duplicates_removed,
        tally.profiles_quarantined,
        tally.plans_completed,
        tally.profiles_expired,
        state.raised,
        state.anchor,
        state.adopting,
        tally.blocks_adopted,
        tally.blocks_missed,
        tally.profiles_missed,
        state.former,
        state.clock,
        state.confirmed_ns,
        state.hold,
        tally.blocks_lost,
        tally.profiles_lost,
        state.adopted_at,
        tally.profiles_deleted,
        state.stores,
        state.offsets,
    )


def _packed_blocks(key: PartitionKey, chunk: Chunk) -> PackedBlocks:
    whole = chunk.whole()
    assert whole.pack is not None
    bounds = whole.bounds
    return PackedBlocks(
        key,
        whole.raw_ids,
        whole.levels,
        bounds.min_time_ns,
        bounds.max_time_ns,
        bounds.largest,
        whole.pack.size,
        whole.pack.zstd,
    )


def _sums(state: MetaState) -> Sums:
    totals = (
        LevelTotal(level, kind, total.blocks, total.bytes, total.profiles)
        for (level, kind), total in sorted(state.blocks.totals.items())
    )
    blocks, places = state.blocks.hash, state.queue.hash
    return Sums(blocks.to_bytes(16, "big"), places.to_bytes(16, "big"), tuple(totals))


def state_of(parts: Iterable[Part]) -> MetaState:
    loading = _Loading()
    for part in parts:
        loading.take(part)
    return loading.finish()


class _Loading:
    """A state whose blocks and places are put in when all parts are there."""

    def __init__(self) -> None:
        self._state = MetaState()
        self._chunks: list[tuple[PartitionKey, Chunk]] = []
        self._places: dict[QueueKey, list[bytes]] = {}
        self._retired: list[RetiredBlock] = []
        self._has_windows = False  # a part of its own, though there may be none
        self._has_copies = False  # as above
        self._lacking: dict[tuple[TenantId, tuple[StoreName, ...]], list[bytes]] = {}

    def take(self, part: Part) -> None:
        state = self._state
        match part:
            case Core():
                _load_core(state, part)
            case PackedBlocks():
                self._chunks.append((part.key, _chunk(part)))
            case PackedPlaces():
                self._places.setdefault(part.key, []).extend(_split(part.places))
            case Sums():
                _load_sums(state, part)
            case Plans() | ParkedPart() | Finished():
                _load_plans(state, part)
            case RetiredPart():
                self._retired += part.blocks
            case Remembered():
                for block in part.blocks:
                    state.remembered.add(block)
            case Pins():
                state.pins.update((p.reader, Pin(p.entry, p.expires_at)) for p in part.pins)
            case LeftoversPart():
                for attempt in part.attempts:
                    state.leftovers[attempt.attempt_key] = EndedAttempt(
                        attempt.ended_at, attempt.completed, attempt.dead, attempt.store
                    )
            case Periods():
                for period in part.periods:
                    state.retention[period.tenant] = period.period_ns
            case ZoneRing():
                state.rings[part.ring.zone] = part.ring
            case Takings():
                for one in part.spent:
                    state.spent[one.tenant] = Spent(one.hours)
            case Setbacks():
                for setback in part.setbacks:
                    state.setbacks[setback.scope] = Setback(setback.failures, setback.until)
            case Successes():
                for success in part.successes:
                    state.successes[success.scope] = success.at
            case Predicates():
                for predicate in part.predicates:
                    state.predicates[predicate.id] = predicate
            case ScheduleRules() | RunPolicies() | JobRecords() | Alarms():
                _load_schedule(state, part)
            case AskedDeletions():
                for predicate in part.predicates:
                    if (name := predicate.request_key()) is not None:
                        state.asked_deletions[name] = predicate
            case WindowSums():
                self._has_windows = True
                for record in part.windows:
                    window = Window(WindowSum(*record.fresh), WindowSum(*record.clustered))
                    state.blocks.windows.put(record.key, window)
            case CopySums():
                self._has_copies = True
                for each in part.sums:
                    held = Held(each.tenant, each.home, each.stores)
                    state.blocks.copies.load_sum(held, CopySum(each.blocks, each.bytes))
            case RepairedRanges() | AskedRepairs() | AllCopied() | LostBlocks():
                _load_repairs(state.repairs, part)
            case LackingBlocks():
                self._lacking.setdefault((part.tenant, part.stores), []).append(part.ids)
            case TombstonePart():
                for t in part.tombstones:
                    state.tombstones[CopyKey(t.store, t.key)] = Tombstone(
                        t.block, t.entry, t.at, t.outputs, t.packed, t.cause
                    )
            case _:
                assert_never(part)

    def finish(self) -> MetaState:
        state = self._state
        for r in self._retired:
            block = outline(r.packed).id
            state.retired[block] = Retired(r.entry, r.at, r.outputs, r.packed, r.cause)
        if self._chunks and not state.blocks.load(self._chunks):
            raise Corrupt("its blocks are not in order")
        for block in state.owners:
            if block not in state.blocks:
                raise Corrupt(f"it names block {block} but does not hold it")
        owned = frozenset(map(raw_id, state.owners))
        if not state.queue.load(self._places, owned, state.policy):
            raise Corrupt("a block has two places in its queue")
        if not self._has_windows:
            raise Corrupt("it has no sums of days")
        if not self._has_copies:
            raise Corrupt("it has no sums of copies")
        for (tenant, stores), raws in self._lacking.items():
            ids = state.blocks.copies.lacking.setdefault(tenant, {})[stores] = Ids()
            if not ids.load(b"".join(raws)):
                raise Corrupt("a block lacks a copy twice")
        state.blocks.copies.add_up()
        if not state.blocks.copies.is_consistent():
            raise Corrupt("its list of blocks that lack copies does not match its sums of copies")
        return state


def _load_schedule(
    state: MetaState, part: ScheduleRules | RunPolicies | JobRecords | Alarms
) -> None:
    match part:
        case ScheduleRules():
            for rule in part.rules:
                state.schedules[rule.jobs] = rule
        case RunPolicies():
            for policy in part.policies:
                state.run_policies[policy.id] = policy
        case JobRecords():
            for record in part.jobs:
                state.jobs[record.id] = record
        case Alarms():
            for alarm in part.alarms:
                state.alarms[alarm.id] = alarm


def _load_core(state: MetaState, core: Core) -> None:
    state.index, state.version, state.incarnation = core.index, core.version, core.incarnation
    state.term, state.leader = core.term, core.leader
    state.lease_time, state.wall_time = core.lease_time, core.wall_time
    state.registration_floor, state.policy = core.registration_floor, core.policy
    state.raised, state.anchor, state.adopting = core.raised, core.anchor, core.adopting
    state.former, state.adopted_at = core.former, core.adopted_at
    state.blocks.copies.stores = core.stores
    state.offsets = core.offsets
    state.clock, state.confirmed_ns, state.hold = core.clock, core.confirmed_ns, core.hold
    state.tally = CountsSinceGenesis(
        core.profiles_added,
        core.duplicates_removed,
        core.profiles_quarantined,
        core.plans_completed,
        core.profiles_expired,
        core.blocks_adopted,
        core.blocks_missed,
        core.profiles_missed,
        core.blocks_lost,
        core.profiles_lost,
        core.profiles_deleted,
    )


def _load_sums(state: MetaState, sums: Sums) -> None:
    state.blocks.hash = int.from_bytes(sums.blocks_hash, "big")
    state.queue.hash = int.from_bytes(sums.places_hash, "big")
    for total in sums.totals:
        found = Total(total.blocks, total.bytes, total.profiles)
        state.blocks.totals[total.level, total.kind] = found


def _load_plans(state: MetaState, part: Plans | ParkedPart | Finished) -> None:
    for plan in part.plans:
        if isinstance(part, Finished):
            state.finished[plan.id] = plan
            continue
        if isinstance(part, Plans):
            state.plans[plan.id] = plan
        else:
            state.parked[plan.id] = plan
        state.owners.update(dict.fromkeys(plan.inputs, plan.id))


def _chunk(part: PackedBlocks) -> Chunk:
    count = len(part.levels)
    if not count or len(part.ids) != count * ID_BYTES:
        raise Corrupt(f"a part has {count} levels and {len(part.ids)} bytes of ids")
    bounds = ChunkBounds(part.min_time_ns, part.max_time_ns, part.largest)
    return one_pack(part.ids, part.levels, Pack(part.zstd, part.size, count), bounds)


def _split(places: bytes) -> list[bytes]:
    if len(places) % PLACE_BYTES:
        raise Corrupt(f"{len(places)} bytes are not a whole number of places")
    return [places[at : at + PLACE_BYTES] for at in range(0, len(places), PLACE_BYTES)]


def _some(items: Iterable[T]) -> Iterator[tuple[T, ...]]:
    """The items, a bounded number at a time."""
    rest = iter(items)
    while some := tuple(islice(rest, PART_ITEMS)):
        yield some
