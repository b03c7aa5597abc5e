"""Backpressure: a job rests in proportion to its work, and spreads its work over its interval.

Neither pause holds a slot or a resource: the leader only does not hand the job out before.
"""

from __future__ import annotations

from maar.model.time import LeaseTime


def rest_ns(work_ns: int, unwind_permille: int) -> int:
    """After a session that succeeded; one that failed backs off instead."""
    return max(0, work_ns) * max(0, unwind_permille) // 1000


def next_session_at(
    run_started: LeaseTime, *, interval_ns: int, done: int, parts: int
) -> LeaseTime:
    """When the next session may begin, so that the share of what is done never is ahead of the
    share of the interval that has passed by more than one session.
    """
    if parts <= 0:
        return run_started
    return LeaseTime(run_started + min(done, parts) * interval_ns // parts)
