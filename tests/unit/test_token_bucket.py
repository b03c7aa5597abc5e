"""A token bucket: what it lets through, and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from maar.model.time import SECOND_NS
from maar.model.token_bucket import Refill, TokenBucket

REFILL = Refill(per_s=2, most=3)


def takes(bucket: TokenBucket, count: int, *, now_ns: int) -> list[bool]:
    return [bucket.take(1, REFILL, now_ns=now_ns) for _ in range(count)]


def test_tokens_come_back_at_their_rate_and_never_more_than_it_holds() -> None:
    bucket = TokenBucket()
    assert takes(bucket, 4, now_ns=0) == [True, True, True, False]
    assert takes(bucket, 1, now_ns=SECOND_NS // 4) == [False]
    assert takes(bucket, 1, now_ns=SECOND_NS // 2) == [True]
    assert takes(bucket, 4, now_ns=100 * SECOND_NS) == [True, True, True, False]


def test_a_bucket_that_holds_nothing_gives_nothing_and_never_will() -> None:
    assert not TokenBucket().take(1, Refill(per_s=5, most=0), now_ns=10**18)
    assert TokenBucket().wait_ns(1, Refill(per_s=5, most=0), now_ns=0) is None


def test_without_a_refill_only_what_is_given_comes_back() -> None:
    bucket, refill = TokenBucket(), Refill(per_s=0, most=1)
    assert bucket.take(1, refill, now_ns=0)
    assert bucket.wait_ns(1, refill, now_ns=10**18) is None
    bucket.give(5)
    assert bucket.left(refill) == 1


def test_a_clock_that_steps_back_takes_nothing_away_and_gives_nothing_twice() -> None:
    bucket = TokenBucket(at_ns=10 * SECOND_NS)
    bucket.charge(3)
    bucket.settle(REFILL, now_ns=0)
    bucket.settle(REFILL, now_ns=10 * SECOND_NS)
    assert bucket.left(REFILL) == 0
    bucket.settle(REFILL, now_ns=11 * SECOND_NS)
    assert bucket.left(REFILL) == 2


@given(st.integers(1, 10**12), st.integers(1, 10**12), st.integers(1, 10**12))
def test_of_whole_numbers_the_wait_is_exact_to_the_nanosecond(
    per_s: int, charged: int, wanted: int
) -> None:
    bucket, refill = TokenBucket(), Refill(per_s, max(charged, wanted))
    bucket.charge(charged)
    wait_ns = bucket.wait_ns(wanted, refill, now_ns=0)
    assert wait_ns is not None
    if wait_ns:
        assert bucket.wait_ns(wanted, refill, now_ns=wait_ns - 1) == 1
    assert bucket.take(wanted, refill, now_ns=wait_ns)
