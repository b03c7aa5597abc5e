"""Times as people write them: now, now-1h, 2026-11-15T12:00:00Z, 1763208000."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from maar.model.errors import InvalidInput

_RELATIVE = re.compile(r"now(?:-(\d{1,6})(ms|s|m|h|d|w))?")
_DURATION = re.compile(r"(\d{1,9})(ms|s|m|h|d|w)")
_NUMBER = re.compile(r"\d{1,20}(?:\.\d{1,9})?")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
MS_MAX = 9_220_000_000_000  # in nanoseconds about as much as 64 bits hold
_MS_FROM = 100_000_000_000  # as seconds that is the year 5138; as milliseconds, 1973


def parse_time_ms(text: str, *, now_ms: int) -> int:
    """Milliseconds since 1970."""
    time_ms = _time_ms(text, now_ms=now_ms)
    if abs(time_ms) > MS_MAX:
        raise InvalidInput(f"{text!r} is out of range: profiles are of the years 1678 to 2261")
    return time_ms


def _time_ms(text: str, *, now_ms: int) -> int:
    relative = _RELATIVE.fullmatch(text)
    if relative:
        count, unit = relative.groups()
        return now_ms - int(count or 0) * _UNIT_MS[unit or "ms"]
    if _NUMBER.fullmatch(text):
        number = float(text)
        return int(number if number >= _MS_FROM else number * 1000)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"{text!r} is not a time: use now, now-1h (ms s m h d w), 2026-11-15T12:00:00Z, or "
            "unix seconds or milliseconds"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def parse_range_ms(start: str, end: str, *, now_ms: int) -> tuple[int, int]:
    start_ms, end_ms = (parse_time_ms(text, now_ms=now_ms) for text in (start, end))
    if start_ms >= end_ms:
        raise InvalidInput(f"--from {start} is not before --until {end}")
    return start_ms, end_ms


def parse_duration_s(text: str) -> float:
    """How long: 90s, 30m, 1h, 30d."""
    found = _DURATION.fullmatch(text)
    if not found:
        raise InvalidInput(f"{text!r} is not a duration: use 90s, 30m, 1h, 30d (ms s m h d w)")
    count, unit = found.groups()
    return int(count) * _UNIT_MS[unit] / 1000
