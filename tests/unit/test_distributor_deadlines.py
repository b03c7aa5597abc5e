"""A push has one deadline: slow and hung writers leave time for the next."""

from __future__ import annotations

import asyncio

import pytest

from maar.distributor.service import try_ns
from maar.distributor.settings import RouterSettings
from maar.model.errors import (
    InvalidInput,
    Unavailable,
)
from maar.model.time import SECOND_NS
from support.http.pushed import SetClock
from support.segment.pushes import push_all, run_story
from support.segment.writers_as_told import Fleet


def test_a_hung_writer_leaves_time_for_the_next() -> None:
    fleet = Fleet("a", "b", "c", settings=RouterSettings(deadline_ms=400))
    _, (first, second, _) = fleet.owner_of("shop")
    fleet.writer(first).hangs = True
    push_all(fleet)
    assert fleet.stored_services() == {second: ["shop"]}
    assert fleet.writers[first].cancelled == 1
    assert fleet.metric_value("tries_total", outcome="given_up") == 1
    assert fleet.metric_value("failovers_total") == 1


def test_a_writer_that_is_only_slow_may_still_answer_while_others_are_asked() -> None:
    """As when the metastore is away for a while: all wait, and the first to go on is heard."""
    fleet = Fleet("a", "b", "c", settings=RouterSettings(deadline_ms=800))
    _, (first, second, third) = fleet.owner_of("shop")

    async def story(fleet: Fleet) -> None:
        for node in "abc":
            fleet.writer(node).gate = asyncio.Event()
        push = asyncio.create_task(fleet.push())
        while not fleet.writer(third).tries:
            await asyncio.sleep(0.005)
        fleet.writers[first].gate.set()  # type: ignore[union-attr]
        await push

    run_story(fleet, story)
    assert fleet.stored_services() == {first: ["shop"]}
    assert [fleet.writers[node].cancelled for node in (first, second, third)] == [0, 1, 1]


def test_a_writer_that_was_late_three_times_is_left_alone() -> None:
    fleet = Fleet("a", "b", settings=RouterSettings(deadline_ms=100))
    _, (first, second) = fleet.owner_of("shop")
    fleet.writer(first).hangs = True
    push_all(fleet, times=6)
    assert fleet.writers[first].tries == 3
    assert len(fleet.writers[second].stored) == 6


def test_a_late_failure_does_not_hurry_the_one_that_was_asked_meanwhile() -> None:
    fleet = Fleet("a", "b", "c", settings=RouterSettings(deadline_ms=800))
    _, (first, second, third) = fleet.owner_of("shop")

    async def story(fleet: Fleet) -> None:
        for node in "abc":
            fleet.writer(node).gate = asyncio.Event()
        fleet.writer(first).failure = Unavailable("its store is away")
        push = asyncio.create_task(fleet.push())
        while not fleet.writer(second).tries:
            await asyncio.sleep(0.005)
        fleet.writers[first].gate.set()  # type: ignore[union-attr]
        for _ in range(10):
            await asyncio.sleep(0)
        fleet.writers[second].gate.set()  # type: ignore[union-attr]
        await push

    run_story(fleet, story)
    assert fleet.stored_services() == {second: ["shop"]}
    assert fleet.writers[third].tries == 0


def test_a_late_answer_that_is_a_refusal_ends_the_push() -> None:
    fleet = Fleet("a", "b", settings=RouterSettings(deadline_ms=800))
    _, (first, second) = fleet.owner_of("shop")

    async def story(fleet: Fleet) -> None:
        for node in "ab":
            fleet.writer(node).gate = asyncio.Event()
        fleet.writer(first).failure = InvalidInput("bad")
        push = asyncio.create_task(fleet.push())
        while not fleet.writer(second).tries:
            await asyncio.sleep(0.005)
        fleet.writers[first].gate.set()  # type: ignore[union-attr]
        with pytest.raises(InvalidInput):
            await push

    run_story(fleet, story)
    assert fleet.writers[second].cancelled == 1


def test_when_all_writers_are_slow_new_pushes_wait_with_them() -> None:
    """Breakers choose the better writer; when there is none, the slow ones are asked."""
    clock = SetClock()
    fleet = Fleet("a", "b", settings=RouterSettings(deadline_ms=120), clock=clock)

    async def story(fleet: Fleet) -> None:
        for node in "ab":
            fleet.writer(node).hangs = True
        for _ in range(3):
            with pytest.raises(Unavailable):
                await fleet.push()
        assert fleet.metric_value("breakers", state="open") == 2
        assert fleet.router.ready() == ""
        for node in "ab":
            fleet.writer(node).hangs = False
        await fleet.push()

    run_story(fleet, story)
    assert sum(map(len, fleet.stored_services().values())) == 1


def test_a_client_that_hangs_up_ends_the_tries_of_its_lone_batch() -> None:
    fleet = Fleet("a", "b", settings=RouterSettings(deadline_ms=400))
    _, (first, second) = fleet.owner_of("shop")

    async def story(fleet: Fleet) -> None:
        for node in "ab":
            fleet.writer(node).hangs = True
        push = asyncio.create_task(fleet.push())
        while not fleet.writer(second).tries:
            await asyncio.sleep(0.005)
        push.cancel()
        await asyncio.gather(push, return_exceptions=True)

    run_story(fleet, story)
    assert [fleet.writers[node].cancelled for node in (first, second)] == [1, 1]


def test_the_deadline_of_the_whole_push_holds_when_all_hang() -> None:
    fleet = Fleet("a", "b", "c", settings=RouterSettings(deadline_ms=200))
    for node in ("a", "b", "c"):
        fleet.writer(node).hangs = True

    async def story(fleet: Fleet) -> None:
        began = asyncio.get_running_loop().time()
        with pytest.raises(Unavailable, match="did not answer within"):
            await fleet.push()
        assert asyncio.get_running_loop().time() - began >= 0.19

    run_story(fleet, story)
    assert sum(one.cancelled for one in fleet.writers.values()) == 3


def test_half_of_what_is_left_for_each_and_all_of_it_for_the_last() -> None:
    assert [try_ns(12 * SECOND_NS, others=True), try_ns(12 * SECOND_NS, others=False)] == [
        6 * SECOND_NS,
        12 * SECOND_NS,
    ]


def test_a_lone_writer_gets_all_the_time() -> None:
    fleet = Fleet("a", settings=RouterSettings(deadline_ms=60_000))

    async def story(fleet: Fleet) -> None:
        fleet.writer("a").gate = asyncio.Event()
        push = asyncio.create_task(fleet.push())
        while not fleet.writer("a").tries:
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        fleet.writers["a"].gate.set()  # type: ignore[union-attr]
        await push

    run_story(fleet, story)
