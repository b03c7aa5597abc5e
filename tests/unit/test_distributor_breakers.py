"""A silent writer is left alone, probed, and taken back; a sick fleet is not hit harder."""

from __future__ import annotations

import asyncio

import pytest

from maar.distributor.breaker import OPEN_NS
from maar.distributor.settings import RouterSettings
from maar.model.errors import (
    Draining,
    InvalidInput,
    MaarError,
    Overloaded,
    Unavailable,
    Unreachable,
)
from support.http.pushed import SetClock
from support.segment.pushes import run_story
from support.segment.writers_as_told import Fleet


def test_a_silent_writer_is_left_alone_then_probed_by_one_push_and_taken_back() -> None:
    clock = SetClock()
    fleet = Fleet("a", "b", clock=clock)
    _, (first, second) = fleet.owner_of("shop")
    fleet.writer(first).failure = Unreachable("gone")

    async def story(fleet: Fleet) -> None:
        for _ in range(10):
            await fleet.push()
        assert fleet.writers[first].tries == 3
        assert fleet.metric_value("breakers", state="open") == 1
        clock.now_ns += OPEN_NS
        assert fleet.metric_value("breakers", state="half-open") == 1
        for _ in range(5):
            await fleet.push()
        assert fleet.writers[first].tries == 4
        fleet.writers[first].failure = None
        clock.now_ns += OPEN_NS
        for _ in range(5):
            await fleet.push()

    run_story(fleet, story)
    assert len(fleet.writers[first].stored) == 5
    assert len(fleet.writers[second].stored) == 15
    assert fleet.metric_value("breakers", state="closed") == 0  # the links are closed by now


def test_while_a_probe_is_on_its_way_others_go_elsewhere() -> None:
    clock = SetClock()
    fleet = Fleet("a", "b", clock=clock)
    _, (first, _) = fleet.owner_of("shop")
    fleet.writer(first).failure = Unreachable("gone")

    async def story(fleet: Fleet) -> None:
        for _ in range(3):
            await fleet.push()
        clock.now_ns += OPEN_NS
        writer = fleet.writers[first]
        writer.failure, writer.gate = None, asyncio.Event()
        probe = asyncio.create_task(fleet.push())
        while writer.tries < 4:
            await asyncio.sleep(0)
        await fleet.push()
        assert writer.tries == 4
        probe.cancel()  # its client hung up: another one may probe
        await asyncio.gather(probe, return_exceptions=True)
        writer.gate = None
        await fleet.push()
        assert len(writer.stored) == 1

    run_story(fleet, story)


def test_pushes_that_come_at_the_same_time_send_one_probe() -> None:
    clock = SetClock()
    fleet = Fleet("a", "b", clock=clock)
    _, (first, second) = fleet.owner_of("shop")
    fleet.writer(first).failure = Unreachable("gone")

    async def story(fleet: Fleet) -> None:
        for _ in range(3):
            await fleet.push()
        clock.now_ns += OPEN_NS
        await asyncio.gather(*(fleet.push() for _ in range(20)))

    run_story(fleet, story)
    assert fleet.writers[first].tries == 4
    assert len(fleet.writers[second].stored) == 23


@pytest.mark.parametrize("failure", [Overloaded("full"), Unavailable("slow"), InvalidInput("bad")])
def test_a_writer_that_answers_is_alive_whatever_it_says(failure: MaarError) -> None:
    fleet = Fleet("a")
    fleet.writer("a").failure = failure

    async def story(fleet: Fleet) -> None:
        for _ in range(10):
            with pytest.raises(type(failure)):
                await fleet.push()

    run_story(fleet, story)
    assert fleet.writers["a"].tries == 10


def test_when_all_breakers_are_open_the_client_hears_at_once() -> None:
    clock = SetClock()
    fleet = Fleet("a", clock=clock)
    fleet.writer("a").failure = Unreachable("gone")

    async def story(fleet: Fleet) -> None:
        for _ in range(3):
            with pytest.raises(Unavailable):
                await fleet.push()
        assert "skipped for a moment" in fleet.router.ready()
        with pytest.raises(Unavailable, match="skipped for a moment") as caught:
            await fleet.push()
        assert caught.value.retry_after_s == 1.0
        assert fleet.writers["a"].tries == 3
        clock.now_ns += OPEN_NS
        assert fleet.router.ready() == ""

    run_story(fleet, story)


def test_a_draining_writer_rests_at_once_and_costs_no_retries() -> None:
    settings = RouterSettings(retry_share=0, retries_per_s=0, retries_saved_max=1)
    fleet = Fleet("a", "b", clock=SetClock(), settings=settings)
    _, (first, second) = fleet.owner_of("shop")

    async def story(fleet: Fleet) -> None:
        fleet.writer(first).failure = Overloaded("full")
        await fleet.push()
        with pytest.raises(Overloaded):
            await fleet.push()  # the only retry is spent
        fleet.writer(first).failure = Draining("bye")
        for _ in range(20):
            await fleet.push()

    run_story(fleet, story)
    assert fleet.writers[first].tries == 3
    assert len(fleet.writers[second].stored) == 21
    assert fleet.metric_value("budget_exhausted_total") == 1


def test_a_writer_that_was_started_again_has_a_clean_slate() -> None:
    fleet = Fleet("a", "b", clock=SetClock())
    _, (first, _) = fleet.owner_of("shop")
    fleet.writer(first).failure = Unreachable("gone")

    async def story(fleet: Fleet) -> None:
        for _ in range(4):
            await fleet.push()
        fleet.writers[first].failure = None
        fleet.ring("a", "b", sessions={first: "s2"})
        await fleet.push()

    run_story(fleet, story)
    assert fleet.stored_services()[first] == ["shop"]


def test_a_sick_fleet_is_not_hit_with_many_times_the_load() -> None:
    settings = RouterSettings(retry_share=0.1, retries_per_s=0, retries_saved_max=10)
    fleet = Fleet(*"abcdef", settings=settings, clock=SetClock())
    for node in "abcdef":
        fleet.writer(node).failure = Overloaded("full")

    async def story(fleet: Fleet) -> None:
        for _ in range(200):
            with pytest.raises(Overloaded):
                await fleet.push()

    run_story(fleet, story)
    tries = sum(one.tries for one in fleet.writers.values())
    assert 200 + 10 + 15 < tries <= 200 + 10 + 20
    assert fleet.metric_value("budget_exhausted_total") > 150
