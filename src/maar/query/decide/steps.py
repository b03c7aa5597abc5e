"""The points of values over time: where they are, and which samples each of them counts. Pure.

As Pyroscope does, so that panels of its data source look the same: a point marks the end of its
step. It counts what is later than the point before it, and not later than itself, by times in
whole milliseconds. The first point is at the start of the range, and so counts a step before the
range; what is between the last point and the end of the range is counted by none.
"""

from __future__ import annotations

from dataclasses import dataclass

from maar.model.time import TimeRange

MILLISECOND_NS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Points at `start_ms` and every `step_ms` after it, so many of them."""

    start_ms: int
    step_ms: int
    count: int

    @property
    def first_ms(self) -> int:
        """The first millisecond that the first point counts; it may be before 1970."""
        return self.start_ms - self.step_ms + 1

    @property
    def range(self) -> TimeRange:
        """The time of all samples that are counted."""
        end_ms = self.first_ms + self.count * self.step_ms
        return TimeRange(max(self.first_ms, 0) * MILLISECOND_NS, max(end_ms, 0) * MILLISECOND_NS)


def steps_of(time: TimeRange, step_ms: int) -> Steps:
    """The points within a range, whose last millisecond is a part of it."""
    start_ms, last_ms = time.start_ns // MILLISECOND_NS, (time.end_ns - 1) // MILLISECOND_NS
    return Steps(
        start_ms=start_ms,
        step_ms=step_ms,
        count=max((last_ms - start_ms) // step_ms + 1, 0),
    )
