"""Retention takes what is too old by two clocks, no more than its cap, and leaves nothing torn."""

from __future__ import annotations

import msgspec
import pytest

from maar.metastore.fold.apply import apply
from maar.metastore.fold.deleting import retention
from maar.metastore.leader.deleting import cleaner
from maar.metastore.leader.deleting.cleaner import CleanerBounds
from maar.metastore.records.effects import Completed, Expired, Refused, RetentionChanged
from maar.metastore.records.entries import (
    BlocksAdded,
    BlocksExpired,
    PinsTaken,
    PlansParked,
    RetentionSet,
)
from maar.metastore.state.digest import digest
from maar.metastore.state.index import Chunk, Shelf
from maar.metastore.state.state import MetaState
from maar.model.errors import InvalidInput
from maar.model.ids import NO_TENANT, BlockId, TenantId
from maar.model.plan import AttemptEnd, PlanState
from maar.model.policy import HOUR_NS
from maar.model.refusal import Refusal
from maar.model.time import DAY_NS, LeaseTime, WallTime, utc_day
from support.clock.virtual_time import run_virtually
from support.lake.aging import KEPT_DAYS, POLICY, add_old, lake, live_blocks, run
from support.lake.fold_and_store import Lake, with_tenants, with_time
from support.metastore.fold import DAY_START_NS, TENANT, Fold, segment

GLOBEX, INITECH = TenantId("globex"), TenantId("initech")


# ── which blocks ───────────────────────────────────────────────────────────────────────────────


def test_a_block_goes_when_its_newest_profile_is_older_than_the_period() -> None:
    world = lake()
    old, young, fresh = add_old(world, 1, 90.1), add_old(world, 2, 89.9), add_old(world, 3, 0)
    dry = retention.expiring(
        world.state, now=world.now(), wall=WallTime(world.clock.wall), limit=10
    )
    assert [one.block.id for one in dry] == [old.id]
    assert dry[0].before_ns == world.clock.wall - KEPT_DAYS * DAY_NS
    assert run(world) == 1
    assert live_blocks(world) == {young.id, fresh.id}
    assert world.state.tally.profiles_expired == old.profiles
    assert set(world.state.queue.places) == live_blocks(world)  # nobody will plan to merge it
    assert run(world) == 0


def test_a_block_that_has_one_young_profile_stays_whole() -> None:
    world = lake()
    wide = msgspec.structs.replace(
        segment(1),
        min_time_ns=world.clock.wall - 200 * DAY_NS,
        max_time_ns=world.clock.wall - 10 * DAY_NS,
    )
    world.register(wide)
    add_old(world, 2, 0)
    assert run(world) == 0
    assert wide.id in live_blocks(world)


def test_zero_keeps_for_ever_and_tenants_may_differ_either_way() -> None:
    world = lake()
    world.fold.put(RetentionSet(GLOBEX, 0))
    world.fold.put(RetentionSet(INITECH, 10 * DAY_NS))
    mine = add_old(world, 1, 100)
    forever = add_old(world, 2, 1000, tenant=GLOBEX)
    short = add_old(world, 3, 11, tenant=INITECH)
    shorter = add_old(world, 4, 9, tenant=INITECH)
    fresh = add_old(world, 5, 0)
    run(world)
    assert live_blocks(world) == {forever.id, shorter.id, fresh.id}
    assert {mine.id, short.id} == set(world.state.retired)
    world.fold.put(RetentionSet(GLOBEX, None))
    run(world)
    assert forever.id not in live_blocks(world)


def test_with_a_default_of_zero_only_tenants_with_a_period_expire() -> None:
    world = lake(retention_ns=0)
    world.fold.put(RetentionSet(GLOBEX, 10 * DAY_NS))
    mine, theirs = add_old(world, 1, 5000), add_old(world, 2, 11, tenant=GLOBEX)
    add_old(world, 3, 0)
    run(world)
    assert mine.id in live_blocks(world)
    assert theirs.id not in live_blocks(world)


