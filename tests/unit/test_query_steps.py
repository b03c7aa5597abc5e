"""Where the points of values over time are, by vectors worked out by hand."""

from __future__ import annotations

import pytest

from maar.model.time import TimeRange
from maar.query.decide.steps import steps_of

MS = 1_000_000


@pytest.mark.parametrize(
    ("start_ms", "end_ms", "step_ms", "points", "counted_ms"),
    [
        # Points at 1000, 1010, 1020: the first counts 991 to 1000, the last 1011 to 1020.
        (1000, 1025, 10, [1000, 1010, 1020], (991, 1020)),
        (1000, 1020, 10, [1000, 1010, 1020], (991, 1020)),
        (1000, 1019, 10, [1000, 1010], (991, 1010)),
        (1000, 1000, 10, [1000], (991, 1000)),
        (1003, 1006, 1, [1003, 1004, 1005, 1006], (1003, 1006)),
        # A step that begins before 1970 begins in 1970.
        (5, 100, 60, [5, 65], (0, 65)),
    ],
)
def test_a_point_counts_the_step_before_it(
    start_ms: int, end_ms: int, step_ms: int, points: list[int], counted_ms: tuple[int, int]
) -> None:
    steps = steps_of(TimeRange(start_ms * MS, (end_ms + 1) * MS), step_ms)
    assert [steps.start_ms + step * step_ms for step in range(steps.count)] == points
    assert steps.range == TimeRange(counted_ms[0] * MS, (counted_ms[1] + 1) * MS)


def test_an_empty_range_has_no_points() -> None:
    steps = steps_of(TimeRange(1000 * MS, 1000 * MS), 10)
    assert steps.count == 0
    assert steps.range.start_ns == steps.range.end_ns
