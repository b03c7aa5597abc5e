"""Rates, allotments and balancing: the published vectors, and what must hold for any load."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maar.model.time import SECOND_NS
from maar.placement.adaptive import allocator, balancing
from maar.placement.adaptive.allocator import Allotment
from maar.placement.adaptive.balancing import DatasetLoad, SpreadState
from maar.placement.adaptive.ewma import MovingMean, MovingRate
from maar.placement.rules import Balancing, TenantLimits

UNIT = 128 << 10
RR, FP = Balancing.ROUND_ROBIN, Balancing.FINGERPRINT


def s(seconds: float) -> int:
    return round(seconds * SECOND_NS)


# ── rates ──────────────────────────────────────────────────────────────────────────────────────


def test_a_rate_reaches_half_of_what_arrives_after_one_half_life() -> None:
    rate = MovingRate(10)
    for second in range(10):
        rate.add(10, s(second))
    assert rate.read(s(10)) == pytest.approx(5)


def test_arrivals_within_a_second_are_one_observation() -> None:
    rate = MovingRate(10)
    for tenth in range(100):
        rate.add(10, s(tenth / 10))
    assert rate.read(s(10)) == pytest.approx(50)


def test_a_rate_starts_at_nothing_however_late_it_starts() -> None:
    early, late = MovingRate(10), MovingRate(10)
    for second in range(20):
        early.add(7, s(second))
        late.add(7, s(100_000 + second))
    assert late.read(s(100_020)) == pytest.approx(early.read(s(20)))


def test_what_came_just_now_is_no_rate_yet() -> None:
    rate = MovingRate(10)
    rate.add(1000, s(5))
    assert rate.read(s(5.001)) == 0
    assert rate.read(s(5.999)) == 0
    assert 0 < rate.read(s(6)) <= 1000


def test_a_rate_halves_with_every_half_life_of_silence() -> None:
    rate = MovingRate(10)
    for second in range(1000):
        rate.add(80, s(second))
    full = rate.read(s(1000))
    assert full == pytest.approx(80)
    rate.add(0, s(1000))
    assert rate.read(s(1010)) == pytest.approx(full / 2)
    assert rate.read(s(1030)) == pytest.approx(full / 8)


def test_what_comes_from_before_is_passed_by() -> None:
    rate = MovingRate(10)
    rate.add(10, s(5))
    rate.add(1_000_000, s(4))
    assert rate.read(s(6)) < 10


def test_the_first_look_of_a_mean_counts_whole() -> None:
    mean = MovingMean(10)
    assert mean.look(8, s(50)) == 8
    assert mean.look(0, s(60)) == pytest.approx(4)


# ── allotments ─────────────────────────────────────────────────────────────────────────────────


SMALL = TenantLimits(
    unit_bytes=10, dataset_shards_min=1, dataset_shards_max=5, burst_window_s=50, decay_window_s=50
)


def test_the_published_vector_of_the_allocator() -> None:
    allotment, given_ = Allotment(), []
    for usage, second in ((0, 0), (0, 1), (5, 2), (10, 3)):
        allotment = allocator.observe(allotment, usage, SMALL, s(second))
        given_.append(allotment.shards)
    assert given_ == [1, 1, 1, 2]


def test_growth_that_repeats_gets_more_than_was_seen_but_at_most_twice_as_much() -> None:
    limits = TenantLimits(unit_bytes=10, burst_window_s=50, decay_window_s=50)
    allotment, steps = allocator.resume(1, s(1)), []
    for needed in range(1, 30):
        allotment = allocator.observe(allotment, (needed - 1) * 10, limits, s(1 + needed))
        assert needed <= allotment.shards <= 2 * needed
        steps.append(allotment.shards)
    assert sorted(set(steps)) == [1, 2, 5, 10, 19, 36]  # few steps: each moves series about


def test_a_leap_in_the_midst_of_a_burst_gets_at_most_twice_what_it_needs() -> None:
    limits = TenantLimits(unit_bytes=10, burst_window_s=50, decay_window_s=50)
    allotment = allocator.resume(1, s(1))
    for second, needed in enumerate((2, 4, 10, 20, 100), start=2):
        allotment = allocator.observe(allotment, (needed - 1) * 10, limits, s(second))
    assert allotment.shards == 200


def test_a_load_that_trembles_about_a_multiple_of_the_unit_is_not_taken_for_growth() -> None:
    limits = TenantLimits(unit_bytes=1000)
    allotment = allocator.resume(1, s(1))
    for build in range(1000):
        usage = 8000 + (10 if build % 3 else -10)
        allotment = allocator.observe(allotment, usage, limits, s(1 + 15 * build))
    assert allotment.shards == 9


def test_a_single_growth_after_a_calm_time_gets_what_it_needs() -> None:
    limits = TenantLimits(unit_bytes=10, burst_window_s=50, decay_window_s=50)
    allotment = allocator.observe(Allotment(), 0, limits, s(1))
    allotment = allocator.observe(allotment, 39, limits, s(100))
    assert allotment.shards == 4


def test_shards_are_given_back_after_two_decay_windows_at_most_and_one_at_least() -> None:
    limits = TenantLimits(unit_bytes=10, burst_window_s=50, decay_window_s=50)
    allotment = allocator.observe(Allotment(), 95, limits, s(1))
    shards = {0: allotment.shards}
    for second in range(1, 151):
        allotment = allocator.observe(allotment, 0, limits, s(1 + second))
        shards[second] = allotment.shards
    assert shards[0] == 10
    assert all(shards[second] == 10 for second in range(51))
    assert shards[101] == 1


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 400)), max_size=40))
def test_an_allotment_suffices_stays_in_bounds_and_never_shrinks_within_a_window(
    loads: list[tuple[int, int]],
) -> None:
    limits = TenantLimits(
        unit_bytes=10,
        dataset_shards_min=2,
        dataset_shards_max=300,
        burst_window_s=60,
        decay_window_s=90,
    )
    allotment, now, past = Allotment(), s(1), []
    for usage, pause in loads:
        now += s(pause)
        allotment = allocator.observe(allotment, usage, limits, now)
        assert limits.dataset_shards_min <= allotment.shards <= limits.dataset_shards_max
        assert allotment.shards >= min(limits.dataset_shards_max, usage // 10 + 1)
        past.append((now, min(limits.dataset_shards_max, usage // 10 + 1)))
        recent = [needed for at, needed in past if now - at < s(limits.decay_window_s)]
        assert allotment.shards >= max(recent)
        assert allotment.shards <= max(2, 2 * max(needed for _, needed in past))


@given(st.integers(1, 400), st.lists(st.integers(0, 5_000), min_size=1, max_size=20))
def test_who_resumes_gives_nothing_back_for_a_decay_window(shards: int, loads: list[int]) -> None:
    limits = TenantLimits(unit_bytes=10, decay_window_s=100)
    allotment = allocator.resume(shards, s(7))
    for place, usage in enumerate(loads):
        allotment = allocator.observe(allotment, usage, limits, s(7 + place * 99 / len(loads)))
        assert allotment.shards >= shards


# ── balancing ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("units", "uneven"),
    [
        ((2, 1, 1, 1, 1), False),
        ((2, 0.5, 1, 1, 1), False),
        ((2, 0.5, 0.5, 1, 1), True),
    ],
)
def test_the_published_vectors_of_the_switch(units: tuple[float, ...], uneven: bool) -> None:
    usages = [int(part * UNIT) for part in units]
    deviation = balancing.deviation(usages)
    assert uneven is balancing.uneven(
        usages, deviation=deviation, shards=len(usages), unit_bytes=UNIT
    )


@pytest.mark.parametrize(
    ("usages", "shards"),
    [
        ([9 * UNIT], 1),  # nobody to share with
        ([9 * UNIT, UNIT], 5),  # the others have not been used yet
        ([9 * UNIT, UNIT, 0, 0, 0], 2),  # it used more before
        ([2 * UNIT - 1, 0, 0], 3),  # uneven, and no trouble
    ],
)
def test_what_is_not_judged_uneven(usages: list[int], shards: int) -> None:
    deviation = balancing.deviation(usages)
    assert not balancing.uneven(usages, deviation=deviation, shards=shards, unit_bytes=UNIT)


def test_the_deviation_is_in_whole_numbers() -> None:
    assert balancing.deviation([]) == 0
    assert balancing.deviation([7]) == 0
    assert balancing.deviation([1, 2]) == 0  # mean 1, variance 0
    assert balancing.deviation([2, 4, 4, 4, 5, 5, 7, 9]) == 2


LIMITS = TenantLimits()
HOLD = s(LIMITS.decay_window_s)


def load(*usages: int, shards: int = 0) -> DatasetLoad:
    spread = balancing.deviation(usages)
    return DatasetLoad(sum(usages), usages, spread, spread, shards or len(usages))


SKEWED = load(9 * UNIT, 0, 0, 0)
EVEN = load(3 * UNIT, 3 * UNIT, 3 * UNIT, 3 * UNIT)


def test_it_goes_by_chance_at_once_and_back_only_after_the_hold() -> None:
    standing = balancing.judge(SpreadState(), SKEWED, LIMITS, s(100))
    assert standing.balancing is RR
    assert balancing.judge(standing, EVEN, LIMITS, s(100) + HOLD - 1).balancing is RR
    assert balancing.judge(standing, EVEN, LIMITS, s(100) + HOLD).balancing is FP


def test_every_trial_that_fails_doubles_the_hold_up_to_a_bound() -> None:
    now, standing, holds = s(100), SpreadState(), []
    for _ in range(8):
        standing = balancing.judge(standing, SKEWED, LIMITS, now)
        assert standing.balancing is RR
        began = now
        while standing.balancing is RR:
            now += s(15)
            standing = balancing.judge(standing, EVEN, LIMITS, now)
        holds.append(round((now - began) / HOLD))
        now += s(60)
    assert holds == [1, 2, 4, 8, 16, 16, 16, 16]


def test_a_trial_that_lasted_is_no_failure() -> None:
    standing = SpreadState(FP, s(100), None, 3)
    again = balancing.judge(standing, SKEWED, LIMITS, s(100) + 8 * HOLD)
    assert (again.balancing, again.failed) == (RR, 0)


def test_a_trial_ends_by_what_is_seen_now_not_by_the_average() -> None:
    seen = SKEWED._replace(deviation=0)
    tried = SpreadState(FP, s(100), None, 0)
    assert balancing.judge(tried, seen, LIMITS, s(130)).balancing is RR
    assert balancing.judge(SpreadState(), seen, LIMITS, s(130)).balancing is FP


def test_a_dataset_that_became_small_returns_whatever_failed_before() -> None:
    small = load(UNIT // 4, UNIT // 4, UNIT // 4)
    standing = SpreadState(RR, s(100), None, 4)
    standing = balancing.judge(standing, small, LIMITS, s(200))
    standing = balancing.judge(standing, small, LIMITS, s(200) + HOLD - 1)
    assert standing.balancing is RR
    assert balancing.judge(standing, small, LIMITS, s(200) + HOLD).balancing is FP
    noisy = balancing.judge(standing, EVEN, LIMITS, s(200) + HOLD - 1)
    noisy = balancing.judge(noisy, small, LIMITS, s(200) + HOLD)
    assert noisy.balancing is RR  # it has to be small for the whole of the time


@pytest.mark.parametrize(("text", "fixed"), [("fingerprint", FP), ("round-robin", RR)])
def test_a_tenant_may_fix_it(text: str, fixed: Balancing) -> None:
    limits = TenantLimits(balancing=text)  # type: ignore[arg-type]
    for before in (SpreadState(), SpreadState(RR, s(1))):
        for seen in (SKEWED, EVEN):
            assert balancing.judge(before, seen, limits, s(100)).balancing is fixed


@given(
    st.lists(
        st.tuples(st.integers(1, 600), st.lists(st.integers(0, 5 * UNIT), min_size=1, max_size=6)),
        max_size=60,
    )
)
def test_whatever_the_load_does_two_switches_to_chance_are_a_hold_apart(
    story: list[tuple[int, list[int]]],
) -> None:
    now, standing, switches = s(1), SpreadState(), []
    for pause, usages in story:
        now += s(pause)
        after = balancing.judge(standing, load(*usages), LIMITS, now)
        if after.balancing is RR and standing.balancing is FP:
            switches.append(now)
        standing = after
    assert all(later - earlier >= HOLD for earlier, later in pairwise(switches))
