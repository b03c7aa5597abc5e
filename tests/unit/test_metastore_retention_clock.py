"""By which clock retention decides, and when it takes nothing since the clock has no witness."""

from __future__ import annotations

import msgspec
import pytest

from maar.metastore.fold.deleting import retention, trust
from maar.metastore.leader.deleting import cleaner
from maar.metastore.leader.deleting.cleaner import CleanerBounds
from maar.metastore.records.entries import BlocksAdded
from maar.metastore.state.state import NO_ANCHOR
from maar.model.policy import HOUR_NS, MINUTE_NS
from maar.model.time import DAY_NS, SECOND_NS, LeaseTime, WallTime
from support.lake.aging import YEAR_NS, add_old, lake, live_blocks, release, run, status
from support.lake.fold_and_store import with_time
from support.metastore.fold import DAY_START_NS, Fold, segment


def test_a_leader_whose_clock_is_a_year_ahead_takes_nothing_until_a_person_has_looked() -> None:
    world = lake()
    old = add_old(world, 1, 100)
    young = [add_old(world, 2 + days, days).id for days in range(0, 89, 11)]
    world.clock.wall += YEAR_NS
    found = status(world)
    assert "clock not trusted: it is 365.0 days ahead" in found.paused
    assert run(world) == 0
    assert world.state.hold.why in found.paused
    # profiles that come in meanwhile, rightly dated, or a clock that is right again, change nothing
    world.register(with_time(segment(99, at=world.fold.now), DAY_START_NS))
    world.clock.wall -= YEAR_NS
    assert run(world) == 0
    assert live_blocks(world) >= {old.id, *young}
    release(world)
    assert run(world) == 1
    assert set(world.state.retired) == {old.id}


def test_a_clock_that_cannot_be_trusted_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    world = lake()
    add_old(world, 1, 0)
    for ahead_ns, told in ((0, 0), (2 * DAY_NS, 1), (DAY_NS, 1), (-3 * DAY_NS, 1), (DAY_NS, 2)):
        world.clock.wall += ahead_ns
        run(world)
        errors = [record for record in caplog.records if record.levelname == "ERROR"]
        assert len(errors) == told


def test_a_leader_whose_clock_is_a_year_behind_takes_nothing_and_says_so() -> None:
    world = lake()
    add_old(world, 1, 100)
    add_old(world, 2, 0)
    world.clock.wall -= YEAR_NS
    assert run(world) == 0
    assert "behind" in status(world).trouble


@pytest.mark.parametrize(
    ("replicas", "ahead_minutes", "refused"),
    [
        (1, (), ""),
        (3, (0, 0), ""),
        (3, (9, -9), ""),
        (3, (0,), ""),  # two of three are most
        (3, (), "only 1 of 3"),
        (5, (0,), "only 2 of 5"),
        (3, (0, 600_000), ""),  # one other is wrong
        (3, (-600_000, -600_000), "600,000 minutes ahead of those of most"),
        (3, (11, 600_000), "11 minutes behind those of most"),
        (3, (-11,), "11 minutes ahead of those of most"),  # two, and one of them is wrong
        (2, (600_000,), "behind those of most"),
        (4, (0, 600_000, 600_000), "600,000 minutes behind"),
        (4, (0, 0, 600_000), ""),
    ],
)
def test_retention_is_refused_unless_most_replicas_share_the_leaders_clock(
    replicas: int, ahead_minutes: tuple[int, ...], refused: str
) -> None:
    clocks = trust.Clocks(replicas, tuple(n * MINUTE_NS for n in ahead_minutes))
    found = trust.refusal(clocks)
    assert refused in found
    assert bool(refused) == bool(found)


