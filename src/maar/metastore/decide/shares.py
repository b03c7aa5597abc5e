"""Whose turn it is: the first line's, save for a least share of all others that wait (S11)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Line = TypeVar("Line", bound=Hashable)  # passed: how many plans went to others since its turn


def overdue(passed: Mapping[Line, int], line: Line, *, share: int) -> bool:
    return passed.get(line, 0) >= share - 1


def next_line(passed: Mapping[Line, int], waiting: Sequence[Line], *, share: int) -> Line:
    """Of the lines that wait, in the order of preference: who waited too long, else the first."""
    due = [line for line in waiting if overdue(passed, line, share=share)]
    return max(due, key=lambda line: passed.get(line, 0)) if due else waiting[0]


def after(passed: Mapping[Line, int], waiting: Sequence[Line], given: Line) -> dict[Line, int]:
    """One plan of a line was handed out. Who does not wait saves up nothing."""
    return {line: 0 if line == given else passed.get(line, 0) + 1 for line in waiting}
