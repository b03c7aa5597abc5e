"""A tenant pushes so many bytes a second, and is told when the next ones fit."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maar.distributor import rates
from maar.distributor.rates import Rates
from maar.distributor.settings import Rate
from maar.model.errors import Overloaded
from maar.model.ids import TenantId
from maar.model.time import SECOND_NS

ACME, OTHER = TenantId("acme"), TenantId("other")
NOW = 10**15
RATE = Rate(rate_bytes=1000, burst_bytes=5000)


def refusal(known: Rates, size: int, *, at_s: float = 0, rate: Rate = RATE) -> float | None:
    """Seconds until it would fit, or None when it was taken."""
    try:
        known.take(ACME, rate, size, now_ns=NOW + int(at_s * SECOND_NS))
    except Overloaded as error:
        return error.retry_after_s
    return None


def test_without_a_rate_everything_passes_and_nothing_is_remembered() -> None:
    known = Rates()
    for _ in range(10):
        known.take(ACME, Rate(), 1 << 40, now_ns=NOW)
    assert len(known) == 0


def test_a_burst_passes_and_then_so_much_a_second() -> None:
    known = Rates()
    assert [refusal(known, 1000) for _ in range(5)] == [None] * 5
    assert refusal(known, 1000) == pytest.approx(1.0)
    assert refusal(known, 1000, at_s=0.9) == pytest.approx(0.1)
    assert refusal(known, 1000, at_s=1.0) is None
    assert refusal(known, 1, at_s=1.0) == pytest.approx(0.001)


def test_the_time_it_tells_is_the_time_after_which_it_passes() -> None:
    known = Rates()
    assert refusal(known, 4321) is None
    wait_s = refusal(known, 3000)
    assert wait_s is not None
    assert refusal(known, 3000, at_s=wait_s - 0.001) is not None
    assert refusal(known, 3000, at_s=wait_s) is None


def test_a_push_larger_than_the_bucket_passes_when_the_bucket_is_full_and_is_paid_off() -> None:
    known = Rates()
    assert refusal(known, 1) is None
    assert refusal(known, 20_000) == pytest.approx(0.001)
    assert refusal(known, 20_000, at_s=0.001) is None
    assert refusal(known, 1, at_s=15.0) is not None
    assert refusal(known, 1, at_s=15.1) is None


def test_without_a_burst_it_is_what_a_second_allows() -> None:
    known = Rates()
    rate = Rate(rate_bytes=1000)
    assert refusal(known, 1000, rate=rate) is None
    assert refusal(known, 1, rate=rate) is not None


def test_tenants_do_not_share() -> None:
    known = Rates()
    assert refusal(known, 5000) is None
    known.take(OTHER, RATE, 5000, now_ns=NOW)


def test_a_rate_that_was_changed_counts_at_once() -> None:
    known = Rates()
    assert refusal(known, 5000) is None
    assert refusal(known, 5000) is not None
    assert refusal(known, 5000, rate=Rate(rate_bytes=10**9)) is None
    assert refusal(known, 5000, rate=Rate()) is None


def test_refusals_cost_nothing() -> None:
    known = Rates()
    assert refusal(known, 5000) is None
    for _ in range(1000):
        assert refusal(known, 5000) is not None
    assert refusal(known, 5000, at_s=5) is None


def test_the_sentence_names_the_tenant_the_limit_and_the_time() -> None:
    known = Rates()
    known.take(ACME, RATE, 5000, now_ns=NOW)
    with pytest.raises(Overloaded, match=r"tenant acme .* 1000 bytes a second .* in 2\.0 s"):
        known.take(ACME, RATE, 2000, now_ns=NOW)


def test_tenants_whose_bucket_is_full_again_are_forgotten() -> None:
    known = Rates()
    for number in range(50_000):
        known.take(TenantId(f"t{number}"), RATE, 1, now_ns=NOW + number * SECOND_NS)
    assert len(known) <= rates.SWEEP_MIN


def test_tenants_that_owe_are_bounded_and_the_greatest_debtors_remembered() -> None:
    known = Rates(buckets_max=2000)
    known.take(ACME, RATE, 1_000_000, now_ns=NOW)
    for number in range(20_000):
        known.take(TenantId(f"t{number}"), RATE, 5000, now_ns=NOW)
        assert len(known) <= 2001
    assert refusal(known, 1) is not None


@given(
    st.integers(1, 10**9),
    st.integers(0, 10**9),
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**10)), max_size=30),
)
def test_over_any_time_no_more_passes_than_the_burst_and_the_rate_and_one_large_push(
    rate_bytes: int, burst_bytes: int, pushes: list[tuple[int, int]]
) -> None:
    rate, known, now_ns, passed = Rate(rate_bytes, burst_bytes), Rates(), NOW, 0
    for size, pause_ns in pushes:
        now_ns += pause_ns
        try:
            known.take(ACME, rate, size, now_ns=now_ns)
        except Overloaded as error:
            wait_ns = math.ceil((error.retry_after_s or 0) * SECOND_NS) + 1000
            known.take(ACME, rate, size, now_ns=now_ns + wait_ns)
            now_ns += wait_ns
        passed += size
    largest = max((size for size, _ in pushes), default=0)
    allowed = rate.room_bytes + rate_bytes * (now_ns - NOW) / SECOND_NS + largest
    assert passed <= allowed + len(pushes)
