"""Rules from registrations to distributors: a real log, a real directory, leaders that change."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from maar.adapters.sqlite.log import SqliteLog
from maar.adapters.stores.open import open_store
from maar.block.format import dead_letter
from maar.distributor.agent import PlacementAgent
from maar.metastore.service import MetastoreService
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import TermLost, Unavailable
from maar.model.ids import TenantId
from maar.model.time import SECOND_NS
from maar.placement import wire
from maar.placement.rules import PlacementSettings, Rules, Share, TenantLimits
from maar.ports.metastore.log import Candidate, Head
from maar.ports.metastore.log_time import Now
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from support.clock.fake_clock import FakeClock
from support.metastore.fold import SMALL, TENANT, entropy, segment

pytestmark = pytest.mark.component

CHECKOUT = (TENANT, "checkout")
UNIT = 128 << 10
PATIENT = msgspec.structs.replace(SMALL, stall_ns=10**6 * SECOND_NS)  # the test's clock may leap


class World:
    """A log, a store and a clock, which outlive the services that run on them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store: ObjectStore = open_store(StoreSettings("main", (directory / "store").as_uri()))
        self.clock = FakeClock()
        self.random = random.Random(7)
        self.numbers = iter(range(1, 10**9))

    @asynccontextmanager
    async def running(
        self, limits: Callable[[TenantId], TenantLimits] | None = None
    ) -> AsyncIterator[MetastoreService]:
        async def no_snapshot() -> int:
            raise Unavailable("there is nobody who makes one")

        self.registry = CollectorRegistry()
        service = MetastoreService(
            SqliteLog.open(self.directory / "log"),
            self.store,
            self.clock,
            PATIENT,
            entropy=entropy(self.random),
            candidate=Candidate("test"),
            take_snapshot=no_snapshot,
            registry=self.registry,
            placement=PlacementSettings(interval_s=0.1),
            limits=limits,
        )
        try:
            await service.start()
            yield service
        finally:
            await service.stop()

    async def write(self, service: MetastoreService, seconds: int, rate: int) -> None:
        for _ in range(seconds):
            now = await service.now()
            meta = segment(next(self.numbers), at=now.lease_time, size=rate)
            assert (await service.add_blocks((meta,))).refusals == ("",)
            self.clock.advance(SECOND_NS)

    def metric(self, name: str) -> float:
        return self.registry.get_sample_value(f"maar_placement_{name}") or 0

    async def shards(self, service: MetastoreService) -> int:
        """As a distributor sees them that has just started."""
        agent = PlacementAgent(self.store, service, CollectorRegistry())
        await agent.following(every_s=1.0).turn()
        return agent.rules.datasets.get(CHECKOUT, Share(0, 0)).dataset_shards


def stored_segment(world: World, now: Now) -> BlockMeta:
    """One whose object is in the store, where a writer of this log would have put it."""
    meta = segment(next(world.numbers), at=now.lease_time, life=now.incarnation)
    world.store.create(meta.files[0].locations[0].key, bytes(meta.size))
    return meta


async def eventually(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.02)


async def rounds(world: World, count: int = 2) -> None:
    """So many sets of rules were made from now on."""
    made = world.metric("build_seconds_count")
    await eventually(lambda: world.metric("build_seconds_count") >= made + count)


def test_registrations_reach_distributors_as_rules(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def test() -> None:
        async with world.running() as service:
            assert await world.shards(service) == 0
            await world.write(service, 120, 30 * UNIT)
            await rounds(world)
            assert await world.shards(service) > 5

    asyncio.run(test())


def test_a_new_leader_takes_over_without_shrinking(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def test() -> None:
        async with world.running() as service:
            await world.write(service, 120, 30 * UNIT)
            await rounds(world)
            had = await world.shards(service)
        async with world.running() as service:
            await rounds(world)
            assert await world.shards(service) == had
            await world.write(service, 60, 100)
            await rounds(world)
            assert await world.shards(service) == had
            for _ in range(2):
                world.clock.advance(20 * 60 * SECOND_NS)
                await world.write(service, 1, 100)
                await rounds(world)
            assert await world.shards(service) == 1

    asyncio.run(test())


def test_a_leader_that_lost_leadership_and_got_it_back_reads_what_another_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)

    async def lost_leadership(*_: object, **__: object) -> Head:
        raise TermLost("somebody else leads now")

    async def test() -> None:
        async with world.running() as service:
            await world.write(service, 60, 100)
            await rounds(world)
            assert await world.shards(service) == 1
            now = await service.now()
            rules = Rules(now.lease_time + SECOND_NS, {CHECKOUT: Share(0, 30)})
            key = keys.placement_rules(incarnation=now.incarnation, created_at=rules.created_at)
            world.store.create(key, wire.encode_rules(rules))
            with monkeypatch.context() as patch:
                patch.setattr(SqliteLog, "append", lost_leadership)
                with pytest.raises(Unavailable, match="lost leadership"):
                    await service.add_blocks((segment(10**9, at=now.lease_time),))
            await eventually(lambda: service.ready() == "")
            await world.write(service, 60, 9 * UNIT)
            await rounds(world)
            assert await world.shards(service) == 30

    asyncio.run(test())


def test_the_limits_of_a_tenant_reach_the_rules(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def test() -> None:
        async with world.running(lambda _: TenantLimits(dataset_shards_min=7)) as service:
            await world.write(service, 2, 100)
            await rounds(world)
            assert await world.shards(service) == 7

    asyncio.run(test())


def test_recovered_dead_letters_are_not_counted(tmp_path: Path) -> None:
    """They tell of a load that is past."""
    world = World(tmp_path)

    async def test() -> None:
        async with world.running() as service:
            now = await service.now()
            meta = stored_segment(world, now)
            key = keys.dead_letter(incarnation=now.incarnation, block=meta.id)
            world.store.create(key, dead_letter.encode(meta))
        async with world.running() as service:
            async with asyncio.timeout(60):
                while not await service.blocks():
                    await asyncio.sleep(0.02)
            await rounds(world)
            assert world.metric("datasets") == 0

    asyncio.run(test())


def test_the_manager_ends_with_the_service(tmp_path: Path) -> None:
    world = World(tmp_path)

    async def test() -> None:
        async with world.running() as service:
            await world.write(service, 60, 30 * UNIT)
            await rounds(world)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(test())
