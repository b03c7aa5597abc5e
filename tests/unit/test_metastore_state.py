"""Blocks come in once and leave when nobody needs them; everything in the state has a bound."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sized
from typing import Any, get_origin, get_type_hints

import msgspec
import pytest

from maar.metastore.decide import prepare
from maar.metastore.decide.lease_clock import LeaseClock
from maar.metastore.decide.schedule import Wish, assign
from maar.metastore.fold.apply import Indexed, apply
from maar.metastore.fold.deleting import retirement
from maar.metastore.records.effects import Compared, Refused, Registered, Voted
from maar.metastore.records.entries import (
    VERSION,
    BlocksAdded,
    BlocksForgotten,
    Entry,
    Envelope,
    Genesis,
    PinsDropped,
    PinsTaken,
    PlanCompleted,
    PlansLeased,
    RegistrationFloor,
    StateHashed,
    Stored,
    Tick,
    VersionActivated,
    decode,
    encode,
    encode_entry,
)
from maar.metastore.state.digest import digest
from maar.metastore.state.state import BOUNDS, MetaState, sizes
from maar.metastore.views import reads
from maar.model.block import Dataset
from maar.model.errors import Corrupt, InvalidInput, Rejected
from maar.model.ids import BlockId, TenantId, WorkerId, segment_id
from maar.model.policy import Level, Policy, check_policy
from maar.model.refusal import Refusal
from maar.model.time import SECOND_NS, LeaseTime, TimeRange, WallTime
from maar.ports.operator.operator import Status
from maar.ports.reader.index import ViewRequest
from support.metastore.fold import (
    DAY_START_NS,
    SMALL,
    TENANT,
    Fold,
    result,
    segment,
)


def compacted(fold: Fold, first: int = 0) -> tuple[BlockId, ...]:
    """Three segments become one block; the ids of the segments."""
    fold.put(BlocksAdded(tuple(segment(first + n, at=fold.now) for n in range(3))))
    entries = assign(fold.state, [Wish(WorkerId("w"), 1)], now=LeaseTime(fold.now))
    for entry in entries:
        fold.put(entry)
    assert isinstance(entries[-1], PlansLeased)
    plan = fold.state.plans[entries[-1].grants[0].plan]
    assert plan.lease is not None
    metas = fold.metas(plan.inputs)
    fold.put(PlanCompleted(plan.id, plan.lease.token, result(plan.id, plan.lease.token, metas)))
    return plan.inputs


# ── registration ───────────────────────────────────────────────────────────────────────────────


def test_a_block_is_added_once_however_often_it_is_registered() -> None:
    fold = Fold()
    meta = segment(1)
    assert fold.put(BlocksAdded((meta, meta))) == (
        Registered(meta.id, "", 10),
        Registered(meta.id, ""),
    )
    assert fold.state.tally.profiles_added == 10
    assert len(fold.state.queue.places) == 1


def test_a_registration_repeated_after_the_merge_brings_nothing_back() -> None:
    fold = Fold()
    inputs = compacted(fold)
    live = fold.live()
    assert fold.put(BlocksAdded((segment(0),))) == (Registered(inputs[0], ""),)
    assert fold.live() == live
    fold.now += 16 * 60 * SECOND_NS
    fold.put(BlocksForgotten(inputs))
    assert fold.put(BlocksAdded((segment(0),))) == (Registered(inputs[0], ""),)
    assert fold.live() == live


def test_below_the_floor_a_new_block_is_refused_and_nothing_is_remembered() -> None:
    fold = Fold()
    inputs = compacted(fold)
    fold.put(BlocksForgotten(inputs))
    fold.now = 100
    fold.put(RegistrationFloor(LeaseTime(50)))
    assert len(fold.state.remembered) == 0
    (effect,) = fold.put(BlocksAdded((segment(77, at=50),)))
    assert isinstance(effect, Registered)
    assert "older than the registration floor" in effect.refusal
    (effect,) = fold.put(BlocksAdded((segment(78, at=51),)))
    assert effect == Registered(segment(78, at=51).id, "", 10)


def test_the_floor_never_falls_and_never_passes_the_present() -> None:
    fold = Fold()
    fold.now = 100
    fold.put(RegistrationFloor(LeaseTime(60)))
    fold.put(RegistrationFloor(LeaseTime(40)))
    fold.put(RegistrationFloor(LeaseTime(101)))
    assert fold.state.registration_floor == 60


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"id": "xyz"}, "32 hex digits"),
        ({"id": "Z" * 32}, "32 hex digits"),
        ({"size": -1}, "negative"),
        ({"size": 1 << 63}, "cannot have"),
        ({"profiles": 1 << 63}, "cannot have"),
        ({"max_time_ns": 0}, "ends before"),
        ({"id": segment_id(lease_time_ns=0, entropy=2)}, "not its own"),
        ({"shard": 2}, "not its own"),
        ({"files": ()}, "no files"),
        ({"level": 1}, "no segment"),
        ({"tenant": "acme"}, "no segment"),
    ],
)
def test_a_block_that_makes_no_sense_is_refused(change: dict[str, Any], why: str) -> None:
    fold = Fold()
    (effect,) = fold.put(BlocksAdded((msgspec.structs.replace(segment(1), **change),)))
    assert isinstance(effect, Registered)
    assert why in effect.refusal
    assert fold.live() == set()


def test_a_block_of_a_time_that_the_log_has_not_reached_is_refused() -> None:
    fold = Fold()
    (effect,) = fold.put(BlocksAdded((segment(1, at=2 * 3600 * SECOND_NS),)))
    assert isinstance(effect, Registered)
    assert "not reached" in effect.refusal


def test_the_state_can_be_hashed_whatever_the_blocks_claim_to_be() -> None:
    fold = Fold()
    fold.put(BlocksAdded((segment(1, size=1 << 63), segment(2, size=1 << 63), segment(3))))
    assert digest(fold.state)
    assert fold.live() == {segment(3).id}


def test_a_full_index_refuses_more() -> None:
    fold = Fold(policy=msgspec.structs.replace(SMALL, blocks_max=2))
    effects = fold.put(BlocksAdded(tuple(segment(n) for n in range(3))))
    assert [isinstance(e, Registered) and e.refusal != "" for e in effects] == [False, False, True]


def test_many_blocks_are_split_into_entries_that_the_log_takes() -> None:
    datasets = segment(1).datasets * 500
    metas = [msgspec.structs.replace(segment(n), datasets=datasets) for n in range(30)]
    entries = list(prepare.registrations(metas))
    assert len(entries) > 1
    assert [m for entry in entries for m in entry.blocks] == metas
    assert all(len(encode_entry(entry)) <= prepare.ADDED_BYTES_MAX + 100 for entry in entries)


# ── retirement and pins ────────────────────────────────────────────────────────────────────────


def due(fold: Fold) -> list[BlockId]:
    return retirement.due(fold.state, now=LeaseTime(fold.now), limit=10)


def test_a_retired_block_stays_for_the_delay() -> None:
    fold = Fold()
    inputs = compacted(fold)
    fold.now = SMALL.retire_delay_ns
    assert due(fold) == []
    fold.now += 1
    assert due(fold) == list(inputs)


def test_a_pin_taken_before_keeps_a_retired_block_and_one_taken_after_does_not() -> None:
    fold = Fold()
    fold.put(PinsTaken(("early",), LeaseTime(10**18)))
    compacted(fold)
    fold.put(PinsTaken(("late",), LeaseTime(10**18)))
    fold.now = SMALL.retire_delay_ns + 1
    assert due(fold) == []
    fold.put(PinsTaken(("early",), LeaseTime(10**18)))
    assert len(due(fold)) == 3


def test_a_pin_that_has_expired_keeps_nothing_though_nobody_has_dropped_it_yet() -> None:
    fold = Fold()
    end = SMALL.retire_delay_ns + 10
    fold.put(PinsTaken(("early",), LeaseTime(end)))
    compacted(fold)
    fold.now = end
    assert due(fold) == []
    fold.now = end + 1
    assert len(due(fold)) == 3


def test_only_an_expired_pin_is_dropped() -> None:
    fold = Fold()
    fold.put(PinsTaken(("a",), LeaseTime(10)))
    fold.now = 11
    assert retirement.expired_pins(fold.state, LeaseTime(11)) == ("a",)
    fold.put(PinsTaken(("a",), LeaseTime(20)))
    fold.put(PinsDropped(("a",)))
    assert "a" in fold.state.pins
    fold.now = 21
    fold.put(PinsDropped(("a",)))
    assert fold.state.pins == {}


def test_a_pin_is_renewed_only_when_half_its_time_is_gone() -> None:
    fold = Fold()
    (entry,) = prepare.pins(fold.state, ["r", "r"], now=LeaseTime(0))
    fold.put(entry)
    half = SMALL.pin_ns // 2
    assert prepare.pins(fold.state, ["r"], now=LeaseTime(half)) == []
    assert len(prepare.pins(fold.state, ["r"], now=LeaseTime(half + 1))) == 1


def test_pins_are_bounded() -> None:
    fold = Fold(policy=msgspec.structs.replace(SMALL, pins_max=1))
    effects = fold.put(PinsTaken(("a", "b"), LeaseTime(9)))
    assert effects[1] == Refused(Refusal.TOO_MANY, what="b")


# ── reading ────────────────────────────────────────────────────────────────────────────────────


def test_a_view_holds_inputs_or_output_and_only_what_matches() -> None:
    fold = Fold()
    day = TimeRange(DAY_START_NS, DAY_START_NS + 100 * SECOND_NS)

    def view(tenant: str = TENANT, service: str = "", range_: TimeRange = day) -> int:
        request = ViewRequest(TenantId(tenant), range_, service)
        return len(reads.select(reads.chunks_for(fold.state.blocks, request), request))

    fold.put(BlocksAdded(tuple(segment(n, at=fold.now) for n in range(100, 103))))
    assert (view(), view("other"), view(service="checkout"), view(service="cart")) == (3, 0, 3, 0)
    assert view(range_=TimeRange(DAY_START_NS - 9, DAY_START_NS)) == 0
    assert view(range_=TimeRange(DAY_START_NS + 5 * SECOND_NS, DAY_START_NS + 6 * SECOND_NS)) == 0
    entries = assign(fold.state, [Wish(WorkerId("w"), 1)], now=LeaseTime(0))
    for entry in entries:
        fold.put(entry)
    (plan,) = fold.state.plans.values()
    assert view() == 3
    assert plan.lease is not None
    made = result(plan.id, plan.lease.token, fold.metas(plan.inputs))
    fold.put(PlanCompleted(plan.id, plan.lease.token, made))
    assert view() == 1


def test_a_view_brings_the_datasets_that_were_asked_for_whenever_they_are_from() -> None:
    fold = Fold()
    made = segment(100, at=fold.now)
    (one,) = made.datasets
    late = one.max_time_ns + 900 * SECOND_NS
    every = (
        one,
        msgspec.structs.replace(one, service="checkout-too", max_time_ns=late, min_time_ns=late),
        msgspec.structs.replace(one, tenant=TenantId("other")),
    )
    fold.put(BlocksAdded((msgspec.structs.replace(made, datasets=every, max_time_ns=late),)))

    def view(**wanted: Any) -> list[tuple[Dataset, ...]]:
        request = ViewRequest(TENANT, TimeRange(0, one.max_time_ns + 1), **wanted)
        chunks = reads.chunks_for(fold.state.blocks, request)
        return [meta.datasets for meta in reads.select(chunks, request)]

    assert view() == [every[:2]]
    assert view(service="checkout") == [every[:1]]
    assert view(service="checkout-too") == [], "not in the range"
    assert view(service="check") == [], "a part of a name is none"
    assert view(service="checkout", every_dataset=True) == [every]


def test_partitions_that_a_reader_took_do_not_change() -> None:
    fold = Fold()
    fold.put(BlocksAdded(tuple(segment(n) for n in range(200))))
    chunks = reads.all_chunks(fold.state.blocks, "")
    before = [chunk.ids for chunk in chunks]
    assert sum(map(len, before)) == 200
    for block in list(fold.live()):
        fold.state.blocks.remove(block)
    assert [chunk.ids for chunk in chunks] == before
    assert fold.state.blocks.tenants == {}
    assert fold.state.blocks.hash == 0


def test_the_newest_blocks_come_first_and_only_of_the_level() -> None:
    fold = Fold()
    compacted(fold)
    fold.put(BlocksAdded(tuple(segment(n, at=fold.now) for n in range(10, 15))))
    chunks = reads.all_chunks(fold.state.blocks, "")
    newest = reads.newest(chunks, level=0, limit=2)
    assert [meta.id for meta in newest] == [segment(14).id, segment(13).id]
    assert [meta.level for meta in reads.newest(chunks, level=1, limit=9)] == [1]
    assert len(reads.newest(chunks, level=-1, limit=99)) == 6


def status_of(fold: Fold, now: LeaseTime) -> Status:
    wall = WallTime(DAY_START_NS)
    return reads.status(fold.state, now=now, wall=wall, blocked=(), snapshot_index=0, log_first=1)


def test_the_status_counts_levels_queues_and_plans() -> None:
    fold = Fold()
    compacted(fold)
    fold.put(BlocksAdded(tuple(segment(n, at=fold.now) for n in range(10, 12))))
    status = status_of(fold, LeaseTime(5 * SECOND_NS))
    zero, one = status.levels
    assert (zero.kind, zero.blocks, zero.queued, zero.profiles) == ("segment", 2, 2, 20)
    assert (one.kind, one.blocks, one.queued, one.profiles) == ("block", 1, 1, 30)
    assert zero.oldest_queued_s == 5.0
    assert status.plans == {"completed": 1}
    assert (status.completed, status.retired, status.profiles_added) == (1, 3, 50)


def test_a_plan_whose_lease_has_expired_is_not_said_to_run() -> None:
    fold = Fold()
    fold.put(BlocksAdded(tuple(segment(n) for n in range(3))))
    for entry in assign(fold.state, [Wish(WorkerId("w"), 1)], now=LeaseTime(0)):
        fold.put(entry)
    for now, running in ((SMALL.lease_ns, 1), (SMALL.lease_ns + 1, 0)):
        assert len(status_of(fold, LeaseTime(now)).leased) == running


# ── the fold as such ───────────────────────────────────────────────────────────────────────────


def test_nothing_happens_before_genesis_and_there_is_one() -> None:
    state = MetaState()
    envelope = Envelope(VERSION, LeaseTime(0), WallTime(0), BlocksAdded((segment(1),)))
    assert apply(state, Indexed(1, envelope)) == (Refused(Refusal.NO_GENESIS),)
    fold = Fold()
    assert fold.put(Genesis(fold.state.incarnation)) == (Refused(Refusal.SECOND_GENESIS),)


def test_a_gap_is_never_folded_over() -> None:
    fold = Fold()
    with pytest.raises(Corrupt, match="gap"):
        fold.put_at(fold.state.index + 2, Tick())


def test_lease_time_never_goes_back() -> None:
    fold = Fold()
    fold.now = 100
    fold.put(Tick())
    fold.now = 50
    fold.put(Tick())
    assert fold.state.lease_time == 100


def test_a_hash_that_differs_is_told() -> None:
    fold = Fold()
    compacted(fold)
    index, ours = fold.state.index, digest(fold.state)
    assert fold.put(StateHashed(index, ours)) == (Compared(index, "one", ours, ours),)
    assert fold.put(StateHashed(index + 1, b"")) == (Compared(index + 1, "one", b"", ours),)
    assert fold.put(StateHashed(index, ours, "two")) == (Voted(index, "two", ours),)
    assert digest(fold.state) == ours
    for outdated in (StateHashed(index, ours), StateHashed(fold.state.index + 2, ours, "two")):
        assert fold.put(outdated) == (Refused(Refusal.OUTDATED),)


def test_every_part_of_the_state_is_in_its_hash() -> None:
    one, two = Fold(), Fold()
    compacted(one)
    compacted(two)
    assert digest(one.state) == digest(two.state)
    changes: list[Entry] = [
        BlocksAdded((segment(50),)),
        PinsTaken(("r",), LeaseTime(9)),
        BlocksForgotten((segment(0).id,)),
        RegistrationFloor(LeaseTime(0)),
    ]
    for entry in changes:
        before = digest(one.state)
        one.put(entry)
        assert digest(one.state) != before, entry


def test_a_newer_version_stops_this_program_and_an_inactive_one_changes_nothing() -> None:
    with pytest.raises(Rejected, match="newer"):
        decode(encode(VERSION + 1, LeaseTime(0), WallTime(0), b"\x91\x0f"), index=7)
    activating = encode(1, LeaseTime(0), WallTime(0), encode_entry(VersionActivated(99)))
    with pytest.raises(Rejected, match="activates version 99"):
        decode(activating, index=7)
    for version, entry in ((2, Tick()), (1, VersionActivated(2))):
        body = encode(version, LeaseTime(0), WallTime(0), encode_entry(entry))
        assert decode(body, index=7, knows=2).entry == entry
        with pytest.raises(Rejected, match=r"version 2.*knows up to 1"):
            decode(body, index=7, knows=1)
    fold = Fold()
    envelope = Envelope(VERSION + 1, LeaseTime(0), WallTime(0), Tick())
    item = Indexed(fold.state.index + 1, envelope)
    assert apply(fold.state, item) == (Refused(Refusal.VERSION),)


@pytest.mark.parametrize("body", [b"", b"\x00", b"\x95\xa4maar\x01\x00\x00\x91\x63", b"\xff" * 40])
def test_bytes_that_are_no_entry_are_corrupt_and_nothing_else(body: bytes) -> None:
    with pytest.raises(Corrupt, match="entry 7"):
        decode(body, index=7)


def test_a_stored_entry_cannot_be_folded_unread() -> None:
    with pytest.raises(Corrupt, match="not read"):
        Fold().put(Stored("k", 1, b""))


# ── bounds ─────────────────────────────────────────────────────────────────────────────────────


def collections_of(kind: type, prefix: str = "") -> Iterator[str]:
    """The dotted names of every collection in a dataclass, however deep."""
    for name, hint in get_type_hints(kind).items():
        if dataclasses.is_dataclass(hint):
            yield from collections_of(hint, f"{prefix}{name}.")  # type: ignore[arg-type]
        elif _holds_many(get_origin(hint) or hint):
            yield f"{prefix}{name}"


def _holds_many(kind: object) -> bool:
    scalars = (str, bytes, tuple)  # tuples: records of a few fields
    return isinstance(kind, type) and issubclass(kind, Sized) and not issubclass(kind, scalars)


def test_every_collection_in_the_state_is_bounded_and_counted() -> None:
    assert set(collections_of(MetaState)) == set(BOUNDS)
    assert set(sizes(MetaState())) == set(BOUNDS)


def test_every_bound_names_a_limit_and_an_entry_that_trims() -> None:
    kinds = {kind.__name__ for kind in Entry.__args__}
    for name, bound in BOUNDS.items():
        assert hasattr(Policy(), bound.limit) or bound.limit in BOUNDS, name
        assert bound.trimmed_by, name
        assert kinds.issuperset(bound.trimmed_by), name


# ── small parts ────────────────────────────────────────────────────────────────────────────────


def test_lease_time_follows_the_log_and_adds_what_was_measured() -> None:
    clock = LeaseClock(stall_ns=5 * SECOND_NS, monotonic_ns=999)
    clock.follow(LeaseTime(1000))
    assert clock.now(999) == 1000
    assert clock.now(1999) == 2000
    clock.follow(LeaseTime(1500))  # an entry that was on its way
    assert clock.now(1999) == 2000, "time never goes back"


def test_a_pause_of_an_hour_counts_as_a_short_one_and_time_never_goes_back() -> None:
    clock = LeaseClock(stall_ns=5 * SECOND_NS, monotonic_ns=0)
    assert clock.now(3600 * SECOND_NS) == 5 * SECOND_NS
    assert clock.now(0) == 5 * SECOND_NS
    assert clock.now(3601 * SECOND_NS) == 6 * SECOND_NS


@pytest.mark.parametrize(
    "policy",
    [
        *(Policy(levels=(Level(0, 1, 1),)), Policy(lease_ns=0), Policy(blocks_max=0)),
        *(Policy(leftovers_max=0), Policy(leftovers_ns=-1)),
        Policy(retention_ns=-1),  # every profile would be older than that
    ],
)
def test_a_policy_with_which_nothing_could_run_is_refused(policy: Policy) -> None:
    with pytest.raises(InvalidInput):
        check_policy(policy)
