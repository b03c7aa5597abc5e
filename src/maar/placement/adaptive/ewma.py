"""Exponentially weighted averages: after one half-life a value weighs half as much."""

from __future__ import annotations

import math

from maar.model.time import SECOND_NS


def _weight_of_old(passed_ns: int, half_life_s: float) -> float:
    return math.exp2(-passed_ns / SECOND_NS / max(1.0, half_life_s))


class MovingRate:
    """Something per second. What arrives within a second is one observation."""

    __slots__ = ("_average", "_half_life_s", "_pending", "_since_ns", "touched_ns")

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._average = 0.0
        self._pending = 0.0  # arrived since, and not yet in the average
        self._since_ns = 0
        self.touched_ns = 0  # when something last arrived

    def add(self, amount: float, now_ns: int) -> None:
        """Times that run backwards are passed by."""
        passed_ns = now_ns - self._since_ns
        if passed_ns < 0:
            return
        if passed_ns >= SECOND_NS:
            self._average = self._mix(passed_ns)
            self._pending = 0.0
            self._since_ns = now_ns
        self._pending += amount
        self.touched_ns = now_ns

    def read(self, now_ns: int) -> float:
        passed_ns = now_ns - self._since_ns
        return self._mix(passed_ns) if passed_ns >= SECOND_NS else self._average

    def _mix(self, passed_ns: int) -> float:
        old = _weight_of_old(passed_ns, self._half_life_s)
        return (1.0 - old) * self._pending * SECOND_NS / passed_ns + old * self._average


class MovingMean:
    """Of a value that is looked at now and then; the first look counts whole."""

    __slots__ = ("_average", "_half_life_s", "_seen_ns")

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._average = 0.0
        self._seen_ns: int | None = None

    def look(self, value: float, now_ns: int) -> float:
        """The mean with this value in it."""
        if self._seen_ns is None:
            self._average = value
        else:
            old = _weight_of_old(max(0, now_ns - self._seen_ns), self._half_life_s)
            self._average = (1.0 - old) * value + old * self._average
        self._seen_ns = now_ns
        return self._average
