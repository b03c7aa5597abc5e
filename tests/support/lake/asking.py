"""A small lake and somebody who asks its query engine."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest
from prometheus_client import CollectorRegistry

from maar.adapters.stores.open import open_store
from maar.model.time import TimeRange
from maar.ports.reader.index import IndexView, ViewRequest
from maar.ports.reader.query import DrawFlameGraph, FlameGraph, Matcher, Scope
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from maar.query import compiled
from maar.query.read.reading import Reading
from maar.query.read.sql import Statement
from maar.query.service import DuckEngine, QuerySettings
from support.lake.query_lake import (
    CPU,
    TENANT,
    Known,
    Lake,
    Stack,
    random_profile,
)

T = TypeVar("T")
START = 1_763_200_000_000_000_000
SECOND = 10**9
ALWAYS = TimeRange(START, START + 3600 * SECOND)
ODD = TimeRange(START - 1, START + 3600 * SECOND)  # no microsecond: profiles are looked up first


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(StoreSettings("main", (tmp_path / "store").as_uri()))


@pytest.fixture
def lake(store: ObjectStore) -> Lake:
    return Lake(store)


class Asker:
    """Opens an engine over a lake for one question after the other."""

    def __init__(self, lake: Lake, **settings: Any) -> None:
        self.registry = CollectorRegistry()
        self.engine = DuckEngine(
            QuerySettings(threads=1, **settings),
            lake,
            lake.store,
            self.registry,
        )
        compiled.warm()  # else the first question of a new installation might take too long

    def run(self, question: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(question)

    def stacks(
        self, *matchers: Matcher, time: TimeRange = ALWAYS, kind: str = CPU
    ) -> Counter[Stack]:
        scope = Scope(TENANT, time, matchers)
        graph = self.run(
            self.engine.call(DrawFlameGraph(scope, profile_type=kind, max_nodes=1_000_000))
        )
        return stacks_of(graph)

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


@pytest.fixture
def ask(lake: Lake) -> Iterator[Asker]:
    asker = Asker(lake)
    yield asker
    asker.engine.close()


def stacks_of(graph: FlameGraph) -> Counter[Stack]:
    """The stacks that a flame graph was made of, from its levels alone."""
    found: Counter[Stack] = Counter()
    above: list[tuple[int, int, Stack]] = [(0, graph.total, ())]
    for depth, level in enumerate(graph.levels):
        here: list[tuple[int, int, Stack]] = []
        end = 0
        for at in range(0, len(level), 4):
            gap, total, own, name = level[at : at + 4]
            left = end + gap
            end = left + total
            parent = next(s for low, high, s in above if low <= left and end <= high)
            stack = (*parent, graph.names[name]) if depth else ()
            here.append((left, end, stack))
            found[stack] += own
        above = here
    return +found


def service(name: str) -> Matcher:
    return Matcher("service_name", "=", name)


def some_profiles(random: Random, number: int, **labels: Any) -> list[Known]:
    return [
        random_profile(random, time_ns=START + random.randrange(0, 3600) * SECOND + 123, **labels)
        for _ in range(number)
    ]


def spread(lake: Lake, random: Random, profiles: list[Known]) -> None:
    """Over blocks of several levels and segments, some profiles in more than one of them."""
    shuffled = random.sample(profiles, len(profiles))
    cut = len(shuffled) // 4
    lake.add_block(shuffled[:cut], level=2)
    lake.add_block([*shuffled[cut : 2 * cut], *shuffled[:3]], level=1)
    lake.add_segment([*shuffled[2 * cut : 3 * cut], *shuffled[cut : cut + 4]])
    lake.add_segment([*shuffled[3 * cut :], shuffled[-1], shuffled[2 * cut], shuffled[0]])


class Slow(Lake):
    """An index that answers when it is told to."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.go = asyncio.Event()

    async def view(self, request: ViewRequest) -> IndexView:
        await self.go.wait()
        return await super().view(request)


def endless(reading: Reading) -> None:
    text = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"
    reading.run(text, Statement())
