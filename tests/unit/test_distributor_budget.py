"""Retries are a share of what is pushed, with a little for quiet times and a store for bad ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maar.distributor.settings import RouterSettings
from maar.model.time import SECOND_NS
from maar.model.token_bucket import Refill, TokenBucket

SETTINGS = RouterSettings(retry_share=0.1, retries_per_s=2, retries_saved_max=20)
QUIET = RouterSettings(retry_share=0, retries_per_s=2, retries_saved_max=1)


def refill_of(settings: RouterSettings) -> Refill:
    return Refill(settings.retries_per_s, settings.retries_saved_max)


def retries_of(pushes: int, *, seconds: float, settings: RouterSettings = SETTINGS) -> int:
    """How many of so many failing pushes in a row are tried again, when all want to be."""
    now_ns, retries = 0, 0
    budget = TokenBucket(0)
    for _ in range(pushes):
        now_ns += int(seconds * SECOND_NS / pushes)
        budget.give(settings.retry_share)
        retries += budget.take(1, refill_of(settings), now_ns=now_ns)
    return retries


def test_a_sick_fleet_gets_a_tenth_more_load_and_not_six_times_as_much() -> None:
    assert retries_of(10_000, seconds=10) == pytest.approx(20 + 1000 + 2 * 10, abs=2)


def test_a_quiet_distributor_may_always_retry() -> None:
    assert retries_of(10, seconds=5) == 10
    assert retries_of(60, seconds=30, settings=QUIET) == 60


def test_what_is_saved_up_is_bounded() -> None:
    budget = TokenBucket(0)
    budget.give(10**6 * SETTINGS.retry_share)
    assert budget.wait_ns(1, refill_of(SETTINGS), now_ns=10**18) == 0
    assert budget.left(refill_of(SETTINGS)) == SETTINGS.retries_saved_max


def test_without_any_there_is_none_to_spend() -> None:
    settings = RouterSettings(retry_share=0.5, retries_per_s=0, retries_saved_max=1)
    budget, refill = TokenBucket(0), refill_of(settings)
    assert budget.take(1, refill, now_ns=0)
    assert not budget.take(1, refill, now_ns=10**15)
    budget.give(settings.retry_share)
    assert budget.wait_ns(1, refill, now_ns=10**15) is None
    budget.give(settings.retry_share)
    assert budget.wait_ns(1, refill, now_ns=10**15) == 0
    assert budget.take(1, refill, now_ns=10**15)


@given(st.lists(st.tuples(st.integers(-(10**9), 10**10), st.integers(0, 50)), max_size=50))
def test_it_is_never_negative_nor_over_its_bound_also_when_the_clock_steps_back(
    steps: list[tuple[int, int]],
) -> None:
    budget, now_ns = TokenBucket(0), 0
    for passed, pushed in steps:
        now_ns = max(0, now_ns + passed)
        budget.give(pushed * SETTINGS.retry_share)
        budget.take(1, refill_of(SETTINGS), now_ns=now_ns)
        assert 0 <= budget.left(refill_of(SETTINGS)) <= SETTINGS.retries_saved_max
