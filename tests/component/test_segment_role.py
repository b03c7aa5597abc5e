"""A segment writer in its process: it joins when it listens, drains without losing a push, and ends
when the ring refuses it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from maar.adapters.rpc import Channel, RpcServer
from maar.app.roles import segment
from maar.app.roles.wiring import Here
from maar.app.settings.config import Settings, load
from maar.model.errors import Draining, InvalidInput, MaarError, Unavailable
from maar.model.ring import WriterState
from maar.ports.metastore.log_time import GetNow
from maar.ports.writer.membership import Beat, BeatReply
from maar.ports.writer.registrar import AddBlocks
from maar.ports.writer.segment_writer import PushProfiles
from support.clock.virtual_time import until
from support.http.memory_metastore import MemoryMetastore
from support.http.pushed import FailingStore
from support.network.ports import free_port
from support.segment.writer_in_memory import ONE, raw_profile

pytestmark = pytest.mark.component


class Ring(MemoryMetastore):
    """Hears beats, and remembers what the writer did when."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Beat] = []
        self.answer = ""

    async def beat(self, beat: Beat) -> BeatReply:
        self.heard.append(beat)
        return BeatReply(1, self.answer)

    def state(self) -> WriterState | None:
        return self.heard[-1].writer.state if self.heard else None


async def serve(address: str, ring: Ring) -> RpcServer:
    server = RpcServer()
    server.add((GetNow,), ring)
    server.add((AddBlocks,), ring)
    server.add((Beat,), ring)
    await server.start(address)
    return server


class At:
    """A running writer, and how to push to it as a distributor does."""

    def __init__(self, ring: Ring, client: Channel, life: asyncio.Task[None]) -> None:
        self.ring = ring
        self.client = client
        self.life = life
        self.outcomes: dict[int, str] = {}

    async def push(self, number: int) -> None:
        try:
            await self.client.call(PushProfiles(ONE, (raw_profile(number),)))
        except MaarError as error:
            self.outcomes[number] = type(error).__name__
        else:
            self.outcomes[number] = "stored"

    def stored(self) -> int:
        return sum(block.profiles for block in self.ring.index.values())


@asynccontextmanager
async def running(directory: Path, ring: Ring, *more: str) -> AsyncIterator[At]:
    metastore = f"127.0.0.1:{free_port()}"
    address = f"127.0.0.1:{free_port()}"
    settings = settings_of(directory, metastore, address, *more)
    server = await serve(metastore, ring)
    client = Channel(address, deadline_s=60)
    try:
        async with segment.run(settings, Here(), None) as life:
            assert life is not None
            yield At(ring, client, life)
    finally:
        await client.close()
        await server.stop()


def settings_of(directory: Path, metastore: str, address: str, *more: str) -> Settings:
    given = {
        "MAAR_SERVER__DATA_DIR": str(directory),
        "MAAR_ROLES__METASTORE": metastore,
        "MAAR_ROLES__SEGMENT_WRITER": address,
        "MAAR_RING__NODE": "a",
        "MAAR_RING__BEAT_MS": "100",
        "MAAR_RING__REFRESH_MS": "200",
        "MAAR_SEGMENT__FLUSH_INTERVAL_MS": "50",
        **dict(pair.split("=", 1) for pair in more),
    }
    return load(file=None, environ=given)


