"""Half requests by the thousand, at a low limit of descriptors: honest ones are answered."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import hpack
import pytest
import uvloop

from maar.api.protocol.wire import PushRequest
from support.http.front_process import front_process
from support.http.h2_client import frame_bytes
from support.http.pushed import gz, pprof

pytestmark = [pytest.mark.component, pytest.mark.timeout(180)]

DESCRIPTORS = 1024
HALVES = 1100
STRANGER = "127.0.0.9"
PATIENCE_S = 60.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PUSH = (
    b"POST /push.v1.PusherService/Push HTTP/1.1\r\nhost: localhost\r\n"
    b"content-type: application/proto\r\n"
)
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def push_body() -> bytes:
    message = PushRequest()
    series = message.series.add()
    series.labels.add(name="service_name", value="shop")
    series.samples.add(raw_profile=gz(pprof()))
    return bytes(message.SerializeToString())


BODY = push_body()
HONEST_PUSH = PUSH + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
H2_PUSH = hpack.Encoder().encode(
    [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/push.v1.PusherService/Push"),
        (":authority", "localhost"),
        ("content-type", "application/proto"),
    ]
)
HONEST_QUERY = (
    b"POST /querier.v1.QuerierService/ProfileTypes HTTP/1.1\r\nhost: localhost\r\n"
    b"content-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
)


class Crowd:
    """Clients of one server; all of them go when the story ends."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.writers: list[asyncio.StreamWriter] = []

    async def connected(self, said: bytes = b"", *, address: str = "127.0.0.1") -> Stream:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, local_addr=(address, 0)
        )
        self.writers.append(writer)
        if said:
            writer.write(said)
        return reader, writer

    async def many(self, said: bytes, count: int = HALVES, address: str = STRANGER) -> list[Stream]:
        made = []
        for first in range(0, count, 100):
            some = range(first, min(first + 100, count))
            made += await asyncio.gather(*(self.connected(said, address=address) for _ in some))
        return made

    async def honest(self, said: bytes, *, address: str = "127.0.0.1") -> bytes:
        """The status line of the answer on a connection of its own."""
        reader, writer = await self.connected(said, address=address)
        line = await asyncio.wait_for(reader.readline(), PATIENCE_S)
        writer.transport.abort()
        return line

    async def refused(self, reason: str) -> float:
        reader, _ = await self.connected(b"GET /metrics HTTP/1.0\r\n\r\n")
        name = f'maar_front_refused_total{{reason="{reason}"}} '
        lines = (await asyncio.wait_for(reader.read(), PATIENCE_S)).decode().splitlines()
        (found,) = [line for line in lines if line.startswith(name)]
        return float(found.removeprefix(name))


Story = Callable[[Crowd], Coroutine[Any, Any, None]]


def told(story: Story, **settings: Any) -> None:
    """A story of a server of its own."""
    with front_process(descriptors=DESCRIPTORS, **settings) as port:
        told_at(port, story)


def told_at(port: int, story: Story) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    async def whole() -> None:
        crowd = Crowd(port)
        try:
            await asyncio.wait_for(story(crowd), 120)
        finally:
            for writer in crowd.writers:
                writer.transport.abort()

    try:
        uvloop.run(whole())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """One for many stories, as a real one has many: its port."""
    with front_process(descriptors=DESCRIPTORS) as port:
        yield port


async def dribbled(streams: list[Stream], piece: bytes, stop: asyncio.Event) -> None:
    """Each says a little more, again and again."""
    while not stop.is_set():
        for _, writer in streams:
            if not writer.transport.is_closing():
                writer.write(piece)
        await asyncio.sleep(0.1)


