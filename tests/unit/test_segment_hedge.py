"""A slow create is tried a second time beside the first; the same key is the same object."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

import pytest

from maar.model.errors import MaarError, StoreFull, Unavailable
from maar.model.ids import Shard
from maar.segment.settings import SegmentSettings
from maar.segment.uploads import hedge
from support.clock.virtual_time import Gate, until
from support.http.pushed import FailingStore, run
from support.segment.writer_in_memory import ONE, SlowStore, World, in_world, raw_profile

SECOND = 1_000_000_000
HEDGING = SegmentSettings(flush_interval_ms=5, flush_interval_max_ms=5, hedge_after_ms=20)


def after(seconds: float, outcome: str | MaarError) -> Callable[[], Coroutine[Any, Any, str]]:
    async def work() -> str:
        await asyncio.sleep(seconds)
        if isinstance(outcome, MaarError):
            raise outcome
        return outcome

    return work


def never() -> NoReturn:
    raise AssertionError("there was no need of a second try")


def none() -> None:
    return None


def test_a_first_try_in_time_is_the_only_one() -> None:
    assert run(hedge(after(0, "first")(), never, after_s=5)) == ("first", False)
    with pytest.raises(StoreFull):
        run(hedge(after(0, StoreFull("no room"))(), never, after_s=5))


def test_whichever_succeeds_first_counts() -> None:
    assert run(hedge(after(5, "first")(), after(0, "second"), after_s=0.001)) == ("second", True)
    first = hedge(after(0.05, "first")(), after(5, "second"), after_s=0.001)
    assert run(first) == ("first", False)
    assert run(hedge(after(0.05, "first")(), none, after_s=0.001)) == ("first", False)


def test_one_failure_does_not_count_while_the_other_may_succeed() -> None:
    lost = Unavailable("lost")
    second = hedge(after(0.02, lost)(), after(0.05, "second"), after_s=0.001)
    assert run(second) == ("second", True)
    assert run(hedge(after(0.05, "first")(), after(0.01, lost), after_s=0.001)) == ("first", False)
    with pytest.raises(Unavailable, match="lost"):
        run(hedge(after(0.02, lost)(), after(0, StoreFull("other")), after_s=0.001))


def test_a_slow_create_is_overtaken_and_leaves_one_object() -> None:
    store = SlowStore(lambda number: number == 1)

    async def story(world: World) -> None:
        await world.service.push(ONE, (raw_profile(1),))
        assert world.stored_profiles() == [raw_profile(1)]
        assert world.value("buffered_bytes") > 0, "a thread still holds the bytes"
        store.gate.set()
        await until(lambda: world.value("buffered_bytes") == 0)

    world = in_world(story, HEDGING, store)
    assert len(store.objects) == 1
    assert [world.value(name) for name in ("hedges_total", "hedge_wins_total")] == [1, 1]
    assert world.value("puts_total") == 2
    assert world.value("failures_total", cause="unavailable") == 0


def test_a_first_create_that_ends_first_makes_the_second_the_same_object() -> None:
    hedge_is_under_way = Gate()

    class FirstSlow(SlowStore):
        def create(self, key: str, body: bytes) -> None:
            if self.entered:
                hedge_is_under_way.set()
                super().create(key, body)
            else:
                self.entered = 1
                hedge_is_under_way.wait()
                FailingStore.create(self, key, body)

    store = FirstSlow(lambda number: number == 2)

    async def story(world: World) -> None:
        await world.service.push(ONE, (raw_profile(1),))
        store.gate.set()
        await until(lambda: world.value("buffered_bytes") == 0)

    world = in_world(story, HEDGING, store)
    assert len(store.objects) == 1
    assert [world.value(name) for name in ("hedges_total", "hedge_wins_total")] == [1, 0]


def test_hedges_have_a_budget() -> None:
    settings = SegmentSettings(
        flush_interval_ms=1,
        flush_interval_max_ms=1,
        hedge_after_ms=5,
        hedges_per_s=0,
        hedges_burst=2,
    )
    store = SlowStore(lambda _: True)

    async def story(world: World) -> None:
        pushes = [
            asyncio.create_task(world.service.push(Shard(number), (raw_profile(number),)))
            for number in range(1, 7)
        ]
        await until(lambda: store.entered == 8)
        store.gate.set()
        await asyncio.gather(*pushes)

    world = in_world(story, settings, store)
    assert world.value("hedges_total") == 2
    assert world.value("puts_total") == 8
