"""How long profiles are kept: what distributors ask and what operators set."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, ClassVar, Protocol

import msgspec

from maar.model.block import BlockMeta
from maar.model.ids import PlanId, TenantId
from maar.ports.calls import Call
from maar.ports.metastore.call import MetastoreCall


class RetentionStatus(msgspec.Struct, frozen=True):
    """How long profiles are kept, and by which clock (S2)."""

    default_ns: int  # 0: for ever
    tenants: dict[str, int]  # those that differ
    now_ns: int  # the time that retention goes by
    wall_ns: int  # what the leader's clock says
    trouble: str  # '' when the clocks agree
    paused: str = ""  # why nothing expires now
    held: bool = False  # it is on hold until an operator releases it
    expired: int = 0  # blocks that it took and that can still be brought back
    expired_delay_ns: int = 0  # how long they can, from when they were taken


class Expiring(msgspec.Struct, frozen=True):
    """A block that retention would take now."""

    block: BlockMeta
    before_ns: int  # the boundary that its newest profile is older than
    plan: PlanId | None  # that would be cancelled


class Undone(msgspec.Struct, frozen=True):
    """What came back."""

    blocks: int
    profiles: int


class RetentionReader(Protocol):
    """Any replica answers."""

    async def retention(self) -> RetentionStatus: ...


class RetentionOperator(RetentionReader, Protocol):
    """Changes are made by the leader."""

    async def set_retention(self, tenant: TenantId, *, period_ns: int | None) -> RetentionStatus:
        """How long a tenant's profiles are kept (0: for ever; None: the default again)."""
        ...

    async def expiring(self, *, tenant: str = "", limit: int = 1000) -> tuple[Expiring, ...]:
        """What retention would take now: a dry run."""
        ...

    async def hold_retention(self, *, why: str) -> RetentionStatus:
        """Have retention take nothing, and delete nothing that it took, until it is released."""
        ...

    async def release_retention(self) -> RetentionStatus:
        """An operator confirms the clock and the periods: retention continues."""
        ...

    async def undo_retention(self, *, tenant: str = "", why: str = "") -> Undone:
        """Bring back what retention took and did not delete yet, and hold it from now on."""
        ...


class GetRetention(MetastoreCall[RetentionReader, RetentionStatus], frozen=True):
    """How long profiles are kept."""

    any_replica: ClassVar[bool] = True

    def answer(self, port: RetentionReader) -> Awaitable[RetentionStatus]:
        return port.retention()


class SetRetention(MetastoreCall[RetentionOperator, RetentionStatus], frozen=True):
    """How long a tenant's profiles are kept (0: for ever; None: the default again)."""

    tenant: TenantId
    period_ns: int | None

    def answer(self, port: RetentionOperator) -> Awaitable[RetentionStatus]:
        return port.set_retention(self.tenant, period_ns=self.period_ns)


class ListExpiring(MetastoreCall[RetentionOperator, tuple[Expiring, ...]], frozen=True):
    """What retention would take now: a dry run."""

    any_replica: ClassVar[bool] = True
    rows: ClassVar[str | None] = ""

    tenant: str = ""
    limit: int = 1000

    def answer(self, port: RetentionOperator) -> Awaitable[tuple[Expiring, ...]]:
        return port.expiring(tenant=self.tenant, limit=self.limit)


class HoldRetention(MetastoreCall[RetentionOperator, RetentionStatus], frozen=True):
    """Have retention take and delete nothing until it is released."""

    why: str

    def answer(self, port: RetentionOperator) -> Awaitable[RetentionStatus]:
        return port.hold_retention(why=self.why)


class ReleaseRetention(MetastoreCall[RetentionOperator, RetentionStatus], frozen=True):
    """An operator confirms the clock and the periods."""

    def answer(self, port: RetentionOperator) -> Awaitable[RetentionStatus]:
        return port.release_retention()


class UndoRetention(MetastoreCall[RetentionOperator, Undone], frozen=True):
    """Bring back what retention took, and hold it from now on."""

    tenant: str = ""
    why: str = ""

    def answer(self, port: RetentionOperator) -> Awaitable[Undone]:
        return port.undo_retention(tenant=self.tenant, why=self.why)


CALLS: tuple[type[Call[RetentionOperator, Any]], ...] = (
    GetRetention,
    SetRetention,
    ListExpiring,
    HoldRetention,
    ReleaseRetention,
    UndoRetention,
)
