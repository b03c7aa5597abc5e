"""Which line is served next: the first, but every waiting line gets a minimum share (S11)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Line = TypeVar("Line", bound=Hashable)  # passed: how many plans went to others since its turn


def overdue(passed: Mapping[Line, int], line: Line, *, share: int) -> bool:
    return passed.get(line, 0) >= share - 1


def next_line(passed: Mapping[Line, int], waiting: Sequence[Line], *, share: int) -> Line:
    """Of the waiting lines, in order of preference: one that waited too long, else the first."""
    due = [line for line in waiting if overdue(passed, line, share=share)]
    return max(due, key=lambda line: passed.get(line, 0)) if due else waiting[0]


def after(passed: Mapping[Line, int], waiting: Sequence[Line], given: Line) -> dict[Line, int]:
    """Record that a plan of a line was handed out; lines that do not wait earn no credit."""
    return {line: 0 if line == given else passed.get(line, 0) + 1 for line in waiting}