HALF = {
    "silent": (b"", b""),
    "half a request line": (b"POST /push.v1", b"x"),
    "headers byte by byte": (b"GET / HTTP/1.1\r\nhost: localhost\r\nx-a: ", b"a"),
    "headers line by line": (b"GET / HTTP/1.1\r\nhost: localhost\r\n", b"x-a: a\r\n"),
    "empty lines": (b"\r\n", b"\r\n"),
    "a slow body": (PUSH + b"content-length: 100000\r\n\r\n", b"x"),
    "a slow body that nobody reads": (
        b"POST /nowhere HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n",
        b"x",
    ),
    "half a preface of HTTP/2": (PREFACE[:5], b""),
    "half a frame of HTTP/2": (PREFACE + SETTINGS + b"\0\x40\0\x01\x04\0\0\0\x01", b"\x82"),
    "a header block of HTTP/2 without end": (
        PREFACE + SETTINGS + b"\0\0\1\x01\0\0\0\0\x01\x82",
        b"\0\0\1\x09\0\0\0\0\x01\x82",
    ),
    "a slow body over HTTP/2": (
        PREFACE + SETTINGS + frame_bytes(1, 4, 1, H2_PUSH),
        frame_bytes(0, 0, 1, b"x"),
    ),
    "silent over HTTP/2": (PREFACE + SETTINGS, b""),
}


@pytest.mark.parametrize("half", HALF)
@pytest.mark.parametrize("address", ["127.0.0.1", STRANGER], ids=["same", "stranger"])
def test_honest_requests_are_answered_beside_a_thousand_halves(
    server: int, half: str, address: str
) -> None:
    """Also those that come from the same address, as behind a proxy."""

    async def story(crowd: Crowd) -> None:
        said, more = HALF[half]
        stop = asyncio.Event()
        before = await crowd.refused("address_full") + await crowd.refused("connections")
        streams = await crowd.many(said, address=address)
        dribbling = asyncio.create_task(dribbled(streams, more, stop))
        for _ in range(10):
            assert b" 200 " in await crowd.honest(HONEST_PUSH)
            assert b" 200 " in await crowd.honest(HONEST_QUERY)
        stop.set()
        await dribbling
        after = await crowd.refused("address_full") + await crowd.refused("connections")
        assert after - before >= HALVES - DESCRIPTORS

    told_at(server, story)


def test_headers_that_do_not_come_to_an_end_in_time_get_408_and_all_of_them_go() -> None:
    async def story(crowd: Crowd) -> None:
        began = time.monotonic()
        streams = await crowd.many(b"GET / HTTP/1.1\r\nhost: localhost\r\nx-a: ", 100)
        stop = asyncio.Event()
        dribbling = asyncio.create_task(dribbled(streams, b"a", stop))
        for reader, _ in streams:
            answer = await asyncio.wait_for(reader.read(), 30)
            assert answer.startswith(b"HTTP/1.1 408 ")
            said = json.loads(answer.partition(b"\r\n\r\n")[2])
            assert said["code"] == "deadline_exceeded"
            assert "headers did not arrive within 1 s" in said["message"]
        assert time.monotonic() - began > 1
        stop.set()
        await dribbling
        assert await crowd.refused("head_slow") == 100

    told(story, head_s=1)


@pytest.mark.parametrize(
    ("begun", "piece"),
    [
        (b"GET / HTTP/1.1\r\nhost: localhost\r\nx-a: ", b"a" * 4096),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\n", b"x-a: a\r\n" * 512),
        (b"GET /", b"a" * 4096),
    ],
    ids=["one header", "many headers", "request line"],
)
def test_headers_without_end_get_431_long_before_they_are_large(
    server: int, begun: bytes, piece: bytes
) -> None:
    async def story(crowd: Crowd) -> None:
        before = await crowd.refused("head_large")
        reader, writer = await crowd.connected(begun)
        answer = asyncio.create_task(reader.readline())
        sent = 0
        while sent < 64 << 20 and not answer.done():
            writer.write(piece)
            sent += len(piece)
            await asyncio.sleep(0.01)
        assert sent < 1 << 20
        assert b" 431 " in await answer
        assert await crowd.refused("head_large") - before == 1

    told_at(server, story)


