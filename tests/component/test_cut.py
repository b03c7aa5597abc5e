"""The network that tests cut does what they believe it does."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from support.network.cut import Line, Lines, Way, lines

pytestmark = pytest.mark.component

SILENCE_S = 0.3


@pytest.fixture
def network() -> Iterator[Lines]:
    with lines() as opened:
        yield opened


class Parrot:
    """A server that says everything again, and remembers it."""

    def __init__(self) -> None:
        self.heard = b""
        self.ends = 0
        self.address = ""
        self.callers: set[asyncio.Task[None]] = set()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.callers.add(task)
        with contextlib.suppress(ConnectionError):
            while word := await reader.read(100):
                self.heard += word
                writer.write(word)
                await writer.drain()
            self.ends += 1
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def parrot() -> AsyncIterator[Parrot]:
    bird = Parrot()
    server = await asyncio.start_server(bird.answer, "127.0.0.1", 0)
    bird.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield bird
    finally:
        server.close()
        await asyncio.gather(*bird.callers)


class Caller:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def say(self, word: bytes) -> bytes | None:
        """What came back: None when nothing did, b'' when the connection ended."""
        try:
            self._writer.write(word)
            async with asyncio.timeout(SILENCE_S if word == b"lost" else 10):
                return await self._reader.read(100)
        except TimeoutError:
            return None
        except ConnectionError:
            return b""

    def close(self) -> None:
        self._writer.transport.abort()


@asynccontextmanager
async def calling(line: Line) -> AsyncIterator[Caller]:
    host, _, port = line.address.rpartition(":")
    caller = Caller(*await asyncio.open_connection(host, int(port)))
    try:
        yield caller
    finally:
        caller.close()


def test_a_line_carries_both_ways_until_it_is_cut_and_again_when_it_is_healed(
    network: Lines,
) -> None:
    async def story() -> None:
        async with parrot() as bird:
            line = network.open(bird.address)
            async with calling(line) as caller:
                assert await caller.say(b"one") == b"one"
                line.cut()
                assert await caller.say(b"two") == b""
            async with calling(line) as refused:
                assert await refused.say(b"three") == b""
            line.heal()
            async with calling(line) as caller:
                assert await caller.say(b"four") == b"four"
            assert bird.heard == b"onefour"

    asyncio.run(story())


def test_an_answer_is_lost_although_the_request_arrived(network: Lines) -> None:
    async def story() -> None:
        async with parrot() as bird:
            line = network.open(bird.address)
            async with calling(line) as caller:
                assert await caller.say(b"one") == b"one"
                line.silence(Way.BACK)
                assert await caller.say(b"lost") is None
                assert bird.heard == b"onelost"
                line.heal()
                assert await caller.say(b"two") == b"", "a stream with a hole in it goes on"

    asyncio.run(story())


def test_a_broken_cable_says_nothing_either_way_and_accepts_callers(network: Lines) -> None:
    async def story() -> None:
        async with parrot() as bird:
            line = network.open(bird.address)
            line.silence()
            async with calling(line) as caller:
                assert await caller.say(b"lost") is None
            assert bird.heard == b""

    asyncio.run(story())


def test_a_connection_that_lost_nothing_outlives_the_silence(network: Lines) -> None:
    async def story() -> None:
        async with parrot() as bird:
            line = network.open(bird.address)
            async with calling(line) as caller:
                assert await caller.say(b"one") == b"one"
                line.silence()
                line.heal()
                assert await caller.say(b"two") == b"two"

    asyncio.run(story())


def test_a_slow_line_takes_its_time(network: Lines) -> None:
    async def story() -> None:
        async with parrot() as bird:
            line = network.open(bird.address)
            line.delay(0.1)
            async with calling(line) as caller:
                began = time.monotonic()
                assert await caller.say(b"one") == b"one"
                assert time.monotonic() - began >= 0.2

    asyncio.run(story())


def test_one_way_ends_and_the_other_stays(network: Lines) -> None:
    async def story() -> None:
        async with parrot() as bird:
            line = network.open(bird.address)
            async with calling(line) as caller:
                assert await caller.say(b"one") == b"one"
                line.half_close(Way.OUT)
                assert await caller.say(b"two") == b""
                assert bird.heard == b"one"
        assert bird.ends == 1

    asyncio.run(story())
