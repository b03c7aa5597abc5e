"""How urgent a job is: the same for everybody who computes it (deterministic priority).

A job is due when its interval has passed since its last success, and earlier by as long as it is
expected to work, so that it is finished in time. From then on its priority grows with every unit
of time that it is late, times its weight.
"""

from __future__ import annotations

from typing import NamedTuple

from maar.model.schedule import Schedule
from maar.model.time import SECOND_NS, LeaseTime

NOT_DUE = -1
PRIORITY_MAX = (1 << 31) - 1
HOUR_NS = 3600 * SECOND_NS


class Urgency(NamedTuple):
    """The parts of a priority, so that it can be explained."""

    due_at: LeaseTime
    late_ns: int  # negative: it is not due yet
    units: int  # that it is late, counted from 1; 0 when it is not due
    weight: int
    priority: int


def due_at(last_success: LeaseTime, schedule: Schedule, *, expected_ns: int = 0) -> LeaseTime:
    """Earlier than an interval after the last success by the time that the work takes; but never
    before that success, however long the work takes.
    """
    ahead_ns = min(max(0, expected_ns), schedule.interval_ns)
    return LeaseTime(last_success + schedule.interval_ns - ahead_ns)


def urgency(
    due: LeaseTime, *, now: LeaseTime, weight: int = 1, granularity_ns: int = HOUR_NS
) -> Urgency:
    late_ns = now - due
    if late_ns < 0:
        return Urgency(due, late_ns, 0, weight, NOT_DUE)
    units = late_ns // granularity_ns + 1
    return Urgency(due, late_ns, units, weight, min(units * weight, PRIORITY_MAX))


def priority(
    due: LeaseTime, *, now: LeaseTime, weight: int = 1, granularity_ns: int = HOUR_NS
) -> int:
    return urgency(due, now=now, weight=weight, granularity_ns=granularity_ns).priority
