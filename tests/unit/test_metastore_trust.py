"""Retention believes a clock that has witnesses, and takes no more than time explains (S2)."""

from __future__ import annotations

import msgspec
import pytest

from maar.metastore.fold.deleting import trust
from maar.metastore.fold.deleting.trust import ClockTrust
from maar.metastore.leader.deleting.cleaner import STORE_CLOCK_NS
from maar.metastore.records.effects import Expired, HoldChanged, Refused
from maar.metastore.records.entries import (
    AdoptionEnded,
    BlocksAdopted,
    BlocksExpired,
    BlocksMissed,
    PolicySet,
    Reincarnated,
    RetentionHeld,
    RetentionSet,
    TermStarted,
)
from maar.metastore.state import snapshot_parts, snapshot_records
from maar.metastore.state.digest import digest
from maar.metastore.state.state import Anchor, Spent
from maar.model.block import BlockMeta
from maar.model.ids import NO_TENANT, BlockId, Incarnation, TenantId
from maar.model.policy import HOUR_NS, MINUTE_NS
from maar.model.refusal import Refusal
from maar.model.time import DAY_NS, LeaseTime, WallTime
from support.clock.virtual_time import run_virtually
from support.lake.aging import YEAR_NS, add_old, lake, pause_reason, release, run
from support.lake.fold_and_store import Lake, with_server_time, with_time
from support.metastore.fold import DAY_START_NS, TENANT, Fold, output, segment
from support.stores.memory_store import MemoryStore

# ── the year ahead ─────────────────────────────────────────────────────────────────────────────


def test_a_year_ahead_and_a_push_without_a_time_take_nothing_now_and_nothing_later() -> None:
    """One host, one clock: the leader's, the server's that dates the push, and the store's."""
    world = lake()
    metas = [add_old(world, number, number) for number in range(1, 60)]
    live = {meta.id for meta in metas}
    world.pass_time(HOUR_NS)
    world.clock.wall += YEAR_NS
    world.fold.put(TermStarted(2, "the server was started again"))
    undated = with_server_time(segment(99, at=world.fold.now), world.clock.wall)
    world.register(undated)
    for _ in range(60):
        world.pass_time(MINUTE_NS)
        assert run(world) == 0
        run_virtually(world.cleaner.remove())
    assert world.fold.live() == live | {undated.id}
    assert "clock not trusted: it is 365.0 days ahead" in pause_reason(world)
    # the alarm does not clear itself: not by time, not by data, not by a clock that is right again
    world.pass_time(40 * DAY_NS)
    world.clock.wall -= YEAR_NS
    world.register(with_time(segment(100, at=world.fold.now), world.clock.wall))
    assert run(world) == 0
    assert world.state.hold.why
    assert "`maar retention release`" in pause_reason(world)
    release(world)
    assert pause_reason(world) == ""
    assert run(world) == 10, "40 days have passed: what was 50 days old is too old now"
    assert undated.id in world.fold.live()


def test_what_a_server_dated_itself_does_not_move_the_datas_clock() -> None:
    world = lake()
    before = world.state.anchor
    world.register(with_server_time(segment(1), world.clock.wall))
    assert world.state.anchor == before


def test_of_mixed_profiles_the_newest_time_that_a_client_gave_counts() -> None:
    world = lake()
    wall = world.clock.wall
    mixed = msgspec.structs.replace(with_time(segment(1), wall), dated_ns=wall - HOUR_NS)
    world.register(mixed)
    assert world.state.anchor == Anchor(wall - HOUR_NS, LeaseTime(0))


