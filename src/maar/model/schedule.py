"""The nouns of the schedule: a job, what is set for it, and on what it may run.

A job is what has to be done again and again for a tenant: repair it, cluster its days. It is
carried out in sessions, and each session is one plan.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

import msgspec

from maar.model.errors import InvalidInput
from maar.model.ids import StoreName, TenantId
from maar.model.plan import JobId, PlanKind

ALL = "*"  # in a pattern: every tenant, kind or type
TYPE_MAX = 60  # characters of a job's type


class LockLevel(StrEnum):
    """What a session occupies: the stores that it touches, or their whole regions."""

    STORE = "store"
    REGION = "region"


class Weight(IntEnum):
    """How fast a job's priority grows while it is late."""

    LOW = 1
    MEDIUM = 2
    HIGH = 3
    HIGHEST = 100  # asked for by a person


class Schedule(msgspec.Struct, frozen=True, array_like=True):
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


def store_resource(store: StoreName) -> str:
    return f"store:{store}"


def region_resource(region: str) -> str:
    return f"region:{region}"


def job_id(tenant: str, kind: str, type_: str = "") -> JobId:
    """Check what a person named."""
    if len(type_) > TYPE_MAX:
        raise InvalidInput(f"the type of a job has at most {TYPE_MAX} characters")
    return JobId(TenantId(tenant), PlanKind(kind), type_)
