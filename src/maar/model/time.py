"""Two clocks, never mixed: lease time orders the log, wall time is for people (S2)."""

from __future__ import annotations

from typing import NewType

import msgspec

LeaseTime = NewType("LeaseTime", int)  # nanoseconds since genesis, by the leaders' monotonic clocks
WallTime = NewType("WallTime", int)  # nanoseconds since 1970, UTC

SECOND_NS = 1_000_000_000
DAY_NS = 86_400 * SECOND_NS


class TimeRange(msgspec.Struct, frozen=True, array_like=True):
    """Profile times from start (included) until end (excluded), in wall nanoseconds."""

    start_ns: int
    end_ns: int

    def overlaps(self, min_ns: int, max_ns: int) -> bool:
        return min_ns < self.end_ns and max_ns >= self.start_ns


def utc_day(time_ns: int) -> int:
    """Days since 1970 of a wall time."""
    return time_ns // DAY_NS
