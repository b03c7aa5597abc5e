"""What retention took comes back: exactly that, and only while it can."""

from __future__ import annotations

from maar.metastore.records.effects import Refused, Returned
from maar.metastore.records.entries import RetentionHeld, RetentionUndone
from maar.model.ids import TenantId
from maar.model.policy import MINUTE_NS
from maar.model.refusal import Refusal
from maar.model.time import DAY_NS
from support.clock.virtual_time import run_virtually
from support.lake.aging import POLICY, add_old, lake, pause_reason, release, run, undone
from support.lake.fold_and_store import with_time
from support.metastore.fold import TENANT, segment


def test_undo_brings_back_exactly_what_expired_and_holds_retention() -> None:
    world = lake()
    metas = [add_old(world, number, 91 + number) for number in range(3)]
    kept = add_old(world, 9, 0)
    assert run(world) == 3
    expired = world.state.tally.profiles_expired
    assert undone(world) == (3, expired)
    assert world.fold.live() == {kept.id, *(meta.id for meta in metas)}
    for meta in metas:
        assert world.state.blocks.get(meta.id) == meta
        assert meta.id in world.state.queue.places
    assert not world.state.retired
    assert world.state.tally.profiles_expired == 0
    world.pass_time(30 * DAY_NS)
    assert run(world) == 0, "else the next minute would take them again"
    assert "it was a mistake; it waits for `maar retention release`" in pause_reason(world)
    release(world)
    assert run(world) == 3


def test_undo_of_one_tenant_leaves_the_others_where_they_are() -> None:
    world = lake()
    old_ns = world.clock.wall - 100 * DAY_NS
    mine = with_time(segment(1, tenant=TENANT), old_ns)
    theirs = with_time(segment(2, tenant=TenantId("globex")), old_ns)
    world.register(mine, theirs)
    add_old(world, 3, 0)
    run(world)
    assert undone(world, tenant="globex")[0] == 1
    assert theirs.id in world.fold.live()
    assert mine.id in world.state.retired


def test_what_was_replaced_never_comes_back_and_what_expired_not_at_the_last_minute() -> None:
    world = lake()
    merged = world.add(1, 2)
    world.merge(merged)
    old, edge = add_old(world, 3, 91), add_old(world, 4, 92)
    run(world)
    (effect, none) = world.fold.put(RetentionUndone((merged[0].id,)))
    assert effect == Refused(Refusal.NOT_EXPIRED, what=merged[0].id)
    assert none == Returned(0, 0)
    world.pass_time(POLICY.expired_delay_ns - MINUTE_NS)
    assert world.fold.put(RetentionUndone((old.id,))) == (Returned(1, old.profiles),)
    world.pass_time(1)
    assert Refused(Refusal.NOT_EXPIRED, what=edge.id) in world.fold.put(RetentionUndone((edge.id,)))


def test_a_hold_stops_the_time_in_which_blocks_can_come_back() -> None:
    world = lake()
    old = add_old(world, 1, 91)
    add_old(world, 2, 0)
    run(world)
    world.fold.put(RetentionHeld(True, "somebody comes on Monday"))
    world.pass_time(5 * DAY_NS)
    run_virtually(world.cleaner.remove())
    assert undone(world) == (1, old.profiles)


def test_what_expired_does_not_hold_up_the_deletion_of_what_was_replaced() -> None:
    world = lake()
    old = add_old(world, 1, 91)
    add_old(world, 2, 0)
    run(world)
    replaced = world.add(11, 12)
    world.merge(replaced)
    world.pass_time(POLICY.retire_delay_ns + 1)
    run_virtually(world.cleaner.remove())
    assert list(world.state.retired) == [old.id]
    world.pass_time(POLICY.expired_delay_ns)
    run_virtually(world.cleaner.remove())
    assert not world.state.retired
