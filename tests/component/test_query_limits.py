"""Questions that are too large, too slow or too many are refused, stopped or made to wait."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from maar.model.errors import (
    InvalidInput,
    Overloaded,
    Unavailable,
)
from maar.model.time import TimeRange
from maar.ports.reader.query import (
    DrawFlameGraph,
    ListLabelValues,
    ListProfileTypes,
    Matcher,
    RankFunctions,
    Scope,
    SelectSeries,
)
from maar.ports.stores.object_store import ObjectStore
from maar.query.read.reading import Reading, Stopped
from maar.query.read.sql import Statement
from support.lake.asking import (
    ALWAYS,
    SECOND,
    START,
    Asker,
    Slow,
    ask,
    endless,
    lake,
    some_profiles,
    store,
)
from support.lake.query_lake import (
    COUNT,
    CPU,
    TENANT,
    Lake,
    by_stack,
    rows,
)

__all__ = ["ask", "lake", "store"]

pytestmark = pytest.mark.component


def test_what_cannot_be_asked_is_refused_with_a_sentence(lake: Lake, ask: Asker) -> None:
    lake.add_block(some_profiles(Random(9), 2))
    engine, scope = ask.engine, Scope(TENANT, ALWAYS)

    def series(step_ns: int, aggregation: str = "sum") -> Any:
        return engine.call(
            SelectSeries(
                scope,
                profile_type=CPU,
                group_by=(),
                step_ns=step_ns,
                aggregation=aggregation,
                limit=0,
            )
        )

    backwards = Scope(TENANT, TimeRange(START + 1, START))
    odd = Scope(TENANT, ALWAYS, (Matcher("a", "=~", "("),))
    unknown = Scope(TENANT, ALWAYS, (Matcher("a", "~", "b"),))
    for question in (
        engine.call(DrawFlameGraph(backwards, profile_type=CPU, max_nodes=10)),
        engine.call(DrawFlameGraph(odd, profile_type=CPU, max_nodes=10)),
        engine.call(DrawFlameGraph(unknown, profile_type=CPU, max_nodes=10)),
        engine.call(DrawFlameGraph(scope, profile_type="cpu", max_nodes=10)),
        engine.call(RankFunctions(scope, profile_type=CPU, limit=0)),
        engine.call(ListLabelValues(scope, name="")),
        series(0),
        series(1_000_000),
        series(60 * SECOND, "median"),
    ):
        with pytest.raises(InvalidInput):
            ask.run(question)
    assert ask.metric("maar_query_errors_total", kind="flamegraph", error="InvalidInput") == 4


def test_a_segment_that_swells_is_not_decoded_at_once(
    lake: Lake, ask: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = some_profiles(Random(5), 5)
    lake.add_segment(profiles)
    size = sum(each.raw.raw_size for each in profiles)
    monkeypatch.setattr(ask.engine.level0, "raw_bytes_max", size - 1)
    with pytest.raises(Overloaded, match="more than can be decoded at once"):
        ask.stacks()
    monkeypatch.setattr(ask.engine.level0, "raw_bytes_max", size)
    monkeypatch.setattr(ask.engine.level0, "weight_max", 1)
    with pytest.raises(Overloaded, match="more than can be decoded at once"):
        ask.stacks()
    monkeypatch.undo()
    assert ask.stacks() == by_stack(rows(profiles, time=ALWAYS))


def test_services_that_swell_only_together_are_decoded_one_by_one(
    lake: Lake, ask: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = [some_profiles(Random(n), 4, service=f"s{n}") for n in range(3)]
    sizes = [sum(each.raw.raw_size for each in some) for some in services]
    profiles = [each for some in services for each in some]
    lake.add_segment(profiles)
    monkeypatch.setattr(ask.engine.level0, "raw_bytes_max", max(sizes))
    assert ask.stacks() == by_stack(rows(profiles, time=ALWAYS))


def test_a_deep_backlog_is_an_error_and_not_half_an_answer(lake: Lake) -> None:
    lake.add_segment(some_profiles(Random(10), 10))
    ask = Asker(lake, level0_profiles_max=9)
    with pytest.raises(Overloaded, match="not compacted"):
        ask.stacks()
    ask.engine.close()


def test_a_question_has_a_deadline_and_its_slot_comes_back(store: ObjectStore) -> None:
    async def scenario() -> None:
        lake = Slow(store)
        lake.add_block(some_profiles(Random(11), 3))
        ask = Asker(lake, timeout_s=3.0, concurrency=1)  # the last needs some on a busy machine
        scope = Scope(TENANT, ALWAYS)
        with pytest.raises(Unavailable, match="longer than"):
            await ask.engine.call(ListProfileTypes(scope))
        lake.go.set()
        assert await ask.engine.call(ListProfileTypes(scope)) == (CPU, COUNT)
        ask.engine.close()

    asyncio.run(scenario())


def test_questions_beyond_the_slots_wait_and_pins_have_names_of_their_own(
    store: ObjectStore,
) -> None:
    async def scenario() -> None:
        lake = Slow(store)
        lake.add_block(some_profiles(Random(12), 3))
        ask = Asker(lake, concurrency=2, tenant_concurrency=2)
        scope = Scope(TENANT, ALWAYS)
        asked = [
            asyncio.create_task(
                ask.engine.call(DrawFlameGraph(scope, profile_type=CPU, max_nodes=9))
            )
            for _ in range(6)
        ]
        await asyncio.sleep(0.05)
        lake.go.set()
        graphs = await asyncio.gather(*asked)
        assert len({graph.total for graph in graphs}) == 1
        assert {request.reader for request in lake.asked} == {"query/0", "query/1"}
        ask.engine.close()

    asyncio.run(scenario())


def test_a_cancelled_question_stops_its_thread(lake: Lake) -> None:
    async def scenario() -> None:
        lake.add_block(some_profiles(Random(13), 3))
        ask = Asker(lake, concurrency=1)
        scope = Scope(TENANT, ALWAYS)
        asked = asyncio.create_task(ask.engine.ask(scope, endless))
        await asyncio.sleep(0.3)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        async with asyncio.timeout(60):  # the only slot is free again
            await ask.engine.call(DrawFlameGraph(scope, profile_type=CPU, max_nodes=9))
        ask.engine.close()

    asyncio.run(scenario())


def test_closing_does_not_wait_for_a_long_question(lake: Lake) -> None:
    async def scenario() -> None:
        ask = Asker(lake)
        asked = asyncio.create_task(ask.engine.ask(Scope(TENANT, ALWAYS), endless))
        await asyncio.sleep(0.2)
        ask.engine.close()
        with pytest.raises(Stopped):
            await asked

    asyncio.run(scenario())


def test_a_question_over_its_memory_is_refused_and_not_fatal(lake: Lake) -> None:
    def greedy(reading: Reading) -> None:
        reading.run("SELECT list(range) FROM range(50000000)", Statement())

    lake.add_block(some_profiles(Random(16), 3))
    ask = Asker(lake, memory_bytes_max=64 << 20, spill_bytes_max=1 << 20)
    with pytest.raises(Overloaded, match="memory"):
        ask.run(ask.engine.ask(Scope(TENANT, ALWAYS), greedy))
    assert ask.stacks()
    ask.engine.close()
