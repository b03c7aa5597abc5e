"""Answers of the engine over real files, compared with the same sums done slowly in Python."""

from __future__ import annotations

import asyncio
import gzip
import re
import tracemalloc
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from random import Random
from threading import Barrier
from typing import Any, TypeVar, cast

import httpx
import msgspec
import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from maar.adapters.stores.open import open_store
from maar.api.admin.admin import Admin
from maar.api.admin.quarantine import no_causes
from maar.api.app import _admin_routes
from maar.api.guard import ApiSettings, RequestGuard
from maar.model.errors import (
    Corrupt,
    Damaged,
    InvalidInput,
    NotFound,
    Overloaded,
    TooLarge,
    Unavailable,
)
from maar.model.ids import (
    MAIN_STORE,
    NO_TENANT,
    FencingToken,
    Incarnation,
    PlanId,
    ProfileId,
    Shard,
    TenantId,
)
from maar.model.labels import Labels
from maar.model.plan import LeasedPlan, QueueKey, Service
from maar.model.time import TimeRange
from maar.ports.metastore import IndexView, Metastore, ViewRequest
from maar.ports.object_store import ObjectStore, StoreSettings
from maar.ports.query import FlameGraph, Matcher, Scope
from maar.pprof.gzip import gunzip
from maar.pprof.plain import canonical
from maar.pprof.schema import Profile
from maar.query.decide.selector import parse_selector
from maar.query.read import level0
from maar.query.read.level0 import DecodedPart, Level0
from maar.query.read.reading import Reading, Stopped
from maar.query.read.sql import Statement
from maar.query.service import DuckEngine, QuerySettings
from maar.services.compact.run import run as compact
from support.lake.query_lake import (
    COUNT,
    CPU,
    TENANT,
    Known,
    Lake,
    Stack,
    by_stack,
    known,
    random_profile,
    rows,
)
from support.stores.s3_server import S3Server

pytestmark = pytest.mark.component

