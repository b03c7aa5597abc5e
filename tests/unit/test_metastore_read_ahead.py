"""Reading ahead changes nothing but the time that it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from maar.metastore.replica.log_fold import LogFold
from maar.metastore.replica.read_ahead import ReadAhead
from maar.model.errors import Unavailable
from maar.ports.metastore.log import BATCH_BYTES_MAX, EMPTY, Log, Record, Term, follow
from support.clock.virtual_time import run_virtually
from support.stores.memory_store import MemoryStore


class Pages:
    """A log of large entries, each a page of its own, which can fail and be slow."""

    def __init__(self, count: int) -> None:
        body = b"x" * (BATCH_BYTES_MAX // 2)
        self.records = follow(EMPTY, [body] * count, Term(1))
        self.asked: list[int] = []
        self.failing = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.under_way = 0

    async def read(self, *, after: int) -> list[Record]:
        self.asked.append(after)
        self.under_way += 1
        try:
            await self.gate.wait()
            if self.failing:
                self.failing -= 1
                raise Unavailable("the log does not answer")
            return self.records[after : after + 1]
        finally:
            self.under_way -= 1


def run(test: Callable[[Pages], Awaitable[None]], count: int = 3) -> None:
    async def made() -> None:
        await test(Pages(count))

    run_virtually(made())


def as_log(pages: Pages) -> Log:
    return pages  # type: ignore[return-value]


def test_the_next_page_is_under_way_while_one_is_folded() -> None:
    async def test(log: Pages) -> None:
        async with ReadAhead(as_log(log)) as pages:
            assert await pages.read(after=0) == log.records[:1]
            await asyncio.sleep(0)
            assert log.asked == [0, 1]
            assert await pages.read(after=1) == log.records[1:2]
            assert await pages.read(after=2) == log.records[2:]
            assert await pages.read(after=3) == []
        assert log.asked == [0, 1, 2, 3], "each page is read once"

    run(test)


def test_whoever_asks_for_another_place_gets_it() -> None:
    async def test(log: Pages) -> None:
        async with ReadAhead(as_log(log)) as pages:
            await pages.read(after=0)
            assert await pages.read(after=2) == log.records[2:]
            assert await pages.read(after=0) == log.records[:1]

    run(test)


def test_a_failed_page_is_read_again_when_it_is_asked_for_again() -> None:
    async def test(log: Pages) -> None:
        async with ReadAhead(as_log(log)) as pages:
            await pages.read(after=0)
            log.failing = 1
            with pytest.raises(Unavailable):
                await pages.read(after=1)
            assert await pages.read(after=1) == log.records[1:2]

    run(test)


def test_nothing_is_under_way_when_it_ends() -> None:
    async def test(log: Pages) -> None:
        async with ReadAhead(as_log(log)) as pages:
            await pages.read(after=0)
            log.gate.clear()
            await asyncio.sleep(0)
            assert log.under_way == 1
        assert log.under_way == 0

        async def reading() -> None:
            async with ReadAhead(as_log(log)) as pages:
                await pages.read(after=0)

        task = asyncio.create_task(reading())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert log.under_way == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert log.under_way == 0

    run(test)


def test_a_small_page_is_the_last_for_now() -> None:
    async def test(log: Pages) -> None:
        log.records = follow(EMPTY, [b"small"], Term(1))
        async with ReadAhead(as_log(log)) as pages:
            assert await pages.read(after=0) == log.records
            await asyncio.sleep(0)
        assert log.asked == [0]

    run(test)


def test_a_replica_begins_with_nothing_read() -> None:
    async def test(log: Pages) -> None:
        log.records = []
        replica = LogFold(MemoryStore())
        await replica.catch_up(as_log(log))
        assert replica.head == EMPTY

    run(test)