def told(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_drain_loses_no_push_and_refuses_the_late_ones_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(FailingStore):
        """The last flush takes long enough that pushes come meanwhile."""

        def create(self, key: str, body: bytes) -> None:
            time.sleep(0.3)
            super().create(key, body)

    monkeypatch.setattr(segment, "build_store", lambda _: Slow())

    async def story() -> None:
        ring = Ring()
        pushes: list[asyncio.Task[None]] = []
        async with running(tmp_path, ring) as at:
            await until(lambda: ring.state() is WriterState.ACTIVE)
            assert ring.heard[0].writer.state is WriterState.JOINING

            async def go_on() -> None:
                for number in range(10_000):
                    pushes.append(asyncio.create_task(at.push(number)))
                    await asyncio.sleep(0.01)

            load = asyncio.create_task(go_on())
            await until(lambda: at.stored() > 0)
        # The writer is gone by now; the distributor has pushed all the while.
        load.cancel()
        await asyncio.gather(load, *pushes, return_exceptions=True)
        assert ring.state() is WriterState.LEAVING
        assert not any(beat.leaves for beat in ring.heard)
        kinds = set(at.outcomes.values())
        assert kinds <= {"stored", "Draining", "Unreachable", "Unavailable"}
        assert 0 < list(at.outcomes.values()).count("stored") <= at.stored(), "none is lost"
        assert "Draining" in kinds, "who has not heard goes elsewhere"

    told(story)


def test_while_distributors_hear_of_the_drain_pushes_are_still_taken(tmp_path: Path) -> None:
    async def story() -> None:
        ring = Ring()
        waiting = asyncio.Event()

        async def late(at: At) -> None:
            await until(lambda: ring.state() is WriterState.LEAVING)
            await at.push(1)
            waiting.set()

        async with running(tmp_path, ring, "MAAR_RING__REFRESH_MS=2000") as at:
            await until(lambda: ring.state() is WriterState.ACTIVE)
            pushing = asyncio.create_task(late(at))
        await pushing
        assert at.outcomes == {1: "stored"}

    told(story)


def test_leaving_for_good_is_said_after_the_last_push(tmp_path: Path) -> None:
    async def story() -> None:
        ring = Ring()
        async with running(tmp_path, ring, "MAAR_RING__LEAVE_ON_STOP=true") as at:
            await until(lambda: ring.state() is WriterState.ACTIVE)
            await at.push(1)
        assert ring.heard[-1].leaves
        assert at.outcomes == {1: "stored"}

    told(story)


def test_a_refused_writer_takes_no_more_pushes_and_ends_with_the_reason(tmp_path: Path) -> None:
    async def story() -> None:
        ring = Ring()
        async with running(tmp_path, ring) as at:
            await until(lambda: ring.state() is WriterState.ACTIVE)
            await at.push(1)
            ring.answer = "another process has registered as this node since"
            with pytest.raises(Unavailable, match="another process"):
                await at.life
            before = len(ring.heard)
            with pytest.raises(Draining, match="another process"):
                await at.client.call(PushProfiles(ONE, (raw_profile(2),)))
        assert len(ring.heard) == before
        assert at.outcomes == {1: "stored"}

    told(story)


def test_a_metastore_that_is_away_only_delays(tmp_path: Path) -> None:
    async def story() -> None:
        ring = Ring()
        metastore, address = (f"127.0.0.1:{free_port()}" for _ in range(2))
        settings = settings_of(tmp_path, metastore, address)
        async with segment.run(settings, Here(), None) as life:
            assert life is not None
            await asyncio.sleep(0.3)  # a few beats in vain
            assert not life.done()
            server = await serve(metastore, ring)
            await until(lambda: ring.state() is WriterState.ACTIVE)
            await server.stop()
            await asyncio.sleep(0.3)
            assert not life.done()
            server = await serve(metastore, ring)
            before = len(ring.heard)
            await until(lambda: len(ring.heard) > before)
        await server.stop()

    told(story)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_an_address_that_names_no_machine_is_not_told_to_distributors(
    tmp_path: Path, host: str
) -> None:
    """Each would reach itself by it: another writer, perhaps of another zone, or nobody."""

    async def story() -> None:
        ring = Ring()
        metastore, address = f"127.0.0.1:{free_port()}", f"{host}:{free_port()}"
        remote = "MAAR_SERVER__ALLOW_REMOTE=true"
        settings = settings_of(tmp_path, metastore, address, remote)
        server = await serve(metastore, ring)
        with pytest.raises(InvalidInput, match=r"ring\.advertise"):
            async with segment.run(settings, Here(), None):
                pass
        assert ring.heard == []
        told_as = "writer-0.example:4044"
        settings = settings_of(
            tmp_path, metastore, address, remote, f"MAAR_RING__ADVERTISE={told_as}"
        )
        async with segment.run(settings, Here(), None):
            await until(lambda: ring.state() is WriterState.ACTIVE)
        assert ring.heard[0].writer.address == told_as
        await server.stop()

    told(story)