# ── witnesses ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("gap", "data_ns", "clocks", "standing"),
    [
        (0, None, trust.ALONE, ClockTrust.TRUSTED),
        (10 * MINUTE_NS, None, trust.ALONE, ClockTrust.TRUSTED),
        (-10 * MINUTE_NS, None, trust.ALONE, ClockTrust.TRUSTED),
        (10 * MINUTE_NS + 1, None, trust.ALONE, ClockTrust.PAUSED),
        (-10 * MINUTE_NS - 1, None, trust.ALONE, ClockTrust.VOUCHED),  # going back harms nobody
        (7 * DAY_NS, None, trust.ALONE, ClockTrust.PAUSED),
        (7 * DAY_NS, 0, trust.ALONE, ClockTrust.VOUCHED),
        (7 * DAY_NS, HOUR_NS, trust.ALONE, ClockTrust.VOUCHED),
        (7 * DAY_NS, HOUR_NS + 1, trust.ALONE, ClockTrust.PAUSED),
        (7 * DAY_NS + 1, 0, trust.ALONE, ClockTrust.JUMPED),  # the data may be of this very host
        (YEAR_NS, 0, trust.ALONE, ClockTrust.JUMPED),
        (YEAR_NS, None, trust.Clocks(1, (), 0), ClockTrust.VOUCHED),
        (YEAR_NS, None, trust.Clocks(1, (), -10 * MINUTE_NS), ClockTrust.VOUCHED),
        (YEAR_NS, 0, trust.Clocks(1, (), -YEAR_NS), ClockTrust.JUMPED),
        (0, 0, trust.Clocks(1, (), 11 * MINUTE_NS), ClockTrust.JUMPED),
        (YEAR_NS, None, trust.Clocks(3, (0, 0)), ClockTrust.VOUCHED),
        (YEAR_NS, None, trust.Clocks(3, (0,)), ClockTrust.VOUCHED),  # two of three
        (YEAR_NS, None, trust.Clocks(3, (-YEAR_NS, -YEAR_NS)), ClockTrust.PAUSED),
        (YEAR_NS, None, trust.Clocks(2, (0,)), ClockTrust.JUMPED),  # two may be wrong together
        (0, None, trust.Clocks(3, ()), ClockTrust.PAUSED),
    ],
)
def test_a_clock_that_went_elsewhere_needs_a_witness(
    gap: int, data_ns: int | None, clocks: trust.Clocks, standing: ClockTrust
) -> None:
    fold = Fold()
    fold.now = HOUR_NS
    wall = WallTime(DAY_START_NS + fold.now + gap)
    if data_ns is not None:
        fold.state.anchor = Anchor(wall - data_ns, LeaseTime(fold.now))
    found = trust.judge(fold.state, now=LeaseTime(fold.now), wall=wall, clocks=clocks)
    assert found.standing is standing
    assert found.takes == (standing is ClockTrust.TRUSTED)
    assert bool(found.why) == (standing is not ClockTrust.TRUSTED)


def test_a_store_whose_clock_disagrees_holds_retention_until_a_person_has_looked() -> None:
    world = lake()
    old, _ = add_old(world, 1, 91), add_old(world, 2, 0)
    assert isinstance(world.store, MemoryStore)
    world.store.clock = world.clock.wall - DAY_NS
    assert run(world) == 0
    assert "the object store's clock is 24.0 hours behind" in world.state.hold.why
    world.store.clock = world.clock.wall
    assert run(world) == 0
    release(world)
    assert run(world) == 1
    assert old.id in world.state.retired
    world.store.clock -= DAY_NS
    assert run(world) == 0
    assert not world.state.hold.why, "while it agrees, it is asked once an hour"
    world.pass_time(STORE_CLOCK_NS)
    run(world)
    assert world.state.hold.why


def test_a_store_that_was_asked_before_the_clock_jumped_does_not_vouch_for_it() -> None:
    """Its answer is an hour old at most, and says what time it was then, not where our clock is."""
    world = lake()
    assert isinstance(world.store, MemoryStore)
    metas = [add_old(world, number, number) for number in range(1, 60)]
    world.store.clock = world.clock.wall
    assert run(world) == 0
    world.pass_time(20 * MINUTE_NS)
    world.store.clock += 20 * MINUTE_NS
    world.clock.wall += YEAR_NS
    world.register(with_time(segment(99, at=world.fold.now), world.clock.wall))  # of the same host
    assert run(world) == 0
    assert "the object store's clock is 365.0 days behind" in world.state.hold.why
    assert {meta.id for meta in metas} <= world.fold.live()


def test_a_host_that_slept_asks_the_store_again_before_it_mistrusts_its_clock() -> None:
    world = lake()
    assert isinstance(world.store, MemoryStore)
    add_old(world, 1, 0)
    world.store.clock = world.clock.wall
    run(world)
    world.clock.wall += DAY_NS  # while no monotonic clock went on
    world.store.clock = world.clock.wall
    run(world)
    assert not world.state.hold.why
    assert world.state.clock == Anchor(world.clock.wall, world.now())


def test_a_clock_that_is_vouched_for_is_the_clock_from_then_on() -> None:
    world = lake()
    assert isinstance(world.store, MemoryStore)
    add_old(world, 1, 0)
    world.clock.wall += 100 * DAY_NS  # the log was away for so long
    world.store.clock = world.clock.wall
    index = world.state.index
    run(world)
    assert world.state.clock == Anchor(world.clock.wall, world.now())
    assert world.state.index == index + 1
    world.pass_time(MINUTE_NS)
    run(world)
    assert world.state.index == index + 1, "and is not written again and again"


