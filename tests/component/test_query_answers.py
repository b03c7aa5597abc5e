"""Answers of the engine over real files, compared with the same sums done slowly in Python."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Callable
from random import Random

import msgspec
import pytest

from maar.model.errors import NotFound
from maar.model.ids import ProfileId, TenantId
from maar.model.labels import Labels
from maar.model.time import TimeRange
from maar.ports.reader.query import (
    DrawFlameGraph,
    GetProfile,
    ListLabelNames,
    ListLabelValues,
    ListProfileTypes,
    ListSeries,
    Matcher,
    RankFunctions,
    Scope,
    SelectSeries,
)
from maar.pprof.gzip import gunzip
from maar.pprof.schema import Profile
from support.lake.asking import (
    ALWAYS,
    ODD,
    SECOND,
    START,
    Asker,
    ask,
    lake,
    service,
    some_profiles,
    spread,
    store,
)
from support.lake.query_lake import COUNT, CPU, TENANT, Known, Lake, by_stack, known_profile, rows
from support.oracles.graphs import graph_of
from support.oracles.pprof_reader import canonical

__all__ = ["ask", "lake", "store"]

pytestmark = pytest.mark.component
MS = 1_000_000


@pytest.mark.parametrize("time", [ALWAYS, ODD])
@pytest.mark.parametrize("seed", range(6))
def test_a_flame_graph_counts_every_profile_once(
    lake: Lake, ask: Asker, seed: int, time: TimeRange
) -> None:
    random = Random(seed)
    profiles = [
        *some_profiles(random, 24, service="checkout", region="eu"),
        *some_profiles(random, 12, service="checkout", region="us"),
        *some_profiles(random, 12, service="search"),
    ]
    spread(lake, random, profiles)
    mine = [each for each in profiles if each.raw.service == "checkout"]
    assert ask.stacks(service("checkout"), time=time) == by_stack(rows(mine, time=time))
    assert ask.stacks(time=time) == by_stack(rows(profiles, time=time))
    count = by_stack(rows(mine, time=time, profile_type=COUNT))
    assert ask.stacks(service("checkout"), kind=COUNT, time=time) == count


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
        known_profile([((f"at{offset}",), {}, (1, 1))], time_ns=START + offset)
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
    twice = known_profile([(("a", "b"), {}, (1, 5)), (("a", "b"), {}, (1, 5))], time_ns=START)
    lake.add_block([twice], level=1)
    lake.add_block([twice], level=2)
    assert ask.stacks() == Counter({("a", "b"): 10})


@pytest.mark.parametrize("merged", [False, True])
def test_a_negative_value_weighs_the_same_before_and_after_a_merge(
    lake: Lake, ask: Asker, merged: bool
) -> None:
    profiles = [
        known_profile([(("m", "x"), {}, (1, 50)), (("m", "y"), {}, (1, 5))], time_ns=START),
        known_profile([(("m", "x"), {}, (1, -30)), (("m", "z"), {}, (1, -7))], time_ns=START + 1),
        known_profile([(("m", "y"), {}, (1, -5))], time_ns=START + 2),
    ]
    for part in [profiles] if merged else [[each] for each in profiles]:
        lake.add_segment(part)
    assert ask.stacks() == Counter({("m", "x"): 20})


def test_tenants_do_not_see_each_other(lake: Lake, ask: Asker) -> None:
    other = TenantId("other")
    lake.add_block([known_profile([(("mine",), {}, (1, 1))], time_ns=START)])
    lake.add_block([known_profile([(("theirs",), {}, (1, 1))], time_ns=START, tenant=other)])
    lake.add_segment(
        [
            known_profile([(("raw",), {}, (1, 1))], time_ns=START),
            known_profile([(("raw theirs",), {}, (1, 1))], time_ns=START, tenant=other),
        ]
    )
    assert ask.stacks() == Counter({("mine",): 1, ("raw",): 1})


def test_a_stack_without_frames_belongs_to_the_root(lake: Lake, ask: Asker) -> None:
    lake.add_segment([known_profile([((), {}, (1, 7)), (("a",), {}, (1, 2))], time_ns=START)])
    assert ask.stacks() == Counter({(): 7, ("a",): 2})


def test_a_segment_may_hold_nothing_but_empty_stacks(lake: Lake, ask: Asker) -> None:
    lake.add_segment([known_profile([((), {}, (1, 7))], time_ns=START)])
    assert ask.stacks() == Counter({(): 7})


def test_nothing_to_read_gives_empty_answers(ask: Asker) -> None:
    scope = Scope(TENANT, ALWAYS)
    engine = ask.engine
    graph = ask.run(engine.call(DrawFlameGraph(scope, profile_type=CPU, max_nodes=10)))
    assert graph == graph_of(["total"], [(0, 0, 0, 0)], 0, 0)
    assert ask.run(engine.call(RankFunctions(scope, profile_type=CPU, limit=5))).rows == ()
    assert ask.run(engine.call(ListProfileTypes(scope))) == ()
    assert ask.run(engine.call(ListLabelNames(scope))) == ()
    assert ask.run(engine.call(ListSeries(scope, label_names=()))) == ()


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
    top = ask.run(
        ask.engine.call(RankFunctions(Scope(TENANT, ALWAYS), profile_type=CPU, limit=100))
    )
    assert {row.function: (row.self_value, row.total_value) for row in top.rows} == {
        name: (own[name], total[name]) for name in total
    }
    assert top.total == sum(own.values())
    assert [row.self_value for row in top.rows] == sorted(
        (row.self_value for row in top.rows), reverse=True
    )
    two = ask.run(ask.engine.call(RankFunctions(Scope(TENANT, ALWAYS), profile_type=CPU, limit=2)))
    assert two.rows == top.rows[:2]
    assert two.total == top.total


@pytest.mark.parametrize("time", [ALWAYS, ODD])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("aggregation", ["sum", "avg"])
def test_time_series_are_sums_or_averages_by_step_and_group(
    lake: Lake, ask: Asker, seed: int, aggregation: str, time: TimeRange
) -> None:
    random = Random(seed)
    profiles = [
        *some_profiles(random, 12, region="eu"),
        *some_profiles(random, 12, region="us"),
        *some_profiles(random, 6, service="search"),
    ]
    spread(lake, random, profiles)
    step = 600 * SECOND
    points = range(time.start_ns // MS, (time.end_ns - 1) // MS + 1, step // MS)
    expected: dict[tuple[Labels, int], list[tuple[bytes, int]]] = {}
    for _, labels, value, raw in rows(profiles, time=TimeRange(time.start_ns - step, time.end_ns)):
        counted = [at for at in points if at - step // MS < raw.time_ns // MS <= at]
        if value and counted:
            names = ("region", "service_name")
            group = tuple((name, labels[name]) for name in names if name in labels)
            expected.setdefault((group, counted[0]), []).append((raw.id, value))
    answer = ask.run(
        ask.engine.call(
            SelectSeries(
                Scope(TENANT, time),
                profile_type=CPU,
                group_by=("service_name", "region"),
                step_ns=step,
                aggregation=aggregation,
                limit=0,
            )
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


@pytest.mark.parametrize("kept_bytes", [1 << 20, 0])  # 0: DuckDB answers
def test_a_point_marks_the_end_of_its_step(lake: Lake, kept_bytes: int) -> None:
    """As in Pyroscope: points at 0, 10 and 20 s of a range of 25 s, by times in whole ms."""
    at_us = {
        -10_000_000: 1,  # belongs to a point before the range
        -9_999_000: 2,  # 0
        0: 4,  # 0
        999: 8,  # 0: the same millisecond
        1_000: 16,  # 10
        10_000_000: 32,  # 10
        10_001_000: 64,  # 20
        20_000_000: 128,  # 20
        20_001_000: 256,  # would belong to a point after the range
        25_000_000: 512,  # as well
    }
    lake.add_block(
        [
            known_profile([(("a",), {}, (1, value))], time_ns=START + 1000 * after)
            for after, value in at_us.items()
        ]
    )
    ask = Asker(lake, part_cache_bytes_max=kept_bytes)
    (series,) = ask.run(
        ask.engine.call(
            SelectSeries(
                Scope(TENANT, TimeRange(START, START + 25 * SECOND + MS)),
                profile_type=CPU,
                group_by=(),
                step_ns=10 * SECOND,
                aggregation="sum",
                limit=0,
            )
        )
    )
    ask.engine.close()
    start_ms = START // MS
    assert [(point.time_ms - start_ms, point.value) for point in series.points] == [
        (0, 2 + 4 + 8),
        (10_000, 16 + 32),
        (20_000, 64 + 128),
    ]


@pytest.mark.parametrize("kept_bytes", [1 << 20, 0])  # 0: DuckDB answers
def test_stacks_of_go_are_tidied_in_answers_only(lake: Lake, kept_bytes: int) -> None:
    deep = tuple(f"pkg.(*Type).method{n}" for n in range(70))
    ints, texts = (("main.main", f"x.F[go.shape.{kind}]") for kind in ("[]int", "string"))
    profiles = [
        known_profile([(deep[:40], {}, (1, 1)), (ints, {}, (1, 10))], time_ns=START),
        known_profile([(deep[6:70], {}, (1, 100)), (texts, {}, (1, 1000))], time_ns=START + SECOND),
        # What is not drawn is not taken from what is, though both have the same name now.
        known_profile([(texts, {}, (1, -3)), (ints, {}, (1, -20))], time_ns=START + 2 * SECOND),
    ]
    lake.add_block(profiles[:1])
    lake.add_segment(profiles[1:])
    tidy = {deep[:40]: 1, deep: 100, ("main.main", "x.F"): 997}
    exact = {deep[:40]: 1, deep[6:70]: 100, texts: 997}
    for setting, expected in ((True, tidy), (False, exact)):
        ask = Asker(lake, part_cache_bytes_max=kept_bytes, tidy_go_stacks=setting)
        assert ask.stacks() == expected
        ranked = RankFunctions(Scope(TENANT, ALWAYS), profile_type=CPU, limit=100)
        top = {row.function: row.total_value for row in ask.run(ask.engine.call(ranked)).rows}
        assert top[deep[0]] == (101 if setting else 1)
        assert top.get("x.F") == (987 if setting else None)
        for known in profiles:
            found = ask.run(ask.engine.call(GetProfile(TENANT, known.raw.id, ALWAYS)))
            assert canonical(gunzip(found, limit=1 << 20)) == canonical(
                gunzip(known.raw.payload, limit=1 << 20)
            )
        ask.engine.close()


def test_without_groups_there_is_one_series_and_a_limit_keeps_the_largest(
    lake: Lake, ask: Asker
) -> None:
    lake.add_block(
        [
            known_profile([(("a",), {}, (1, size))], time_ns=START, region=region)
            for region, size in (("small", 1), ("large", 100), ("middle", 10))
        ]
    )

    def series(*group_by: str, limit: int) -> list[tuple[Labels, float]]:
        answer = ask.run(
            ask.engine.call(
                SelectSeries(
                    Scope(TENANT, ALWAYS),
                    profile_type=CPU,
                    group_by=group_by,
                    step_ns=SECOND,
                    aggregation="sum",
                    limit=limit,
                )
            )
        )
        return [(each.labels, each.points[0].value) for each in answer]

    assert series(limit=0) == [((), 111.0)]
    assert series("region", limit=2) == [
        ((("region", "large"),), 100.0),
        ((("region", "middle"),), 10.0),
    ]


def test_labels_types_and_series_are_listed(lake: Lake, ask: Asker) -> None:
    lake.add_block(
        [known_profile([(("a",), {"thread": "t1"}, (1, 1))], time_ns=START, region="eu")]
    )
    lake.add_segment(
        [known_profile([(("a",), {}, (1, 1))], time_ns=START, service="search", zone="z")]
    )
    engine, scope = ask.engine, Scope(TENANT, ALWAYS)
    assert ask.run(engine.call(ListProfileTypes(scope))) == (CPU, COUNT)
    synthetic = {
        *("__name__", "__period_type__", "__period_unit__"),
        *("__profile_type__", "__service_name__", "__type__", "__unit__"),
    }
    assert set(ask.run(engine.call(ListLabelNames(scope)))) == {
        *synthetic,
        *("region", "service_name", "thread", "zone"),
    }
    only = Scope(TENANT, ALWAYS, (service("search"),))
    assert set(ask.run(engine.call(ListLabelNames(only)))) == {*synthetic, "service_name", "zone"}
    values = {
        name: ask.run(engine.call(ListLabelValues(scope, name=name)))
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
    picked = ask.run(
        engine.call(ListSeries(scope, label_names=("service_name", "thread", "__type__")))
    )
    assert picked == (
        (("__type__", "cpu"), ("service_name", "checkout"), ("thread", "t1")),
        (("__type__", "cpu"), ("service_name", "search")),
        (("__type__", "samples"), ("service_name", "checkout"), ("thread", "t1")),
        (("__type__", "samples"), ("service_name", "search")),
    )
    by_index = ask.run(engine.call(ListSeries(scope, label_names=("service_name", "__type__"))))
    assert len(by_index) == 4
    everything = ask.run(engine.call(ListSeries(only, label_names=())))
    assert dict(everything[0])["zone"] == "z"
    assert {dict(labels)["__profile_type__"] for labels in everything} == {CPU, COUNT}
    later = Scope(TENANT, TimeRange(START + 1, START + 10))
    assert ask.run(engine.call(ListLabelNames(later))) == ()
    eu = Scope(TENANT, ALWAYS, (Matcher("region", "=~", "eu"),))
    assert ask.run(engine.call(ListLabelValues(eu, name="service_name"))) == ("checkout",)
    assert ask.run(engine.call(ListProfileTypes(eu))) == (CPU, COUNT)


def test_profiles_come_back_from_segments_blocks_and_quarantine(lake: Lake, ask: Asker) -> None:
    random = Random(2)
    raw, compacted, broken = some_profiles(random, 3)
    bad = msgspec.structs.replace(broken.raw, payload=b"\x1f\x8bnot gzip at all")
    lake.add_segment([raw])
    lake.add_block([compacted])
    lake.add_quarantine([bad])

    def get(profile: ProfileId, time: TimeRange = ALWAYS) -> bytes:
        return ask.run(ask.engine.call(GetProfile(TENANT, profile, time)))

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
        ask.run(ask.engine.call(GetProfile(TenantId("other"), raw.raw.id, ALWAYS)))


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
            top = ask.run(ask.engine.call(RankFunctions(scope, profile_type=CPU, limit=1000)))
            own, total, everything = as_pushed(profiles, of=name)
            assert top.total == everything
            assert {row.function: (row.self_value, row.total_value) for row in top.rows} == {
                function: (own[function], total[function]) for function in total
            }
            assert ask.stacks(*matchers) == by_stack(
                row for row in rows(profiles, time=ALWAYS) if name in ("", row[3].service)
            )
        ask.engine.close()
