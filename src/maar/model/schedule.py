"""The nouns of the schedule: what is set for a job, when it may run, what is known of it.

A job (`JobId`) is what has to be done again and again for a tenant: repair it, cluster its days.
It is carried out in sessions, and each session is one plan. A pattern is a job with `*` for any of
its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import IntEnum, StrEnum
from typing import NamedTuple

import msgspec

from maar.model.errors import InvalidInput
from maar.model.ids import StoreName, TenantId
from maar.model.plan import JobId, PlanKind
from maar.model.time import DAY_NS, LeaseTime, WallTime

ALL = "*"  # in a pattern: every tenant, kind or type
EVERY_JOB = JobId(TenantId(ALL), PlanKind(ALL), ALL)
TEXT_MAX = 200  # characters of a note, and of each part of a pattern
INTERVAL_MAX_NS = 10 * 365 * DAY_NS
DAY_MINUTES = 24 * 60
UTC = "UTC"


class LockLevel(StrEnum):
    """What a session occupies: the stores that it touches, or also their whole regions."""

    STORE = "store"
    REGION = "region"


class Weight(IntEnum):
    """How fast a job's priority grows while it is late."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3
    HIGHEST = 100  # asked for by an operator


class Schedule(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is in force for one job; every number is decided."""

    interval_ns: int  # from one success until the next is due; 0: only when somebody asks
    initial_delay_ns: int = 0  # a job that is new is not due before
    warning_ns: int = 0  # an age that is an alarm; 0: none
    error_ns: int = 0
    backoff_ns: int = 0  # after a failure; 0: as plans of all kinds rest
    unwind_permille: int = 0  # of the work of a session, as a pause after it
    lock_level: LockLevel = LockLevel.STORE
    size_target: int = 0  # bytes of a sub-range; 0: ranges are not divided
    weight: int = Weight.LOW


class ScheduleRule(msgspec.Struct, frozen=True, array_like=True):
    """What somebody set for the jobs of a pattern; what is None is left as it is."""

    jobs: JobId  # a pattern
    interval_ns: int | None = None
    initial_delay_ns: int | None = None
    warning_ns: int | None = None
    error_ns: int | None = None
    backoff_ns: int | None = None
    unwind_permille: int | None = None
    lock_level: LockLevel | None = None
    size_target: int | None = None
    weight: int | None = None


class RunPolicy(msgspec.Struct, frozen=True, array_like=True):
    """A time of day at which the jobs of a pattern do not run; from 00:00 until 00:00: never."""

    id: int  # the entry that added it
    jobs: JobId  # a pattern
    start: int = 0  # minute of the day, included
    end: int = 0  # excluded; before `start`: past midnight
    zone: str = UTC  # whose clock it is
    note: str = ""

    @property
    def pauses(self) -> bool:
        return self.start == self.end == 0

    def __str__(self) -> str:
        if self.pauses:
            return "always"
        return f"{minute_text(self.start)}-{minute_text(self.end)} {self.zone}"


class JobRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the log knows of a job beside what its kind answers."""

    id: JobId
    assumed: LeaseTime | None = None  # a success, while there was none, or nothing to do since one
    run_started: LeaseTime | None = None  # its first session since it was last done
    work_ns: int = 0  # of this run
    last_work_ns: int = 0  # of the last run that ended
    eligible_at: LeaseTime = LeaseTime(0)  # it rests until then


class AlarmLevel(IntEnum):
    WARNING = 1
    ERROR = 2


class Alarm(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Something is not as it should be, since a time; it ceases by an entry."""

    id: JobId  # which job, or what else is to be looked at
    level: AlarmLevel
    since: LeaseTime
    since_wall: WallTime
    note: str = ""  # in a sentence


class ClockOffset(NamedTuple):
    """How far the wall clock was ahead of lease time from a time on: a downtime adds to it."""

    at: LeaseTime
    offset_ns: int


def store_resource(store: StoreName) -> str:
    return f"store:{store}"


def region_resource(region: str) -> str:
    return f"region:{region}"


def resources_of(
    stores: Iterable[StoreName], level: LockLevel, region_of: Callable[[StoreName], str]
) -> tuple[str, ...]:
    """What a session that touches these stores occupies, in the one order in which everybody takes
    it. Who locks regions occupies its stores too: others may lock only these.
    """
    touched = list(stores)
    taken = set(map(store_resource, touched))
    if level is LockLevel.REGION:
        regions = filter(None, map(region_of, touched))  # one without is near to no other
        taken.update(map(region_resource, regions))
    return tuple(sorted(taken))


def minute_text(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


def parse_minute(text: str) -> int:
    """The minute of a day, from a time like 04:30; 24:00 is 00:00."""
    hours, colon, minutes = text.partition(":")
    digits = hours.isascii() and hours.isdigit() and minutes.isascii() and minutes.isdigit()
    if colon and digits and len(hours) <= 2 and len(minutes) == 2:
        found = 60 * int(hours) + int(minutes)
        if int(minutes) < 60 and found <= DAY_MINUTES:
            return found % DAY_MINUTES
    raise InvalidInput(f"{text[:20]!r} is not a time of day; one looks like 04:30")


def pattern(tenant: str = ALL, kind: str = ALL, type_: str = ALL) -> JobId:
    """Check what an operator named; what is not named is everything."""
    parts = [part or ALL for part in (tenant, kind, type_)]
    if any(len(part) > TEXT_MAX for part in parts):
        raise InvalidInput(f"a tenant, kind or type has at most {TEXT_MAX} characters")
    return JobId(TenantId(parts[0]), PlanKind(parts[1]), parts[2])


def check_rule(rule: ScheduleRule) -> ScheduleRule:
    """Refuse numbers with which a schedule would make no sense."""
    spans = ("interval_ns", "initial_delay_ns", "warning_ns", "error_ns", "backoff_ns")
    for name in spans:
        value = getattr(rule, name)
        if value is not None and not 0 <= value <= INTERVAL_MAX_NS:
            what = name.removesuffix("_ns")
            raise InvalidInput(f"the {what} of a schedule is from 0 s to ten years")
    if rule.warning_ns and rule.error_ns and rule.error_ns < rule.warning_ns:
        raise InvalidInput("a job is an error before it is a warning: make error_s the later one")
    if rule.unwind_permille is not None and not 0 <= rule.unwind_permille <= 100_000:
        raise InvalidInput("the unwind ratio is from 0 to 100")
    if rule.size_target is not None and rule.size_target < 0:
        raise InvalidInput("size_target is a number of bytes, or 0 for whole ranges")
    if rule.weight is not None and not 1 <= rule.weight <= Weight.HIGHEST:
        raise InvalidInput(f"the weight of a job is from 1 to {Weight.HIGHEST}")
    return rule


def check_run_policy(policy: RunPolicy) -> RunPolicy:
    if not (0 <= policy.start < DAY_MINUTES and 0 <= policy.end < DAY_MINUTES):
        raise InvalidInput("a window begins and ends between 00:00 and 23:59")
    if policy.start == policy.end and not policy.pauses:
        raise InvalidInput(
            "a window that ends when it begins is empty or the whole day: use 00:00 to 00:00 for "
            "a pause"
        )
    if len(policy.note) > TEXT_MAX or len(policy.zone) > TEXT_MAX:
        raise InvalidInput(f"a note or time zone has at most {TEXT_MAX} characters")
    return policy