def test_only_a_person_ends_a_hold() -> None:
    fold = Fold()
    assert fold.put(RetentionHeld(True, "the first cause")) == (HoldChanged("the first cause"),)
    fold.put(RetentionHeld(True, "another"))
    fold.put(RetentionHeld(False, "witnesses came"))
    assert fold.state.hold.why == "the first cause"
    assert fold.put(RetentionHeld(False, confirmed=True)) == (HoldChanged(""),)
    assert not fold.state.hold.why


def test_nothing_expires_and_nothing_that_expired_is_deleted_while_it_is_held() -> None:
    world = lake()
    first, second = add_old(world, 1, 91), add_old(world, 2, 89.9)
    add_old(world, 3, 0)
    assert run(world) == 1
    world.fold.put(RetentionHeld(True, "somebody has a bad feeling"))
    world.pass_time(3 * DAY_NS)
    assert run(world) == 0
    effects = world.fold.put(BlocksExpired(world.clock.wall - 90 * DAY_NS, (second.id,)))
    assert effects == (Refused(Refusal.RETENTION_HELD),)
    run_virtually(world.cleaner.remove())
    assert first.files[0].locations[0].key in world.objects()
    release(world)
    run_virtually(world.cleaner.remove())
    assert first.files[0].locations[0].key not in world.objects()


@pytest.mark.parametrize(("ahead", "standing"), [(0, "TRUSTED"), (YEAR_NS, "JUMPED")])
def test_a_log_that_begins_over_a_full_store_checks_its_clock_against_what_it_adopted(
    ahead: int, standing: str
) -> None:
    world = lake()
    world.fold.put(Reincarnated(Incarnation("0badcaf1")))
    found = with_time(segment(1), world.clock.wall)
    world.clock.wall += ahead
    world.fold.put(RetentionHeld(False, "as if this were the first entry"))
    world.fold.put(BlocksAdopted((found,)))
    world.fold.put(AdoptionEnded())
    wall = WallTime(world.clock.wall)
    verdict = trust.judge(world.state, now=world.now(), wall=wall, clocks=trust.ALONE)
    assert verdict.standing is ClockTrust[standing]


def test_a_block_that_is_gone_says_nothing_of_the_clock() -> None:
    """How a replica packs its blocks must not count: the bounds of a pack outlive its blocks."""
    world = lake()
    metas = [with_time(segment(number, at=number), world.clock.wall) for number in (1, 2)]
    late = msgspec.structs.replace(metas[1], max_time_ns=world.clock.wall + 30 * DAY_NS)
    world.register(metas[0], late)
    world.clock.wall += 60 * DAY_NS
    world.fold.put(RetentionHeld(False, "as if this were the first entry"))
    world.fold.put(Reincarnated(Incarnation("0badcaf1")))
    world.fold.put(BlocksMissed((late.id,)))
    world.fold.put(AdoptionEnded())
    assert world.state.clock.data_ns == metas[0].max_time_ns + trust.OUTAGE_MAX_NS


# ── what time explains ─────────────────────────────────────────────────────────────────────────


def shorten(world: Lake, days: int) -> None:
    """As a changed setting does when the server starts again."""
    policy = msgspec.structs.replace(world.state.policy, retention_ns=days * DAY_NS)
    world.fold.put(PolicySet(policy))


def test_a_shorter_default_takes_a_tenth_and_waits_for_a_person_with_the_rest() -> None:
    world = lake()
    for number in range(40):
        add_old(world, number, number)
    shorten(world, 10)
    run(world)
    assert len(world.state.retired) == 4
    assert "more than one in 10 of 40 in a day" in pause_reason(world)
    world.pass_time(2 * DAY_NS)
    assert run(world) == 0, "another day does not bring another tenth"
    release(world)
    run(world)
    assert len(world.state.blocks) == 9, "of 0 to 8 days when it was set, which was 2 days ago"


def test_a_period_that_an_operator_set_needs_nobody_else() -> None:
    world = lake()
    for number in range(40):
        add_old(world, number, number)
    world.fold.put(RetentionSet(TENANT, 10 * DAY_NS))
    run(world)
    assert len(world.state.blocks) == 11, "of 0 to 10 days"
    assert pause_reason(world) == ""


