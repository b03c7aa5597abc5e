"""Creates: so many at once, repeated without harm, and a store that lags is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from prometheus_client import CollectorRegistry

from maar.model.errors import AlreadyExists
from maar.model.token_bucket import Refill
from maar.segment.metrics import SegmentMetrics
from maar.segment.uploads import Running, Uploads
from support.clock.fake_clock import FakeClock
from support.clock.virtual_time import Gate, until
from support.http.pushed import FailingStore, run
from support.segment.writer_in_memory import SlowStore

SECOND = 1_000_000_000


class Bench:
    def __init__(self, store: FailingStore, *, at_once: int = 1) -> None:
        self.clock = FakeClock()
        self.running: Running = set()
        self.uploads = Uploads(
            store,
            self.clock,
            SegmentMetrics(CollectorRegistry()),
            at_once=at_once,
            hedge_after_s=60,
            hedges=Refill(0, 0),
        )

    def create(self, key: str) -> asyncio.Task[None]:
        return asyncio.create_task(self.uploads.create(key, b"body", self.running))

    def behind(self) -> bool:
        return self.uploads.behind(limit_ns=5 * SECOND)


def with_store(store: FailingStore, story: Callable[[Bench], Awaitable[None]]) -> None:
    async def told() -> None:
        bench = Bench(store)
        await story(bench)
        bench.uploads.close()

    run(told())


def test_the_same_create_again_is_the_same_object() -> None:
    store = FailingStore()

    async def story(bench: Bench) -> None:
        await bench.create("a")
        await bench.create("a")
        store.objects["a"] = b"of another size"
        with pytest.raises(AlreadyExists):
            await bench.create("a")

    with_store(store, story)


def test_a_store_that_does_not_answer_is_behind_until_it_does() -> None:
    store = SlowStore(lambda _: True)

    async def story(bench: Bench) -> None:
        first = bench.create("a")
        await until(lambda: store.entered == 1)
        assert not bench.behind()
        bench.clock.advance(5 * SECOND + 1)
        assert bench.behind(), "all that may be under way are stuck"
        store.gate.set()
        await first
        assert not bench.behind()

    with_store(store, story)


def test_one_that_has_waited_for_its_turn_too_long_shows_it() -> None:
    class OneByOne(FailingStore):
        """Each create waits for its own word."""

        def __init__(self) -> None:
            super().__init__()
            self.gates = {key: Gate() for key in "abc"}
            self.entered: list[str] = []

        def create(self, key: str, body: bytes) -> None:
            self.entered.append(key)
            self.gates[key].wait()
            super().create(key, body)

    store = OneByOne()

    async def story(bench: Bench) -> None:
        tasks = [bench.create(key) for key in "abc"]
        await until(lambda: store.entered == ["a"])
        assert not bench.behind()
        bench.clock.advance(5 * SECOND + 1)
        store.gates["a"].set()
        await until(lambda: store.entered == ["a", "b"])
        assert bench.behind(), "c waits, though b has only just begun"
        store.gates["b"].set()
        await until(lambda: store.entered == ["a", "b", "c"])
        assert not bench.behind()
        store.gates["c"].set()
        await asyncio.gather(*tasks)

    with_store(store, story)


def test_so_many_are_taken_as_the_store_has_time_for() -> None:
    """It takes a second each: beyond five that wait, another would wait too long."""
    store = SlowStore(lambda _: True)

    async def story(bench: Bench) -> None:
        for number in range(60):  # it learns what a create takes
            one = bench.create(f"known-{number}")
            await until(lambda least=number: store.entered > least)  # type: ignore[misc]
            bench.clock.advance(SECOND)
            store.gate.set()
            await one
            store.gate.clear()
        crowd = [bench.create("first")]
        taken = 0
        while not bench.behind():
            crowd.append(bench.create(f"more-{taken}"))
            await asyncio.sleep(0)
            taken += 1
        assert 4 <= taken <= 7
        store.gate.set()
        await asyncio.gather(*crowd)
        assert not bench.behind()

    with_store(store, story)


def test_one_that_nobody_waits_for_is_counted_until_its_thread_ends() -> None:
    store = SlowStore(lambda number: number == 1)

    async def story(bench: Bench) -> None:
        first = bench.create("a")
        await until(lambda: store.entered == 1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert len(bench.running) == 1
        second = bench.create("b")
        for _ in range(20):
            await asyncio.sleep(0)
        assert store.entered == 1, "there is one slot, and a thread has it"
        store.gate.set()
        await second
        await until(lambda: not bench.running)

    with_store(store, story)


def test_one_that_gives_up_in_the_queue_takes_no_slot_with_it() -> None:
    store = SlowStore(lambda number: number == 1)

    async def story(bench: Bench) -> None:
        first, second = bench.create("a"), bench.create("b")
        await until(lambda: store.entered == 1)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        bench.clock.advance(SECOND)
        store.gate.set()
        await first
        await bench.create("c")
        assert sorted(store.objects) == ["a", "c"]

    with_store(store, story)
