"""Rates of tenants that hold for the sum of the distributors that share them.

One keeper has the buckets. A distributor asks it for the bytes of a push and for a few to spare, so
that it does not have to ask for every push. Nobody spends what the keeper has not counted, so the
sum is bounded wherever a tenant's connections are; and a tenant that pushes through one distributor
alone has all but the little that the others have left over.
"""

from __future__ import annotations

from typing import Protocol

from maar.distributor.rates import Rates
from maar.distributor.settings import Rate
from maar.model.errors import MaarError, Overloaded
from maar.model.ids import TenantId
from maar.ports.calls import Caller, LocalPort
from maar.ports.clock import Clock
from maar.ports.writer.rates import OweBytes, RateKeeper, TakeBytes

SPARE_PART = 20  # all distributors together have this part of a bucket to spare, at most
LEASES_MAX = 100_000


class PushRates(Protocol):
    """What a distributor asks before it unpacks a push."""

    async def take(self, tenant: TenantId, rate: Rate, size: int) -> None:
        """Count bytes in, or Overloaded with the time after which they would fit."""
        ...

    async def owe(self, tenant: TenantId, rate: Rate, size: int) -> None:
        """Count bytes in that showed only after the push was let in."""
        ...


class OwnRates:
    """Of a distributor that shares its rates with nobody."""

    def __init__(self, clock: Clock) -> None:
        self._rates = Rates()
        self._clock = clock

    async def take(self, tenant: TenantId, rate: Rate, size: int) -> None:
        self._rates.take(tenant, rate, size, now_ns=self._clock.monotonic_ns())

    async def owe(self, tenant: TenantId, rate: Rate, size: int) -> None:
        self._rates.owe(tenant, rate, size, now_ns=self._clock.monotonic_ns())


class KeptRates(LocalPort):
    """The keeper: the buckets of all tenants."""

    def __init__(self, clock: Clock) -> None:
        self._rates = Rates()
        self._clock = clock

    async def take(self, tenant: TenantId, per_s: int, room: int, size: int, spare: int) -> int:
        rate, now_ns = Rate(per_s, room), self._clock.monotonic_ns()
        self._rates.take(tenant, rate, size, now_ns=now_ns)
        try:
            self._rates.take(tenant, rate, spare, now_ns=now_ns)
        except Overloaded:
            return 0  # the push itself fitted
        return spare

    async def owe(self, tenant: TenantId, per_s: int, room: int, size: int) -> None:
        self._rates.owe(tenant, Rate(per_s, room), size, now_ns=self._clock.monotonic_ns())


class LeasedRates:
    """Of a distributor that shares a keeper with others."""

    def __init__(
        self, keeper: Caller[RateKeeper], *, sharers: int, leases_max: int = LEASES_MAX
    ) -> None:
        self._keeper = keeper
        self._sharers = sharers
        self._leases_max = leases_max
        self._left: dict[TenantId, int] = {}  # counted by the keeper, and not yet spent
        self._asking: set[TenantId] = set()

    async def take(self, tenant: TenantId, rate: Rate, size: int) -> None:
        if not rate.rate_bytes:
            return
        left = self._left.pop(tenant, 0)
        if size <= left:
            self._left[tenant] = left - size
            return
        # Only one question at a time asks for more than it needs: else as many as there are pushes
        # at once would each leave something over.
        first = tenant not in self._asking
        spare = spare_bytes(rate, self._sharers) if first else 0
        if first:
            self._asking.add(tenant)
        try:
            room = room_bytes(rate, self._sharers)
            asked = TakeBytes(tenant, rate.rate_bytes, room, size - left, spare)
            self._keep(tenant, await self._keeper.call(asked))
        except MaarError:
            self._keep(tenant, left)
            raise
        finally:
            if first:
                self._asking.discard(tenant)

    async def owe(self, tenant: TenantId, rate: Rate, size: int) -> None:
        if rate.rate_bytes and size > 0:
            room = room_bytes(rate, self._sharers)
            await self._keeper.call(OweBytes(tenant, rate.rate_bytes, room, size))

    def _keep(self, tenant: TenantId, size: int) -> None:
        """Bounded: what is forgotten was counted, so the tenants have less, not more."""
        if size:
            if len(self._left) >= self._leases_max:
                self._left.clear()
            self._left[tenant] = self._left.get(tenant, 0) + size


def spare_bytes(rate: Rate, sharers: int) -> int:
    """What one distributor may have left over."""
    return rate.room_bytes // (SPARE_PART * sharers)


def room_bytes(rate: Rate, sharers: int) -> int:
    """The bucket without what distributors have left over, however long ago that was counted: with
    it, a burst is never more than the tenant may push at once.
    """
    return rate.room_bytes - sharers * spare_bytes(rate, sharers)
