"""Patience with frames that bring nothing, in virtual time."""

from __future__ import annotations

from maar.app.http.patience import REFILL, Patience

PER_S, MOST = REFILL


def test_a_burst_is_endured_and_a_flood_is_not() -> None:
    patience = Patience(0.0)
    assert all(patience.spend(1.0, lambda: 0.0) for _ in range(int(MOST) - 1))
    assert not patience.spend(1.0, lambda: 0.0)


def test_a_steady_trickle_is_endured_for_ever() -> None:
    patience = Patience(0.0)
    assert all(patience.spend(1.0, lambda n=n: n / PER_S) for n in range(1, 20_000))  # type: ignore[misc]


def test_somewhat_more_than_a_trickle_is_not() -> None:
    patience = Patience(0.0)
    assert not all(patience.spend(1.5, lambda n=n: n / PER_S) for n in range(20_000))  # type: ignore[misc]


def test_work_that_was_done_restores_it_but_never_beyond_the_most() -> None:
    patience = Patience(0.0)
    patience.restore(1e9)
    assert patience.spend(MOST - 1, lambda: 0.0)
    assert not patience.spend(2.0, lambda: 0.0)
    patience.restore(100)
    assert patience.spend(50, lambda: 0.0)
