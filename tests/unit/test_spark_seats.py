"""How many plans Spark can take, from what it says of its executors."""

from __future__ import annotations

import pytest

from maar.runner.seats import Scaling, SeenExecutors, scaling, slots

GROWING = Scaling(most=4)


@pytest.mark.parametrize(
    ("seen", "grows", "strangers", "limit", "expected"),
    [
        (SeenExecutors(seats=2, executors=2, running=2), Scaling(), 0, 0, 2),
        (SeenExecutors(seats=8, executors=2, running=0), Scaling(), 0, 3, 3),
        (SeenExecutors(seats=0, executors=0, running=0), Scaling(), 0, 0, 0),
        # Spark adds executors for tasks that wait, so that there must be one that waits.
        (SeenExecutors(seats=0, executors=0, running=0), GROWING, 0, 0, 1),
        (SeenExecutors(seats=3, executors=3, running=3), GROWING, 0, 0, 4),
        (SeenExecutors(seats=4, executors=4, running=4), GROWING, 0, 0, 4),
        (SeenExecutors(seats=3, executors=3, running=3), GROWING, 0, 2, 2),
        # In a borrowed Spark, what others run there is not ours to use.
        (SeenExecutors(seats=4, executors=2, running=3), Scaling(), 3, 0, 1),
        (SeenExecutors(seats=2, executors=2, running=9), Scaling(), 9, 0, 0),
        (SeenExecutors(seats=2, executors=2, running=2), GROWING, 2, 0, 1),
    ],
)
def test_slots_are_seats_that_are_free_for_us(
    seen: SeenExecutors, grows: Scaling, strangers: int, limit: int, expected: int
) -> None:
    assert slots(seen, grows, strangers=strangers, limit=limit) == expected


@pytest.mark.parametrize(
    ("conf", "most"),
    [
        ({}, 0),
        ({"spark.dynamicAllocation.enabled": "false"}, 0),
        ({"spark.dynamicAllocation.enabled": "true"}, 2**31 - 1),
        (
            {
                "spark.dynamicAllocation.enabled": "true",
                "spark.dynamicAllocation.maxExecutors": "7",
            },
            7,
        ),
    ],
)
def test_scaling_is_read_from_sparks_settings(conf: dict[str, str], most: int) -> None:
    assert scaling(conf) == Scaling(most=most)
