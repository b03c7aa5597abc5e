"""A router and segment writers as real gRPC servers: death, silence, restarts, large messages."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from maar.adapters.rpc import Channel, RpcServer, serve_writer
from maar.adapters.system_clock import SystemClock
from maar.distributor.rings import FollowedRings
from maar.distributor.service import Router
from maar.distributor.settings import RouterSettings
from maar.model.errors import Draining, InvalidInput, Overloaded, TooLarge, Unavailable
from maar.model.ids import HOME, NodeId
from maar.model.ring import Ring, Writer, WriterState
from maar.placement.rules import Rules, TenantLimits
from maar.placement.table import new_table
from maar.ports.writer.membership import RingView
from support.segment.writers_as_told import Writing, profile

pytestmark = [pytest.mark.component, pytest.mark.timeout(120)]

NODES = ("a", "b", "c")
SERVICES = [f"service-{n}" for n in range(24)]
RULES = Rules()


class Silent:
    async def metrics(self) -> str:
        return ""

    async def ready(self) -> str:
        return ""


class Town:
    """Three writers on ports of their own, and a router that knows their ring."""

    def __init__(self, settings: RouterSettings) -> None:
        self.writers = {node: Writing(node) for node in NODES}
        self.ports = dict.fromkeys(NODES, 0)
        self.servers: dict[str, RpcServer] = {}
        self._rings = FollowedRings(HOME)
        self._sessions = 0
        self.registry = CollectorRegistry()
        self.router = Router(
            settings,
            self._rings,
            lambda: RULES,
            lambda _: TenantLimits(),
            partial(Channel, deadline_s=60.0),
            SystemClock(),
            Random(7),
            self.registry,
        )

    async def start(self, *nodes: str) -> None:
        for node in nodes:
            if not self.ports[node]:
                with socket.create_server(("127.0.0.1", 0)) as free:
                    self.ports[node] = free.getsockname()[1]
            address = f"127.0.0.1:{self.ports[node]}"
            self.servers[node] = await serve_writer(address, self.writers[node], Silent())
        self.told()

    async def kill(self, node: str) -> None:
        await self.servers.pop(node).stop(0)

    def told(self) -> None:
        self._sessions += 1
        writers = tuple(
            Writer(
                NodeId(node),
                f"127.0.0.1:{self.ports[node]}",
                f"s{self._sessions}",
                4,
                WriterState.ACTIVE,
            )
            for node in NODES
        )
        owners = new_table({NodeId(node): 4 for node in NODES})
        table = tuple(NODES.index(owner) for owner in owners)
        ring = Ring(HOME, self._sessions, writers, table)
        self._rings.learn((RingView(ring, (), True),))

    async def push(self, *services: str) -> None:
        await self.router.push([profile(service) for service in services or SERVICES])

    def stored(self) -> list[str]:
        return sorted(one.service for w in self.writers.values() for _, one in w.stored)

    async def stop(self) -> None:
        await self.router.close()
        for server in self.servers.values():
            await server.stop(0)


def told(
    story: Callable[[Town], Coroutine[Any, Any, None]], settings: RouterSettings | None = None
) -> Town:
    @asynccontextmanager
    async def living() -> AsyncIterator[Town]:
        town = Town(settings or RouterSettings())
        await town.start(*NODES)
        try:
            yield town
        finally:
            await town.stop()

    async def whole() -> Town:
        async with asyncio.timeout(60), living() as town:
            await story(town)
        return town

    return asyncio.run(whole())


def test_profiles_arrive_as_they_were_and_with_their_shards() -> None:
    async def story(town: Town) -> None:
        await town.push()

    town = told(story)
    assert town.stored() == sorted(SERVICES)
    owners = new_table({NodeId(node): 4 for node in NODES})
    for node, writer in town.writers.items():
        assert writer.stored
        for shard, one in writer.stored:
            assert owners[shard - 1] == node
            assert one == profile(one.service)


def test_a_writer_that_dies_with_pushes_on_it_loses_none() -> None:
    async def story(town: Town) -> None:
        gate = asyncio.Event()
        town.writers["b"].gate = gate
        pushes = [asyncio.create_task(town.push()) for _ in range(20)]
        while town.writers["b"].tries < 20:
            await asyncio.sleep(0.01)
        await town.kill("b")
        await asyncio.gather(*pushes)
        for _ in range(10):
            await town.push()

    town = told(story)
    assert not town.writers["b"].stored
    assert town.stored() == sorted(SERVICES * 30)


def test_a_writer_that_hangs_costs_a_few_pushes_some_time_and_then_none() -> None:
    async def story(town: Town) -> None:
        town.writers["b"].hangs = True
        for _ in range(6):
            await town.push()

    town = told(story, RouterSettings(deadline_ms=2000))
    assert town.stored() == sorted(SERVICES * 6)


def test_a_writer_that_comes_back_takes_its_shards_again() -> None:
    async def story(town: Town) -> None:
        await town.kill("b")
        await town.push()
        await town.start("b")
        while not town.writers["b"].stored:
            await town.push()
            await asyncio.sleep(0.05)

    told(story)


def test_a_writer_that_comes_back_before_the_ring_says_so_is_found_by_a_probe() -> None:
    async def story(town: Town) -> None:
        await town.kill("b")
        for _ in range(5):
            await town.push()
        address = f"127.0.0.1:{town.ports['b']}"
        town.servers["b"] = await serve_writer(address, town.writers["b"], Silent())
        while not town.writers["b"].stored:
            await town.push()
            await asyncio.sleep(0.05)

    told(story)


def test_a_draining_writer_is_told_from_a_dead_one() -> None:
    async def story(town: Town) -> None:
        town.writers["b"].failure = Draining("bye")
        await town.push()
        await town.push()
        assert town.writers["b"].tries <= 4

    assert told(story).stored() == sorted(SERVICES * 2)


def test_full_everywhere_and_the_time_it_takes_travel_from_the_writer_to_the_caller() -> None:
    async def story(town: Town) -> None:
        for writer in town.writers.values():
            writer.failure = Overloaded("no room", retry_after_s=4.5)
        with pytest.raises(Overloaded) as caught:
            await town.push("shop")
        assert caught.value.retry_after_s == 4.5
        for writer in town.writers.values():
            writer.failure = InvalidInput("bad", reason="why")
        with pytest.raises(InvalidInput) as refused:
            await town.push("shop")
        assert refused.value.reason == "why"

    told(story)


def test_nobody_there_is_known_at_once() -> None:
    async def story(town: Town) -> None:
        for node in NODES:
            await town.kill(node)
        with pytest.raises(Unavailable):
            await asyncio.wait_for(town.push("shop"), 10)

    told(story)


def test_a_push_larger_than_a_message_goes_in_several() -> None:
    payload = Random(1).randbytes(20 << 20)

    async def story(town: Town) -> None:
        await town.router.push([profile(number=n, payload=payload) for n in range(5)])

    town = told(story)
    assert sum(len(writer.stored) for writer in town.writers.values()) == 5
    assert all(one.payload == payload for w in town.writers.values() for _, one in w.stored)


def test_a_profile_larger_than_any_message_is_too_large_and_tried_once() -> None:
    payload = bytes(65 << 20)

    async def story(town: Town) -> None:
        with pytest.raises(TooLarge, match="64 MiB"):
            await town.router.push([profile(payload=payload)])

    town = told(story)
    tries = town.registry.get_sample_value("maar_distributor_tries_total", {"outcome": "rejected"})
    assert tries == 1
