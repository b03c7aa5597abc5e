"""Run policies: at which times of day the jobs of a pattern do not run.

A window takes its first minute and not its last, so that windows that touch leave no gap. A time
zone that nobody can resolve refuses: a policy that cannot be read must not be passed by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from maar.model.plan import JobId
from maar.model.schedule import DAY_MINUTES, RunPolicy
from maar.model.time import SECOND_NS, WallTime
from maar.scheduling.rules import matches

MINUTE_NS = 60 * SECOND_NS
ASKED_AGAIN_NS = MINUTE_NS  # a pause, or a policy that cannot be read, may end at any time

# How far the clock of a time zone is ahead of UTC at a time; None when there is no such zone.
OffsetOf = Callable[[str, WallTime], int | None]


class Verdict(NamedTuple):
    """Whether jobs may run, and if not, by which policies and for how long at least."""

    allowed: bool
    by: tuple[RunPolicy, ...] = ()
    wait_ns: int = 0
    why: str = ""


ALLOWED = Verdict(True)


def utc_only(zone: str, _wall: WallTime) -> int | None:
    return 0 if zone.upper() in ("UTC", "Z") else None


def verdict(
    policies: Iterable[RunPolicy], job: JobId, wall: WallTime, *, offset_of: OffsetOf = utc_only
) -> Verdict:
    """Whether a job may run at a time, by all policies whose pattern it matches."""
    about = [policy for policy in policies if matches(policy.jobs, job)]
    if not about:
        return ALLOWED
    endless = [policy for policy in about if _endless(policy, wall, offset_of)]
    if endless:
        _, why = _refuses(endless[0], wall, offset_of)
        now = [each for each in about if _refuses(each, wall, offset_of)[0]]
        return Verdict(False, tuple(now), ASKED_AGAIN_NS, why)
    refusing: dict[int, RunPolicy] = {}
    wait_ns, why = 0, ""
    while (at := wait_ns) <= DAY_MINUTES * MINUTE_NS:  # windows overlap: the next may go on
        for policy in about:
            left_ns, because = _refuses(policy, WallTime(wall + at), offset_of)
            if left_ns:
                refusing[policy.id] = policy
                why = why or because
                wait_ns = max(wait_ns, at + left_ns)
        if wait_ns == at:
            break
    return Verdict(False, tuple(refusing.values()), wait_ns, why) if refusing else ALLOWED


def _endless(policy: RunPolicy, wall: WallTime, offset_of: OffsetOf) -> bool:
    """It refuses at all times, as far as anybody can tell."""
    return policy.pauses or offset_of(policy.zone, wall) is None


def _refuses(policy: RunPolicy, wall: WallTime, offset_of: OffsetOf) -> tuple[int, str]:
    """How long a policy refuses from a time on, and why; 0 when it does not."""
    noted = f" ({policy.note})" if policy.note else ""
    if policy.pauses:
        return ASKED_AGAIN_NS, f"run policy {policy.id} pauses it{noted}"
    offset_ns = offset_of(policy.zone, wall)
    if offset_ns is None:
        why = f"run policy {policy.id} names the time zone {policy.zone!r}, which is not known"
        return ASKED_AGAIN_NS, f"{why} here: until that is put right, it refuses"
    day_ns = DAY_MINUTES * MINUTE_NS
    at_ns = (wall + offset_ns) % day_ns
    start_ns, end_ns = policy.start * MINUTE_NS, policy.end * MINUTE_NS
    length_ns = (end_ns - start_ns) % day_ns
    since_ns = (at_ns - start_ns) % day_ns
    left_ns = length_ns - since_ns
    return (left_ns, f"run policy {policy.id} refuses {policy}{noted}") if left_ns > 0 else (0, "")
