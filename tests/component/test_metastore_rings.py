"""Rings through the service: over a real log, through restarts, snapshots and a log that hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from maar.adapters.rpc import MetastoreClient, serve_metastore
from maar.adapters.sqlite.log import SqliteLog
from maar.metastore.service import MetastoreService
from maar.model.errors import InvalidInput, NotFound, Rejected, TermLost, Unavailable
from maar.model.ids import HOME, NodeId, Zone
from maar.model.ring import Ring, Writer
from maar.model.time import SECOND_NS
from maar.ports.calls import Caller
from maar.ports.metastore.log import Head, Log, Term
from maar.ports.operator.operator import RemoveWriter
from maar.ports.writer.membership import (
    Beat,
    BeatListener,
    BeatReply,
    ListRings,
    RingReader,
    RingView,
)
from support.clock.virtual_time import run_virtually
from support.metastore.rings import ACTIVE, JOINING, LEAVING, owners, writer
from support.metastore.world import World

pytestmark = pytest.mark.component


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "log")


async def beat(
    service: Caller[BeatListener], one: Writer, *, leaves: bool = False, zone: Zone = HOME
) -> BeatReply:
    return await service.call(Beat(zone, one, leaves))


async def join(service: Caller[BeatListener], *nodes: str, session: str = "s1") -> None:
    for node in nodes:
        for state in (JOINING, ACTIVE):
            assert (await beat(service, writer(node, state, session=session))).refusal == ""


async def view(service: Caller[RingReader]) -> RingView:
    (found,) = await service.call(ListRings())
    return found


async def silence(world: World, service: MetastoreService, seconds: int, *but: str) -> None:
    """Time passes and the leader listens; only some are heard."""
    for _ in range(seconds):
        world.clock.advance(SECOND_NS)
        await service.rings()
        for node in but:
            await beat(service, writer(node))


def test_writers_register_and_their_beats_are_not_written(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            await join(service, "a", "b", "c")
            index = (await service.now()).index
            reply = await beat(service, writer("b"))
            assert reply == BeatReply((await view(service)).ring.changed_at)
            for _ in range(50):
                await beat(service, writer("a"))
            assert (await service.now()).index == index
            found = await view(service)
            assert (found.dead, found.complete) == ((), True)
            assert found.ring.owners == (2, 1, 0, 1, 1, 2, 2, 0, 1, 0, 0, 2)

    run_virtually(test())


def test_a_ring_survives_a_restart_and_is_complete_when_everybody_was_heard(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            await join(service, "a", "b")
            ring = (await view(service)).ring
        async with world.running() as service:
            assert await view(service) == RingView(ring, (), complete=False, silent_ms=(-1, -1))
            await beat(service, writer("a"))
            assert not (await view(service)).complete
            await beat(service, writer("b"))
            assert (await view(service)).complete
            assert (await view(service)).ring == ring

    run_virtually(test())


def test_a_new_leader_knows_the_dead_after_it_has_listened(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            await join(service, "a", "b")
        async with world.running() as service:
            await silence(world, service, 10, "a")
            assert not (await view(service)).complete
            await silence(world, service, 1, "a")
            found = await view(service)
            assert (found.dead, found.complete) == (("b",), True)
            assert sorted(owners(found.ring)) == ["a"] * 4 + ["b"] * 4

    run_virtually(test())


def test_a_leader_that_lost_leadership_and_got_it_back_listens_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers may have talked to another one meanwhile."""

    async def test() -> None:
        async with world.running() as service:
            await join(service, "a", "b")
            ring = (await view(service)).ring
            with monkeypatch.context() as patch:
                patch.setattr(SqliteLog, "append", lost_leadership)
                with pytest.raises(Unavailable, match="lost leadership"):
                    await beat(service, writer("c", JOINING))
                await asyncio.sleep(0)
            await leads_again(service)
            assert await view(service) == RingView(ring, (), complete=False, silent_ms=(-1, -1))
            await beat(service, writer("a"))
            await beat(service, writer("b"))
            assert (await view(service)).complete

    run_virtually(test())


async def lost_leadership(*_: object, **__: object) -> Head:
    raise TermLost("somebody else leads now")


async def leads_again(service: MetastoreService) -> None:
    """Commands are repeated; this one changes nothing."""
    async with asyncio.timeout(60):
        while True:
            try:
                await service.remove_writer(HOME, NodeId("nobody"))
            except NotFound:
                return
            except Unavailable:
                await asyncio.sleep(0.02)


