"""Values beyond 64 bits are exact, or an error that says what to leave out."""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from maar.model.errors import (
    InvalidInput,
)
from maar.model.ids import (
    MAIN_STORE,
    NO_TENANT,
    FencingToken,
    Incarnation,
    PlanId,
    ProfileId,
    Shard,
)
from maar.model.plan import LeasedPlan, QueueKey
from maar.model.time import TimeRange
from maar.ports.reader.query import DrawFlameGraph, GetProfile, RankFunctions, Scope, SelectSeries
from maar.pprof.gzip import gunzip
from maar.query.decide.selector import parse_selector
from maar.services.compact.rules import COMPACT
from maar.services.compact.run import run as compact
from support.lake.asking import ALWAYS, SECOND, START, Asker, ask, lake, service, spread, store
from support.lake.query_lake import (
    CPU,
    TENANT,
    Known,
    Lake,
    Stack,
    known_profile,
    rows,
)
from support.oracles.pprof_reader import canonical

__all__ = ["ask", "lake", "store"]

pytestmark = pytest.mark.component
MOST = 2**63 - 1


def huge(value: int, *, at_s: int = 0, stack: Stack = ("main", "work"), **labels: Any) -> Known:
    return known_profile([(stack, {}, (1, value))], time_ns=START + at_s * SECOND, **labels)


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
    top = ask.run(ask.engine.call(RankFunctions(scope, profile_type=CPU, limit=10)))
    assert top.total == MOST
    assert {row.function: row.total_value for row in top.rows} == {"main": MOST, "work": MOST}
    PUT[put](lake, [huge(1, at_s=2, pod="c")])
    for question in (
        ask.engine.call(DrawFlameGraph(scope, profile_type=CPU, max_nodes=100)),
        ask.engine.call(RankFunctions(scope, profile_type=CPU, limit=1)),
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
    top = ask.run(ask.engine.call(RankFunctions(Scope(TENANT, ALWAYS), profile_type=CPU, limit=10)))
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
        top = ask.run(ask.engine.call(RankFunctions(scope, profile_type=CPU, limit=10)))
        assert top.total == numbers[0]
        assert {row.function: (row.self_value, row.total_value) for row in top.rows} == {
            name: (own[name], total[name]) for name in total
        }
    else:
        with pytest.raises(InvalidInput, match=r"2\^63-1"):
            ask.run(ask.engine.call(RankFunctions(scope, profile_type=CPU, limit=10)))
    (series,) = ask.run(
        ask.engine.call(
            SelectSeries(
                Scope(TENANT, TimeRange(time.end_ns - 1_000_000, time.end_ns)),  # its last point
                profile_type=CPU,
                group_by=(),
                step_ns=time.end_ns - time.start_ns,
                aggregation="sum",
                limit=0,
            )
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
        kind=COMPACT,
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
        body = ask.run(ask.engine.call(GetProfile(TENANT, ProfileId(profile.raw.id), ALWAYS)))
        assert canonical(gunzip(body, limit=1 << 20)) == canonical(
            gunzip(profile.raw.payload, limit=1 << 20)
        )