T = TypeVar("T")
START = 1_763_200_000_000_000_000
SECOND = 10**9
ALWAYS = TimeRange(START, START + 3600 * SECOND)


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
            cast(Metastore, lake),
            lake.store,
            self.registry,
        )

    def run(self, question: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(question)

    def stacks(
        self, *matchers: Matcher, time: TimeRange = ALWAYS, kind: str = CPU
    ) -> Counter[Stack]:
        scope = Scope(TENANT, time, matchers)
        graph = self.run(self.engine.flamegraph(scope, profile_type=kind, max_nodes=1_000_000))
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


@pytest.mark.parametrize("seed", range(6))
def test_a_flame_graph_counts_every_profile_once(lake: Lake, ask: Asker, seed: int) -> None:
    random = Random(seed)
    profiles = [
        *some_profiles(random, 24, service="checkout", region="eu"),
        *some_profiles(random, 12, service="checkout", region="us"),
        *some_profiles(random, 12, service="search"),
    ]
    spread(lake, random, profiles)
    mine = [each for each in profiles if each.raw.service == "checkout"]
    assert ask.stacks(service("checkout")) == by_stack(rows(mine, time=ALWAYS))
    assert ask.stacks() == by_stack(rows(profiles, time=ALWAYS))
    count = by_stack(rows(mine, time=ALWAYS, profile_type=COUNT))
    assert ask.stacks(service("checkout"), kind=COUNT) == count


def everything(labels: dict[str, str]) -> bool:
    return bool(labels)


def nothing(labels: dict[str, str]) -> bool:
    return not labels


MATCHES: tuple[tuple[Matcher, Callable[[dict[str, str]], bool]], ...] = (
    (Matcher("region", "=", "eu"), lambda labels: labels.get("region") == "eu"),
    (Matcher("region", "!=", "eu"), lambda labels: labels.get("region") != "eu"),
    (Matcher("region", "=", ""), lambda labels: "region" not in labels),
    (Matcher("region", "=~", "e."), lambda labels: labels.get("region") == "eu"),
    (Matcher("region", "=~", "e"), nothing),
    (Matcher("region", "!~", "e.|"), lambda labels: labels.get("region") == "us"),
    (Matcher("thread", "=", "a"), lambda labels: labels.get("thread") == "a"),
    (Matcher("service_name", "=~", "sea.*"), lambda labels: labels["service_name"] == "search"),
    (Matcher("service_name", "=", ""), nothing),
    (Matcher("__type__", "=", "cpu"), everything),
    (Matcher("__profile_type__", "!=", CPU), nothing),
    (Matcher("nothing'; --", "=", ""), everything),
)


@pytest.mark.parametrize("seed", range(2))
def test_matchers_choose_series(lake: Lake, ask: Asker, seed: int) -> None:
    random = Random(seed)
    profiles = [
        *some_profiles(random, 8, service="checkout", region="eu"),
        *some_profiles(random, 8, service="checkout", region="us"),
        *some_profiles(random, 8, service="search"),
    ]
    spread(lake, random, profiles)
    for matcher, wanted in MATCHES:
        expected = by_stack(row for row in rows(profiles, time=ALWAYS) if wanted(row[1]))
        assert ask.stacks(matcher) == expected, matcher


def test_a_range_includes_its_start_and_not_its_end(lake: Lake, ask: Asker) -> None:
    profiles = [
        known([((f"at{offset}",), {}, (1, 1))], time_ns=START + offset)
        for offset in (0, 1, 999, 1000, 1001, 1999, 2000)
    ]
    lake.add_block(profiles[::2])
    lake.add_segment(profiles[1::2])
    for start in (0, 1, 1000, 1001):
        for end in (start, start + 1, 1000, 1999, 2000, 2001):
            time = TimeRange(START + start, START + max(start, end))
            expected = by_stack(rows(profiles, time=time))
            assert ask.stacks(service("checkout"), time=time) == expected, (start, end)


def test_equal_samples_of_one_profile_all_count(lake: Lake, ask: Asker) -> None:
    twice = known([(("a", "b"), {}, (1, 5)), (("a", "b"), {}, (1, 5))], time_ns=START)
    lake.add_block([twice], level=1)
    lake.add_block([twice], level=2)
    assert ask.stacks() == Counter({("a", "b"): 10})


@pytest.mark.parametrize("merged", [False, True])
def test_a_negative_value_weighs_the_same_before_and_after_a_merge(
    lake: Lake, ask: Asker, merged: bool
) -> None:
    profiles = [
        known([(("m", "x"), {}, (1, 50)), (("m", "y"), {}, (1, 5))], time_ns=START),
        known([(("m", "x"), {}, (1, -30)), (("m", "z"), {}, (1, -7))], time_ns=START + 1),
        known([(("m", "y"), {}, (1, -5))], time_ns=START + 2),
    ]
    for part in [profiles] if merged else [[each] for each in profiles]:
        lake.add_segment(part)
    assert ask.stacks() == Counter({("m", "x"): 20})


def test_tenants_do_not_see_each_other(lake: Lake, ask: Asker) -> None:
    other = TenantId("other")
    lake.add_block([known([(("mine",), {}, (1, 1))], time_ns=START)])
    lake.add_block([known([(("theirs",), {}, (1, 1))], time_ns=START, tenant=other)])
    lake.add_segment(
        [
            known([(("raw",), {}, (1, 1))], time_ns=START),
            known([(("raw theirs",), {}, (1, 1))], time_ns=START, tenant=other),
        ]
    )
    assert ask.stacks() == Counter({("mine",): 1, ("raw",): 1})


def test_a_stack_without_frames_belongs_to_the_root(lake: Lake, ask: Asker) -> None:
    lake.add_segment([known([((), {}, (1, 7)), (("a",), {}, (1, 2))], time_ns=START)])
    assert ask.stacks() == Counter({(): 7, ("a",): 2})


def test_a_segment_may_hold_nothing_but_empty_stacks(lake: Lake, ask: Asker) -> None:
    lake.add_segment([known([((), {}, (1, 7))], time_ns=START)])
    assert ask.stacks() == Counter({(): 7})


def test_nothing_to_read_gives_empty_answers(ask: Asker) -> None:
    scope = Scope(TENANT, ALWAYS)
    engine = ask.engine
    graph = ask.run(engine.flamegraph(scope, profile_type=CPU, max_nodes=10))
    assert graph == FlameGraph(("total",), ((0, 0, 0, 0),), 0, 0)
    assert ask.run(engine.top(scope, profile_type=CPU, limit=5)).rows == ()
    assert ask.run(engine.profile_types(scope)) == ()
    assert ask.run(engine.label_names(scope)) == ()
    assert ask.run(engine.series(scope, label_names=())) == ()


@pytest.mark.parametrize("seed", range(3))
def test_the_top_table_is_exact_and_counts_recursion_once(
    lake: Lake, ask: Asker, seed: int
) -> None:
    random = Random(seed)
    profiles = some_profiles(random, 20)
    spread(lake, random, profiles)
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for stack, value in by_stack(rows(profiles, time=ALWAYS)).items():
        own[stack[-1] if stack else ""] += value
        total.update(dict.fromkeys(stack, value))
    top = ask.run(ask.engine.top(Scope(TENANT, ALWAYS), profile_type=CPU, limit=100))
    assert {row.function: (row.self_value, row.total_value) for row in top.rows} == {
        name: (own[name], total[name]) for name in total
    }
    assert top.total == sum(own.values())
    assert [row.self_value for row in top.rows] == sorted(
        (row.self_value for row in top.rows), reverse=True
    )
    two = ask.run(ask.engine.top(Scope(TENANT, ALWAYS), profile_type=CPU, limit=2))
    assert two.rows == top.rows[:2]
    assert two.total == top.total


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("aggregation", ["sum", "avg"])
def test_time_series_are_sums_or_averages_by_step_and_group(
    lake: Lake, ask: Asker, seed: int, aggregation: str
) -> None:
    random = Random(seed)
    profiles = [
        *some_profiles(random, 12, region="eu"),
        *some_profiles(random, 12, region="us"),
        *some_profiles(random, 6, service="search"),
    ]
    spread(lake, random, profiles)
    step = 600 * SECOND
    expected: dict[tuple[Labels, int], list[tuple[bytes, int]]] = {}
    for _, labels, value, raw in rows(profiles, time=ALWAYS):
        if value:
            names = ("region", "service_name")
            group = tuple((name, labels[name]) for name in names if name in labels)
            at = raw.time_ns // step * step // 1_000_000
            expected.setdefault((group, at), []).append((raw.id, value))
    answer = ask.run(
        ask.engine.select_series(
            Scope(TENANT, ALWAYS),
            profile_type=CPU,
            group_by=("service_name", "region"),
            step_ns=step,
            aggregation=aggregation,
            limit=0,
        )
    )
    got = {(each.labels, p.time_ms): p.value for each in answer for p in each.points}
    assert got == {
        key: pytest.approx(
            sum(value for _, value in held)
            / (len({profile for profile, _ in held}) if aggregation == "avg" else 1)
        )
        for key, held in expected.items()
    }
    assert all(
        [point.time_ms for point in each.points] == sorted(point.time_ms for point in each.points)
        for each in answer
    )


def test_without_groups_there_is_one_series_and_a_limit_keeps_the_largest(
    lake: Lake, ask: Asker
) -> None:
    lake.add_block(
        [
            known([(("a",), {}, (1, size))], time_ns=START, region=region)
            for region, size in (("small", 1), ("large", 100), ("middle", 10))
        ]
    )

    def series(*group_by: str, limit: int) -> list[tuple[Labels, float]]:
        answer = ask.run(
            ask.engine.select_series(
                Scope(TENANT, ALWAYS),
                profile_type=CPU,
                group_by=group_by,
                step_ns=SECOND,
                aggregation="sum",
                limit=limit,
            )
        )
        return [(each.labels, each.points[0].value) for each in answer]

    assert series(limit=0) == [((), 111.0)]
    assert series("region", limit=2) == [
        ((("region", "large"),), 100.0),
        ((("region", "middle"),), 10.0),
    ]


def test_labels_types_and_series_are_listed(lake: Lake, ask: Asker) -> None:
    lake.add_block([known([(("a",), {"thread": "t1"}, (1, 1))], time_ns=START, region="eu")])
    lake.add_segment([known([(("a",), {}, (1, 1))], time_ns=START, service="search", zone="z")])
    engine, scope = ask.engine, Scope(TENANT, ALWAYS)
    assert ask.run(engine.profile_types(scope)) == (CPU, COUNT)
    synthetic = {
        *("__name__", "__period_type__", "__period_unit__"),
        *("__profile_type__", "__service_name__", "__type__", "__unit__"),
    }
    assert set(ask.run(engine.label_names(scope))) == {
        *synthetic,
        *("region", "service_name", "thread", "zone"),
    }
    only = Scope(TENANT, ALWAYS, (service("search"),))
    assert set(ask.run(engine.label_names(only))) == {*synthetic, "service_name", "zone"}
    values = {
        name: ask.run(engine.label_values(scope, name=name))
        for name in ("service_name", "region", "__type__", "__unit__", "__name__", "absent")
    }
    assert values == {
        "service_name": ("checkout", "search"),
        "region": ("eu",),
        "__type__": ("cpu", "samples"),
        "__unit__": ("count", "nanoseconds"),
        "__name__": ("process_cpu",),
        "absent": (),
    }
    picked = ask.run(engine.series(scope, label_names=("service_name", "thread", "__type__")))
    assert picked == (
        (("__type__", "cpu"), ("service_name", "checkout"), ("thread", "t1")),
        (("__type__", "cpu"), ("service_name", "search")),
        (("__type__", "samples"), ("service_name", "checkout"), ("thread", "t1")),
        (("__type__", "samples"), ("service_name", "search")),
    )
    by_index = ask.run(engine.series(scope, label_names=("service_name", "__type__")))
    assert len(by_index) == 4
    everything = ask.run(engine.series(only, label_names=()))
    assert dict(everything[0])["zone"] == "z"
    assert {dict(labels)["__profile_type__"] for labels in everything} == {CPU, COUNT}
    later = Scope(TENANT, TimeRange(START + 1, START + 10))
    assert ask.run(engine.label_names(later)) == ()
    eu = Scope(TENANT, ALWAYS, (Matcher("region", "=~", "eu"),))
    assert ask.run(engine.label_values(eu, name="service_name")) == ("checkout",)
    assert ask.run(engine.profile_types(eu)) == (CPU, COUNT)


def test_what_was_just_acknowledged_is_in_the_next_answer(lake: Lake, ask: Asker) -> None:
    for number in range(3):
        lake.add_segment([known([((f"f{number}",), {}, (1, 1))], time_ns=START + number)])
        assert ask.stacks() == Counter({(f"f{n}",): 1 for n in range(number + 1)})
    assert ask.metric("maar_query_level0_profiles_decoded_total") == 3
    assert ask.metric("maar_query_level0_cache_lookups_total", result="hit") == 3
    assert ask.metric("maar_query_level0_cache_bytes") > 0


def test_a_dataset_that_many_want_at_once_is_decoded_once(lake: Lake) -> None:
    meta = lake.add_segment(some_profiles(Random(14), 20))
    decoded: list[int] = []
    found: list[bool] = []
    level0 = Level0(
        lake.store, bytes_max=1 << 30, on_decoded=decoded.append, on_lookup=found.append
    )
    barrier = Barrier(8)

    def want(_: int) -> DecodedPart:
        barrier.wait()
        (part,) = level0.parts(meta, meta.datasets)
        return part

    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(want, range(8)))
    assert decoded == [20]
    assert sorted(found) == [False] + [True] * 7
    assert all(each is got[0] for each in got)


