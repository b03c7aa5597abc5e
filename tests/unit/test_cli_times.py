"""Times on the command line."""

from __future__ import annotations

import pytest

from maar.cli.input.times import parse_duration_s, parse_range_ms, parse_time_ms
from maar.model.errors import InvalidInput

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("now", NOW_MS),
        ("now-1h", NOW_MS - 3_600_000),
        ("now-90s", NOW_MS - 90_000),
        ("now-250ms", NOW_MS - 250),
        ("now-2d", NOW_MS - 172_800_000),
        ("now-1w", NOW_MS - 604_800_000),
        ("1763208000", 1_763_208_000_000),
        ("1763208000.5", 1_763_208_000_500),
        ("1763208000123", 1_763_208_000_123),
        ("0", 0),
        ("2025-11-15T12:00:00Z", 1_763_208_000_000),
        ("2025-11-15T13:00:00+01:00", 1_763_208_000_000),
        ("2025-11-15T12:00:00", 1_763_208_000_000),
        ("2025-11-15", 1_763_164_800_000),
    ],
)
def test_every_way_of_writing_a_time_is_understood(text: str, expected_ms: int) -> None:
    assert parse_time_ms(text, now_ms=NOW_MS) == expected_ms


@pytest.mark.parametrize("text", ["", "yesterday", "now+1h", "now-1y", "-5", "12:00", "now-"])
def test_what_is_not_a_time_gets_a_sentence(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a time"):
        parse_time_ms(text, now_ms=NOW_MS)


@pytest.mark.parametrize("text", ["99999999999999999999", "2263-01-01", "1500-01-01"])
def test_a_time_that_no_profile_can_have_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="out of range"):
        parse_time_ms(text, now_ms=NOW_MS)


def test_a_range_upside_down_is_refused() -> None:
    assert parse_range_ms("now-1h", "now", now_ms=NOW_MS) == (NOW_MS - 3_600_000, NOW_MS)
    with pytest.raises(InvalidInput, match="is not before"):
        parse_range_ms("now", "now-1h", now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("90s", 90),
        ("30m", 1800),
        ("1h", 3600),
        ("30d", 2_592_000),
        ("2w", 1_209_600),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "1", "h", "-1h", "1.5h", "1 h", "1y", "1h30m", "9999999999s"])
def test_what_is_no_duration_is_said_to_be_none(text: str) -> None:
    with pytest.raises(InvalidInput, match="is not a duration"):
        parse_duration_s(text)