def test_a_default_that_was_shorter_from_the_beginning_needs_nobody() -> None:
    world = lake(retention_ns=10 * DAY_NS)
    for number in range(40):
        add_old(world, number, number)
    run(world)
    assert len(world.state.blocks) == 11, "of 0 to 10 days"


def test_a_tenant_that_stopped_pushing_ages_away_without_a_person() -> None:
    world = lake()
    for number in range(5):
        add_old(world, number, 0)
    world.pass_time(90 * DAY_NS + 1)
    assert run(world) == 5
    assert not len(world.state.blocks)
    assert pause_reason(world) == ""


def test_the_fold_itself_refuses_more_than_a_tenth_in_a_day_of_lease_time() -> None:
    world = lake()
    metas = [add_old(world, number, 1) for number in range(30)]
    ids = tuple(meta.id for meta in metas)

    def take(*blocks: BlockId) -> int:
        effects = world.fold.put(BlocksExpired(1 << 62, blocks))
        (made,) = (effect for effect in effects if isinstance(effect, Expired))
        return made.blocks

    assert take(*ids[:2]) == 2
    assert take(*ids[2:20]) == 1
    assert take(ids[20]) == 0
    assert Refused(Refusal.UNEXPLAINED, what=ids[20]) in world.fold.put(
        BlocksExpired(1 << 62, (ids[20],))
    )
    world.pass_time(24 * HOUR_NS)
    assert take(ids[20]) == 0, "it is counted by the hour"
    world.pass_time(HOUR_NS)
    assert take(*ids[20:]) == 2, "a tenth of the 27 that are left"


def test_no_24_hours_take_more_than_a_tenth_however_they_are_cut() -> None:
    world = lake()
    ids = [add_old(world, number, 1).id for number in range(40)]
    took: list[tuple[int, int]] = []
    for hour in range(100):
        left = tuple(block for block in ids if block in world.state.blocks)
        most = 1 if hour < 20 else len(left)
        effects = world.fold.put(BlocksExpired(1 << 62, left[:most]))
        took += [(hour, made.blocks) for made in effects if isinstance(made, Expired)]
        world.pass_time(HOUR_NS)
    assert sum(blocks for _, blocks in took) > 8, "it goes on, a tenth at a time"
    for start in range(100):
        assert sum(blocks for hour, blocks in took if start <= hour < start + 24) <= 4
    assert len(world.state.spent[NO_TENANT].hours) <= 25


def test_what_was_spent_is_bounded() -> None:
    world = lake(tenants_max=1)
    world.state.spent[TenantId("globex")] = Spent(((0, 1),))
    meta = add_old(world, 1, 1)
    effects = world.fold.put(BlocksExpired(1 << 62, (meta.id,)))
    assert Refused(Refusal.UNEXPLAINED, what=meta.id) in effects


def test_what_was_spent_is_bounded_within_an_entry_too() -> None:
    world = lake(tenants_max=1)
    old = []
    for number, tenant in enumerate((TENANT, TenantId("globex"))):
        (meta,) = world.add(number, tenant=tenant)
        old.append(merged(world, meta, tenant).id)
    effects = world.fold.put(BlocksExpired(1 << 62, tuple(old)))
    assert set(world.state.spent) == {TENANT}
    assert Refused(Refusal.UNEXPLAINED, what=old[1]) in effects


def merged(world: Lake, meta: BlockMeta, tenant: TenantId) -> BlockMeta:
    plan = world.schedule([meta])
    token = world.lease(plan)
    made = output(plan, token, (meta,), profiles=meta.profiles, tenant=tenant)
    world.complete(plan, token, made)
    assert made.id in world.state.blocks
    return made


def test_clock_hold_and_what_was_spent_are_in_snapshots_and_in_the_hash() -> None:
    world = lake()
    for number in range(30):
        add_old(world, number, number)
    shorten(world, 10)
    run(world)
    state = world.state
    assert state.spent
    assert state.hold.why
    parts = [msgspec.msgpack.encode(part) for part in snapshot_parts.parts_of(state)]
    decoder = msgspec.msgpack.Decoder(snapshot_records.Part)
    again = snapshot_parts.state_of(map(decoder.decode, parts))
    assert (again.clock, again.confirmed_ns, again.hold) == (
        state.clock,
        state.confirmed_ns,
        state.hold,
    )
    assert again.spent == state.spent
    assert list(again.retired.expired) == list(state.retired.expired)
    assert digest(again) == digest(state)
    before = digest(again)
    again.confirmed_ns += 1
    assert digest(again) != before