@pytest.mark.parametrize(("size", "status"), [(60_000, b" 404 "), (70_000, b" 431 ")])
def test_the_limit_of_headers_does_not_depend_on_their_pieces(
    server: int, size: int, status: bytes
) -> None:
    async def story(crowd: Crowd) -> None:
        head = b"GET /nowhere HTTP/1.1\r\nhost: localhost\r\nx-a: " + b"a" * size + b"\r\n\r\n"
        assert status in await crowd.honest(head)
        reader, writer = await crowd.connected()
        for first in range(0, len(head), 10_000):
            writer.write(head[first : first + 10_000])
            await asyncio.sleep(0.02)
        assert status in await asyncio.wait_for(reader.readline(), PATIENCE_S)

    told_at(server, story)


def test_the_oldest_half_of_an_address_that_has_too_many_gets_429() -> None:
    async def story(crowd: Crowd) -> None:
        oldest, _ = await crowd.connected(b"GET / HT", address=STRANGER)
        await asyncio.sleep(0.1)
        await crowd.many(b"GET / HT", 5)
        answer = await asyncio.wait_for(oldest.read(), PATIENCE_S)
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: 1\r\n" in answer
        assert b"more than 5 requests from this address" in answer
        assert await crowd.refused("address_full") == 1

    told(story, unfinished_per_address_max=5)


def test_when_there_are_too_many_halves_in_all_the_address_with_the_most_loses() -> None:
    async def story(crowd: Crowd) -> None:
        lone, _ = await crowd.connected(b"GET / HT", address="127.0.0.8")
        await asyncio.sleep(0.1)
        first, _ = await crowd.connected(b"GET / HT", address=STRANGER)
        await asyncio.sleep(0.1)
        await crowd.many(b"GET / HT", 4)
        assert (await asyncio.wait_for(first.read(), PATIENCE_S)).startswith(b"HTTP/1.1 503 ")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(lone.read(), 0.3)

    told(story, unfinished_max=5)


def test_idle_connections_are_no_half_requests_and_stay() -> None:
    async def story(crowd: Crowd) -> None:
        streams = await crowd.many(HONEST_QUERY, 100)
        for reader, _ in streams:
            assert b" 200 " in await asyncio.wait_for(reader.readline(), PATIENCE_S)
        await asyncio.sleep(1.5)  # longer than headers may take
        for _, writer in streams:
            writer.write(HONEST_PUSH)
        for reader, _ in streams:
            rest = await asyncio.wait_for(reader.readuntil(b"maar-profile-ids"), PATIENCE_S)
            assert b" 200 OK" in rest
        assert await crowd.refused("address_full") == 0

    told(story, unfinished_per_address_max=20, head_s=1)


def test_idle_connections_go_when_others_need_the_room() -> None:
    async def story(crowd: Crowd) -> None:
        for reader, _ in await crowd.many(HONEST_QUERY, 900):
            await reader.read(1)
        for _ in range(20):
            assert b" 200 " in await crowd.honest(HONEST_PUSH)
        assert await crowd.refused("connections") > 100

    told(story)


def test_four_hundred_busy_connections_of_one_gateway_are_all_answered(server: int) -> None:
    """In pieces, so that they are unfinished all at the same time."""

    async def pushed(crowd: Crowd) -> None:
        reader, writer = await crowd.connected(address=STRANGER)
        for _ in range(3):
            writer.write(HONEST_PUSH[:40])
            await asyncio.sleep(0.2)
            writer.write(HONEST_PUSH[40:200])
            await asyncio.sleep(0.2)
            writer.write(HONEST_PUSH[200:])
            assert b" 200 " in await asyncio.wait_for(reader.readline(), 30)
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)

    async def story(crowd: Crowd) -> None:
        before = await crowd.refused("address_full")
        pushes: list[Awaitable[None]] = [pushed(crowd) for _ in range(400)]
        await asyncio.gather(*pushes)
        assert await crowd.refused("address_full") == before

    told_at(server, story)
