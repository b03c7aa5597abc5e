"""Lease time: the last entry's time plus what the leader measured since; it never jumps (S2)."""

from __future__ import annotations

from maar.model.time import LeaseTime


class LeaseClock:
    """Fed with readings of a monotonic clock; whoever owns it reads it at least every second.

    A reading more than `stall_ns` after the previous one means that the process was paused or the
    host slept. Only `stall_ns` of the pause counts, since nobody could renew a lease during it.
    """

    def __init__(self, *, stall_ns: int, monotonic_ns: int) -> None:
        self.stall_ns = stall_ns
        self._read_at = monotonic_ns
        self._now = LeaseTime(0)

    def now(self, monotonic_ns: int) -> LeaseTime:
        passed = max(0, monotonic_ns - self._read_at)
        self._read_at = max(self._read_at, monotonic_ns)
        self._now = LeaseTime(self._now + min(passed, self.stall_ns))
        return self._now

    def follow(self, entry_time: LeaseTime) -> None:
        """An entry of another leader was applied: lease time is at least that entry's time."""
        self._now = LeaseTime(max(self._now, entry_time))
