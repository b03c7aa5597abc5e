"""When a job that never succeeded is assumed to have done so.

A thousand tenants that are configured at once must not come due at once. Each gets a place of its
own in the interval, by a hash of its name: the same for whoever leads.
"""

from __future__ import annotations

import xxhash

from maar.model.plan import JobId
from maar.model.schedule import Schedule
from maar.model.time import LeaseTime

_PLACES = 1 << 64


def place(job: JobId) -> int:
    """From 0 to 2^64 - 1, evenly over jobs."""
    found: int = xxhash.xxh3_64_intdigest(f"{job.tenant}\n{job.kind}\n{job.type}".encode())
    return found


def assumed_success(job: JobId, schedule: Schedule, *, now: LeaseTime) -> LeaseTime:
    """Such that the job is due between its initial delay and its interval from now."""
    interval_ns = schedule.interval_ns
    delay_ns = min(schedule.initial_delay_ns, interval_ns)
    due_in_ns = delay_ns + (interval_ns - delay_ns) * place(job) // _PLACES
    return LeaseTime(now + due_in_ns - interval_ns)