def test_a_failed_decoding_does_not_block_the_next_one(lake: Lake, store: ObjectStore) -> None:
    meta = lake.add_segment(some_profiles(Random(15), 2))
    key = meta.files[0].locations[0].key
    body = store.read(key)
    store.delete(key)
    level0 = Level0(store, bytes_max=1 << 30, on_decoded=ignore, on_lookup=ignore)
    with pytest.raises(NotFound):
        level0.parts(meta, meta.datasets)
    store.create(key, body)
    assert [part.profiles for part in level0.parts(meta, meta.datasets)] == [2]


def ignore(_: object) -> None:
    """Nobody counts here."""


def test_the_cache_of_level_0_keeps_its_bound(lake: Lake) -> None:
    random = Random(1)
    for _ in range(4):
        lake.add_segment(some_profiles(random, 10))
    one = Asker(lake)
    expected = one.stacks()
    bound = int(one.metric("maar_query_level0_cache_bytes") // 2)
    two = Asker(lake, level0_cache_bytes_max=bound)
    assert two.stacks() == expected
    assert two.stacks() == expected
    assert 0 < two.metric("maar_query_level0_cache_bytes") <= bound
    assert two.metric("maar_query_level0_profiles_decoded_total") > 40
    one.engine.close()
    two.engine.close()


def test_profiles_come_back_from_segments_blocks_and_quarantine(lake: Lake, ask: Asker) -> None:
    random = Random(2)
    raw, compacted, broken = some_profiles(random, 3)
    bad = msgspec.structs.replace(broken.raw, payload=b"\x1f\x8bnot gzip at all")
    lake.add_segment([raw])
    lake.add_block([compacted])
    lake.add_quarantine([bad])

    def get(profile: ProfileId, time: TimeRange = ALWAYS) -> bytes:
        return ask.run(ask.engine.profile(TENANT, profile, time))

    assert get(raw.raw.id) == raw.raw.payload
    restored = gunzip(get(compacted.raw.id), limit=1 << 20)
    assert canonical(restored) == canonical(gunzip(compacted.raw.payload, limit=1 << 20))
    assert get(bad.id) == bad.payload
    assert ask.stacks() == by_stack(rows([raw, compacted], time=ALWAYS))
    with pytest.raises(NotFound):
        get(ProfileId(bytes(16)))
    with pytest.raises(NotFound):
        get(raw.raw.id, TimeRange(START - 10, START))
    with pytest.raises(NotFound):
        ask.run(ask.engine.profile(TenantId("other"), raw.raw.id, ALWAYS))


def test_a_raw_profile_that_cannot_be_decoded_hides_no_other(lake: Lake, ask: Asker) -> None:
    good, bad = some_profiles(Random(3), 2)
    broken = msgspec.structs.replace(bad.raw, payload=b"\x1f\x8bnot gzip at all")
    lake.add_segment([good, Known(broken, [])])
    assert ask.stacks() == by_stack(rows([good], time=ALWAYS))
    assert ask.run(ask.engine.profile(TENANT, broken.id, ALWAYS)) == broken.payload
    lake.add_segment([Known(broken, [])])  # a dataset of which nothing is left
    assert ask.stacks(service("checkout")) == by_stack(rows([good], time=ALWAYS))


class Retiring(Lake):
    """An index whose first view is older than the deletion of what it lists."""

    async def view(self, request: ViewRequest) -> IndexView:
        answer = await super().view(request)
        if len(self.asked) == 1:
            replaced = self.blocks.pop(0)
            for file in replaced.files:
                self.store.delete(file.locations[0].key)
        return answer


@pytest.mark.parametrize("kind", ["block", "segment"])
def test_a_view_that_lost_its_objects_is_renewed_once(store: ObjectStore, kind: str) -> None:
    lake = Retiring(store)
    profiles = some_profiles(Random(4), 5)
    if kind == "block":
        lake.add_block(profiles)
    else:
        lake.add_segment(profiles)
    lake.add_block(profiles, level=2)
    ask = Asker(lake)
    assert ask.stacks() == by_stack(rows(profiles, time=ALWAYS))
    assert len(lake.asked) == 2
    ask.engine.close()


@pytest.mark.parametrize("table", ["samples", "stacks", "profiles"])
def test_a_missing_object_is_an_error_and_never_skipped(lake: Lake, ask: Asker, table: str) -> None:
    lake.add_block(some_profiles(Random(5), 5))
    meta = lake.add_block(some_profiles(Random(6), 5))
    key = meta.file(table).locations[0].key
    lake.store.delete(key)
    with pytest.raises(Damaged, match=f"object {key} of block {meta.id} is missing") as error:
        ask.stacks()
    assert f"maar blocks lose {meta.id}" in str(error.value)
    assert error.value.blocks == ((meta.id, meta.min_time_ns, meta.max_time_ns),)


@pytest.mark.parametrize("table", ["samples", "stacks", "profiles"])
def test_a_damaged_object_is_an_error(lake: Lake, ask: Asker, table: str) -> None:
    lake.add_block(some_profiles(Random(5), 5))
    meta = lake.add_block(some_profiles(Random(6), 5))
    key = meta.file(table).locations[0].key
    path = lake.store.local_path(key)
    assert path is not None
    path.write_bytes(b"PAR1" + b"\0" * 100 + b"PAR1")
    with pytest.raises(Damaged, match=f"object {key} of block {meta.id} has 108 bytes"):
        ask.stacks()


@pytest.mark.parametrize("kind", ["block", "segment"])
def test_an_object_with_damage_within_is_named(lake: Lake, ask: Asker, kind: str) -> None:
    """Its size is right, and so is its footer: only its checksum tells."""
    add = lake.add_block if kind == "block" else lake.add_segment
    add(some_profiles(Random(5), 50))
    meta = add(some_profiles(Random(6), 50))
    key = meta.files[0].locations[0].key
    path = lake.store.local_path(key)
    assert path is not None
    body = path.read_bytes()
    path.write_bytes(b"PAR1" + b"\xff" * (len(body) // 3) + body[4 + len(body) // 3 :])
    with pytest.raises(Damaged, match=f"object {key} of block {meta.id} has other bytes"):
        ask.stacks()


@pytest.mark.parametrize("place", ["segment", "block", "quarantine"])
def test_over_http_too_a_profile_is_only_its_own_tenants(
    lake: Lake, ask: Asker, place: str
) -> None:
    other = TenantId("other")
    (mine,) = some_profiles(Random(2), 1)
    (theirs,) = some_profiles(Random(3), 1, tenant=other)
    if place == "segment":
        lake.add_segment([mine, theirs])
    for each in (mine, theirs):
        if place == "block":
            lake.add_block([each])
        elif place == "quarantine":
            lake.add_quarantine([each.raw])
    app = Starlette(
        routes=_admin_routes(
            RequestGuard(ApiSettings(), CollectorRegistry()),
            Admin(cast(Metastore, lake), ask.engine, lambda: ALWAYS, no_causes, list, list),
        )
    )

    async def status(tenant: TenantId, profile: Known) -> int:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://maar") as client:
            path = f"/api/v1/profiles/{profile.raw.id.hex()}"
            return (await client.get(path, headers={"X-Scope-OrgID": tenant})).status_code

    assert ask.run(status(TENANT, mine)) == ask.run(status(other, theirs)) == 200
    assert ask.run(status(other, mine)) == ask.run(status(TENANT, theirs)) == 404


def test_what_is_left_can_be_asked_for_without_the_damaged_block(lake: Lake, ask: Asker) -> None:
    kept, lost = some_profiles(Random(5), 5), some_profiles(Random(6), 5)
    lake.add_block(kept)
    meta = lake.add_block(lost)
    lake.store.delete(meta.file("samples").locations[0].key)
    scope = Scope(TENANT, ALWAYS, without=(meta.id,))
    graph = ask.run(ask.engine.flamegraph(scope, profile_type=CPU, max_nodes=1_000_000))
    assert stacks_of(graph) == by_stack(rows(kept, time=ALWAYS))


@pytest.mark.parametrize("place", ["segment", "block", "quarantine"])
def test_nobody_gets_a_profile_of_another_tenant_wherever_it_is(
    lake: Lake, ask: Asker, place: str
) -> None:
    """The lake's index shows every block to everybody: the engine itself must tell them apart."""
    other = TenantId("other")
    (mine,) = some_profiles(Random(2), 1)
    (theirs,) = some_profiles(Random(3), 1, tenant=other)
    if place == "segment":
        lake.add_segment([mine, theirs])
    for each in (mine, theirs):
        if place == "block":
            lake.add_block([each])
        elif place == "quarantine":
            lake.add_quarantine([each.raw])
    for owner, stranger, each in ((TENANT, other, mine), (other, TENANT, theirs)):
        assert ask.run(ask.engine.profile(owner, each.raw.id, ALWAYS))
        with pytest.raises(NotFound):
            ask.run(ask.engine.profile(stranger, each.raw.id, ALWAYS))


class Away:
    """A store over the network that no longer answers."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def local_path(self, _key: str) -> Path | None:
        return None

    def open(self, key: str) -> Any:
        raise Unavailable(f"the object store could not serve {key}")


@pytest.mark.parametrize("kind", ["block", "segment"])
def test_a_store_that_does_not_answer_is_away_and_not_broken(store: ObjectStore, kind: str) -> None:
    lake = Lake(cast(ObjectStore, Away(store)))
    getattr(lake, f"add_{kind}")(some_profiles(Random(5), 5))
    ask = Asker(lake)
    with pytest.raises(Unavailable, match="could not serve"):
        ask.stacks()
    ask.engine.close()


def test_samples_whose_stack_is_missing_are_an_error(lake: Lake, ask: Asker) -> None:
    first = lake.add_block([known([(("a",), {}, (1, 1))], time_ns=START)])
    second = lake.add_block([known([(("b",), {}, (1, 1))], time_ns=START)])
    paths = [lake.store.local_path(m.file("stacks").locations[0].key) for m in (first, second)]
    assert paths[0] is not None
    assert paths[1] is not None
    paths[0].write_bytes(paths[1].read_bytes())
    with pytest.raises(Corrupt, match="missing"):
        ask.stacks()


def test_the_same_answers_come_from_s3(s3_server: S3Server, store: ObjectStore) -> None:
    random = Random(7)
    profiles = some_profiles(random, 24, region="eu")
    remote, local = Lake(open_store(s3_server.bucket())), Lake(store)
    for lake in (remote, local):
        spread(lake, Random(8), profiles)
    far, near = Asker(remote), Asker(local)
    assert far.stacks(service("checkout")) == near.stacks(service("checkout"))
    assert far.stacks(Matcher("region", "=~", "e.*")) == by_stack(rows(profiles, time=ALWAYS))
    compacted = remote.blocks[0]
    got = far.run(far.engine.profile(TENANT, profiles[0].raw.id, ALWAYS))
    assert canonical(gunzip(got, limit=1 << 20)).samples
    remote.store.delete(compacted.file("samples").locations[0].key)
    with pytest.raises(Corrupt, match="missing"):
        far.stacks()
    far.engine.close()
    near.engine.close()


def test_what_cannot_be_asked_is_refused_with_a_sentence(lake: Lake, ask: Asker) -> None:
    lake.add_block(some_profiles(Random(9), 2))
    engine, scope = ask.engine, Scope(TENANT, ALWAYS)

    def series(step_ns: int, aggregation: str = "sum") -> Any:
        return engine.select_series(
            scope,
            profile_type=CPU,
            group_by=(),
            step_ns=step_ns,
            aggregation=aggregation,
            limit=0,
        )

    backwards = Scope(TENANT, TimeRange(START + 1, START))
    odd = Scope(TENANT, ALWAYS, (Matcher("a", "=~", "("),))
    unknown = Scope(TENANT, ALWAYS, (Matcher("a", "~", "b"),))
    for question in (
        engine.flamegraph(backwards, profile_type=CPU, max_nodes=10),
        engine.flamegraph(odd, profile_type=CPU, max_nodes=10),
        engine.flamegraph(unknown, profile_type=CPU, max_nodes=10),
        engine.flamegraph(scope, profile_type="cpu", max_nodes=10),
        engine.top(scope, profile_type=CPU, limit=0),
        engine.label_values(scope, name=""),
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
    monkeypatch.setattr(level0, "RAW_BYTES_MAX", size - 1)
    with pytest.raises(Overloaded, match="more than can be decoded at once"):
        ask.stacks()
    monkeypatch.setattr(level0, "RAW_BYTES_MAX", size)
    monkeypatch.setattr(level0, "WEIGHT_MAX", 1)
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
    monkeypatch.setattr(level0, "RAW_BYTES_MAX", max(sizes))
    assert ask.stacks() == by_stack(rows(profiles, time=ALWAYS))


def test_a_deep_backlog_is_an_error_and_not_half_an_answer(lake: Lake) -> None:
    lake.add_segment(some_profiles(Random(10), 10))
    ask = Asker(lake, level0_profiles_max=9)
    with pytest.raises(Overloaded, match="not compacted"):
        ask.stacks()
    ask.engine.close()


class Slow(Lake):
    """An index that answers when it is told to."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.go = asyncio.Event()

    async def view(self, request: ViewRequest) -> IndexView:
        await self.go.wait()
        return await super().view(request)


def test_a_question_has_a_deadline_and_its_slot_comes_back(store: ObjectStore) -> None:
    async def scenario() -> None:
        lake = Slow(store)
        lake.add_block(some_profiles(Random(11), 3))
        ask = Asker(lake, timeout_s=0.2, concurrency=1)
        scope = Scope(TENANT, ALWAYS)
        with pytest.raises(Unavailable, match="longer than"):
            await ask.engine.profile_types(scope)
        lake.go.set()
        assert await ask.engine.profile_types(scope) == (CPU, COUNT)
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
            asyncio.create_task(ask.engine.flamegraph(scope, profile_type=CPU, max_nodes=9))
            for _ in range(6)
        ]
        await asyncio.sleep(0.05)
        lake.go.set()
        graphs = await asyncio.gather(*asked)
        assert len({graph.total for graph in graphs}) == 1
        assert {request.reader for request in lake.asked} == {"query/0", "query/1"}
        ask.engine.close()

    asyncio.run(scenario())


def endless(reading: Reading) -> None:
    text = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"
    reading.run(text, Statement())


def test_a_cancelled_question_stops_its_thread(lake: Lake) -> None:
    async def scenario() -> None:
        lake.add_block(some_profiles(Random(13), 3))
        ask = Asker(lake, concurrency=1)
        scope = Scope(TENANT, ALWAYS)
        asked = asyncio.create_task(ask.engine._ask(scope, endless))
        await asyncio.sleep(0.3)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        async with asyncio.timeout(10):  # the only slot is free again
            await ask.engine.flamegraph(scope, profile_type=CPU, max_nodes=9)
        ask.engine.close()

    asyncio.run(scenario())


def test_closing_does_not_wait_for_a_long_question(lake: Lake) -> None:
    async def scenario() -> None:
        ask = Asker(lake)
        asked = asyncio.create_task(ask.engine._ask(Scope(TENANT, ALWAYS), endless))
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
        ask.run(ask.engine._ask(Scope(TENANT, ALWAYS), greedy))
    assert ask.stacks()
    ask.engine.close()


# ── values beyond 64 bits ──────────────────────────────────────────────────────────────────────

MOST = 2**63 - 1


def huge(value: int, *, at_s: int = 0, stack: Stack = ("main", "work"), **labels: Any) -> Known:
    return known([(stack, {}, (1, value))], time_ns=START + at_s * SECOND, **labels)


PUT = {"segment": Lake.add_segment, "block": Lake.add_block}


@pytest.mark.parametrize("put", PUT)
@pytest.mark.parametrize("apart", [False, True])
def test_the_largest_answer_is_exact_and_one_more_is_an_error(
    lake: Lake, ask: Asker, put: str, apart: bool
) -> None:
    fits = [huge(MOST - 5, pod="a"), huge(5, at_s=1, pod="b")]
    for part in [[each] for each in fits] if apart else [fits]:
        PUT[put](lake, part)
    scope = Scope(TENANT, ALWAYS, (service("checkout"),))
    assert ask.stacks() == {("main", "work"): MOST}
    top = ask.run(ask.engine.top(scope, profile_type=CPU, limit=10))
    assert top.total == MOST
    assert {row.function: row.total_value for row in top.rows} == {"main": MOST, "work": MOST}
    PUT[put](lake, [huge(1, at_s=2, pod="c")])
    for question in (
        ask.engine.flamegraph(scope, profile_type=CPU, max_nodes=100),
        ask.engine.top(scope, profile_type=CPU, limit=1),
    ):
        with pytest.raises(InvalidInput, match=r"more than 2\^63-1") as refused:
            ask.run(question)
        assert fits[0].raw.id.hex() in str(refused.value), "it names the profile"
        assert fits[1].raw.id.hex() not in str(refused.value), "and no innocent one"
        assert '{service_name="checkout", pod!="a"}' in str(refused.value), str(refused.value)


def test_the_selector_of_the_error_gives_the_rest_of_the_answer(lake: Lake, ask: Asker) -> None:
    lake.add_segment([huge(MOST, region="eu", pod="bad"), huge(7, at_s=1, region="eu", pod="good")])
    lake.add_block([huge(MOST, at_s=2, region="us", pod="bad"), huge(9, at_s=3, region="us")])
    with pytest.raises(InvalidInput) as refused:
        ask.stacks()
    (text,) = re.findall(r"selector (\{.*\})", str(refused.value))
    assert ask.stacks(*parse_selector(text)) == {("main", "work"): 16}


def test_one_series_alone_is_left_out_by_time(lake: Lake, ask: Asker) -> None:
    lake.add_segment([huge(MOST), huge(MOST, at_s=1), huge(3, at_s=2)])
    with pytest.raises(InvalidInput, match=r"ask for a time range without them$"):
        ask.stacks()
    assert ask.stacks(time=TimeRange(START + 2 * SECOND, ALWAYS.end_ns)) == {("main", "work"): 3}


def test_sums_that_leave_64_bits_and_come_back_are_exact(lake: Lake, ask: Asker) -> None:
    """Sums within a part, between parts and within a function, in the order that hurts most."""
    lake.add_segment([huge(MOST), huge(MOST, at_s=1), huge(5, at_s=2, stack=("main",))])
    lake.add_block([huge(-MOST, at_s=3), huge(-MOST, at_s=4), huge(11, at_s=5)])
    assert ask.stacks() == {("main", "work"): 11, ("main",): 5}
    top = ask.run(ask.engine.top(Scope(TENANT, ALWAYS), profile_type=CPU, limit=10))
    assert [msgspec.to_builtins(row) for row in top.rows] == [["work", 11, 11], ["main", 5, 16]]
    assert top.total == 16


@pytest.mark.parametrize("seed", range(5))
def test_huge_values_equal_python_sums_or_are_refused(lake: Lake, ask: Asker, seed: int) -> None:
    random = Random(seed)
    profiles = [
        huge(
            random.choice([1, -1]) * random.randrange(2 ** random.choice([5, 40, 60, 62])),
            at_s=n,
            stack=tuple(random.choice("abc") for _ in range(random.randrange(4))),
            pod=random.choice("xy"),
        )
        for n in range(40)
    ]
    spread(lake, random, profiles)
    time = TimeRange(START, START + random.randrange(1, 41) * SECOND)
    wanted = rows(profiles, time=time)
    sums: Counter[Stack] = Counter()
    for stack, _, value, _ in wanted:
        sums[stack] += value
    if sum((+sums).values()) <= MOST:
        assert ask.stacks(time=time) == +sums
    else:
        with pytest.raises(InvalidInput, match=r"2\^63-1"):
            ask.stacks(time=time)
    scope = Scope(TENANT, time)
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for stack, value in sums.items():
        own[(stack or ("",))[-1]] += value
        for name in set(stack):
            total[name] += value
    numbers = [sum(sums.values()), *total.values(), *(own[name] for name in total)]
    if all(abs(number) <= MOST for number in numbers):
        top = ask.run(ask.engine.top(scope, profile_type=CPU, limit=10))
        assert top.total == numbers[0]
        assert {row.function: (row.self_value, row.total_value) for row in top.rows} == {
            name: (own[name], total[name]) for name in total
        }
    else:
        with pytest.raises(InvalidInput, match=r"2\^63-1"):
            ask.run(ask.engine.top(scope, profile_type=CPU, limit=10))
    (series,) = ask.run(
        ask.engine.select_series(
            scope,
            profile_type=CPU,
            group_by=(),
            step_ns=3600 * SECOND,
            aggregation="sum",
            limit=0,
        )
    )
    exact = sum(value for _, _, value, _ in wanted)
    assert abs(Fraction(sum(point.value for point in series.points)) - exact) <= abs(
        Fraction(exact, 2**52)
    ), "the API's number is a float64: 53 bits of the exact sum"


def test_merges_keep_huge_values(lake: Lake, ask: Asker, tmp_path: Path) -> None:
    values = (MOST, -MOST, 2**53 + 1, 1)
    profiles = [huge(value, at_s=n) for n, value in enumerate(values)]
    segments = [lake.add_segment([profile]) for profile in profiles]
    plan = LeasedPlan(
        id=PlanId(1, 0),
        service=Service.COMPACT,
        token=FencingToken(Incarnation("00000000"), 1),
        key=QueueKey(MAIN_STORE, NO_TENANT, Shard(1), 0),
        inputs=tuple(segments),
        target_block_bytes=1 << 30,
        lease_ns=10**12,
    )
    merged = compact(plan, store=lake.store, attempt="1", scratch=tmp_path / "s", wall_ns=START)
    lake.blocks[:] = merged.outputs
    assert ask.stacks() == {("main", "work"): sum(values)}
    for profile in profiles:
        body = ask.run(ask.engine.profile(TENANT, ProfileId(profile.raw.id), ALWAYS))
        assert canonical(gunzip(body, limit=1 << 20)) == canonical(
            gunzip(profile.raw.payload, limit=1 << 20)
        )


# ── a fleet of services ────────────────────────────────────────────────────────────────────────


def as_pushed(profiles: list[Known], *, of: str = "") -> tuple[Counter[str], Counter[str], int]:
    """Self and total by function, from the bytes that were pushed, read by protobuf itself."""
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    everything = 0
    for each in {profile.raw.id: profile for profile in profiles}.values():
        if of not in ("", each.raw.service):
            continue
        message = Profile.FromString(gzip.decompress(each.raw.payload))
        text = [entry.decode() for entry in message.string_table]
        (column,) = [n for n, t in enumerate(message.sample_type) if text[t.type] == "cpu"]
        function = {entry.id: text[entry.name] for entry in message.function}
        named = {entry.id: function[entry.line[0].function_id] for entry in message.location}
        for sample in message.sample:
            value = sample.value[column]
            everything += value
            if sample.location_id:
                own[named[sample.location_id[0]]] += value
            for name in {named[location] for location in sample.location_id}:
                total[name] += value
    return own, total, everything


@pytest.mark.parametrize("seed", range(3))
def test_top_of_a_fleet_and_of_one_of_its_services_equals_the_pushed_profiles(
    lake: Lake, seed: int
) -> None:
    random = Random(seed)
    profiles = [
        profile
        for n in range(40)
        for profile in some_profiles(random, random.randrange(1, 4), service=f"service-{n}")
    ]
    spread(lake, random, profiles)
    some = sorted({random.choice(profiles).raw.service for _ in range(3)})
    for order in (["", *some], [*some, ""], [*some, "", *some]):
        ask = Asker(lake)  # whatever was asked before, and so is in the cache
        for name in order:
            matchers = (service(name),) if name else ()
            scope = Scope(TENANT, ALWAYS, matchers)
            top = ask.run(ask.engine.top(scope, profile_type=CPU, limit=1000))
            own, total, everything = as_pushed(profiles, of=name)
            assert top.total == everything
            assert {row.function: (row.self_value, row.total_value) for row in top.rows} == {
                function: (own[function], total[function]) for function in total
            }
            assert ask.stacks(*matchers) == by_stack(
                row for row in rows(profiles, time=ALWAYS) if name in ("", row[3].service)
            )
        ask.engine.close()


def test_all_services_of_a_segment_are_decoded_together_and_one_alone(lake: Lake) -> None:
    profiles = [known([(("f",), {}, (1, 1))], time_ns=START, service=f"s{n}") for n in range(20)]
    meta = lake.add_segment(profiles)
    ask = Asker(lake)
    assert ask.stacks(service("s3")) == {("f",): 1}
    assert ask.metric("maar_query_level0_profiles_decoded_total") == 1, "the others cost nothing"
    assert ask.stacks() == {("f",): 20}
    assert ask.metric("maar_query_level0_profiles_decoded_total") == 21
    assert ask.stacks(service("s4")) == {("f",): 1}
    assert ask.stacks() == {("f",): 20}
    assert ask.metric("maar_query_level0_profiles_decoded_total") == 21, "what is there is used"
    assert ask.metric("maar_query_level0_cache_lookups_total", result="miss") == 2
    assert len(meta.datasets) == 20
    ask.engine.close()


@pytest.mark.parametrize("what", ["place", "number"])
def test_a_segment_that_the_index_describes_wrongly_is_an_error(lake: Lake, what: str) -> None:
    lake.add_segment(
        [known([(("f",), {}, (1, 1))], time_ns=START, service=name) for name in ("a", "b")]
    )
    first, second = lake.blocks[0].datasets
    wrong = (
        msgspec.structs.replace(first, row_group_first=second.row_group_first)
        if what == "place"
        else msgspec.structs.replace(first, profiles=2)
    )
    lake.blocks[0] = msgspec.structs.replace(lake.blocks[0], datasets=(wrong, second))
    ask = Asker(lake)
    with pytest.raises(Corrupt, match=r"index says"):
        ask.stacks(service("a"))
    ask.engine.close()


# ── fair turns, bounded memory ─────────────────────────────────────────────────────────────────


def test_a_tenant_that_floods_does_not_hold_up_another(lake: Lake) -> None:
    async def scenario() -> None:
        quiet = TenantId("quiet")
        lake.add_block(some_profiles(Random(20), 3))
        lake.add_block([known([(("f",), {}, (1, 1))], time_ns=START, tenant=quiet)])
        ask = Asker(lake, tenant_waiting_max=5)
        flood = [
            asyncio.create_task(ask.engine._ask(Scope(TENANT, ALWAYS), endless)) for _ in range(20)
        ]
        refused = [task for task in flood if task in (await asyncio.wait(flood, timeout=0.5))[0]]
        assert len(refused) == 12, "three are at work, five wait, the others need not"
        for task in refused:
            with pytest.raises(Overloaded, match="tenant acme") as error:
                await task
            assert error.value.retry_after_s
        async with asyncio.timeout(10):  # those of the flood take for ever
            graph = await ask.engine.flamegraph(Scope(quiet, ALWAYS), profile_type=CPU, max_nodes=9)
        assert graph.total == 1
        assert ask.metric("maar_query_waiting") == 5
        assert ask.metric("maar_query_refused_total", reason="tenant_waiting") == 12
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
        assert ask.metric("maar_query_waiting") == 0
        async with asyncio.timeout(10):  # nothing of the flood is left in a slot
            await asyncio.gather(*(ask.engine.label_names(Scope(TENANT, ALWAYS)) for _ in range(4)))
        ask.engine.close()

    asyncio.run(scenario())


def test_a_question_that_waits_too_long_leaves_its_place(store: ObjectStore) -> None:
    async def scenario() -> None:
        lake = Slow(store)
        lake.add_block(some_profiles(Random(21), 3))
        ask = Asker(lake, concurrency=1, timeout_s=0.2)
        asked = [ask.engine.profile_types(Scope(TENANT, ALWAYS)) for _ in range(2)]
        first, second = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(first, Unavailable)
        assert isinstance(second, Overloaded | Unavailable)
        lake.go.set()
        assert await ask.engine.profile_types(Scope(TENANT, ALWAYS)) == (CPU, COUNT)
        ask.engine.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("why", "put", "most"),
    [
        ("not compacted", Lake.add_segment, 100_000),
        ("too many rows", Lake.add_block, 100_000),
        ("too many frames", Lake.add_block, 900_000),
    ],
)
def test_a_question_that_needs_too_much_memory_says_what_helps(
    lake: Lake, why: str, put: Callable[[Lake, list[Known]], object], most: int
) -> None:
    many = [
        known([((f"f{n}", *"abcdefgh" * 20), {}, (1, 1))], time_ns=START + n, pod=f"pod-{n}")
        for n in range(200)
    ]
    put(lake, many)
    small = known([(("f",), {}, (1, 1))], time_ns=START, service="small")
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


@pytest.mark.parametrize("kind", ["flamegraph", "top"])
def test_what_is_counted_is_not_less_than_what_is_used(lake: Lake, kind: str) -> None:
    random = Random(24)
    stacks = [tuple(f"f{random.randrange(50)}" for _ in range(160)) for _ in range(3000)]
    lake.add_block([known([(stack, {}, (1, 1)) for stack in stacks], time_ns=START)])
    ask = Asker(lake)
    scope = Scope(TENANT, ALWAYS)

    def question() -> object:
        if kind == "top":
            return ask.run(ask.engine.top(scope, profile_type=CPU, limit=9))
        return ask.run(ask.engine.flamegraph(scope, profile_type=CPU, max_nodes=9))

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
        ask.run(ask.engine._ask(Scope(TENANT, ALWAYS), wide))
    ask.engine.close()
    ask = Asker(lake, answer_bytes_max=1 << 10)
    with pytest.raises(TooLarge, match="too many rows"):
        ask.run(ask.engine.series(Scope(TENANT, ALWAYS), label_names=()))
    ask.engine.close()


def test_a_stop_between_two_batches_of_rows_is_a_stop(lake: Lake) -> None:
    def stopped(reading: Reading) -> None:
        reading.budget.take = lambda *_: reading.stop()  # type: ignore[method-assign]
        reading.run("SELECT range FROM range(10000000)", Statement())

    lake.add_block(some_profiles(Random(23), 3))
    ask = Asker(lake)
    with pytest.raises(Stopped):
        ask.run(ask.engine._ask(Scope(TENANT, ALWAYS), stopped))
    ask.engine.close()
