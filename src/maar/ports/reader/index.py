"""What a query asks of the metastore: which blocks may hold its profiles."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, ClassVar, Protocol

import msgspec

from maar.model.block import BlockMeta
from maar.model.ids import BlockId, TenantId
from maar.model.predicate import Mask
from maar.model.time import TimeRange
from maar.ports.calls import Call
from maar.ports.metastore.call import MetastoreCall
from maar.ports.metastore.log_time import LogTime


class IndexView(msgspec.Struct, frozen=True):
    """An immutable answer as of one index: sources or their output, never both, never neither."""

    index: int
    blocks: tuple[BlockMeta, ...]
    letters: tuple[BlockId, ...] = ()  # of those asked about, the ones that the index has not seen
    masks: dict[BlockId, tuple[Mask, ...]] = {}  # what of a block or letter was deleted (S8)
    stamp: bytes = b""  # equal: the same blocks are live, and nothing of the tenant was deleted


class IndexReader(LogTime, Protocol):
    """Any replica answers, with everything that was acknowledged before the question."""

    async def view(self, request: ViewRequest) -> IndexView: ...


class ViewRequest(MetastoreCall[IndexReader, IndexView], frozen=True):
    """Which blocks may hold profiles of a tenant (optionally one service) in a time range."""

    any_replica: ClassVar[bool] = True
    rows: ClassVar[str | None] = "blocks"

    tenant: TenantId
    range: TimeRange
    service: str = ""
    reader: str = ""  # pins the view for this reader until it asks again or its pin expires (S10)
    letters: tuple[BlockId, ...] = ()  # blocks of dead letters that were found before (S20)
    every_dataset: bool = False  # of each block, also of other services and tenants
    # The stamp of an answer to the same question. If it is still right, it comes back without its
    # blocks: whoever asked has them.
    known: bytes = b""

    def answer(self, port: IndexReader) -> Awaitable[IndexView]:
        return port.view(self)


CALLS: tuple[type[Call[IndexReader, Any]], ...] = (ViewRequest,)
