"""Lease time: the last entry's time and what the leader measured since; it never jumps (S2)."""

from __future__ import annotations

from maar.model.time import LeaseTime


class LeaseClock:
    """Fed with readings of a monotonic clock; whoever owns it reads it at least every second.

    A reading that comes later than `stall_ns` after the one before tells of a pause (the process
    was stopped, the host slept): only `stall_ns` of it counts, since nobody could renew meanwhile.
    """

    def __init__(self, *, stall_ns: int, monotonic_ns: int) -> None:
        self._stall_ns = stall_ns
        self._read_at = monotonic_ns
        self._now = LeaseTime(0)

    def now(self, monotonic_ns: int) -> LeaseTime:
        passed = max(0, monotonic_ns - self._read_at)
        self._read_at = max(self._read_at, monotonic_ns)
        self._now = LeaseTime(self._now + min(passed, self._stall_ns))
        return self._now

    def follow(self, entry_time: LeaseTime) -> None:
        """An entry that somebody else wrote has been folded: time is at least that."""
        self._now = LeaseTime(max(self._now, entry_time))

    def allow_stalls(self, stall_ns: int) -> None:
        self._stall_ns = stall_ns
