"""The front over real sockets, a real disk and a real agent."""

from __future__ import annotations

import asyncio
import gzip
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
import uvicorn
from prometheus_client import CollectorRegistry

from maar.adapters.stores.open import open_store
from maar.adapters.system_clock import SystemClock
from maar.api.app import QueryDeps, build_app
from maar.api.body import READ_SECONDS_MAX
from maar.api.guard import RequestGuard
from maar.api.settings import ApiSettings
from maar.distributor.rings import FollowedRings
from maar.distributor.service import Distributor, Router
from maar.distributor.settings import Limits, RouterSettings
from maar.model.ids import HOME, NodeId
from maar.model.profile import RawProfile
from maar.model.ring import Ring, Writer, WriterState
from maar.placement.rules import Rules, TenantLimits
from maar.ports.stores.object_store import StoreSettings
from maar.ports.writer.membership import RingView
from maar.pprof import decode
from maar.segment.service import SegmentService
from maar.segment.settings import SegmentSettings
from support.agents.go_agent import build_go_agent
from support.http.front import no_causes
from support.http.memory_metastore import MemoryMetastore
from support.http.plain_engine import PlainEngine
from support.http.pushed import MemoryWriter, gz, pprof
from support.lake.segments import read_segment

pytestmark = pytest.mark.component

INGEST = "/ingest?name=shop{region=eu}&format=pprof"


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """A server is warm before it is ready; here too."""
    decode.warm()


@dataclass
class Running:
    url: str
    port: int
    server: uvicorn.Server
    metastore: MemoryMetastore
    store: Any

    def stored(self) -> list[RawProfile]:
        return [
            profile
            for block in self.metastore.index.values()
            for profile in read_segment(self.store.local_path(block.files[0].locations[0].key))
        ]


def one_writer() -> FollowedRings:
    """A ring of one writer, which is in this process."""
    writer = Writer(NodeId("here"), "nowhere:1", "one", 4, WriterState.ACTIVE)
    rings = FollowedRings(HOME)
    rings.learn((RingView(Ring(HOME, 1, (writer,), (0, 0, 0, 0)), (), True),))
    return rings


def no_network(address: str) -> Any:
    raise AssertionError(f"a push to our own process went by way of {address}")


@asynccontextmanager
async def running(directory: Path, **settings: Any) -> AsyncIterator[Running]:
    registry = CollectorRegistry()
    store = open_store(StoreSettings("main", directory.as_uri()))
    metastore = MemoryMetastore()
    clock = SystemClock()
    segments = SegmentService(
        SegmentSettings(flush_interval_ms=settings.pop("flush_interval_ms", 50)),
        store,
        metastore,
        clock,
        Random(1),
        registry,
        "here",
    )
    await segments.start()
    rules, limits = Rules(), TenantLimits()
    router = Router(
        RouterSettings(),
        one_writer(),
        lambda: rules,
        lambda _: limits,
        no_network,
        clock,
        Random(2),
        registry,
        local=(NodeId("here"), segments),
    )
    distributor = Distributor(Limits(), router, clock, registry)

    async def ready(_duty: str) -> str:
        return ""

    async def no_metrics() -> list[str]:
        return []

    body_read_s = settings.pop("body_read_s", READ_SECONDS_MAX)
    api = ApiSettings(**settings)
    app = build_app(
        api,
        [registry],
        ready,
        no_metrics,
        distributor=distributor,
        asked=QueryDeps(PlainEngine(MemoryWriter()), metastore, no_causes, clock, 0),
        guard=RequestGuard(api, registry, body_read_s=body_read_s),
    )
    config = uvicorn.Config(
        app, port=0, http="httptools", lifespan="off", access_log=False, log_config=None
    )
    server = uvicorn.Server(config)
    life = asyncio.create_task(server._serve())  # without taking the process's signals
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Running(f"http://127.0.0.1:{port}", port, server, metastore, store)
    finally:
        server.should_exit = True
        await life
        await segments.stop()
        await router.close()
        distributor.close()


def with_server(
    directory: Path, story: Callable[[Running], Awaitable[None]], **settings: Any
) -> None:
    async def told() -> None:
        async with running(directory, **settings) as server:
            await story(server)

    asyncio.run(told())


def now_dated() -> bytes:
    return pprof(time_ns=SystemClock().wall_ns())


def test_an_acknowledged_push_can_be_read_from_the_disk(tmp_path: Path) -> None:
    async def story(at: Running) -> None:
        content = gz(now_dated())
        async with httpx.AsyncClient(timeout=60, verify=False) as client:
            reply = await client.post(at.url + INGEST, content=content)
        assert reply.status_code == 200
        (profile,) = at.stored()
        assert profile.payload == content
        assert profile.id.hex() == reply.headers["maar-profile-ids"]

    with_server(tmp_path, story)


def test_concurrent_pushes_share_few_segments_and_all_are_stored(tmp_path: Path) -> None:
    async def story(at: Running) -> None:
        async with httpx.AsyncClient(
            limits=httpx.Limits(max_connections=50), timeout=60, verify=False
        ) as client:
            replies = await asyncio.gather(
                *(
                    client.post(
                        f"{at.url}/ingest?name=service-{n % 10}&format=pprof",
                        content=pprof(time_ns=SystemClock().wall_ns(), value=n + 1),
                    )
                    for n in range(100)
                )
            )
        assert {reply.status_code for reply in replies} == {200}
        assert len({reply.headers["maar-profile-ids"] for reply in replies}) == 100
        assert {profile.id.hex() for profile in at.stored()} == {
            reply.headers["maar-profile-ids"] for reply in replies
        }
        assert len(at.metastore.index) < 50

    with_server(tmp_path, story)


