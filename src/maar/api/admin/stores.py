"""/api/v1/stores: what each holds, lacks and has damaged, who found it so; how one is removed."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from maar.api.guard import RequestGuard
from maar.model.errors import InvalidInput
from maar.model.ids import BlockId, StoreName, TenantId, tenant_id
from maar.model.plain import plain
from maar.model.trouble import Trouble, Why
from maar.ports.calls import Caller
from maar.ports.metastore.metastore import Metastore
from maar.ports.operator.copies import REPORTED_MAX, ListStores, ReportDamage
from maar.ports.operator.store_removal import RemoveStore

DAMAGE_BYTES_MAX = 4 << 20

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=2000)]


class UnreadCopy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A copy of a block that somebody could not read, and what was wrong with it."""

    block: Text
    store: Text
    key: Text
    why: Why
    what: str = ""
    another: bool = False


class UnreadCopies(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    copies: Annotated[tuple[UnreadCopy, ...], msgspec.Meta(max_length=REPORTED_MAX)]


class StoreRemoval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Drain it; or give it up as lost; or keep one that is being drained."""

    lost: bool = False
    seen: str = ""  # the `list_id` of the answer that said what only it has: give that up
    keep: bool = False


class StoreView:
    def __init__(self, guard: RequestGuard, metastore: Caller[Metastore]) -> None:
        self._guard = guard
        self._metastore = metastore

    async def stores(self, _tenant: TenantId, request: Request) -> Response:
        """Of all tenants, unless one is named."""
        asked = request.query_params.get("tenant", "")
        found = await self._metastore.call(ListStores(tenant_id(asked) if asked else ""))
        return JSONResponse({"stores": [plain(each) for each in found]})

    async def hear(self, _request: Request, asked: UnreadCopies) -> Any:
        """The leader remembers those that the index lists, and has a repair look at them."""
        told = tuple(
            Trouble(BlockId(c.block), StoreName(c.store), c.key, c.why, c.what[:2000], c.another)
            for c in asked.copies
        )
        await self._metastore.call(ReportDamage(told))
        return {"heard": len(told)}

    async def remove(self, request: Request, asked: StoreRemoval) -> Any:
        if asked.keep and (asked.lost or asked.seen):
            raise InvalidInput("a store is kept or given up, not both", reason="request")
        name = StoreName(request.path_params["name"])
        wish = RemoveStore(name, asked.lost, asked.seen, asked.keep)
        return plain(await self._metastore.call(wish))
