"""Times in requests: unix numbers whose unit their size tells, and ranges that make sense."""

from __future__ import annotations

import re

from maar.model.errors import InvalidInput
from maar.model.time import DAY_NS, SECOND_NS, TimeRange

MS_NS = 1_000_000
MS_MAX = (1 << 63) // MS_NS - 2  # beyond this, nanoseconds do not fit 64 bits
# Seconds until the year 5138, then milliseconds, microseconds, nanoseconds.
_UNITS = ((10**11, 10**9), (10**14, 10**6), (10**17, 10**3), (1 << 63, 1))
_NUMBER = re.compile(r"([0-9]{1,19})(?:\.([0-9]{1,9}))?")
_AGO = re.compile(r"now(?:-([0-9]{1,9})(ms|s|m|h|d|w))?")
_AGO_NS = {
    "ms": MS_NS,
    "s": SECOND_NS,
    "m": 60 * SECOND_NS,
    "h": 3600 * SECOND_NS,
    "d": DAY_NS,
    "w": 7 * DAY_NS,
}


def unix_ns(text: str, *, name: str, default_ns: int, now_ns: int) -> int:
    """When an agent says that it was, as nanoseconds: `1794856420`, `1794856420.5`, `now-10s`."""
    if not text:
        return default_ns
    if ago := _AGO.fullmatch(text):
        return max(0, now_ns - int(ago[1] or 0) * _AGO_NS[ago[2] or "s"])
    if found := _NUMBER.fullmatch(text):
        number, billionths = int(found[1]), int((found[2] or "").ljust(9, "0"))
        factor = next((factor for below, factor in _UNITS if number < below), 0)
        time_ns = number * factor + billionths * factor // SECOND_NS
        if factor and time_ns < 1 << 63:
            return time_ns
    raise InvalidInput(
        f"{name}={text[:60]!r} is not a time: give a unix time in s, ms, us or ns, or now-10s",
        reason="time",
    )


def is_own(text: str) -> bool:
    """Whether a time is the client's own: not left out, and not reckoned from our clock."""
    return bool(text) and not _AGO.fullmatch(text)


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
