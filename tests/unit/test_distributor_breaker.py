"""A writer that falls silent is left alone, probed by one push, and taken back when it answers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from maar.distributor import breaker
from maar.distributor.breaker import FAILURES_MAX, OPEN_NS, Breaker, BreakerState

NOW = 10**15


def silent(times: int, *, now_ns: int = NOW) -> Breaker:
    one = breaker.CLOSED
    for _ in range(times):
        one = breaker.silent(one, now_ns=now_ns)
    return one


def test_it_opens_after_the_third_silence_in_a_row() -> None:
    assert FAILURES_MAX == 3
    assert breaker.allows(silent(2), now_ns=NOW)
    assert not breaker.allows(silent(3), now_ns=NOW)


def test_an_answer_between_makes_silence_count_anew() -> None:
    one = breaker.silent(breaker.CLOSED, now_ns=NOW)
    assert breaker.allows(one, now_ns=NOW)


def test_after_a_while_one_push_probes_and_only_one() -> None:
    one, later = silent(3), NOW + OPEN_NS
    assert not breaker.allows(one, now_ns=later - 1)
    assert breaker.allows(one, now_ns=later)
    assert breaker.state_of(one, now_ns=later) is BreakerState.HALF_OPEN
    assert not breaker.allows(breaker.on_begin(one), now_ns=later + 100 * OPEN_NS)


def test_a_probe_that_is_silent_opens_it_again() -> None:
    later = NOW + OPEN_NS
    probing = breaker.on_begin(silent(3))
    again = breaker.silent(probing, now_ns=later)
    assert breaker.state_of(again, now_ns=later) is BreakerState.OPEN
    assert breaker.allows(again, now_ns=later + OPEN_NS)


def test_a_probe_that_was_called_off_leaves_room_for_another() -> None:
    probing = breaker.on_begin(silent(3))
    assert breaker.allows(breaker.on_cancel(probing), now_ns=NOW + OPEN_NS)


def test_a_push_on_its_way_is_a_probe_only_when_the_breaker_is_not_closed() -> None:
    assert not breaker.on_begin(silent(2)).probing


def test_it_says_when_it_will_let_one_through() -> None:
    assert breaker.opens_in_ns(silent(3), now_ns=NOW + 1) == OPEN_NS - 1
    assert breaker.opens_in_ns(silent(3), now_ns=NOW + OPEN_NS) == 0
    assert breaker.opens_in_ns(breaker.CLOSED, now_ns=NOW) == 0


@given(st.lists(st.sampled_from(["silent", "answered", "begin", "give up", "wait"]), max_size=40))
def test_whatever_happens_it_never_stays_closed_to_a_writer_for_ever(events: list[str]) -> None:
    one, now_ns = breaker.CLOSED, NOW
    for event in events:
        match event:
            case "silent":
                one = breaker.silent(one, now_ns=now_ns)
            case "answered":
                one = breaker.CLOSED
            case "begin" if breaker.allows(one, now_ns=now_ns):
                one = breaker.on_begin(one)
            case "give up":
                one = breaker.on_cancel(one)
            case _:
                now_ns += OPEN_NS // 2
    # A probe under way ends somehow; then, after a while, somebody is let through.
    for ended in (
        breaker.silent(one, now_ns=now_ns),
        breaker.CLOSED,
        breaker.on_cancel(one),
    ):
        assert breaker.allows(ended, now_ns=now_ns + OPEN_NS)
