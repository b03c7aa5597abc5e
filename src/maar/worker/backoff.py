"""Exponential backoff: doubling, bounded, with jitter."""

from __future__ import annotations

from dataclasses import dataclass

_DOUBLINGS_MAX = 40


@dataclass(slots=True)
class Backoff:
    """Failures in a row, and until when they keep us away. Time and chance are arguments."""

    min_ns: int
    max_ns: int
    failures: int = 0
    until_ns: int = 0

    def on_failure(self, *, now_ns: int, chance: float) -> int:
        """One more failure: the wait that follows from it."""
        whole = min(self.max_ns, self.min_ns << min(self.failures, _DOUBLINGS_MAX))
        self.failures += 1
        wait_ns = int(whole * (0.5 + 0.5 * chance))
        self.until_ns = now_ns + wait_ns
        return wait_ns

    def on_success(self) -> bool:
        """A success: reset; True when there were failures before."""
        healed = self.failures > 0
        self.failures = 0
        self.until_ns = 0
        return healed