def test_a_segment_goes_only_when_it_is_too_old_for_every_tenant_in_it() -> None:
    world = lake()
    world.fold.put(RetentionSet(GLOBEX, 200 * DAY_NS))
    world.fold.put(RetentionSet(INITECH, 10 * DAY_NS))
    time_ns = world.clock.wall - 100 * DAY_NS
    both = with_tenants(with_time(segment(1), time_ns), TENANT, INITECH)
    three = with_tenants(with_time(segment(2), time_ns), TENANT, GLOBEX, INITECH)
    world.register(both, three)
    add_old(world, 3, 0)
    run(world)
    assert three.id in live_blocks(world)
    assert both.id not in live_blocks(world)


def test_blocks_of_one_tenant_and_day_go_like_segments() -> None:
    world = lake()
    metas = world.add(1, 2, 3)  # of the first day
    block = world.merge(metas)
    world.pass_time(89 * DAY_NS)
    assert run(world) == 0
    world.pass_time(2 * DAY_NS)
    assert run(world) == 1
    assert live_blocks(world) == set()
    assert world.state.retired[block.id].outputs == ()


# ── how much, and how ──────────────────────────────────────────────────────────────────────────


def test_a_run_is_capped_and_the_next_goes_on() -> None:
    world = lake(CleanerBounds(taken_at_once=3), retention_run_max=7)
    for number in range(20):
        add_old(world, number, 100 + number)
    add_old(world, 99, 0)
    left = []
    for _ in range(4):
        run(world)
        left.append(len(live_blocks(world)) - 1)
    assert left == [13, 6, 0, 0]
    assert world.appends == 3 + 3 + 2


def test_a_walk_that_is_not_finished_goes_on_in_the_next_run() -> None:
    world = lake(CleanerBounds(looked_at_max=10))
    world.fold.put(RetentionSet(GLOBEX, 0))
    time_ns = world.clock.wall - 100 * DAY_NS
    for number in range(25):  # within reach, but kept for somebody
        world.register(with_tenants(with_time(segment(number), time_ns), TENANT, GLOBEX))
    last = add_old(world, 99, 99)
    add_old(world, 100, 0)
    assert [run(world) for _ in range(3)] == [0, 0, 1]
    assert last.id in world.state.retired


def reached(world: Lake) -> list[BlockId]:
    limits = retention.boundaries(world.state, now=world.now(), wall=WallTime(world.clock.wall))
    return [meta.id for meta in retention.within_reach(world.state.blocks, limits)]


def test_days_that_no_boundary_has_reached_are_not_looked_at() -> None:
    class Closed(Shelf):
        @property
        def chunks(self) -> list[Chunk]:  # type: ignore[override]
            raise AssertionError("it was opened")

    world = lake()
    for number in range(200):
        add_old(world, number, days=0.1 + number % 80)
    old = add_old(world, 999, 91)
    add_old(world, 1000, 0)
    for shelves in world.state.blocks.tenants.values():
        for key in shelves:
            if key.day > utc_day(old.min_time_ns):
                shelves[key] = Closed.__new__(Closed)
    assert reached(world) == [old.id]


