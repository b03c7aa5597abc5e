"""The clock, as a port, so that tests can replace it."""

from typing import Protocol


class Clock(Protocol):
    def monotonic_ns(self) -> int:
        """Time that only goes forward, of no known origin."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since 1970 UTC, as far as this host knows."""
        ...
