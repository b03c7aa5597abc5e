"""A budget for useless frames of a client (flood protection). Pure: time is an argument."""

from __future__ import annotations

from collections.abc import Callable

from maar.model.time import SECOND_NS
from maar.model.token_bucket import Refill, TokenBucket

REFILL = Refill(per_s=50, most=1000)


class Patience:
    """Spent by useless frames, restored by time and by useful work."""

    def __init__(self, now_s: float) -> None:
        self._bucket = TokenBucket(int(now_s * SECOND_NS))

    def spend(self, cost: float, clock: Callable[[], float]) -> bool:
        """Whether any is left. The clock is read only when it seems used up."""
        self._bucket.charge(cost)
        if self._bucket.left(REFILL) > 0:
            return True
        self._bucket.settle(REFILL, now_ns=int(clock() * SECOND_NS))
        return self._bucket.left(REFILL) > 0

    def restore(self, amount: float) -> None:
        self._bucket.give(amount)
