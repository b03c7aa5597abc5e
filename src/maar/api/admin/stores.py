"""/api/v1/stores: what each store holds, lacks and has damaged."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from maar.api.guard import RequestGuard
from maar.model.ids import TenantId, tenant_id
from maar.model.plain import plain
from maar.ports.calls import Caller
from maar.ports.copies import ListStores
from maar.ports.metastore import Metastore


class StoreView:
    def __init__(self, guard: RequestGuard, metastore: Caller[Metastore]) -> None:
        self._guard = guard
        self._metastore = metastore

    async def stores(self, _tenant: TenantId, request: Request) -> Response:
        """Of all tenants, unless one is named."""
        asked = request.query_params.get("tenant", "")
        found = await self._metastore.call(ListStores(tenant_id(asked) if asked else ""))
        return JSONResponse({"stores": [plain(each) for each in found]})