def test_chunks_that_no_boundary_has_reached_are_not_opened() -> None:
    world = lake()
    world.pass_time(DAY_NS // 2)
    old = {add_old(world, number, days=90.1).id for number in range(100)}
    young = {add_old(world, 1000 + number, days=89.9).id for number in range(1000)}
    add_old(world, 9999, 0)
    assert {key.day for key in world.state.blocks.tenants[NO_TENANT]} == {19_910, 20_000}
    looked_at = set(reached(world))
    assert old <= looked_at
    assert len(looked_at & young) < 200  # only neighbours of old ones


def test_a_period_that_changes_while_a_run_looks_is_the_one_that_counts() -> None:
    world = lake()
    meta = add_old(world, 1, 100)
    add_old(world, 2, 0)
    limits = retention.boundaries(world.state, now=world.now(), wall=WallTime(world.clock.wall))
    found, ended = retention.look(
        retention.within_reach(world.state.blocks, limits), limits, limit=10, looked_at_max=100
    )
    assert (found, ended) == ([meta.id], True)
    world.fold.put(RetentionSet(TENANT, 0))
    limits = retention.boundaries(world.state, now=world.now(), wall=WallTime(world.clock.wall))
    assert retention.expiry_entries(world.state, found, limits, now=world.now()) == []
    unknown = [BlockId("f" * 32)]
    assert retention.expiry_entries(world.state, unknown, limits, now=world.now()) == []


def test_the_log_survives_a_restart_in_the_middle_of_a_run() -> None:
    world = lake(retention_run_max=2)
    for number in range(5):
        add_old(world, number, 100)
    add_old(world, 9, 0)
    run(world)
    after = MetaState()
    for item in world.fold.log:
        apply(after, item)
    assert digest(after) == digest(world.state)
    assert (after.anchor, after.tally) == (world.state.anchor, world.state.tally)
    # another leader's cleaner begins where the log ends
    world.cleaner = cleaner.Cleaner(world, world.store, world.clock, world.append, world.metrics)
    run(world)
    run(world)
    assert len(live_blocks(world)) == 1
    assert len(world.state.retired) == 5


# ── plans, leases, pins ────────────────────────────────────────────────────────────────────────


def test_a_plan_that_loses_an_input_is_cancelled_in_the_same_entry() -> None:
    world = lake()
    old = add_old(world, 1, 100)
    young = [add_old(world, number, 1) for number in (2, 3)]
    later = add_old(world, 4, 0)
    plan = world.schedule([old, *young])
    token = world.lease(plan)
    assert world.state.queue.queued == 1
    before = world.state.index
    run(world)
    assert world.state.index == before + 1
    ended = world.state.finished[plan]
    assert ended.state is PlanState.CANCELLED
    assert "retention" in ended.note
    assert ended.attempts[-1].end is AttemptEnd.FENCED
    assert not ended.attempts[-1].counted
    assert world.state.owners == {}
    (key,) = world.state.queue.lanes
    waiting = [item.block for item in world.state.queue.items(key)]
    assert waiting == [young[0].id, young[1].id, later.id]  # in their old places
    # the zombie
    made = segment(1)
    (effect,) = world.complete(plan, token, made)
    assert isinstance(effect, Refused)
    assert effect.why is Refusal.STALE_TOKEN


def test_a_worker_that_finished_before_the_expiry_wins_and_its_output_stays() -> None:
    world = lake()
    old, young = add_old(world, 1, 100), add_old(world, 2, 1)
    plan = world.schedule([old, young])
    token = world.lease(plan)
    made = world.write(plan, token)
    (effect,) = world.complete(plan, token, made)
    assert isinstance(effect, Completed)
    assert run(world) == 0
    assert live_blocks(world) == {made.id}


def test_excluded_and_parked_plans_are_cancelled_too() -> None:
    world = lake(plans_max=1)
    old, young = add_old(world, 1, 100), add_old(world, 2, 1)
    plan = world.schedule([old, young])
    failed = msgspec.structs.replace(world.state.plans[plan], state=PlanState.EXCLUDED, failures=3)
    world.state.plans[plan] = failed
    (effect,) = world.fold.put(PlansParked((plan,)))
    assert plan in world.state.parked, effect
    add_old(world, 3, 0)
    run(world)
    assert world.state.finished[plan].state is PlanState.CANCELLED
    assert world.state.parked == {}
    assert young.id in world.state.queue


def test_a_pin_holds_what_expired_and_so_does_the_delay() -> None:
    world = lake()
    old = add_old(world, 1, 100)
    add_old(world, 2, 0)
    world.fold.put(PinsTaken(("reader",), LeaseTime(10**18)))
    run(world)
    world.pass_time(POLICY.expired_delay_ns)
    run_virtually(world.cleaner.remove())
    assert old.files[0].locations[0].key in world.objects()
    world.pass_time(1)
    run_virtually(world.cleaner.remove())
    assert old.files[0].locations[0].key in world.objects()  # the reader holds it still
    world.fold.put(PinsTaken(("reader",), LeaseTime(10**18)))  # it has asked anew
    run_virtually(world.cleaner.remove())
    assert old.files[0].locations[0].key not in world.objects()
    assert world.state.retired == {}


# ── the fold, and what operators ask ───────────────────────────────────────────────────────────


def test_the_fold_takes_only_live_blocks_older_than_the_boundary() -> None:
    fold = Fold()
    metas = tuple(with_time(segment(n), DAY_START_NS + n) for n in (1, 2, 3))
    fold.put(BlocksAdded(metas))
    ghost = BlockId("0" * 32)
    named = (metas[0].id, ghost, metas[1].id, metas[0].id)
    effects = fold.put(BlocksExpired(DAY_START_NS + 2, named))
    assert effects == (
        Refused(Refusal.INPUT_GONE, what=ghost),
        Refused(Refusal.TOO_YOUNG, what=metas[1].id),
        Expired(1, metas[0].profiles),
    )
    assert fold.live() == {metas[1].id, metas[2].id}
    before = digest(fold.state)
    assert fold.put(BlocksExpired(DAY_START_NS + 2, (metas[0].id,)))[-1] == Expired(0, 0)
    assert digest(fold.state) == before


def test_an_expired_segment_is_never_registered_again() -> None:
    world = lake()
    old = add_old(world, 1, 100)
    add_old(world, 2, 0)
    run(world)
    for _ in range(2):
        world.fold.put(BlocksAdded((old,)))
        assert old.id not in live_blocks(world)
        world.pass_time(POLICY.expired_delay_ns + 1)
        run_virtually(world.cleaner.remove())
    assert world.state.retired == {}


def test_periods_are_set_changed_and_reset() -> None:
    fold = Fold()
    assert fold.put(RetentionSet(GLOBEX, 5 * DAY_NS)) == (RetentionChanged(GLOBEX),)
    fold.put(RetentionSet(GLOBEX, 0))
    assert fold.state.retention == {GLOBEX: 0}
    fold.put(RetentionSet(GLOBEX, None))
    fold.put(RetentionSet(GLOBEX, None))
    assert fold.state.retention == {}


def test_tenants_with_a_period_are_bounded() -> None:
    fold = Fold(policy=msgspec.structs.replace(POLICY, tenants_max=1))
    fold.put(RetentionSet(GLOBEX, 0))
    assert fold.put(RetentionSet(INITECH, 0)) == (Refused(Refusal.TOO_MANY, what=INITECH),)
    assert fold.put(RetentionSet(GLOBEX, DAY_NS)) == (RetentionChanged(GLOBEX),)
    with pytest.raises(InvalidInput, match="the most there can be"):
        retention.order(fold.state, INITECH, period_ns=0)
    assert retention.order(fold.state, INITECH, period_ns=None)
    assert retention.order(fold.state, GLOBEX, period_ns=0)


@pytest.mark.parametrize("period_ns", [1, -1, HOUR_NS - 1, retention.PERIOD_MAX_NS + 1])
def test_a_period_that_makes_no_sense_is_refused_with_a_sentence(period_ns: int) -> None:
    with pytest.raises(InvalidInput, match="at least 1 hour"):
        retention.order(MetaState(), GLOBEX, period_ns=period_ns)


def test_a_tenant_that_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidInput, match="tenant"):
        retention.order(MetaState(), TenantId(""), period_ns=DAY_NS)
    for period_ns in (0, None, HOUR_NS, retention.PERIOD_MAX_NS):
        (entry,) = retention.order(MetaState(), GLOBEX, period_ns=period_ns)
        assert entry == RetentionSet(GLOBEX, period_ns)
