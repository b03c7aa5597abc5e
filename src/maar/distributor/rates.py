"""How fast a tenant may push: a token bucket of bytes for each.

Bytes are counted as decompressed: they are what unpacking, storing and asking cost.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from maar.distributor.settings import Rate
from maar.model.errors import Overloaded
from maar.model.ids import TenantId
from maar.model.time import SECOND_NS
from maar.model.token_bucket import Refill, TokenBucket

BUCKETS_MAX = 100_000
SWEEP_MIN = 1024  # buckets, before full ones are searched for and dropped


@dataclass(slots=True)
class TenantBucket(TokenBucket):
    full_ns: int = 0  # when all will be given back, as the rate was when it was last asked


class Rates:
    """Bounded: a tenant whose bucket is full again is forgotten."""

    def __init__(self, buckets_max: int = BUCKETS_MAX) -> None:
        self._buckets_max = buckets_max
        self._buckets: dict[TenantId, TenantBucket] = {}
        self._sweep_at = SWEEP_MIN

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, tenant: TenantId, rate: Rate, size: int, *, now_ns: int) -> None:
        """Count bytes in, or Overloaded with the time after which they would fit.

        A full bucket lets any push through and is owed the rest: one that is larger than the
        bucket would else never pass.
        """
        if not rate.rate_bytes:
            return
        bucket = self._buckets.get(tenant) or TenantBucket(now_ns)
        wait_ns = bucket.wait_ns(min(size, rate.room_bytes), _refill(rate), now_ns=now_ns)
        if wait_ns:
            raise Overloaded(
                f"tenant {tenant} pushes more than its {rate.rate_bytes} bytes a second "
                f"(limits.rate_bytes, decompressed; {rate.room_bytes} at once): {size} bytes would "
                f"fit in {wait_ns / SECOND_NS:.1f} s; send it again then",
                retry_after_s=wait_ns / SECOND_NS,
            )
        self._charge(tenant, bucket, rate, size, now_ns)

    def owe(self, tenant: TenantId, rate: Rate, size: int, *, now_ns: int) -> None:
        """Count bytes in that showed only after the push was let in."""
        if rate.rate_bytes and size > 0:
            bucket = self._buckets.get(tenant) or TenantBucket(now_ns)
            bucket.settle(_refill(rate), now_ns=now_ns)
            self._charge(tenant, bucket, rate, size, now_ns)

    def _charge(
        self, tenant: TenantId, bucket: TenantBucket, rate: Rate, size: int, now_ns: int
    ) -> None:
        bucket.charge(size)
        bucket.full_ns = bucket.full_at_ns(_refill(rate))
        self._buckets[tenant] = bucket
        if len(self._buckets) >= self._sweep_at:
            self._sweep(now_ns)

    def _sweep(self, now_ns: int) -> None:
        left = {name: one for name, one in self._buckets.items() if one.full_ns > now_ns}
        most = self._buckets_max
        if len(left) > most:  # those that owe most are worth remembering
            left = dict(heapq.nlargest(most // 2, left.items(), key=lambda item: item[1].full_ns))
        self._buckets = left
        self._sweep_at = max(SWEEP_MIN, min(2 * len(left), most + 1))


def _refill(rate: Rate) -> Refill:
    return Refill(rate.rate_bytes, rate.room_bytes)
