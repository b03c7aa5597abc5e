"""All routes of the front, as one ASGI application."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from maar.api import pages, wire
from maar.api.admin import Admin, View
from maar.api.connect import Method, RequestLimits, Unary
from maar.api.door import ApiSettings, Door
from maar.api.errors import Unimplemented
from maar.api.fields import check_fields
from maar.api.ingest import Ingest
from maar.api.orders import Exclusion, Limit, Nothing, Order, Orders, Period
from maar.api.push import Pusher
from maar.api.quarantine import Causes, no_causes
from maar.api.querier import Querier
from maar.distributor.service import Distributor
from maar.model.ids import TenantId
from maar.model.time import TimeRange
from maar.ports.metastore import Metastore
from maar.ports.query import QueryEngine

__all__ = ["ApiSettings", "build_app"]

log = logging.getLogger("maar.api")

PUSH = "/push.v1.PusherService/Push"
QUERIER = "/querier.v1.QuerierService"
PUSH_JSON_BYTES_MAX = 16 << 20
PUSH_FIELDS_MAX = 100_000  # labels and profiles of one push, all series together

Readiness = Callable[[], Awaitable[str]]  # '' when ready, else why not
ExtraMetrics = Callable[[], Awaitable[list[str]]]  # what other roles expose, as text


def build_app(
    distributor: Distributor,
    engine: QueryEngine,
    metastore: Metastore,
    settings: ApiSettings,
    registry: CollectorRegistry,
    readiness: Readiness,
    extra_metrics: ExtraMetrics,
    causes: Causes = no_causes,
) -> Starlette:
    door = Door(settings, registry)

    def whole_range() -> TimeRange:
        """Everything that is kept, however long: what a query without times asks for."""
        return TimeRange(0, distributor.clock.wall_ns() + distributor.limits.future_ns)

    routes = [
        *_write_routes(door, distributor),
        *_query_routes(door, Querier(engine, whole_range)),
        *_admin_routes(door, Admin(metastore, engine, whole_range, causes)),
        *_order_routes(door, Orders(metastore)),
        *health_routes(registry, readiness, extra_metrics),
        Route("/", pages.page),
        Route("/ui/{path:path}", pages.asset),
    ]
    handlers = {HTTPException: _http_error, Exception: _internal_error}
    return Starlette(routes=routes, exception_handlers=handlers)


def _write_routes(door: Door, distributor: Distributor) -> list[Route]:
    settings = door.settings
    push = Unary(
        door,
        PUSH,
        wire.PushRequest,
        Pusher(distributor).push,
        limits=RequestLimits(
            body=settings.body_bytes_max,
            proto=settings.request_bytes_max,
            json=min(PUSH_JSON_BYTES_MAX, settings.request_bytes_max),
        ),
        check=lambda raw: check_fields(raw, depth=2, fields_max=PUSH_FIELDS_MAX),
    )
    ingest = Ingest(door, "/ingest", distributor)
    return [
        Route(PUSH, push, methods=["POST"]),  # first, since it is asked most
        Route("/ingest", ingest, methods=["POST"]),
        Route("/pyroscope/ingest", ingest, methods=["POST"]),
    ]


def _query_routes(door: Door, querier: Querier) -> list[Route]:
    methods: dict[str, tuple[object, Method]] = {
        "ProfileTypes": (wire.ProfileTypesRequest, querier.profile_types),
        "LabelNames": (wire.LabelNamesRequest, querier.label_names),
        "LabelValues": (wire.LabelValuesRequest, querier.label_values),
        "Series": (wire.SeriesRequest, querier.series),
        "SelectMergeStacktraces": (
            wire.SelectMergeStacktracesRequest,
            querier.select_merge_stacktraces,
        ),
        "SelectSeries": (wire.SelectSeriesRequest, querier.select_series),
    }

    async def not_offered(_tenant: TenantId, request: Request) -> Response:
        raise Unimplemented(
            f"{request.path_params['method'][:60]} is not offered; there are {', '.join(methods)}"
        )

    return [
        *(
            Route(f"{QUERIER}/{name}", Unary(door, name, request_type, method), methods=["POST"])
            for name, (request_type, method) in methods.items()
        ),
        Route(f"{QUERIER}/{{method}}", View(door, "other", not_offered), methods=["POST"]),
    ]


def _admin_routes(door: Door, admin: Admin) -> list[Route]:
    views = {
        "/api/v1/status": admin.status,
        "/api/v1/blocks": admin.blocks,
        "/api/v1/blocks/{id}": admin.block,
        "/api/v1/blocks/{id}/explain": admin.explain,
        "/api/v1/plans": admin.plans,
        "/api/v1/plans/{id}": admin.plan,
        "/api/v1/retention": admin.retention,
        "/api/v1/retention/preview": admin.retention_preview,
        "/api/v1/retention/{tenant}": admin.retention_of_tenant,
        "/api/v1/profiles/{id}": admin.profile,
        "/api/v1/top": admin.top,
    }
    return [
        Route(path, View(door, path, answer), methods=["GET"]) for path, answer in views.items()
    ]


def _order_routes(door: Door, orders: Orders) -> list[Route]:
    requeue, exclude = "/api/v1/plans/{id}/requeue", "/api/v1/plans/{id}/exclude"
    limit, retention = "/api/v1/plans/limit", "/api/v1/retention/{tenant}"
    return [
        Route(requeue, Order(door, requeue, Nothing, orders.requeue), methods=["POST"]),
        Route(exclude, Order(door, exclude, Exclusion, orders.exclude), methods=["POST"]),
        Route(limit, Order(door, limit, Limit, orders.limit), methods=["POST"]),
        Route(retention, Order(door, retention, Period, orders.retention), methods=["PUT"]),
    ]


def health_routes(
    registry: CollectorRegistry, readiness: Readiness, extra_metrics: ExtraMetrics
) -> list[Route]:
    async def ready(_request: Request) -> Response:
        why_not = await readiness()
        return PlainTextResponse(f"{why_not or 'ready'}\n", 503 if why_not else 200)

    async def healthz(_request: Request) -> Response:
        """The process lives and serves; whether it can do its work, /ready says."""
        return PlainTextResponse("ok\n")

    async def metrics(_request: Request) -> Response:
        texts = [generate_latest(registry).decode(), *await extra_metrics()]
        return Response("".join(texts), media_type=CONTENT_TYPE_LATEST)

    return [Route("/ready", ready), Route("/healthz", healthz), Route("/metrics", metrics)]


async def _http_error(request: Request, error: Exception) -> Response:
    """Routes that are not there, methods that they do not take."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    sentence = {
        404: f"there is nothing at {request.url.path[:200]}",
        405: f"{request.url.path[:200]} does not take {request.method[:20]}",
    }.get(status, "the request cannot be answered")
    code = "not_found" if status == 404 else "unimplemented"
    headers = error.headers if isinstance(error, HTTPException) else None
    return JSONResponse({"code": code, "message": sentence}, status, headers=headers)


async def _internal_error(request: Request, error: Exception) -> Response:
    log.error("request failed path=%s", request.url.path, exc_info=error)
    return JSONResponse(
        {
            "code": "internal",
            "message": "the server failed to answer this request; its log says why",
        },
        500,
    )
