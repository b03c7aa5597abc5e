"""How much a client may ask of us that brings nothing; a decision over virtual time."""

from __future__ import annotations

from collections.abc import Callable

MOST = 1000.0
PER_S = 50.0


class Patience:
    """It is used up by what brings nothing, and restored by time and by work that was done."""

    def __init__(self, now: float) -> None:
        self._left = MOST
        self._restored_at = now

    def spend(self, cost: float, clock: Callable[[], float]) -> bool:
        """Whether there is any left. The clock is looked at only when it seems not so."""
        self._left -= cost
        if self._left <= 0:
            now = clock()
            self.restore((now - self._restored_at) * PER_S)
            self._restored_at = now
        return self._left > 0

    def restore(self, amount: float) -> None:
        self._left = min(MOST, self._left + amount)
