"""The memory of a task's process: kept while tasks follow each other, given back afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from maar.runner.give_back import IDLE_S, GiveBackWhenIdle, give_back_freed

MB = 1 << 20
PIECE = 100_000  # an allocator has no pages of its own for so little


class Timers:
    """Those that were asked for; each ends when the test says so."""

    def __init__(self) -> None:
        self.made: list[threading.Timer] = []
        self.started: list[threading.Timer] = []

    def __call__(self, seconds: float, act: Callable[[], None]) -> threading.Timer:
        timers = self

        class Waiting(threading.Timer):
            def start(self) -> None:
                timers.started.append(self)

        made = Waiting(seconds, act)
        self.made.append(made)
        return made

    def waiting(self) -> list[threading.Timer]:
        return [each for each in self.started if not each.finished.is_set()]


def test_it_is_given_back_when_no_task_follows_for_a_while() -> None:
    timers, given = Timers(), []
    memory = GiveBackWhenIdle(lambda: given.append(1), timers)
    with memory.task():
        assert timers.waiting() == []
    (timer,) = timers.waiting()
    assert (timer.interval, timer.daemon, given) == (IDLE_S, True, [])
    timer.function()
    assert given == [1]


def test_a_task_that_follows_keeps_it() -> None:
    timers = Timers()
    memory = GiveBackWhenIdle(lambda: None, timers)
    with memory.task():
        pass
    with memory.task():
        assert timers.waiting() == [], "the process is at work"
    with pytest.raises(ValueError, match="bad"), memory.task():
        raise ValueError("bad")
    assert timers.waiting() == timers.made[-1:], "of the last task, also when it fails"


def test_what_was_freed_is_not_the_process_s_any_more() -> None:
    pieces = [bytearray(PIECE) for _ in range(200 * MB // PIECE)]
    for piece in pieces:
        piece[::4096] = b"1" * len(piece[::4096])
    last = pieces.pop()  # behind all others, so that they stay in the heap
    pieces.clear()
    held = _resident()
    give_back_freed()
    assert _resident() < held - 100 * MB
    assert last


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
