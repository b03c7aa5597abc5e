"""How much a client may ask of us that brings nothing; a decision over virtual time."""

from __future__ import annotations

from collections.abc import Callable

from maar.model.time import SECOND_NS
from maar.model.token_bucket import Refill, TokenBucket

REFILL = Refill(per_s=50, most=1000)


class Patience:
    """It is used up by what brings nothing, and restored by time and by work that was done."""

    def __init__(self, now_s: float) -> None:
        self._bucket = TokenBucket(int(now_s * SECOND_NS))

    def spend(self, cost: float, clock: Callable[[], float]) -> bool:
        """Whether there is any left. The clock is looked at only when it seems not so."""
        self._bucket.charge(cost)
        if self._bucket.left(REFILL) > 0:
            return True
        self._bucket.settle(REFILL, now_ns=int(clock() * SECOND_NS))
        return self._bucket.left(REFILL) > 0

    def restore(self, amount: float) -> None:
        self._bucket.give(amount)
