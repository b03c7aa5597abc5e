"""Times in requests: unix numbers whose unit their size tells, and ranges that make sense."""

from __future__ import annotations

from maar.model.errors import InvalidInput
from maar.model.time import TimeRange

MS_NS = 1_000_000
MS_MAX = (1 << 63) // MS_NS - 2  # beyond this, nanoseconds do not fit 64 bits
# Seconds until the year 5138, then milliseconds, microseconds, nanoseconds.
_UNITS = ((10**11, 10**9), (10**14, 10**6), (10**17, 10**3), (1 << 63, 1))


def unix_ns(text: str, *, name: str, default_ns: int) -> int:
    """A unix time in s, ms, us or ns, as nanoseconds."""
    if not text:
        return default_ns
    if text.isascii() and text.isdigit() and len(text) <= 19:
        number = int(text)
        for below, factor in _UNITS:
            if number < below:
                return number * factor
    raise InvalidInput(
        f"{name}={text[:60]!r} is not a time: give a unix time in s, ms, us or ns", reason="time"
    )


def unix_ms(text: str, *, name: str) -> int:
    """A unix time in milliseconds; 0 when it is not given."""
    if not text:
        return 0
    if text.isascii() and text.isdigit() and len(text) <= 19:
        return int(text)
    raise InvalidInput(f"{name}={text[:60]!r} is not a time: give unix milliseconds", reason="time")


def range_of_ms(start: int, end: int, *, whole: TimeRange) -> TimeRange:
    """A queried range. Both ends 0 ask for everything; the last millisecond is included."""
    if start == 0 and end == 0:
        return whole
    if start > end:
        raise InvalidInput(
            f"the time range is upside down: it starts at {start} and ends at {end} (unix ms)",
            reason="time_range",
        )
    if start < 0 or end > MS_MAX:
        raise InvalidInput(
            f"the time range from {start} to {end} is out of bounds; give unix milliseconds",
            reason="time_range",
        )
    return TimeRange(start * MS_NS, (end + 1) * MS_NS)
