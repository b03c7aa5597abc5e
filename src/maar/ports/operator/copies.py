"""What is asked of the metastore about the copies of blocks, and told to it (S14)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, ClassVar, Protocol

import msgspec

from maar.model.ids import StoreName
from maar.model.trouble import Trouble
from maar.ports.calls import Call
from maar.ports.metastore.call import MetastoreCall

REPORTED_MAX = 1_000  # copies in one request


class StoreStatus(msgspec.Struct, frozen=True):
    """What a store holds of live blocks, of all tenants or of one; segments are not counted."""

    name: StoreName
    region: str
    zones: tuple[str, ...]  # whose home it is
    leaving: bool  # it is being drained
    known: bool  # whether the settings of the leader have it
    blocks: int
    bytes: int
    missing: int  # blocks that it should hold and does not
    missing_bytes: int
    damaged: int  # copies that readers found missing or damaged, and that were not healed yet
    tombstones: int  # copies that are to be deleted there, of all tenants


class CopyKeeper(Protocol):
    async def report_damage(self, copies: tuple[Trouble, ...]) -> None: ...

    async def stores(self, *, tenant: str = "") -> tuple[StoreStatus, ...]: ...


class ReportDamage(MetastoreCall[CopyKeeper, None], frozen=True):
    """Copies that somebody wanted to read and that were missing or damaged.

    The leader remembers those of blocks that are live by then, until they are healed or its term
    ends: what is missing because its block was replaced meanwhile is no damage.
    """

    copies: tuple[Trouble, ...]

    def answer(self, port: CopyKeeper) -> Awaitable[None]:
        return port.report_damage(self.copies)


class ListStores(MetastoreCall[CopyKeeper, tuple[StoreStatus, ...]], frozen=True):
    """Every store, in the order of the settings; then those that only the index knows."""

    rows: ClassVar[str | None] = ""

    tenant: str = ""  # '': of all

    def answer(self, port: CopyKeeper) -> Awaitable[tuple[StoreStatus, ...]]:
        return port.stores(tenant=self.tenant)


CALLS: tuple[type[Call[CopyKeeper, Any]], ...] = (ReportDamage, ListStores)
