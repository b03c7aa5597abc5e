"""Tenants take fair turns at the engine, and what a question uses is counted and bounded."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from random import Random

import pytest

from maar.model.errors import (
    Overloaded,
    TooLarge,
    Unavailable,
)
from maar.model.ids import (
    TenantId,
)
from maar.model.time import SECOND_NS
from maar.ports.reader.query import (
    DrawFlameGraph,
    ListLabelNames,
    ListProfileTypes,
    ListSeries,
    QueryCall,
    RankFunctions,
    Scope,
    SelectSeries,
)
from maar.ports.stores.object_store import ObjectStore
from maar.query.read.reading import Reading, Stopped
from maar.query.read.sql import Statement
from support.lake.asking import (
    ALWAYS,
    START,
    Asker,
    Slow,
    ask,
    endless,
    lake,
    service,
    some_profiles,
    store,
)
from support.lake.query_lake import (
    COUNT,
    CPU,
    TENANT,
    Known,
    Lake,
    by_stack,
    known_profile,
    rows,
)

__all__ = ["ask", "lake", "store"]

pytestmark = pytest.mark.component


def test_a_tenant_that_floods_does_not_hold_up_another(lake: Lake) -> None:
    async def scenario() -> None:
        quiet = TenantId("quiet")
        lake.add_block(some_profiles(Random(20), 3))
        lake.add_block([known_profile([(("f",), {}, (1, 1))], time_ns=START, tenant=quiet)])
        ask = Asker(lake, tenant_waiting_max=5)
        flood = [
            asyncio.create_task(ask.engine.ask(Scope(TENANT, ALWAYS), endless)) for _ in range(20)
        ]
        async with asyncio.timeout(60):  # three are at work, five wait, the others need not
            while len(refused := [task for task in flood if task.done()]) < 12:
                await asyncio.sleep(0.01)
        for task in refused:
            with pytest.raises(Overloaded, match="tenant acme") as error:
                await task
            assert error.value.retry_after_s
        async with asyncio.timeout(60):  # those of the flood take for ever
            graph = await ask.engine.call(
                DrawFlameGraph(Scope(quiet, ALWAYS), profile_type=CPU, max_nodes=9)
            )
        assert graph.total == 1
        assert ask.metric("maar_query_waiting") == 5
        assert ask.metric("maar_query_refused_total", reason="tenant_waiting") == 12
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
        assert ask.metric("maar_query_waiting") == 0
        async with asyncio.timeout(60):  # nothing of the flood is left in a slot
            await asyncio.gather(
                *(ask.engine.call(ListLabelNames(Scope(TENANT, ALWAYS))) for _ in range(4))
            )
        ask.engine.close()

    asyncio.run(scenario())


def test_a_question_that_waits_too_long_leaves_its_place(store: ObjectStore) -> None:
    async def scenario() -> None:
        lake = Slow(store)
        lake.add_block(some_profiles(Random(21), 3))
        ask = Asker(lake, concurrency=1, timeout_s=3.0)  # the last needs some on a busy machine
        asked = [ask.engine.call(ListProfileTypes(Scope(TENANT, ALWAYS))) for _ in range(2)]
        first, second = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(first, Unavailable)
        assert isinstance(second, Overloaded | Unavailable)
        lake.go.set()
        assert await ask.engine.call(ListProfileTypes(Scope(TENANT, ALWAYS))) == (CPU, COUNT)
        ask.engine.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("why", "put", "most"),
    [
        ("not compacted", Lake.add_segment, 100_000),
        ("too many frames", Lake.add_block, 900_000),
    ],
)
def test_a_question_that_needs_too_much_memory_says_what_helps(
    lake: Lake, why: str, put: Callable[[Lake, list[Known]], object], most: int
) -> None:
    many = [
        known_profile(
            [((f"f{n}", *"abcdefgh" * 20), {}, (1, 1))], time_ns=START + n, pod=f"pod-{n}"
        )
        for n in range(200)
    ]
    put(lake, many)
    small = known_profile([(("f",), {}, (1, 1))], time_ns=START, service="small")
    put(lake, [small])
    ask = Asker(lake, answer_bytes_max=most)
    with pytest.raises(TooLarge, match=why) as refused:
        ask.stacks(service("checkout"))
    assert "ask for one service" in str(refused.value)
    assert "query.answer_bytes_max" in str(refused.value)
    assert ask.stacks(service("small")) == {("f",): 1}, "a smaller question is answered"
    ask.engine.close()
    enough = Asker(lake)
    assert enough.stacks(service("checkout")) == by_stack(rows(many, time=ALWAYS))
    assert enough.metric("maar_query_held_bytes_sum") > most
    enough.engine.close()


def test_the_same_stacks_in_many_parts_are_not_too_much(lake: Lake) -> None:
    """Part by part they would be; added up by DuckDB they are few."""
    many = [
        known_profile([((*"abcdefgh" * 20,), {}, (1, 1))], time_ns=START + n, pod=f"pod-{n}")
        for n in range(40)
    ]
    for known in many:
        lake.add_block([known])
    ask = Asker(lake, answer_bytes_max=200_000)
    assert ask.stacks(service("checkout")) == by_stack(rows(many, time=ALWAYS))
    ask.engine.close()


@pytest.mark.parametrize("kind", ["flamegraph", "top"])
def test_what_is_counted_is_not_less_than_what_is_used(lake: Lake, kind: str) -> None:
    random = Random(24)
    stacks = [tuple(f"f{random.randrange(50)}" for _ in range(160)) for _ in range(3000)]
    lake.add_block([known_profile([(stack, {}, (1, 1)) for stack in stacks], time_ns=START)])
    ask = Asker(lake)
    scope = Scope(TENANT, ALWAYS)

    def question() -> object:
        if kind == "top":
            return ask.run(ask.engine.call(RankFunctions(scope, profile_type=CPU, limit=9)))
        return ask.run(ask.engine.call(DrawFlameGraph(scope, profile_type=CPU, max_nodes=9)))

    question()
    before = ask.metric("maar_query_held_bytes_sum")
    tracemalloc.start()  # sees NumPy's arrays and Python's objects
    try:
        question()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 10 << 20 < peak < ask.metric("maar_query_held_bytes_sum") - before
    ask.engine.close()


def test_a_result_of_too_many_rows_is_refused_while_it_comes(lake: Lake) -> None:
    def wide(reading: Reading) -> None:
        reading.run("SELECT range, range::VARCHAR AS text FROM range(10000000)", Statement())

    lake.add_block(some_profiles(Random(22), 3))
    ask = Asker(lake, answer_bytes_max=4 << 20)
    with pytest.raises(TooLarge, match="too many rows"):
        ask.run(ask.engine.ask(Scope(TENANT, ALWAYS), wide))
    ask.engine.close()
    ask = Asker(lake, answer_bytes_max=1 << 10)
    with pytest.raises(TooLarge, match="too many rows"):
        ask.run(ask.engine.call(ListSeries(Scope(TENANT, ALWAYS), label_names=())))
    ask.engine.close()


def test_labels_of_long_text_weigh_their_text(lake: Lake) -> None:
    """A label of a pod may have two thousand characters, and each series says it in the answer."""
    scope = Scope(TENANT, ALWAYS)
    questions: list[QueryCall[object]] = [
        ListSeries(scope, label_names=()),
        ListSeries(scope, label_names=("pod",)),
        SelectSeries(
            scope,
            profile_type=CPU,
            group_by=("pod",),
            step_ns=3600 * SECOND_NS,
            aggregation="sum",
            limit=0,
        ),
    ]
    lake.add_block(
        [
            known_profile([(("f",), {}, (1, 1))], time_ns=START + n, pod=f"{n:02d}" + "x" * length)
            for n, length in enumerate([0] * 50 + [2000] * 50)
        ]
    )
    for question in questions:
        enough, least = Asker(lake), 100 * 2000 // 2
        answer = enough.run(enough.engine.call(question))
        assert len(answer) >= 100  # type: ignore[arg-type]
        weight = enough.metric("maar_query_held_bytes_sum")
        assert weight > least, question
        enough.engine.close()
        ask = Asker(lake, answer_bytes_max=least)
        for _ in range(2):  # also when it is kept
            with pytest.raises(TooLarge, match="too many rows"):
                ask.run(ask.engine.call(question))
        ask.engine.close()


def test_a_stop_between_two_batches_of_rows_is_a_stop(lake: Lake) -> None:
    def stopped(reading: Reading) -> None:
        reading.budget.take = lambda *_: reading.stop()  # type: ignore[method-assign]
        reading.run("SELECT range FROM range(10000000)", Statement())

    lake.add_block(some_profiles(Random(23), 3))
    ask = Asker(lake)
    with pytest.raises(Stopped):
        ask.run(ask.engine.ask(Scope(TENANT, ALWAYS), stopped))
    ask.engine.close()
