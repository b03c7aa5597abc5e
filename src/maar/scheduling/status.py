"""How a job stands, in one word, and when it is an alarm."""

from __future__ import annotations

from enum import StrEnum

from maar.model.schedule import AlarmLevel, ClockOffset, Schedule
from maar.model.time import LeaseTime, WallTime


class JobStatus(StrEnum):
    COMPLETED = "COMPLETED"  # it has succeeded within its interval, or has nothing to do
    ON_TIME = "ON_TIME"  # it has not, and is not late
    LATE = "LATE"  # at its warning threshold
    OVERDUE = "OVERDUE"  # at its error threshold
    BLOCKED = "BLOCKED"  # it is due and cannot run now


def status(
    *, age_ns: int, due: bool, blocked: bool, schedule: Schedule, done: bool = True
) -> JobStatus:
    """One that is due and cannot run is blocked, however late it is: that is what to look at. A
    success that is only assumed is none: such a job has time, and nothing of it is done.
    """
    if due and blocked:
        return JobStatus.BLOCKED
    level = alarm_level(age_ns, schedule)
    if level is AlarmLevel.ERROR:
        return JobStatus.OVERDUE
    if level is AlarmLevel.WARNING:
        return JobStatus.LATE
    return JobStatus.ON_TIME if due or not done else JobStatus.COMPLETED


def alarm_level(age_ns: int, schedule: Schedule) -> AlarmLevel | None:
    if schedule.error_ns and age_ns >= schedule.error_ns:
        return AlarmLevel.ERROR
    if schedule.warning_ns and age_ns >= schedule.warning_ns:
        return AlarmLevel.WARNING
    return None


def wall_of(at: LeaseTime, offsets: tuple[ClockOffset, ...]) -> WallTime | None:
    """What the wall clock showed at a lease time; None of a time before the first that is known."""
    found = None
    for known, offset_ns in offsets:
        if known > at:
            break
        found = WallTime(at + offset_ns)
    return found


def age_ns(
    since: LeaseTime, *, now: LeaseTime, wall: WallTime, offsets: tuple[ClockOffset, ...]
) -> int:
    """By whichever clock shows more: lease time stands still while nobody leads, and a wall clock
    may be set back.
    """
    then = wall_of(since, offsets)
    by_wall = wall - then if then is not None else 0
    return max(0, now - since, by_wall)
