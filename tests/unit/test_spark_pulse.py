"""A thread that asks an engine again and again, and counts when it does not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import count

from maar.runner.pulse import Pulse

PATIENCE_S = 60.0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_the_newest_answer_is_there_without_waiting() -> None:
    numbers = count(1)
    pulse = Pulse(lambda: next(numbers), first=0, beat_s=0.001)
    until(lambda: pulse.answer >= 3)
    pulse.close()


def test_beats_without_an_answer_are_counted_until_one_comes() -> None:
    thawed = threading.Event()
    pulse = Pulse(lambda: thawed.wait(PATIENCE_S), first=False, beat_s=0.01)
    until(lambda: pulse.missed >= 5)
    assert pulse.answer is False
    thawed.set()
    until(lambda: pulse.answer and pulse.missed == 0)
    pulse.close()


def test_an_error_ends_it_and_is_kept() -> None:
    def ask() -> int:
        raise ConnectionError("gone")

    pulse = Pulse(ask, first=4, beat_s=0.01)
    until(lambda: isinstance(pulse.error, ConnectionError))
    assert pulse.answer == 4
    pulse.close()
