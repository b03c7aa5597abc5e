"""A clock that stands still until it is told."""

from __future__ import annotations


class FakeClock:
    def __init__(self, monotonic_ns: int = 0, wall_ns: int = 1_800_000_000_000_000_000) -> None:
        self.monotonic = monotonic_ns
        self.wall = wall_ns

    def monotonic_ns(self) -> int:
        return self.monotonic

    def wall_ns(self) -> int:
        return self.wall

    def advance(self, ns: int) -> None:
        self.monotonic += ns
        self.wall += ns