def test_nothing_expires_by_a_clock_that_the_other_replicas_do_not_share(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not even what is truly old: it goes when somebody has set the clock right."""
    world = lake()
    old, fresh = add_old(world, 1, 100), add_old(world, 2, 0)
    clocks = [trust.Clocks(3, (-YEAR_NS, -YEAR_NS))]
    world.cleaner = cleaner.Cleaner(
        world, world.store, world.clock, world.append, world.metrics, clocks=lambda: clocks[0]
    )
    assert run(world) == 0
    assert live_blocks(world) == {old.id, fresh.id}
    assert "ahead of those of most replicas" in caplog.text
    now, wall = world.now(), WallTime(world.clock.wall)
    told = retention.status(world.state, now=now, wall=wall, clocks=clocks[0]).trouble
    assert told.startswith("retention paused: nothing expires")
    clocks[0] = trust.Clocks(3, (0, 0))
    assert run(world) == 1
    assert live_blocks(world) == {fresh.id}


def test_a_clock_that_goes_wrong_in_the_middle_of_a_run_takes_nothing_more() -> None:
    world = lake()
    for number in range(3):
        add_old(world, number, 100)
    add_old(world, 9, 0)

    def clocks() -> trust.Clocks:
        return trust.Clocks(2, (0 if len(live_blocks(world)) == 4 else YEAR_NS,))

    world.cleaner = cleaner.Cleaner(
        world,
        world.store,
        world.clock,
        world.append,
        world.metrics,
        clocks=clocks,
        bounds=CleanerBounds(taken_at_once=1),
    )
    run(world)
    assert len(live_blocks(world)) == 3


def test_profiles_from_the_future_take_nothing_and_do_not_spoil_the_clock() -> None:
    world = lake()
    young = add_old(world, 1, 80)
    future = add_old(world, 2, -365)
    assert run(world) == 0
    assert live_blocks(world) == {young.id, future.id}
    assert status(world).trouble == ""
    # nor can they agree with a leader whose clock goes wrong later
    world.clock.wall += YEAR_NS
    assert run(world) == 0


def test_an_idle_lake_expires_by_the_time_that_passes() -> None:
    world = lake()
    last = add_old(world, 1, 0)
    world.pass_time(89 * DAY_NS)
    assert run(world) == 0
    world.pass_time(2 * DAY_NS)
    assert run(world) == 1
    assert last.id in world.state.retired
    assert status(world).trouble == ""


def test_after_an_outage_retention_waits_for_data_and_tells_why() -> None:
    world = lake()
    old = add_old(world, 1, 88)
    world.clock.wall += 5 * DAY_NS  # nobody measured lease time meanwhile
    assert run(world) == 0
    assert "the next profiles that carry their own time confirm it" in status(world).paused
    add_old(world, 2, 0)
    assert status(world).trouble == ""
    assert run(world) == 1
    assert old.id in world.state.retired


def test_after_an_outage_of_weeks_retention_waits_for_a_person() -> None:
    world = lake()
    old = add_old(world, 1, 80)
    world.clock.wall += 30 * DAY_NS
    add_old(world, 2, 0)  # it may come from this very host
    assert run(world) == 0
    assert "30.0 days ahead" in status(world).paused
    release(world)
    assert run(world) == 1
    assert set(world.state.retired) == {old.id}


def test_without_a_profile_that_carries_a_time_of_its_own_nothing_expires() -> None:
    world = lake()
    old = with_time(segment(1), world.clock.wall - 1000 * DAY_NS)
    world.register(msgspec.structs.replace(old, dated_ns=0))
    assert world.state.anchor == NO_ANCHOR
    assert run(world) == 0
    assert "nothing expires" in status(world).trouble


def test_an_empty_lake_has_no_trouble_and_an_hour_is_none() -> None:
    world = lake()
    assert status(world).trouble == ""
    add_old(world, 1, 0)
    world.clock.wall += HOUR_NS
    assert status(world).trouble == ""
    world.clock.wall += 1
    assert status(world).trouble != ""


def test_the_anchor_moves_only_forward_and_only_for_blocks_that_come_in() -> None:
    fold = Fold()
    fold.now = 10 * SECOND_NS
    at = DAY_START_NS + 10 * SECOND_NS
    fold.put(BlocksAdded((with_time(segment(1, at=fold.now), at),)))
    assert fold.state.anchor == (at, fold.now)
    fold.now += SECOND_NS
    fold.put(BlocksAdded((with_time(segment(2, at=fold.now), at - DAY_NS),)))
    refused = with_time(
        segment(3, at=10**18), at + SECOND_NS
    )  # from a time that the log has not seen
    fold.put(BlocksAdded((refused,)))
    assert fold.state.anchor == (at, fold.now - SECOND_NS)
    assert fold.state.anchor.reading(LeaseTime(fold.now)) == at + SECOND_NS
