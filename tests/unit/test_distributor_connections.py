"""Connections are made once; clients that hang up take no shard along."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from maar.distributor import breaker
from maar.distributor.breaker import OPEN_NS
from maar.distributor.service import ShardBatch
from maar.model.errors import (
    InvalidInput,
    Unavailable,
    Unreachable,
)
from maar.model.ids import HOME, NodeId, Shard
from maar.model.time import SECOND_NS
from maar.placement.locate import Place, Spot
from support.http.pushed import SetClock
from support.segment.pushes import SERVICES, push_all, run_story
from support.segment.writers_as_told import Fleet, profile


def test_connections_are_made_once_and_closed_at_the_end() -> None:
    fleet = push_all(Fleet("a", "b", "c"), *SERVICES, times=5)
    assert sorted(fleet.connected) == ["a", "b", "c"]
    assert [one.closed for one in fleet.writers.values()] == [1, 1, 1]


def test_a_writer_that_left_is_hung_up_on_when_it_owes_no_answer() -> None:
    fleet = Fleet("a", "b", clock=SetClock())
    _, (first, other) = fleet.owner_of("shop")

    async def story(fleet: Fleet) -> None:
        leaver = fleet.writer(first)
        leaver.gate = asyncio.Event()
        push = asyncio.create_task(fleet.push())
        while not leaver.tries:
            await asyncio.sleep(0)
        fleet.ring(other)
        await fleet.push()
        await asyncio.sleep(0)
        assert leaver.closed == 0
        leaver.gate.set()
        await push
        for _ in range(3):
            await asyncio.sleep(0)
        assert leaver.closed == 1
        assert fleet.writers[other].closed == 0

    run_story(fleet, story)
    assert fleet.writers[first].stored


def test_a_hundred_restarts_leave_no_connections_behind() -> None:
    fleet = Fleet("a", "b", clock=SetClock())

    async def story(fleet: Fleet) -> None:
        for number in range(100):
            fleet.ring("a", "b", sessions={"a": f"s{number}"})
            await fleet.push(*SERVICES[:8])
        await asyncio.sleep(0)
        assert len(fleet.router.links) == 2
        assert fleet.writers["a"].closed == 99

    run_story(fleet, story)


def test_a_client_that_hangs_up_takes_no_shard_along() -> None:
    fleet = Fleet("a", "b", "c")

    async def story(fleet: Fleet) -> None:
        gate = asyncio.Event()
        for node in ("a", "b", "c"):
            fleet.writer(node).gate = gate
        push = asyncio.create_task(fleet.push(*SERVICES))
        while not all(fleet.writer(node).tries for node in ("a", "b", "c")):
            await asyncio.sleep(0)
        push.cancel()
        await asyncio.gather(push, return_exceptions=True)
        gate.set()

    run_story(fleet, story)
    assert sum(map(len, fleet.stored_services().values())) == len(SERVICES)
    assert not any(one.cancelled for one in fleet.writers.values())


def test_a_failure_after_the_client_hung_up_disturbs_nobody() -> None:
    fleet = Fleet("a", "b")
    problems: list[dict[str, Any]] = []

    async def story(fleet: Fleet) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: problems.append(what))
        gate = asyncio.Event()
        for node in ("a", "b"):
            fleet.writer(node).gate = gate
            fleet.writer(node).failure = InvalidInput("bad")
        push = asyncio.create_task(fleet.push(*SERVICES))
        while not fleet.writer("a").tries:
            await asyncio.sleep(0)
        push.cancel()
        await asyncio.gather(push, return_exceptions=True)
        gate.set()

    run_story(fleet, story)
    assert problems == []


def test_a_try_that_is_called_off_before_it_has_begun_leaves_nothing() -> None:
    clock = SetClock()
    fleet = Fleet("a", clock=clock)
    fleet.writer("a").failure = Unreachable("gone")

    async def story(fleet: Fleet) -> None:
        for _ in range(3):
            with pytest.raises(Unavailable):
                await fleet.push()
        clock.now_ns += OPEN_NS
        link = fleet.router.links.existing(HOME, NodeId("a"))
        assert link is not None
        batch = ShardBatch(Place(Shard(1), Spot(0, 4, 0, 1), 0), (profile(),))
        probe = fleet.router.send_beside(link, batch, SECOND_NS)
        assert not breaker.allows(link.breaker, now_ns=clock.now_ns)
        probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)
        await asyncio.sleep(0)
        assert (link.under_way, fleet.writers["a"].tries) == (0, 3)
        assert breaker.allows(link.breaker, now_ns=clock.now_ns)

    run_story(fleet, story)


def test_what_nobody_waits_for_does_not_keep_the_process() -> None:
    fleet = Fleet("a", "b")

    async def story(fleet: Fleet) -> None:
        for node in ("a", "b"):
            fleet.writer(node).hangs = True
        push = asyncio.create_task(fleet.push(*SERVICES))
        while not fleet.writer("a").tries:
            await asyncio.sleep(0)
        push.cancel()
        await asyncio.gather(push, return_exceptions=True)

    run_story(fleet, story)
