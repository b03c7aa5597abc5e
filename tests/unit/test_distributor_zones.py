"""Pushes stay in their zone, and leave it only where that is allowed and home is down."""

from __future__ import annotations

import pytest

from maar.distributor.breaker import OPEN_NS
from maar.distributor.settings import RouterSettings
from maar.model.errors import (
    Overloaded,
    Unavailable,
    Unreachable,
)
from maar.model.ids import Zone
from maar.model.ring import WriterState
from support.http.pushed import SetClock
from support.segment.pushes import SERVICES, push_all, run_story
from support.segment.writers_as_told import Fleet

EAST = Zone("east")
WEST = Zone("west")
CROSSING = RouterSettings(cross_zone="when-home-is-down", deadline_ms=400)


def two_zones(settings: RouterSettings, clock: SetClock | None = None) -> Fleet:
    fleet = Fleet("a", "b", settings=settings, clock=clock or SetClock())
    fleet.ring("w", zone=WEST)
    fleet.ring("e", zone=EAST)
    return fleet


@pytest.mark.parametrize("settings", [RouterSettings(), CROSSING])
def test_while_home_takes_pushes_nothing_leaves_it(settings: RouterSettings) -> None:
    fleet = two_zones(settings)
    fleet.writer("a").failure = Unreachable("gone")
    push_all(fleet, *SERVICES)
    assert set(fleet.stored_services()) == {"b"}
    assert set(fleet.connected) <= {"a", "b"}


def test_by_default_a_zone_that_is_down_means_503() -> None:
    fleet = two_zones(RouterSettings())
    fleet.ring("a", "b", dead=["a", "b"])
    assert "none of the 2 segment writers of zone home" in fleet.router.ready()
    with pytest.raises(Unavailable, match="none of the 2") as caught:
        push_all(fleet)
    assert caught.value.retry_after_s
    assert fleet.connected == []


def test_where_it_is_allowed_the_next_zone_by_name_takes_over_and_it_is_counted() -> None:
    fleet = two_zones(CROSSING)
    fleet.ring("a", "b", dead=["a", "b"])
    assert fleet.router.ready() == ""
    push_all(fleet, *SERVICES)
    assert set(fleet.stored_services()) == {"e"}
    assert {shard for shard, _ in fleet.writers["e"].stored} == {1, 2, 3, 4}
    assert fleet.metric_value("crossed_profiles_total", zone="east") == len(SERVICES)
    assert fleet.metric_value("crossed_bytes_total", zone="east") == len(SERVICES)


def test_a_home_that_falls_silent_during_a_push_is_left_in_the_same_push() -> None:
    clock = SetClock()
    fleet = two_zones(CROSSING, clock)
    for node in ("a", "b"):
        fleet.writer(node).failure = Unreachable("gone")

    async def story(fleet: Fleet) -> None:
        for _ in range(2):
            with pytest.raises(Unavailable):
                await fleet.push()
        await fleet.push(*SERVICES)
        clock.now_ns += OPEN_NS  # probes of home fail, and their profiles cross all the same
        await fleet.push(*SERVICES)

    run_story(fleet, story)
    assert fleet.metric_value("crossed_profiles_total", zone="east") == 2 * len(SERVICES)


def test_a_home_that_is_full_is_not_down() -> None:
    fleet = two_zones(CROSSING)
    for node in ("a", "b"):
        fleet.writer(node).failure = Overloaded("full")
    with pytest.raises(Overloaded):
        push_all(fleet)
    assert set(fleet.connected) <= {"a", "b"}


def test_home_takes_over_again_when_it_is_back() -> None:
    fleet = two_zones(CROSSING)
    fleet.ring("a", "b", dead=["a", "b"])

    async def story(fleet: Fleet) -> None:
        await fleet.push()
        fleet.ring("a", "b")
        await fleet.push()

    run_story(fleet, story)
    assert fleet.metric_value("crossed_profiles_total", zone="east") == 1


def test_a_home_that_is_about_to_be_known_is_not_called_down() -> None:
    fleet = Fleet(settings=CROSSING)
    fleet.ring("e", zone=EAST)
    fleet.ring("a", complete=False)
    with pytest.raises(Unavailable, match="not known yet"):
        push_all(fleet)


def test_equal_names_in_two_zones_are_two_writers() -> None:
    fleet = Fleet("a", settings=CROSSING, local="a")
    fleet.ring("a", zone=EAST)
    fleet.ring("a", states={"a": WriterState.LEAVING})
    push_all(fleet)
    assert fleet.connected == ["a"]