def test_a_ring_comes_back_from_a_snapshot_when_the_log_is_truncated(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            await join(service, "a", "b")
            await beat(service, writer("b", LEAVING))
            await beat(service, writer("x"), zone=Zone("east"))
            rings = [found.ring for found in await service.rings()]
            await service.snapshot()
            await beat(service, writer("y", JOINING), zone=Zone("west"))
            await service.snapshot()
            assert (await service.status()).log_first > rings[0].changed_at
        async with world.running() as service:
            found = {one.ring.zone: one.ring for one in await service.rings()}
            assert sorted(found) == ["east", "home", "west"]
            assert [found[Zone("east")], found[HOME]] == rings

    run_virtually(test())


def test_a_writer_that_starts_again_keeps_its_shards_and_its_former_life_is_refused(
    world: World,
) -> None:
    async def test() -> None:
        async with world.running() as service:
            await join(service, "a", "b")
            before = (await view(service)).ring.owners
            await join(service, "b", session="s2")
            assert (await view(service)).ring.owners == before
            for state in (ACTIVE, JOINING):
                reply = await beat(service, writer("b", state))
                assert "has registered as writer b of zone home since" in reply.refusal
        async with world.running() as service:
            assert (await beat(service, writer("b"))).refusal
            assert (await beat(service, writer("b", session="s2"))).refusal == ""

    run_virtually(test())


def test_an_operator_removes_the_dead_and_nobody_else(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            await join(service, "a", "b")
            with pytest.raises(Rejected, match="stop its process first"):
                await service.remove_writer(HOME, NodeId("b"))
            with pytest.raises(NotFound):
                await service.remove_writer(HOME, NodeId("x"))
            await silence(world, service, 11, "a")
            ring = await service.remove_writer(HOME, NodeId("b"))
            assert owners(ring) == ["a"] * 4
            assert ring == (await view(service)).ring
            await beat(service, writer("a", LEAVING), leaves=True)
            assert await service.rings() == ()

    run_virtually(test())


def test_writers_that_come_at_once_all_get_their_shards(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            nodes = [f"n{number:02}" for number in range(20)]
            await asyncio.gather(*(join(service, node) for node in nodes))
            ring: Ring = (await view(service)).ring
            assert [ring.owners.count(place) for place in range(20)] == [4] * 20

    run_virtually(test())


class HangingLog:
    """Appends wait until they are let through; reads do not."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.through = asyncio.Event()
        self.through.set()
        self.waiting = asyncio.Event()

    async def append(
        self, bodies: Sequence[bytes], *, term: Term, head: Head, reserve: bool = False
    ) -> Head:
        if not self.through.is_set():
            self.waiting.set()
            await self.through.wait()
        return await self._log.append(bodies, term=term, head=head, reserve=reserve)

    def __getattr__(self, name: str) -> object:
        return getattr(self._log, name)


def test_beats_and_rings_are_answered_while_the_log_hangs(world: World) -> None:
    async def test() -> None:
        logs: list[HangingLog] = []

        def hanging(log: Log) -> Log:
            logs.append(HangingLog(log))
            return logs[0]  # type: ignore[return-value]

        async with world.running(wrap=hanging) as service:
            await join(service, "a", "b")
            (log,) = logs
            log.through.clear()
            joining = asyncio.create_task(beat(service, writer("c", JOINING)))
            async with asyncio.timeout(100):
                await log.waiting.wait()
                await silence(world, service, 20, "a", "b")
                assert (await view(service)).dead == ()
            assert not joining.done()
            log.through.set()
            assert (await joining).refusal == ""
            assert (await view(service)).dead == ()

    run_virtually(test())


def test_what_no_writer_says_is_refused_and_what_is_unknown_costs_nothing(world: World) -> None:
    async def test() -> None:
        async with world.running() as service:
            with pytest.raises(InvalidInput, match="1 to 64 shards"):
                await beat(service, writer("a", shards=0))
            assert (await beat(service, writer("x", LEAVING), leaves=True)) == BeatReply(0)
            assert await service.rings() == ()
            assert service.ready() == ""

    run_virtually(test())


def test_before_it_leads_it_knows_no_rings(world: World) -> None:
    async def test() -> None:
        log = SqliteLog.open(world.directory)
        service = world.service(log)
        with pytest.raises(Unavailable):
            await service.rings()
        with pytest.raises(Unavailable):
            await beat(service, writer("a"))
        await log.close()

    run_virtually(test())


def test_status_and_metrics_tell_the_rings(world: World) -> None:
    def metric(name: str, **labels: str) -> float | None:
        return world.registry.get_sample_value(f"maar_metastore_{name}", labels)

    async def test() -> None:
        async with world.running() as service:
            await join(service, "a", "b")
            await join(service, "b", session="s2")
            await beat(service, writer("b"))
            await beat(service, writer("a"))
            with pytest.raises(InvalidInput):
                await beat(service, writer(""))
            await silence(world, service, 11, "a")
            (zone,) = (await service.status()).zones
            assert (zone.zone, zone.shards, zone.complete) == (HOME, 8, True)
            assert zone.writers == {"active": 1, "dead": 1}
            async with asyncio.timeout(100):
                while metric("ring_writers", zone="home", state="dead") != 1.0:
                    world.clock.advance(SECOND_NS // 2)
                    await beat(service, writer("a"))
                    await asyncio.sleep(0.05)
            assert metric("ring_writers", zone="home", state="active") == 1.0
            assert metric("ring_writers", zone="home", state="joining") == 0.0
            assert metric("ring_shards", zone="home") == 8.0
            assert metric("ring_incomplete", zone="home") == 0.0
            assert metric("ring_changes_total", zone="home") == 6.0
            assert metric("beats_total", outcome="changed") == 6.0
            assert metric("beats_total", outcome="refused") == 1.0
            assert metric("beats_total", outcome="failed") == 1.0
            assert (metric("beats_total", outcome="unchanged") or 0) >= 12
            assert metric("state_items", collection="rings") == 1.0
            assert b"ring_moved_shards_total" in generate_latest(world.registry)

    run_virtually(test())


class Mute:
    """A role that has nothing to tell of itself."""

    async def metrics(self) -> str:
        return ""

    async def ready(self) -> str:
        return ""


def test_other_processes_ask_the_same(world: World, tmp_path: Path) -> None:
    async def test() -> None:
        address = f"unix:{tmp_path}/m.sock"
        async with world.running() as service:
            server = await serve_metastore(address, service, Mute())
            client = MetastoreClient(address)
            try:
                await join(client, "a", "b")
                assert await client.call(ListRings()) == await service.call(ListRings())
                with pytest.raises(Rejected, match="stop its process first"):
                    await client.call(RemoveWriter(HOME, NodeId("b")))
                await beat(client, writer("b", LEAVING))
                assert owners(await client.call(RemoveWriter(HOME, NodeId("b")))) == ["a"] * 4
            finally:
                await client.close()
                await server.stop()

    asyncio.run(test())
