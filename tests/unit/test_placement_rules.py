"""From what was written to rules: statistics, the builder, and the whole loop over hours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maar.model.ids import HOME, Shard, TenantId, Zone
from maar.model.time import SECOND_NS
from maar.placement.adaptive.builder import (
    BuiltRules,
    RulesBuilder,
    Surroundings,
    busiest,
    comparable,
)
from maar.placement.adaptive.statistics import ShardUse, Statistics, WriteSource
from maar.placement.rules import Balancing, PlacementSettings, Rules, Share, TenantLimits

UNIT = 128 << 10
ACME = TenantId("acme")
RR, FP = Balancing.ROUND_ROBIN, Balancing.FINGERPRINT
HOUR = 3600
LIMITS = TenantLimits()
BEGAN = 1_000_000  # lease time is never near its beginning here


def s(seconds: float) -> int:
    return round((BEGAN + seconds) * SECOND_NS)


def source(shard: int, owner: str = "w1") -> WriteSource:
    return WriteSource(Shard(shard), owner)


def around(limits: TenantLimits = LIMITS, ring: int = 24) -> Surroundings:
    return Surroundings(lambda _: limits, shards={HOME: ring})


# ── statistics ─────────────────────────────────────────────────────────────────────────────────


def test_rates_are_by_dataset_shard_and_writer() -> None:
    statistics = Statistics(window_s=1, kept_s=900, datasets_max=10)
    for second in range(60):
        statistics.record(ACME, "checkout", source(1, "w1"), 1000, s(second))
        statistics.record(ACME, "checkout", source(1, "w2"), 500, s(second))
        statistics.record(ACME, "search", source(7, "w2"), 250, s(second))
    checkout, search = statistics.read(s(60))
    assert checkout.usages == ((source(1, "w1"), 1000), (source(1, "w2"), 500))
    assert search.usages == ((source(7, "w2"), 250),)


def test_what_is_silent_for_long_is_forgotten_shard_by_shard() -> None:
    statistics = Statistics(window_s=180, kept_s=900, datasets_max=10)
    statistics.record(ACME, "checkout", source(1), 1000, s(0))
    statistics.record(ACME, "checkout", source(2), 1000, s(600))
    assert [len(one.usages) for one in statistics.read(s(899))] == [2]
    assert [len(one.usages) for one in statistics.read(s(900))] == [1]
    assert list(statistics.read(s(1500))) == []
    assert (len(statistics), statistics.rates) == (0, 0)


def test_a_flood_of_names_of_one_tenant_costs_others_nothing() -> None:
    statistics = Statistics(window_s=180, kept_s=900, datasets_max=100)
    for number in range(20):
        statistics.record(ACME, f"service-{number}", source(1), 1000, s(0))
    for number in range(5000):
        statistics.record(TenantId("flood"), f"made-up-{number}", source(1), 1, s(1 + number / 100))
        assert len(statistics) <= 100
    seen = [one for one in statistics.read(s(60)) if one.tenant == ACME]
    assert len(seen) == 20
    assert statistics.evicted == 5020 - len(statistics)


def test_of_one_tenant_those_silent_longest_go_first() -> None:
    statistics = Statistics(window_s=180, kept_s=900, datasets_max=100)
    for number in range(500):
        statistics.record(ACME, "busy", source(1), 1000, s(number))
        statistics.record(ACME, f"once-{number}", source(1), 1000, s(number))
    seen = {one.service: one.usages for one in statistics.read(s(500))}
    assert "once-499" in seen
    assert "once-0" not in seen
    ((_, usage),) = seen["busy"]
    assert usage == pytest.approx(1000 * (1 - 2 ** (-500 / 180)), rel=0.01)  # never forgotten


@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8), st.integers(1, 40)), max_size=200),
)
def test_statistics_never_outgrow_their_room(
    datasets_max: int, samples: list[tuple[int, int, int]]
) -> None:
    statistics = Statistics(window_s=180, kept_s=900, datasets_max=datasets_max)
    for second, (tenant, service, shard) in enumerate(samples):
        statistics.record(TenantId(f"t{tenant}"), f"s{service}", source(shard), 10, s(second))
        assert len(statistics) <= datasets_max
        assert statistics.rates <= 16 * datasets_max
    seen = list(statistics.read(s(len(samples))))
    assert len(seen) == len(statistics)
    assert sum(len(one.usages) for one in seen) == statistics.rates
    if samples:
        assert (f"t{samples[-1][0]}", f"s{samples[-1][1]}") in [one[:2] for one in seen]


# ── the builder ────────────────────────────────────────────────────────────────────────────────


def built_after(
    builder: RulesBuilder,
    seconds: int,
    rate: int,
    where: Surroundings,
    shards: Sequence[int] = (1,),
) -> BuiltRules:
    for second in range(seconds):
        for shard in shards:
            builder.record(ACME, "checkout", source(shard), rate // len(shards), s(second))
    return builder.build(where, s(seconds))


def test_a_dataset_gets_a_shard_for_every_unit_of_its_rate() -> None:
    built = built_after(RulesBuilder(PlacementSettings()), 3600, 5 * UNIT + 10, around())
    assert built.rules.datasets == {(ACME, "checkout"): Share(0, 6, FP)}
    (stats,) = built.stats.datasets
    assert stats.usage == pytest.approx(5 * UNIT, rel=0.01)


def test_a_new_dataset_keeps_the_default_until_a_decay_window_has_passed() -> None:
    limits = TenantLimits(dataset_shards=4, decay_window_s=600)
    builder = RulesBuilder(PlacementSettings())
    key = (ACME, "checkout")
    given_ = {}
    for second in range(0, 1300, 15):
        builder.record(*key, source(1), 10, s(second))
        rules = builder.build(around(limits), s(second)).rules
        given_[second] = rules.datasets[key].dataset_shards
    assert all(shards == 4 for second, shards in given_.items() if second < 600)
    assert given_[1290] == 1


def test_who_resumes_another_s_rules_shrinks_nothing_for_a_decay_window() -> None:
    key = (ACME, "checkout")
    limits = TenantLimits()
    builder = RulesBuilder(PlacementSettings())
    builder.resume(Rules(s(-100_000), {key: Share(0, 40, RR)}), s(0))
    for second in range(0, int(limits.decay_window_s), 15):
        builder.record(*key, source(1), 15 * UNIT, s(second))
        share = builder.build(around(limits), s(second)).rules.datasets[key]
        assert share.dataset_shards == 40
        assert share.balancing is RR


def test_a_silent_dataset_keeps_its_rule_for_a_while() -> None:
    key = (ACME, "checkout")
    builder = RulesBuilder(PlacementSettings(rules_kept_s=900))
    builder.resume(Rules(s(0), {key: Share(0, 7, FP)}), s(0))
    assert builder.build(around(), s(899)).rules.datasets == {key: Share(0, 7, FP)}
    assert builder.build(around(), s(900)).rules.datasets == {}


def test_rules_never_outgrow_their_room_and_the_silent_longest_go_first() -> None:
    builder = RulesBuilder(PlacementSettings(datasets_max=10))
    builder.resume(Rules(s(0), {(ACME, f"old-{number}"): Share() for number in range(10)}), s(0))
    for number in range(4):
        builder.record(ACME, f"new-{number}", source(1), 10, s(15))
    rules = builder.build(around(), s(16)).rules
    assert len(rules.datasets) == 10
    assert {f"new-{number}" for number in range(4)} <= {name for _, name in rules.datasets}


def test_a_tenant_s_own_limits_hold() -> None:
    limits = TenantLimits(tenant_shards=8, dataset_shards_max=3, balancing="round-robin")
    built = built_after(RulesBuilder(PlacementSettings()), 600, 50 * UNIT, around(limits))
    assert built.rules.datasets == {(ACME, "checkout"): Share(8, 3, RR)}


def test_zones_are_judged_each_by_itself() -> None:
    """Even shards in each of two zones of unequal size are no skew, and sizes do not add up."""
    builder = RulesBuilder(PlacementSettings())
    where = Surroundings(
        lambda _: TenantLimits(),
        zones={"w-east": Zone("east"), "w-west": Zone("west")},
        shards={Zone("east"): 4, Zone("west"): 4},
    )
    for second in range(3600):
        for shard in (1, 2, 3, 4):
            builder.record(ACME, "checkout", source(shard, "w-east"), 4 * UNIT, s(second))
            builder.record(ACME, "checkout", source(shard, "w-west"), UNIT // 10, s(second))
        if second % 60 == 0:
            builder.build(where, s(second))
    built = builder.build(where, s(3600))
    share = built.rules.datasets[(ACME, "checkout")]
    assert share.balancing is FP
    assert share.dataset_shards <= 17
    zones = {(use.zone, use.owner) for use in built.stats.datasets[0].shards}
    assert zones == {(Zone("east"), "w-east"), (Zone("west"), "w-west")}


def test_a_shard_that_failed_over_is_one_shard() -> None:
    """Half by one writer, half by another: the shard took as much as the others."""
    uses = (
        ShardUse(Shard(1), "w1", 30),
        ShardUse(Shard(2), "w1", 15),
        ShardUse(Shard(2), "w2", 16),
        ShardUse(Shard(2), "w9", 16, Zone("west")),
    )
    assert busiest(uses) == (HOME, [31, 30])


def test_what_is_left_on_shards_that_it_no_longer_uses_is_no_skew() -> None:
    assert comparable([40, 38, 2, 1], 2, settled=True) == [40, 38]
    assert comparable([40, 38], 4, settled=False) == [40, 38]
    assert comparable([40, 38], 4, settled=True) == [40, 38, 0, 0]


# ── the loop: rules decide where bytes go, and bytes decide the rules ──────────────────────────

Weights = Callable[[float], Sequence[float]]  # of the series, at a time


class Course(NamedTuple):
    switched: list[tuple[int, Balancing]]
    hot_s: int  # seconds in which one shard took twice the mean of all, or more
    share: Share

    def to(self, balancing: Balancing) -> list[int]:
        return [second for second, to in self.switched if to is balancing]


STEP = 15


def lived(
    hours: float,
    rate: float | Callable[[float], float],
    weights: Weights,
    limits: TenantLimits,
    ring: int = 24,
) -> Course:
    """A dataset and its rules, step by step; its series have the fingerprints 0, 1, 2, …"""
    builder, key = RulesBuilder(PlacementSettings()), (ACME, "checkout")
    share, switched, hot_s = Share(), [], 0
    for second in range(0, int(hours * HOUR), STEP):
        amount = STEP * (rate(second) if callable(rate) else rate)
        shards = min(ring, limits.tenant_shards or ring, share.dataset_shards)
        taken = [0.0] * shards
        if share.balancing is RR:
            taken = [amount / shards] * shards
        else:
            for series, weight in enumerate(weights(second)):
                taken[series % shards] += amount * weight
        hot_s += STEP * (shards > 1 and max(taken) >= 2 * sum(taken) / shards)
        for shard, size in enumerate(taken, start=1):
            if size:
                builder.record(*key, source(shard), round(size), s(second))
        built = builder.build(around(limits, ring), s(second))
        share = built.rules.datasets[key]
        switched += [(second, to) for to in built.switched.values()]
    return Course(switched, hot_s, share)


SERIES = 24
EVEN = [1 / SERIES] * SERIES
SKEWED = [0.6] + [0.4 / (SERIES - 1)] * (SERIES - 1)
HOLD = LIMITS.decay_window_s
RATE = 8 * UNIT + 1


def noisy(second: float) -> Sequence[float]:
    """Skewed and even by turns, in seven minutes each: less than a hold."""
    return SKEWED if second // 420 % 2 else EVEN


def test_even_series_keep_their_shards() -> None:
    assert lived(6, RATE, lambda _: EVEN, LIMITS).switched == []


@pytest.mark.parametrize("limits", [LIMITS, TenantLimits(tenant_shards=4)])
def test_only_shards_that_the_ring_and_the_tenant_have_are_judged(limits: TenantLimits) -> None:
    """Nine shards are allotted, and there are four."""
    ring = 24 if limits.tenant_shards else 4
    even = lived(3, RATE, lambda _: EVEN, limits, ring)
    assert (even.switched, even.share.dataset_shards) == ([], 9)
    assert lived(1, RATE, lambda _: SKEWED, limits, ring).share.balancing is RR


def test_few_series_on_many_shards_are_spread_by_chance() -> None:
    """One series alone is on one shard, whatever it is allotted: the peer never sees that."""
    course = lived(2, RATE, lambda _: [1.0], LIMITS)
    assert course.to(RR)
    assert course.share.balancing is RR


def test_when_the_skew_is_over_the_dataset_returns_and_stays() -> None:
    course = lived(12, RATE, lambda second: SKEWED if second < HOUR else EVEN, LIMITS)
    assert course.share.balancing is FP
    back = course.to(FP)[-1]
    assert back <= HOUR + 4 * HOLD
    assert not [second for second in course.to(RR) if second > back]


def test_a_skew_that_stays_is_tried_less_and_less_often() -> None:
    course = lived(24, RATE, lambda _: SKEWED, LIMITS)
    bound = 5 + 24 * HOUR / (16 * HOLD)  # holds of 1, 2, 4, 8 and then 16 windows
    assert 2 <= len(course.to(RR)) <= bound
    assert course.hot_s / (24 * HOUR) < 0.05


def test_noise_around_the_threshold_does_not_flap() -> None:
    course = lived(24, RATE, noisy, LIMITS)
    to_chance = course.to(RR)
    assert to_chance
    assert len(to_chance) <= 5 + 24 * HOUR / (16 * HOLD)
    pauses = [later - earlier for earlier, later in pairwise(to_chance)]
    assert min(pauses) >= HOLD


def test_without_a_hold_the_same_noise_would_flap() -> None:
    restless = TenantLimits(decay_window_s=STEP)
    assert len(lived(24, RATE, noisy, restless).to(RR)) > 3 * len(
        lived(24, RATE, noisy, LIMITS).to(RR)
    )


def test_a_dataset_that_became_small_returns_without_waiting_for_a_trial() -> None:
    """Four trials failed, so the next is five hours away; a small dataset need not wait for it."""

    def rate(second: float) -> float:
        return RATE if second < 12 * HOUR else UNIT / 2

    course = lived(16, rate, lambda _: SKEWED, LIMITS)
    assert course.share.balancing is FP
    assert course.to(FP)[-1] < 12 * HOUR + 1.5 * HOLD + 900
