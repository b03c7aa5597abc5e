"""Early cuts: answers come sooner, and PUTs stay within a few percent of a fixed flush's."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest

from maar.model.ids import Shard
from maar.segment.early import (
    BALANCE_MAX,
    LATEST,
    SOON,
    Looks,
    PutBudget,
    ShardSpending,
    best_cut,
)
from maar.segment.settings import SegmentSettings
from support.segment.writer_in_memory import ONE, World, in_world, raw_profile

MS = 1_000_000
SETTINGS = SegmentSettings()
INTERVAL_S = SETTINGS.flush_interval_ms / 1000
SOON_MS = int(SOON * 500)
BENCH = Path(__file__).parents[2] / "bench"


def fixed_puts(pushes: Iterable[tuple[float, int]]) -> int:
    """Segments of a flush at a fixed interval: each ends 500 ms after its first push."""
    puts, until = 0, dict[int, float]()
    for at_s, shard in pushes:
        if at_s >= until.get(shard, 0.0):
            puts, until[shard] = puts + 1, at_s + 0.5
    return puts


def by_chance(per_s: float, *, seconds: float, shards: int = 4) -> list[tuple[float, int]]:
    random, at_s, made = Random(7), 0.0, []
    while (at_s := at_s + random.expovariate(per_s)) < seconds:
        made.append((at_s, random.randrange(shards)))
    return made


def waits_of(pushes: list[tuple[float, int]], settings: SegmentSettings) -> tuple[list[float], int]:
    """How long each push waited for its answer by the real writer, and its PUTs. No upload time."""
    waits: list[float] = []

    async def story(world: World) -> None:
        loop = asyncio.get_running_loop()

        async def one(number: int, at_s: float, shard: int) -> None:
            await asyncio.sleep(at_s - loop.time())
            began_s = loop.time()
            await world.service.push(Shard(shard + 1), (raw_profile(number),))
            waits.append(loop.time() - began_s)

        await asyncio.gather(*(one(number, *push) for number, push in enumerate(pushes)))

    world = in_world(story, settings)
    assert world.value("fixed_cuts_total") == fixed_puts(pushes)
    return sorted(waits), len(world.metastore.index)


def test_at_ten_pushes_a_second_half_wait_for_half_the_interval_and_puts_stay() -> None:
    pushes = by_chance(10, seconds=240)
    waits, puts = waits_of(pushes, SETTINGS)
    assert waits[len(waits) // 2] <= 0.55 * INTERVAL_S
    assert waits[-1] <= 1.1 * INTERVAL_S
    assert puts <= 1.05 * fixed_puts(pushes) + 1


def test_none_is_cut_early_when_no_put_may_be_spent() -> None:
    pushes = by_chance(10, seconds=60)
    waits, puts = waits_of(pushes, SegmentSettings(flush_early_percent=0))
    assert puts <= fixed_puts(pushes)
    assert waits[-1] <= LATEST * INTERVAL_S + 1e-6


def test_whoever_chose_fewer_puts_has_them() -> None:
    pushes = by_chance(8, seconds=120)
    waits, puts = waits_of(pushes, SegmentSettings(flush_interval_max_ms=2_000))
    assert puts < 0.8 * fixed_puts(pushes)
    assert waits[-1] > 1.9


def test_pushes_that_nothing_ever_joins_are_soon_written_at_once() -> None:
    pushes = [(15.0 * number, 0) for number in range(80)]
    waits, puts = waits_of(pushes, SETTINGS)
    assert puts == fixed_puts(pushes) == 80
    assert waits[len(waits) // 2] == 0
    assert waits[-1] <= LATEST * INTERVAL_S + 1e-6


def test_a_push_of_many_segments_neither_earns_nor_costs() -> None:
    settings = SegmentSettings(segment_bytes_max=10_000)

    async def story(world: World) -> None:
        await world.service.push(ONE, tuple(raw_profile(n, size=9_990) for n in range(40)))

    world = in_world(story, settings)
    assert world.value("cuts_total", cause="size") == 40
    assert world.value("fixed_cuts_total") == 40


# --------------------------------------------------------------------------- decisions


def spending(settings: SegmentSettings = SETTINGS) -> tuple[ShardSpending, PutBudget]:
    budget = PutBudget(settings)
    return ShardSpending(settings, budget), budget


def test_the_best_cut_saves_many_and_gives_up_little() -> None:
    assert best_cut([], price=0.1) is None
    assert best_cut([10], price=0.2) is None, "one push for two"
    assert best_cut([10], price=0.05) == 0
    assert best_cut([10, 9, 8], price=0.2) == 0, "three for two"
    assert best_cut([10, 1], price=0.2) == 1, "the second alone is the better bargain"
    assert best_cut([10, 10], price=0.2) is None, "for nothing there is no reason to cut"


def test_a_segment_is_looked_at_when_its_oldest_push_has_waited_for_half() -> None:
    one, budget = spending()
    budget.balance = BALANCE_MAX
    looks = Looks(SETTINGS, 1_000 * MS)
    looks.push(1_000 * MS)
    assert looks.next_ns == (1_000 + SOON_MS) * MS
    assert looks.look(one), "there is plenty in hand"
    budget.balance = 0
    poor = Looks(SETTINGS, 1_000 * MS)
    poor.push(1_000 * MS)
    assert not poor.look(one)
    assert poor.next_ns == poor.end_ns == 1_515 * MS


def test_a_look_may_wait_for_a_later_push() -> None:
    one, budget = spending()
    budget.balance = 8.0  # four pushes for a whole interval: too much for one or two
    looks = Looks(SETTINGS, 0)
    looks.push(0)
    looks.push(200 * MS)
    assert not looks.look(one)
    assert looks.next_ns == (200 + SOON_MS) * MS
    looks.push(400 * MS)  # the end answers it soon anyway
    assert looks.look(one)


def test_without_a_put_in_hand_nothing_is_cut_early() -> None:
    one, budget = spending()
    budget.balance = 0.99
    looks = Looks(SETTINGS, 0)
    for _ in range(1_000):
        looks.push(0)
    assert not looks.look(one)


def test_an_early_cut_is_paid_at_once_and_once() -> None:
    one, budget = spending()
    assert one.push(0)
    assert not one.on_open(0)
    balance = budget.balance
    one.on_cut(early=True, full=False)
    assert budget.balance == balance - 1
    assert not one.push(300 * MS), "it would have joined the segment of a fixed flush"
    one.on_open(300 * MS)
    assert budget.balance == balance - 1


def test_what_is_in_hand_has_a_bound() -> None:
    one, budget = spending(SegmentSettings(flush_early_percent=100))
    for number in range(1_000):
        one.push(number * 10**9)
        one.on_open(number * 10**9)
    assert budget.balance <= BALANCE_MAX


def test_a_push_is_alone_when_others_were_for_long() -> None:
    one, _ = spending()
    at_ns = 0
    while not one.is_alone:
        at_ns += 10**9
        one.push(at_ns)
        assert at_ns < 60 * 10**9
    one.push(at_ns + 1)
    one.push(at_ns + 10**9)
    assert not one.is_alone, "one was joined just now"


# --------------------------------------------------------------------------- the benchmark


def test_the_benchmark_prints_what_operators_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setattr(sys, "argv", ["puts", "--minutes", "3", "--loads", "ten", "bursts"])
    importlib.import_module("puts").main()
    ratios = {
        words[0]: float(words[3])
        for words in map(str.split, capsys.readouterr().out.splitlines())
        if words[0] != "#"
    }
    assert ratios["puts_ten"] <= 1.055
    assert ratios["wait_p50_ten"] <= 0.55
    assert ratios["wait_p99_ten"] <= 1.1
    assert ratios["puts_ten_saved"] < 0.9 < ratios["wait_p99_ten_saved"]