def test_an_endless_body_is_cut_off_while_it_streams(tmp_path: Path) -> None:
    async def story(at: Running) -> None:
        sent = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal sent
            while sent < 1 << 30:
                sent += 64 << 10
                yield bytes(64 << 10)

        async with httpx.AsyncClient(timeout=60, verify=False) as client:
            try:
                reply = await client.post(at.url + INGEST, content=endless())
                assert reply.status_code == 413
            except httpx.TransportError:
                pass  # the server hung up while we were still talking, which it may
            assert sent < 1 << 29
            again = await client.post(at.url + INGEST, content=gz(now_dated()))
            assert again.status_code == 200

    with_server(tmp_path, story, body_bytes_max=1 << 20)


def test_a_body_that_trickles_is_given_up(tmp_path: Path) -> None:
    async def story(at: Running) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        writer.write(
            f"POST {INGEST} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\nabc".encode()
        )
        answer = await asyncio.wait_for(reader.readline(), 30)
        assert b"408" in answer
        writer.close()

    with_server(tmp_path, story, body_read_s=0.2)


def test_ending_answers_those_who_wait(tmp_path: Path) -> None:
    async def story(at: Running) -> None:
        async with httpx.AsyncClient(timeout=60, verify=False) as client:
            waiting = asyncio.create_task(client.post(at.url + INGEST, content=now_dated()))
            while not at.server.server_state.tasks:
                await asyncio.sleep(0.005)
            at.server.should_exit = True
            assert (await waiting).status_code == 200

    with_server(tmp_path, story, flush_interval_ms=300)


AGENT = """
import sys, time
import pyroscope

def work(until):
    while time.monotonic() < until:
        sum(number * number for number in range(2000))

pyroscope.configure(
    application_name="agent.under.test",
    server_address=sys.argv[1],
    tags={"region": "eu-1"},
    tenant_id="acme",
    mem_enabled=True,
    upload_interval=1,
)
kept = []
with pyroscope.tag_wrapper({"endpoint": "/pay"}):
    for _ in range(5):
        kept.append(bytearray(4 << 20))
        work(time.monotonic() + 0.5)
pyroscope.shutdown()
"""


def test_the_real_agent_is_understood(tmp_path: Path) -> None:
    async def story(at: Running) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", AGENT, at.url, stdout=subprocess.DEVNULL
        )
        try:
            assert await asyncio.wait_for(process.wait(), 60) == 0
        finally:
            if process.returncode is None:
                process.kill()
        profiles = at.stored()
        kinds = {kind for profile in profiles for kind in profile.types}
        assert "process_cpu:cpu:nanoseconds:cpu:nanoseconds" in kinds
        assert "memory:inuse_space:bytes:space:bytes" in kinds
        for profile in profiles:
            assert profile.tenant == "acme"
            assert profile.service == "agent.under.test"
            assert ("region", "eu-1") in profile.labels
        raw = b"".join(gzip.decompress(profile.payload) for profile in profiles)
        assert b"endpoint" in raw
        assert b"work" in raw

    with_server(tmp_path, story)


HEAP_TYPES = (
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
    ("inuse_objects", "count"),
    ("inuse_space", "bytes"),
)
HEAP_CONFIG = (
    b'{"alloc_objects":{"units":"objects"},"alloc_space":{"units":"bytes"},'
    b'"inuse_objects":{"units":"objects","aggregation":"average"},'
    b'"inuse_space":{"units":"bytes","aggregation":"average"}}'
)


async def replay_flush(at: Running) -> None:
    """What pyroscope-go 1.4.3 sends when it flushes: it ends before it begins."""
    now_ns = SystemClock().wall_ns()
    heap = pprof(types=HEAP_TYPES, period_type=("space", "bytes"), time_ns=now_ns)
    async with httpx.AsyncClient(timeout=60, verify=False) as client:
        reply = await client.post(
            f"{at.url}/ingest?aggregationType=&from={now_ns}&name=flushed.go%7Bregion%3Deu-1%7D"
            f"&sampleRate=0&spyName=gospy&units=&until={now_ns - 10**10}",
            files={
                "profile": ("profile.pprof", gz(heap), "application/octet-stream"),
                "sample_type_config": ("sample_type_config.json", HEAP_CONFIG),
            },
            headers={"X-Scope-OrgID": "acme"},
        )
    assert reply.status_code == 200, reply.text


async def run_flush(at: Running, program: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        program, at.url, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, said
    assert b"failed to upload" not in said, said


@pytest.mark.timeout(400)  # the first build of the agent takes a while
def test_what_the_go_agent_flushes_before_it_ends_is_kept(tmp_path: Path) -> None:
    program = build_go_agent(tmp_path)

    async def story(at: Running) -> None:
        await (run_flush(at, program) if program else replay_flush(at))
        kinds = {kind for profile in at.stored() for kind in profile.types}
        assert "memory:inuse_space:bytes:space:bytes" in kinds
        for profile in at.stored():
            assert (profile.tenant, profile.service) == ("acme", "flushed.go")
            assert ("region", "eu-1") in profile.labels

    with_server(tmp_path, story)
