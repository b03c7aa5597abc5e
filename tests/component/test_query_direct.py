"""Answers from runs against those of SQL over the same lakes, which must be equal.

Without room in the cache of parts, the engine leaves every query about blocks to DuckDB.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from maar.model.errors import MaarError
from maar.model.ids import BlockId, TenantId
from maar.model.predicate import EVER_NS, Mask
from maar.model.time import TimeRange
from maar.ports.reader.index import IndexView, ViewRequest
from maar.ports.reader.query import (
    DrawFlameGraph,
    ListLabelNames,
    ListLabelValues,
    ListProfileTypes,
    ListSeries,
    Matcher,
    RankFunctions,
    Scope,
    SelectSeries,
)
from maar.ports.stores.object_store import ObjectStore
from maar.query import answers, compiled
from maar.query.answers import GraphBounds, draws_at_once
from maar.query.read.part_cache import Weighed
from maar.query.read.reading import Reading
from maar.query.service import DuckEngine, QuerySettings
from support.lake.asking import SECOND, START, lake, store
from support.lake.block_plans import Bench
from support.lake.query_lake import COUNT, CPU, TENANT, Known, Lake, known_profile

__all__ = ["lake", "store"]

pytestmark = pytest.mark.component

OTHER = TenantId("other")
HUGE = 2**62
REGIONS = ("eu", "us", "")


class Masked(Lake):
    """A lake of which something was deleted."""

    masks: dict[BlockId, tuple[Mask, ...]]

    async def view(self, request: ViewRequest) -> IndexView:
        return msgspec.structs.replace(await super().view(request), masks=self.masks)


@pytest.fixture
def masked(store: ObjectStore) -> Masked:
    made = Masked(store)
    made.masks = {}
    return made


def some_profile(random: Random, *, tenant: TenantId, huge: bool) -> Known:
    """Values may be negative; several profiles share a series and an instant."""
    values = (0, 1, 7, -3, HUGE) if huge else (0, 1, 2, 7, 1000, -3)
    samples = []
    for _ in range(random.randrange(1, 10)):
        stack = tuple(f"f{random.randrange(4)}" for _ in range(random.randrange(6)))
        own = {"thread": random.choice("ab")} if random.random() < 0.3 else {}
        samples.append((stack, own, (random.choice(values), random.choice(values))))
    region = random.choice(REGIONS)
    return known_profile(
        samples,
        time_ns=START + random.randrange(40) * SECOND + random.choice((0, 0, 123, 1000)),
        service=random.choice(("checkout", "search", "mail")),
        tenant=tenant,
        client_id=str(random.random()),
        **({"region": region} if region else {}),
        pod=f"pod-{random.randrange(4)}",
    )


def sent_again(random: Random, known: Known) -> Known:
    """An undated profile keeps its id when it is sent again, at another time."""
    later = known.raw.time_ns + random.choice((0, 5, 30)) * SECOND
    return Known(msgspec.structs.replace(known.raw, time_ns=later), known.samples)


def fill(lake: Masked, bench: Bench, random: Random) -> None:
    """Blocks as compaction writes them, plain ones, and level 0, with copies among all of them."""
    huge = random.random() < 0.2
    mine = [some_profile(random, tenant=TENANT, huge=huge) for _ in range(40)]
    theirs = [some_profile(random, tenant=OTHER, huge=False) for _ in range(6)]

    def some() -> list[Known]:
        found = {known.raw.id: known for known in random.sample(mine, random.randrange(1, 15))}
        return [sent_again(random, k) if random.random() < 0.3 else k for k in found.values()]

    for level in range(1, random.randrange(2, 4)):
        lake.add_block(some(), level=level)
    lake.add_block(random.sample(theirs, 3))
    lake.blocks += bench.compact([bench.segment([known.raw for known in some()])]).outputs
    for _ in range(random.randrange(3)):
        lake.add_segment([*some(), *random.sample(theirs, 2)])
    for meta in lake.blocks:
        if random.random() < 0.3:
            first = START + random.randrange(40) * SECOND
            until = random.choice((EVER_NS // 1000 * 1000, first + 10 * SECOND))
            service = random.choice(("checkout", ""))
            lake.masks[meta.id] = (Mask(TENANT, service, first, until),)


def some_scope(random: Random) -> Scope:
    matchers = [
        Matcher("service_name", "=", "checkout"),
        Matcher("service_name", "!=", "mail"),
        Matcher("service_name", "=~", "c.*|search"),
        Matcher("region", "=", "eu"),
        Matcher("region", "=", ""),
        Matcher("region", "!~", "e.|"),
        Matcher("pod", "=~", "pod-[12]"),
        Matcher("thread", "!=", "a"),
        Matcher("__type__", "=", "cpu"),
        Matcher("__profile_type__", "=~", ".*count.*"),
    ]
    start = START + random.randrange(-1, 20) * SECOND + random.choice((0, 0, 1000, 1))
    end = start + random.randrange(60) * SECOND
    chosen = tuple(random.sample(matchers, random.choice((0, 0, 1, 1, 2))))
    return Scope(TENANT, TimeRange(start, end), chosen)


def some_question(random: Random) -> Any:
    scope, kind = some_scope(random), random.choice((CPU, COUNT))
    groups = ("service_name", "pod", "region", "__type__", "nothing")
    names = tuple(random.sample(groups, random.randrange(3)))
    return random.choice(
        (
            DrawFlameGraph(scope, profile_type=kind, max_nodes=random.choice((3, 1000))),
            RankFunctions(scope, profile_type=kind, limit=100),
            SelectSeries(
                scope,
                profile_type=kind,
                group_by=names,
                step_ns=random.choice((1, 7, 60)) * SECOND,
                aggregation=random.choice(("sum", "avg")),
                limit=random.choice((0, 2)),
            ),
            ListLabelNames(scope),
            ListLabelValues(scope, random.choice(groups)),
            ListSeries(scope, names),
            ListProfileTypes(scope),
        )
    )


@pytest.fixture
def engines(masked: Masked) -> Iterator[tuple[DuckEngine, DuckEngine]]:
    compiled.warm()  # else the first question of a new installation might take too long
    made = [
        DuckEngine(
            QuerySettings(threads=1, part_cache_bytes_max=room),
            masked,
            masked.store,
            CollectorRegistry(),
        )
        for room in (1 << 20, 0)
    ]
    yield made[0], made[1]
    for each in made:
        each.close()


@pytest.mark.parametrize("seed", range(12))
def test_answers_from_runs_equal_those_of_sql(
    masked: Masked, engines: tuple[DuckEngine, DuckEngine], tmp_path: Any, seed: int
) -> None:
    random = Random(seed)
    fill(masked, Bench(masked.store, tmp_path / "scratch"), random)

    async def answer(engine: DuckEngine, question: Any) -> Any:
        try:
            return await engine.call(question)
        except MaarError as error:
            return type(error), str(error)

    async def scenario() -> None:
        for _ in range(40):
            question = some_question(random)
            direct, by_sql = [await answer(engine, question) for engine in engines]
            assert direct == by_sql, question
            assert await answer(engines[0], question) == by_sql, f"{question}, from what was kept"

    asyncio.run(scenario())
    runs, none = engines
    assert runs.parts.bytes > 0, "something was answered without SQL"
    assert runs.blocks.samples.bytes > 0
    assert none.parts.bytes == none.blocks.samples.bytes == 0


def test_a_query_looks_for_a_part_of_the_runs_and_the_next_ones_go_on(
    masked: Masked, engines: tuple[DuckEngine, DuckEngine]
) -> None:
    random = Random(3)
    metas = [
        masked.add_block([some_profile(random, tenant=TENANT, huge=False) for _ in range(20)])
        for _ in range(3)
    ]
    engine, by_sql = engines
    engine.blocks.cold_rows_max = 1
    question = ListLabelNames(Scope(TENANT, TimeRange(0, EVER_NS)))

    async def scenario() -> None:
        expected = await by_sql.call(question)
        known = []
        for _ in range(4):
            assert await engine.call(question) == expected
            known.append(sum(not engine.blocks.cold_rows(meta, "") for meta in metas))
        assert known == [1, 2, 3, 3]
        for meta in metas:
            masked.store.delete(meta.file("samples").locations[0].key)
        assert await engine.call(question) == expected, "what is known needs no file"

    asyncio.run(scenario())


def test_samples_are_kept_within_their_share_and_no_query_takes_all_of_it(
    masked: Masked, engines: tuple[DuckEngine, DuckEngine]
) -> None:
    random = Random(4)
    metas = [
        masked.add_block([some_profile(random, tenant=TENANT, huge=False) for _ in range(20)])
        for _ in range(3)
    ]
    engine, by_sql = engines
    rows = max(meta.file("samples").rows for meta in metas)
    scope = Scope(TENANT, TimeRange(START, START + 99 * SECOND))
    question = RankFunctions(scope, profile_type=CPU, limit=99)

    async def kept_bytes(share: int) -> int:
        engine.blocks.samples.bytes_max = share
        for _ in range(2):
            assert await engine.call(question) == await by_sql.call(question)
        return engine.blocks.samples.bytes

    async def scenario() -> None:
        assert await kept_bytes(16 * rows) == 0, "a row group would take more than a quarter of it"
        assert 0 < await kept_bytes(4 * 16 * rows) <= 4 * 16 * rows
        for meta in metas:
            masked.store.delete(meta.file("samples").locations[0].key)
        assert (await engine.call(question)).rows, "what is kept needs no file"

    asyncio.run(scenario())


def test_what_needs_sql_after_all_is_not_answered_on_the_event_loop(
    masked: Masked, engines: tuple[DuckEngine, DuckEngine]
) -> None:
    """What was deleted from a heap is negative: only DuckDB adds such stacks up before tidying."""
    masked.add_block([known_profile([(("a",), {}, (1, 5)), (("b",), {}, (1, -3))], time_ns=START)])
    engine, by_sql = engines
    scope = Scope(TENANT, TimeRange(START, START + SECOND))
    question = DrawFlameGraph(scope, profile_type=CPU, max_nodes=99)
    drawn_in: list[threading.Thread] = []

    def draw(reading: Reading) -> Any:
        drawn = answers.draw(reading, scope, profile_type=CPU, max_nodes=99, most=99, tidy=True)
        drawn_in.append(threading.current_thread())
        return drawn

    async def scenario() -> None:
        expected = await by_sql.call(question)
        for _ in range(2):
            assert await engine.call(question) == expected
        at_once = partial(draws_at_once, scope=scope, profile_type=CPU, tidy=True)
        assert await engine.ask(scope, draw, at_once=at_once) == expected
        assert threading.main_thread() not in drawn_in

    asyncio.run(scenario())


def test_labels_of_many_series_are_not_put_together_on_the_event_loop(
    masked: Masked, engines: tuple[DuckEngine, DuckEngine]
) -> None:
    """Only what is kept of them is given at once, however much it is."""
    many = [
        known_profile([(("a",), {"thread": str(n)}, (1, 1))], time_ns=START + n) for n in range(300)
    ]
    masked.add_block(many)
    engine, by_sql = engines
    scope = Scope(TENANT, TimeRange(START, START + SECOND))
    put_together_in: list[threading.Thread] = []

    def put_together(reading: Reading, names: tuple[str, ...]) -> Any:
        found = answers.label_sets(reading, scope, names=names)
        put_together_in.append(threading.current_thread())
        return found

    async def scenario() -> None:
        await engine.call(ListLabelNames(scope))
        for names in (("thread",), ("thread",), ("pod",)):
            work = partial(put_together, names=names)
            found = await engine.ask(scope, work, at_once=lambda _: True)
            assert found == await by_sql.call(ListSeries(scope, names))
        at_once = [thread is threading.main_thread() for thread in put_together_in]
        assert at_once == [False, True, False]

    asyncio.run(scenario())


def test_what_is_kept_weighs_what_was_asked_for_by_name(
    masked: Masked, engines: tuple[DuckEngine, DuckEngine]
) -> None:
    """A request names as much as fits into it, and its answer is kept under that name."""
    masked.add_block([some_profile(Random(6), tenant=TENANT, huge=False) for _ in range(5)])
    engine, _ = engines
    scope, long = Scope(TENANT, TimeRange(0, EVER_NS)), "n" * 200_000

    async def scenario() -> None:
        await engine.call(ListSeries(scope, ("pod",)))
        before = engine.parts.bytes
        await engine.call(ListSeries(scope, ("pod", long)))
        assert engine.parts.bytes > before + len(long)
        before = engine.parts.bytes
        long_matcher = Matcher("pod", "!=", long)
        await engine.call(ListSeries(msgspec.structs.replace(scope, matchers=(long_matcher,))))
        assert engine.parts.bytes > before + len(long)

    asyncio.run(scenario())


def test_a_flame_graph_is_drawn_at_once_when_all_of_it_is_in_memory_and_small(
    masked: Masked, engines: tuple[DuckEngine, DuckEngine]
) -> None:
    random = Random(5)
    for _ in range(2):
        masked.add_block([some_profile(random, tenant=TENANT, huge=False) for _ in range(20)])
    engine, _ = engines
    time = TimeRange(START, START + 99 * SECOND)
    whole = Scope(TENANT, time)

    async def is_at_once(scope: Scope, bounds: GraphBounds = GraphBounds()) -> bool:  # noqa: B008
        draws = partial(draws_at_once, profile_type=CPU, tidy=True, bounds=bounds)
        where = await engine.ask(
            scope,
            lambda _: threading.current_thread(),
            at_once=lambda reading: draws(reading, scope),
        )
        return where is threading.main_thread()

    async def scenario() -> None:
        assert not await is_at_once(whole), "nothing is known yet"
        await engine.call(
            SelectSeries(
                whole, profile_type=CPU, group_by=(), step_ns=SECOND, aggregation="sum", limit=0
            )
        )
        assert not await is_at_once(whole), "only the runs are"
        drawn = await engine.call(DrawFlameGraph(whole, profile_type=CPU, max_nodes=99))
        assert await is_at_once(whole)
        assert await engine.call(DrawFlameGraph(whole, profile_type=CPU, max_nodes=99)) == drawn
        in_part = Scope(TENANT, time, (Matcher("region", "=", "eu"),))
        assert not await is_at_once(in_part), "labels were not read"
        await engine.call(ListLabelNames(whole))
        assert await is_at_once(in_part)
        assert not await is_at_once(Scope(TENANT, time, (Matcher("region", "=~", "e."),)))
        assert not await is_at_once(Scope(TENANT, TimeRange(START + 1, START + 99 * SECOND)))
        for bound in GraphBounds._fields:
            assert not await is_at_once(whole, GraphBounds(**{bound: 1})), bound
        engine.blocks.samples.bytes_max = 0
        engine.blocks.samples.get("evicts", lambda: Weighed(None, 0))
        assert not await is_at_once(whole), "samples are gone"
        masked.add_segment([some_profile(random, tenant=TENANT, huge=False)])
        assert not await is_at_once(whole), "a segment has to be decoded"

    asyncio.run(scenario())
