"""Deterministic priority: the numbers of the peer whose formula it is, and where ours is better."""

from __future__ import annotations

import pytest

from maar.model.schedule import Schedule, Weight
from maar.model.time import DAY_NS, SECOND_NS, LeaseTime
from maar.scheduling import priority
from maar.scheduling.priority import HOUR_NS, NOT_DUE, PRIORITY_MAX

WEEKLY = Schedule(interval_ns=7 * DAY_NS)
MILLISECOND_NS = 1_000_000


def weekly(now: int, *, expected_ns: int = 0, weight: int = Weight.LOW) -> int:
    due = priority.due_at(LeaseTime(0), WEEKLY, expected_ns=expected_ns)
    return priority.priority(due, now=LeaseTime(now), weight=weight)


@pytest.mark.parametrize(
    ("now", "offset", "expected"),
    [
        (7 * DAY_NS - MILLISECOND_NS, 0, NOT_DUE),
        (7 * DAY_NS, 0, 1),
        (7 * DAY_NS + HOUR_NS, 0, 2),
        (8 * DAY_NS, 2 * HOUR_NS, 27),
    ],
)
def test_the_published_vectors(now: int, offset: int, expected: int) -> None:
    assert weekly(now, expected_ns=offset) == expected


def test_a_job_comes_due_early_by_its_own_expected_duration() -> None:
    due = 7 * DAY_NS - 3 * HOUR_NS
    assert weekly(due - 1, expected_ns=3 * HOUR_NS) == NOT_DUE
    assert weekly(due, expected_ns=3 * HOUR_NS) == 1


def test_work_that_takes_longer_than_its_interval_is_not_due_before_it_ended() -> None:
    due = priority.due_at(LeaseTime(50), Schedule(interval_ns=10), expected_ns=1_000)
    assert due == 50


def test_weights_multiply_and_the_highest_beats_four_days_of_lateness() -> None:
    late = 7 * DAY_NS + 4 * HOUR_NS
    assert [weekly(late, weight=weight) for weight in Weight] == [5, 10, 15, 500]
    assert weekly(7 * DAY_NS, weight=Weight.HIGHEST) > weekly(11 * DAY_NS)


def test_it_saturates_and_never_wraps() -> None:
    units = PRIORITY_MAX // 3
    assert weekly(7 * DAY_NS + (units - 1) * HOUR_NS, weight=3) == units * 3
    assert weekly(7 * DAY_NS + units * HOUR_NS, weight=3) == PRIORITY_MAX
    assert weekly(1 << 70, weight=100) == PRIORITY_MAX


def test_of_one_weight_who_was_due_first_never_has_less() -> None:
    """So that a list by due time is a list by priority, whatever the time is."""
    ages = [0, 1, HOUR_NS - 1, HOUR_NS, 30 * SECOND_NS, 9 * DAY_NS, PRIORITY_MAX * HOUR_NS]
    for now in (0, 1, 5 * HOUR_NS, 30 * DAY_NS):
        found = [
            priority.priority(LeaseTime(now - age), now=LeaseTime(now)) for age in sorted(ages)
        ]
        assert found == sorted(found)
