"""How fast a tenant may push: a bucket of bytes for each, so that one cannot crowd out another.

Bytes are counted as decompressed: they are what unpacking, storing and asking cost.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from maar.distributor.settings import Rate
from maar.model.errors import Overloaded
from maar.model.ids import TenantId
from maar.model.time import SECOND_NS

BUCKETS_MAX = 100_000
SWEEP_LEAST = 1024  # buckets, before it is worth a look which are full again


class Bucket(NamedTuple):
    """What a tenant has taken and time has not yet given back."""

    full_ns: int = 0  # when it will all be given back, as the rate is now
    owed_bytes: int = 0
    at_ns: int = 0


FULL = Bucket()


def taken(bucket: Bucket, rate: Rate, size: int, *, now_ns: int) -> tuple[Bucket, int]:
    """The bucket after `size` bytes and 0; or the same and the ns after which they would fit.

    A full bucket lets any push through and is owed the rest: one that is larger than the bucket
    would else never pass.
    """
    over = _owed(bucket, rate, now_ns) + min(size, rate.room_bytes) - rate.room_bytes
    if over > 0:
        return bucket, _time_of(over, rate)
    return charged(bucket, rate, size, now_ns=now_ns), 0


def charged(bucket: Bucket, rate: Rate, size: int, *, now_ns: int) -> Bucket:
    """The bucket after `size` bytes, whether they fit or not."""
    owed = _owed(bucket, rate, now_ns) + size
    return Bucket(now_ns + _time_of(owed, rate), owed, now_ns)


def _owed(bucket: Bucket, rate: Rate, now_ns: int) -> int:
    given_back = max(0, now_ns - bucket.at_ns) * rate.rate_bytes // SECOND_NS
    return max(0, bucket.owed_bytes - given_back)


def _time_of(size: int, rate: Rate) -> int:
    """ns in which so many bytes are given back, rounded up."""
    return -(-size * SECOND_NS // rate.rate_bytes)


class Rates:
    """Bounded: a tenant whose bucket is full again is forgotten."""

    def __init__(self, buckets_max: int = BUCKETS_MAX) -> None:
        self._buckets_max = buckets_max
        self._buckets: dict[TenantId, Bucket] = {}
        self._sweep_at = SWEEP_LEAST

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, tenant: TenantId, rate: Rate, size: int, *, now_ns: int) -> None:
        """Count bytes in, or Overloaded with the time after which they would fit."""
        if not rate.rate_bytes:
            return
        before = self._buckets.get(tenant, FULL)
        after, wait_ns = taken(before, rate, size, now_ns=now_ns)
        if wait_ns:
            raise Overloaded(
                f"tenant {tenant} pushes more than its {rate.rate_bytes} bytes a second "
                f"(limits.rate_bytes, decompressed; {rate.room_bytes} at once): {size} bytes would "
                f"fit in {wait_ns / SECOND_NS:.1f} s; send it again then",
                retry_after_s=wait_ns / SECOND_NS,
            )
        self._keep(tenant, after, now_ns)

    def owe(self, tenant: TenantId, rate: Rate, size: int, *, now_ns: int) -> None:
        """Count bytes in that showed only after the push was let in."""
        if rate.rate_bytes and size > 0:
            before = self._buckets.get(tenant, FULL)
            self._keep(tenant, charged(before, rate, size, now_ns=now_ns), now_ns)

    def _keep(self, tenant: TenantId, bucket: Bucket, now_ns: int) -> None:
        self._buckets[tenant] = bucket
        if len(self._buckets) >= self._sweep_at:
            self._sweep(now_ns)

    def _sweep(self, now_ns: int) -> None:
        left = {name: one for name, one in self._buckets.items() if one.full_ns > now_ns}
        most = self._buckets_max
        if len(left) > most:  # those that owe most are worth remembering
            left = dict(heapq.nlargest(most // 2, left.items(), key=lambda item: item[1]))
        self._buckets = left
        self._sweep_at = max(SWEEP_LEAST, min(2 * len(left), most + 1))
