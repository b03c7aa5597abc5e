"""Backing off: doubling, bounded, spread by chance, forgotten after a success."""

from __future__ import annotations

import pytest

from maar.worker.backoff import Backoff


@pytest.mark.parametrize(
    ("failures", "chance", "expected"),
    [(1, 1.0, 100), (1, 0.0, 50), (2, 1.0, 200), (3, 1.0, 400), (9, 1.0, 2000), (99, 0.0, 1000)],
)
def test_the_wait_doubles_within_bounds(failures: int, chance: float, expected: int) -> None:
    backoff = Backoff(min_ns=100, max_ns=2000)
    waits = [backoff.on_failure(now_ns=7, chance=chance) for _ in range(failures)]
    assert waits[-1] == expected
    assert backoff.until_ns == 7 + expected


def test_a_success_ends_the_wait_and_says_whether_there_was_one() -> None:
    backoff = Backoff(min_ns=100, max_ns=2000)
    assert not backoff.on_success()
    backoff.on_failure(now_ns=0, chance=1.0)
    assert backoff.on_success()
    assert backoff.until_ns == 0
    assert backoff.on_failure(now_ns=0, chance=1.0) == 100
