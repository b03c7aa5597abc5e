"""How fast tenants may push, counted once for all distributors of one host."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, ClassVar, Protocol

from maar.model.ids import TenantId
from maar.ports.calls import Call


class RateKeeper(Protocol):
    async def take(self, tenant: TenantId, per_s: int, room: int, size: int, spare: int) -> int:
        """Count so many bytes in, or Overloaded; gives what was taken beside them: `spare` or 0."""
        ...

    async def owe(self, tenant: TenantId, per_s: int, room: int, size: int) -> None:
        """Count bytes in that showed only after their push was let in."""
        ...


class TakeBytes(Call[RateKeeper, int], frozen=True):
    wire_service: ClassVar[str] = "maar.RateKeeper"

    tenant: TenantId
    per_s: int
    room: int
    size: int
    spare: int

    def answer(self, port: RateKeeper) -> Awaitable[int]:
        return port.take(self.tenant, self.per_s, self.room, self.size, self.spare)


class OweBytes(Call[RateKeeper, None], frozen=True):
    wire_service: ClassVar[str] = "maar.RateKeeper"

    tenant: TenantId
    per_s: int
    room: int
    size: int

    def answer(self, port: RateKeeper) -> Awaitable[None]:
        return port.owe(self.tenant, self.per_s, self.room, self.size)


CALLS: tuple[type[Call[RateKeeper, Any]], ...] = (TakeBytes, OweBytes)
