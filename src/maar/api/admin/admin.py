"""/api/v1: what the server knows of itself, and single profiles; JSON for scripts and the page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope

from maar.api.admin.quarantine import Causes
from maar.api.admin.rings import zone_of
from maar.api.admin.schedule import alarm_text
from maar.api.guard import Endpoint, RequestGuard
from maar.api.query.querier import check_type
from maar.api.times import range_of_ms, unix_ms
from maar.model.errors import InvalidInput
from maar.model.ids import ANONYMOUS, BlockId, PlanId, TenantId, parse_profile_id, tenant_id
from maar.model.plain import plain
from maar.model.plan import Plan
from maar.model.time import SECOND_NS, TimeRange
from maar.ports.calls import Caller
from maar.ports.metastore.metastore import Metastore
from maar.ports.operator.dead_letters import GetLetter, ListLetters
from maar.ports.operator.operator import (
    ExplainBlock,
    GetBlock,
    GetPlan,
    GetStatus,
    ListBlocks,
    ListPlans,
    PlanDetail,
    WeighLoss,
)
from maar.ports.operator.retention import GetRetention, ListExpiring, RetentionStatus
from maar.ports.reader.index import ViewRequest
from maar.ports.reader.query import GetProfile, QueryEngine, RankFunctions
from maar.ports.reader.query import Scope as QueryScope
from maar.ports.writer.membership import ListRings
from maar.query.decide.selector import parse_selector

ALL_TIME = TimeRange(-(1 << 63), (1 << 63) - 1)
LIMIT_DEFAULT = 1000
LIMIT_MAX = 100_000
PREVIEW_MAX = 10_000  # each with all that the index knows of it
LETTERS_DEFAULT, LETTERS_MAX = 100, 1000  # each is read from the store


Processes = Callable[[], list[dict[str, Any]]]
Disks = Callable[[], list[dict[str, Any]]]


def no_disks() -> list[dict[str, Any]]:
    """For a process that accepts no pushes: no disk is measured."""
    return []


def no_processes() -> list[dict[str, Any]]:
    """For a process without a supervisor."""
    return []


class View(Endpoint):
    """A GET route whose answer is worked out by one function of the request."""

    def __init__(
        self,
        guard: RequestGuard,
        route: str,
        answer: Callable[[TenantId, Request], Awaitable[Response]],
    ) -> None:
        super().__init__(guard, route)
        self._answer = answer

    async def respond(self, scope: Scope, receive: Receive) -> Response:
        return await self._answer(self.guard.tenant(scope), Request(scope, receive))


class Admin:
    def __init__(
        self,
        metastore: Caller[Metastore],
        engine: Caller[QueryEngine],
        whole_range: Callable[[], TimeRange],
        causes: Causes,
        processes: Processes,
        disks: Disks,
    ) -> None:
        self._disks = disks
        self._causes = causes
        self._processes = processes
        self._metastore = metastore
        self._engine = engine
        self._whole_range = whole_range

    async def status(self, _tenant: TenantId, _request: Request) -> Response:
        found = await self._metastore.call(GetStatus())
        status: dict[str, Any] = plain(found)
        status["alarms"] = [alarm_text(alarm) for alarm in found.alarms]
        return JSONResponse(status | {"processes": self._processes(), "disks": self._disks()})

    async def blocks(self, _tenant: TenantId, request: Request) -> Response:
        query = request.query_params
        if service := query.get("service", ""):
            tenant = tenant_id(query.get("tenant", "") or ANONYMOUS)
            view = await self._metastore.call(
                ViewRequest(tenant, ALL_TIME, service, every_dataset=True)
            )
            masked = sorted(set(view.masks))  # something of these was deleted
            return JSONResponse({"blocks": plain(view.blocks), "masked": masked})
        blocks = await self._metastore.call(
            ListBlocks(
                level=_integer(query, "level", default=-1),
                tenant=query.get("tenant", ""),
                limit=limit_of(query),
            )
        )
        return JSONResponse({"blocks": plain(blocks)})

    async def block(self, _tenant: TenantId, request: Request) -> Response:
        found = await self._metastore.call(GetBlock(BlockId(request.path_params["id"])))
        return JSONResponse(plain(found))

    async def plans(self, _tenant: TenantId, request: Request) -> Response:
        query = request.query_params
        wanted = ListPlans(
            state=query.get("state", ""),
            service=query.get("kind", "") or query.get("service", ""),
            tenant=query.get("tenant", ""),
            level=_integer(query, "level", default=-1),
            shard=_integer(query, "shard", default=0),
            failing=_flag(query, "failing"),
            limit=limit_of(query),
        )
        plans = await self._metastore.call(wanted)
        return JSONResponse({"plans": [plan_of(plan) for plan in plans]})

    async def plan(self, _tenant: TenantId, request: Request) -> Response:
        plan_id = PlanId.parse(request.path_params["id"])
        return JSONResponse(detail_of(await self._metastore.call(GetPlan(plan_id))))

    async def loss(self, _tenant: TenantId, request: Request) -> Response:
        return JSONResponse(
            plain(await self._metastore.call(WeighLoss(BlockId(request.path_params["id"]))))
        )

    async def explain(self, _tenant: TenantId, request: Request) -> Response:
        found = await self._metastore.call(ExplainBlock(BlockId(request.path_params["id"])))
        if found.standing == "quarantined" and found.meta is not None:
            sentences = (*found.sentences, *await self._causes(found.meta))
            found = msgspec.structs.replace(found, sentences=sentences)
        return JSONResponse(plain(found))

    async def retention(self, _tenant: TenantId, _request: Request) -> Response:
        return JSONResponse(retention_of(await self._metastore.call(GetRetention())))

    async def retention_of_tenant(self, _tenant: TenantId, request: Request) -> Response:
        tenant = tenant_id(request.path_params["tenant"])
        return JSONResponse(period_of(await self._metastore.call(GetRetention()), tenant))

    async def retention_preview(self, _tenant: TenantId, request: Request) -> Response:
        query = request.query_params
        limit = limit_of(query, most=PREVIEW_MAX)
        tenant = query.get("tenant", "")
        found = await self._metastore.call(ListExpiring(tenant, limit + 1))
        listed = found[:limit]
        return JSONResponse(
            {
                "blocks": [
                    {**plain(one.block), "before_ns": one.before_ns, "cancels": plain(one.plan)}
                    for one in listed
                ],
                "bytes": sum(one.block.size for one in listed),
                "profiles": sum(one.block.profiles for one in listed),
                "cancels": sorted({str(one.plan) for one in listed if one.plan is not None}),
                "more": len(found) > limit,
            }
        )

    async def ring(self, _tenant: TenantId, _request: Request) -> Response:
        return JSONResponse(
            {"zones": [zone_of(view) for view in await self._metastore.call(ListRings())]}
        )

    async def letters(self, _tenant: TenantId, request: Request) -> Response:
        limit = limit_of(request.query_params, default=LETTERS_DEFAULT, most=LETTERS_MAX)
        return JSONResponse(plain(await self._metastore.call(ListLetters(limit))))

    async def letter(self, _tenant: TenantId, request: Request) -> Response:
        return JSONResponse(plain(await self._metastore.call(GetLetter(request.path_params["id"]))))

    async def profile(self, tenant: TenantId, request: Request) -> Response:
        profile = parse_profile_id(request.path_params["id"])
        hint = self._range(request.query_params, "from", "until")
        body = await self._engine.call(GetProfile(tenant, profile, hint))
        # Not a content-encoding: the file that people keep and pprof reads is the gzip itself.
        return Response(
            body,
            media_type="application/octet-stream",
            headers={"Content-Disposition": f'attachment; filename="{profile.hex()}.pb.gz"'},
        )

    async def top(self, tenant: TenantId, request: Request) -> Response:
        query = request.query_params
        top = await self._engine.call(
            RankFunctions(
                QueryScope(
                    tenant,
                    self._range(query, "start", "end"),
                    parse_selector(query.get("labelSelector", "")),
                ),
                check_type(query.get("profileTypeID", "")),
                limit_of(query),
            )
        )
        rows = [[row.function, row.self_value, row.total_value] for row in top.rows]
        return JSONResponse({"total": top.total, "rows": rows})

    def _range(self, query: QueryParams, start: str, end: str) -> TimeRange:
        return range_of_ms(
            unix_ms(query.get(start, ""), name=start),
            unix_ms(query.get(end, ""), name=end),
            whole=self._whole_range(),
        )


SHOWN = ("kind", "removable", "state", "scheduled_at", "attempts", "result")


def plan_of(plan: Plan) -> dict[str, Any]:
    """`service` is what the kind was called first."""
    return {**plain(plan), "kind": plan.kind}


def detail_of(detail: PlanDetail) -> dict[str, Any]:
    """With what most ask for at the top."""
    found = plan_of(detail.plan)
    return {**plain(detail), "plan": found} | {name: found[name] for name in SHOWN}


def retention_of(status: RetentionStatus) -> dict[str, Any]:
    """Periods in seconds, 0 for ever: the same numbers that a change takes."""
    return {
        "default_s": status.default_ns / SECOND_NS,
        "tenants": {name: ns / SECOND_NS for name, ns in sorted(status.tenants.items())},
        "now_ns": status.now_ns,
        "wall_ns": status.wall_ns,
        "trouble": status.trouble,
        "paused": status.paused,
        "held": status.held,
        "expired_blocks": status.expired,
        "expired_delay_s": status.expired_delay_ns / SECOND_NS,
    }


def period_of(status: RetentionStatus, tenant: TenantId) -> dict[str, Any]:
    own_ns = status.tenants.get(tenant)
    period_ns = status.default_ns if own_ns is None else own_ns
    return {
        "tenant": tenant,
        "period_s": period_ns / SECOND_NS,
        "is_default": own_ns is None,
        "trouble": status.trouble,
    }


def limit_of(query: QueryParams, *, default: int = LIMIT_DEFAULT, most: int = LIMIT_MAX) -> int:
    limit = _integer(query, "limit", default=default)
    if not 1 <= limit <= most:
        raise InvalidInput(f"limit={limit} is not between 1 and {most}", reason="request")
    return limit


def _flag(query: QueryParams, name: str) -> bool:
    text = query.get(name, "false")
    if text not in ("true", "false"):
        raise InvalidInput(f"{name}={text[:60]!r} is neither true nor false", reason="request")
    return text == "true"


def _integer(query: QueryParams, name: str, *, default: int) -> int:
    text = query.get(name, "")
    if not text:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise InvalidInput(f"{name}={text[:60]!r} is not a whole number", reason="request")
    return int(text)
