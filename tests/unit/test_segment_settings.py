"""Settings of the segment writer that could not work together are refused at the start."""

from __future__ import annotations

import pytest

from maar.app.settings.config import load
from maar.model.errors import InvalidInput
from maar.segment.settings import SegmentSettings


def test_a_letter_needs_time_within_the_deadline() -> None:
    given = {"MAAR_DEAD_LETTERS__ENABLED": "true", "MAAR_DEAD_LETTERS__AFTER_MS": "5001"}
    with pytest.raises(InvalidInput, match=r"dead_letters\.after_ms = 5001"):
        load(file=None, environ=given)
    given["MAAR_DEAD_LETTERS__AFTER_MS"] = "5000"
    assert load(file=None, environ=given).dead_letters.after_ms == 5_000
    off = load(file=None, environ={"MAAR_DEAD_LETTERS__AFTER_MS": "9000"})
    assert not off.dead_letters.enabled


def test_a_writer_that_may_hold_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match="buffered_profiles_max"):
        load(file=None, environ={"MAAR_SEGMENT__BUFFERED_PROFILES_MAX": "0"})


def test_the_upper_bound_of_the_interval_is_never_below_the_lower() -> None:
    settings = SegmentSettings(flush_interval_ms=5_000, flush_interval_max_ms=2_000)
    assert settings.flush_interval_ns == settings.flush_interval_max_ns == 5_000_000_000
