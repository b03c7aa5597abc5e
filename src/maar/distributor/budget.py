"""How often pushes may be tried again, all together: a sick fleet must not get n times the load.

A bucket of retries: each batch that is handed over adds a share of one, time adds a few a second,
so that a quiet distributor may retry too. What it holds at most is for the moment in which a writer
dies and everything that waited there has to go elsewhere.
"""

from __future__ import annotations

from maar.distributor.settings import RouterSettings
from maar.model.token_bucket import Refill, TokenBucket


class RetryBudget:
    """Full when it is new."""

    def __init__(self, settings: RouterSettings, *, now_ns: int) -> None:
        self._share = settings.retry_share
        self._refill = Refill(settings.retries_per_s, settings.retries_saved_max)
        self._bucket = TokenBucket(now_ns)

    @property
    def retries(self) -> float:
        return self._bucket.left(self._refill)

    def earn(self, batches: int) -> None:
        self._bucket.give(batches * self._share)

    def spend(self, *, now_ns: int) -> bool:
        """One retry, if there is one."""
        return self._bucket.take(1, self._refill, now_ns=now_ns)

    def may_spend(self, *, now_ns: int) -> bool:
        return self._bucket.wait_ns(1, self._refill, now_ns=now_ns) == 0
