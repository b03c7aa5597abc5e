"""/api/v1: what the server knows of itself, and single profiles; JSON for scripts and the page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope

from maar.api.door import Door, Endpoint
from maar.api.plain import plain
from maar.api.querier import checked_type
from maar.api.times import range_of_ms, unix_ms
from maar.model.errors import InvalidInput
from maar.model.ids import BlockId, PlanId, TenantId, parse_profile_id
from maar.model.time import TimeRange
from maar.ports.metastore import Metastore
from maar.ports.query import QueryEngine
from maar.ports.query import Scope as QueryScope
from maar.query.selector import parse_selector

LIMIT_DEFAULT = 1000
LIMIT_MAX = 100_000


class View(Endpoint):
    """A GET route whose answer is worked out by one function of the request."""

    def __init__(
        self, door: Door, route: str, answer: Callable[[TenantId, Request], Awaitable[Response]]
    ) -> None:
        super().__init__(door, route)
        self._answer = answer

    async def respond(self, scope: Scope, receive: Receive) -> Response:
        return await self._answer(self.door.tenant(scope), Request(scope, receive))


class Admin:
    def __init__(
        self, metastore: Metastore, engine: QueryEngine, whole_range: Callable[[], TimeRange]
    ) -> None:
        self._metastore = metastore
        self._engine = engine
        self._whole_range = whole_range

    async def status(self, _tenant: TenantId, _request: Request) -> Response:
        return JSONResponse(plain(await self._metastore.status()))

    async def blocks(self, _tenant: TenantId, request: Request) -> Response:
        query = request.query_params
        blocks = await self._metastore.blocks(
            level=_integer(query, "level", default=-1),
            tenant=query.get("tenant", ""),
            limit=_limit(query),
        )
        return JSONResponse({"blocks": plain(blocks)})

    async def block(self, _tenant: TenantId, request: Request) -> Response:
        found = await self._metastore.block(BlockId(request.path_params["id"]))
        return JSONResponse(plain(found))

    async def plans(self, _tenant: TenantId, request: Request) -> Response:
        query = request.query_params
        plans = await self._metastore.plans(state=query.get("state", ""), limit=_limit(query))
        return JSONResponse({"plans": plain(plans)})

    async def plan(self, _tenant: TenantId, request: Request) -> Response:
        return JSONResponse(
            plain(await self._metastore.plan(PlanId.parse(request.path_params["id"])))
        )

    async def profile(self, tenant: TenantId, request: Request) -> Response:
        profile = parse_profile_id(request.path_params["id"])
        hint = self._range(request.query_params, "from", "until")
        body = await self._engine.profile(tenant, profile, hint)
        # Not a content-encoding: the file that people keep and pprof reads is the gzip itself.
        return Response(
            body,
            media_type="application/octet-stream",
            headers={"Content-Disposition": f'attachment; filename="{profile.hex()}.pb.gz"'},
        )

    async def top(self, tenant: TenantId, request: Request) -> Response:
        query = request.query_params
        top = await self._engine.top(
            QueryScope(
                tenant,
                self._range(query, "start", "end"),
                parse_selector(query.get("labelSelector", "")),
            ),
            profile_type=checked_type(query.get("profileTypeID", "")),
            limit=_limit(query),
        )
        rows = [[row.function, row.self_value, row.total_value] for row in top.rows]
        return JSONResponse({"total": top.total, "rows": rows})

    def _range(self, query: QueryParams, start: str, end: str) -> TimeRange:
        return range_of_ms(
            unix_ms(query.get(start, ""), name=start),
            unix_ms(query.get(end, ""), name=end),
            whole=self._whole_range(),
        )


def _limit(query: QueryParams) -> int:
    limit = _integer(query, "limit", default=LIMIT_DEFAULT)
    if not 1 <= limit <= LIMIT_MAX:
        raise InvalidInput(f"limit={limit} is not between 1 and {LIMIT_MAX}", reason="request")
    return limit


def _integer(query: QueryParams, name: str, *, default: int) -> int:
    text = query.get(name, "")
    if not text:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise InvalidInput(f"{name}={text[:60]!r} is not a whole number", reason="request")
    return int(text)
