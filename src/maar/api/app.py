"""All routes of the front, as one ASGI application."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from maar.api.admin.admin import Admin, Disks, Processes, View, no_disks, no_processes
from maar.api.admin.deletions import DeletionBody, Deletions
from maar.api.admin.execution import (
    RESULT_BYTES_MAX,
    CleanBody,
    Completion,
    ConfirmBody,
    Failure,
    GrantBody,
    HeldLease,
    PartDone,
    PlanCommands,
    RollbackBody,
    RunNowBody,
    ScheduleBody,
)
from maar.api.admin.operator_commands import (
    CommandEndpoint,
    Exclusion,
    Limit,
    LoseBody,
    Nothing,
    OperatorCommands,
    Pause,
    Period,
    WriterRemoval,
)
from maar.api.admin.placement import PlacementView, ReadPlaced, nothing_placed
from maar.api.admin.quarantine import Causes
from maar.api.admin.repairs import RepairBody, RepairCommands
from maar.api.admin.schedule import JobPattern, JobScheduleBody, PolicyBody, ScheduleRoutes
from maar.api.admin.stores import DAMAGE_BYTES_MAX, StoreRemoval, StoreView, UnreadCopies
from maar.api.errors import FAULT, ServerFault, json_error
from maar.api.guard import OurNames, RequestGuard
from maar.api.health import Degraded, ExtraMetrics, Readiness, health_routes, nothing
from maar.api.hosts import Hosts
from maar.api.protocol import wire
from maar.api.protocol.connect import CallService, CallsFirst, Method, Unary, not_offered
from maar.api.push.ingest import Ingest
from maar.api.push.pusher import pusher_service
from maar.api.query.partly import Partly, PartlyEngine
from maar.api.query.querier import Querier
from maar.api.settings import ApiSettings
from maar.api.times import MS_NS
from maar.api.ui import pages
from maar.distributor.service import Distributor
from maar.model.time import TimeRange
from maar.ports.calls import Caller
from maar.ports.clock import Clock
from maar.ports.metastore.metastore import Metastore
from maar.ports.reader.query import QueryEngine
from maar.ports.stores.stores import StorePlaces

__all__ = ["QueryDeps", "build_app"]

log = logging.getLogger("maar.api")

ON_LOOPBACK = Hosts()
QUERIER = "querier.v1.QuerierService"


class QueryDeps(NamedTuple):
    """What the query routes need."""

    engine: Caller[QueryEngine]
    metastore: Caller[Metastore]
    causes: Causes
    clock: Clock
    future_ns: int  # how far ahead of the clock profiles may be dated
    placed: ReadPlaced = nothing_placed
    processes: Processes = no_processes
    disks: Disks = no_disks
    store: StorePlaces | None = None  # as executors elsewhere are told, without secrets
    addresses: str = ""  # of the metastore, as they are told

    def whole_range(self) -> TimeRange:
        """The whole time range, which a query without times asks for: in whole milliseconds, like
        any other, since what microseconds cannot say takes longer to answer.
        """
        return TimeRange(0, -(-(self.clock.wall_ns() + self.future_ns) // MS_NS) * MS_NS)


def build_app(
    settings: ApiSettings,
    registries: Sequence[CollectorRegistry],  # the last one also counts what happens here
    readiness: Readiness,
    extra_metrics: ExtraMetrics,
    *,
    distributor: Distributor | None,
    asked: QueryDeps | None,
    guard: RequestGuard | None = None,  # one that other ways in share
    hosts: Hosts = ON_LOOPBACK,
    degraded: Degraded = nothing,
    shows_own: bool = True,  # False: the registries are in what `extra_metrics` gives
) -> ASGIApp:
    """With a distributor, profiles can be pushed; with the rest, queries are answered."""
    guard = guard or RequestGuard(settings, registries[-1])
    services: list[CallService] = []
    routes: list[Route] = []
    if distributor is not None:
        services.append(pusher_service(guard, distributor))  # first, since it is asked most
        routes += _ingest_routes(guard, distributor)
    if asked is not None:
        engine = PartlyEngine(asked.engine, registries[-1])
        services.append(_querier_service(guard, Querier(engine, asked.whole_range)))
        routes += [
            *admin_routes(
                guard,
                Admin(
                    asked.metastore,
                    engine,
                    asked.whole_range,
                    asked.causes,
                    asked.processes,
                    asked.disks,
                ),
            ),
            *_command_routes(guard, OperatorCommands(asked.metastore)),
            *_execution_routes(guard, PlanCommands(asked.metastore, asked.store, asked.addresses)),
            *_deletion_routes(guard, Deletions(guard, asked.metastore)),
            *_schedule_routes(guard, ScheduleRoutes(guard, asked.metastore)),
            *_repair_routes(guard, RepairCommands(guard, asked.metastore)),
            _placement_route(guard, PlacementView(asked.metastore, asked.placed)),
            *_store_routes(guard, StoreView(guard, asked.metastore)),
            Route("/", pages.page),
            Route("/ui/{path:path}", pages.asset),
        ]
    routes = [*_service_routes(services), *routes]
    shown = registries if shows_own else ()
    routes += health_routes(shown, readiness, extra_metrics, degraded)
    handlers: dict[Any, Any] = {
        HTTPException: partial(_http_error, services),
        Exception: _internal_error,
    }
    app = CallsFirst(services, Starlette(routes=routes, exception_handlers=handlers))
    return OurNames(Partly(app), hosts, guard)


def _querier_service(guard: RequestGuard, querier: Querier) -> CallService:
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
    calls = {
        name: Unary(guard, name, request_type, method)
        for name, (request_type, method) in methods.items()
    }
    return CallService(QUERIER, calls)


def _service_routes(services: list[CallService]) -> list[Route]:
    return [
        Route(f"/{service.name}/{name}", call, methods=["POST"])
        for service in services
        for name, call in service.calls.items()
    ]


def _ingest_routes(guard: RequestGuard, distributor: Distributor) -> list[Route]:
    ingest = Ingest(guard, "/ingest", distributor)
    return [
        Route("/ingest", ingest, methods=["POST"]),
        Route("/pyroscope/ingest", ingest, methods=["POST"]),
    ]


def admin_routes(guard: RequestGuard, admin: Admin) -> list[Route]:
    views = {
        "/api/v1/status": admin.status,
        "/api/v1/blocks": admin.blocks,
        "/api/v1/blocks/{id}": admin.block,
        "/api/v1/blocks/{id}/explain": admin.explain,
        "/api/v1/blocks/{id}/loss": admin.loss,
        "/api/v1/plans": admin.plans,
        "/api/v1/plans/{id}": admin.plan,
        "/api/v1/retention": admin.retention,
        "/api/v1/retention/preview": admin.retention_preview,
        "/api/v1/retention/{tenant}": admin.retention_of_tenant,
        "/api/v1/ring": admin.ring,
        "/api/v1/dead-letters": admin.letters,
        "/api/v1/dead-letters/{id:path}": admin.letter,
        "/api/v1/profiles/{id}": admin.profile,
        "/api/v1/top": admin.top,
    }
    return [
        Route(path, View(guard, path, answer), methods=["GET"]) for path, answer in views.items()
    ]


def _placement_route(guard: RequestGuard, view: PlacementView) -> Route:
    path = "/api/v1/placement"
    return Route(path, View(guard, path, view.placement), methods=["GET"])


def _command_routes(guard: RequestGuard, commands: OperatorCommands) -> list[Route]:
    requeue, exclude = "/api/v1/plans/{id}/requeue", "/api/v1/plans/{id}/exclude"
    limit, retention = "/api/v1/plans/limit", "/api/v1/retention/{tenant}"
    hold, release, undo = (f"/api/v1/retention/{verb}" for verb in ("hold", "release", "undo"))
    retry = "/api/v1/dead-letters/{id:path}/retry"
    remove, lose = "/api/v1/ring/remove", "/api/v1/blocks/{id}/lose"
    return [
        Route(
            requeue, CommandEndpoint(guard, requeue, Nothing, commands.requeue), methods=["POST"]
        ),
        Route(
            exclude, CommandEndpoint(guard, exclude, Exclusion, commands.exclude), methods=["POST"]
        ),
        Route(lose, CommandEndpoint(guard, lose, LoseBody, commands.lose), methods=["POST"]),
        Route(limit, CommandEndpoint(guard, limit, Limit, commands.limit), methods=["POST"]),
        Route(
            retention,
            CommandEndpoint(guard, retention, Period, commands.retention),
            methods=["PUT"],
        ),
        Route(hold, CommandEndpoint(guard, hold, Pause, commands.hold_retention), methods=["POST"]),
        Route(
            release,
            CommandEndpoint(guard, release, Nothing, commands.release_retention),
            methods=["POST"],
        ),
        Route(undo, CommandEndpoint(guard, undo, Pause, commands.undo_retention), methods=["POST"]),
        Route(
            retry, CommandEndpoint(guard, retry, Nothing, commands.retry_letter), methods=["POST"]
        ),
        Route(
            remove,
            CommandEndpoint(guard, remove, WriterRemoval, commands.remove_writer),
            methods=["POST"],
        ),
    ]


def _execution_routes(guard: RequestGuard, commands: PlanCommands) -> list[Route]:
    """Plans that anybody may schedule, execute and roll back."""
    plans, plan, executor = "/api/v1/plans", "/api/v1/plans/{id}", "/api/v1/executor"
    posts: dict[str, CommandEndpoint[Any]] = {
        path: CommandEndpoint(guard, path, kind, carry_out)
        for path, kind, carry_out in (
            (plans, ScheduleBody, commands.schedule),
            (f"{plan}/grant", GrantBody, commands.grant),
            (f"{plan}/run-now", RunNowBody, commands.run_now),
            (f"{plan}/renew", HeldLease, commands.renew),
            (f"{plan}/start", HeldLease, commands.start),
            (f"{plan}/fail", Failure, commands.fail),
            (f"{plan}/rollback", RollbackBody, commands.roll_back),
            ("/api/v1/clean", CleanBody, commands.clean),
        )
    }
    for name, kind, carry_out in (
        ("complete", Completion, commands.complete),
        ("confirm", ConfirmBody, commands.confirm),
        ("part", PartDone, commands.commit_part),
    ):
        path = f"{plan}/{name}"
        posts[path] = CommandEndpoint(guard, path, kind, carry_out, bytes_max=RESULT_BYTES_MAX)
    return [
        Route(executor, View(guard, executor, commands.executor), methods=["GET"]),
        *(Route(path, order, methods=["POST"]) for path, order in posts.items()),
    ]


def _store_routes(guard: RequestGuard, view: StoreView) -> list[Route]:
    path, remove = "/api/v1/stores", "/api/v1/stores/{name}/remove"
    damage = "/api/v1/stores/damage"
    hear = CommandEndpoint(guard, damage, UnreadCopies, view.hear, bytes_max=DAMAGE_BYTES_MAX)
    return [
        Route(damage, hear, methods=["POST"]),
        Route(path, View(guard, path, view.stores), methods=["GET"]),
        Route(remove, CommandEndpoint(guard, remove, StoreRemoval, view.remove), methods=["POST"]),
    ]


def _repair_routes(guard: RequestGuard, repairs: RepairCommands) -> list[Route]:
    path, asked = "/api/v1/repairs", "/api/v1/repairs/asked"
    return [
        Route(path, View(guard, path, repairs.status), methods=["GET"]),
        Route(path, CommandEndpoint(guard, path, RepairBody, repairs.ask), methods=["POST"]),
        Route(asked, View(guard, asked, repairs.last_asked), methods=["GET"]),
    ]


def _deletion_routes(guard: RequestGuard, deletions: Deletions) -> list[Route]:
    path = "/api/v1/deletions"
    return [
        Route(path, View(guard, path, deletions.pending), methods=["GET"]),
        Route(path, CommandEndpoint(guard, path, DeletionBody, deletions.delete), methods=["POST"]),
    ]


def _schedule_routes(guard: RequestGuard, schedule: ScheduleRoutes) -> list[Route]:
    jobs, policies, alarms = "/api/v1/schedule", "/api/v1/policies", "/api/v1/alarms"
    views = {
        jobs: schedule.jobs,
        f"{jobs}/explain": schedule.explain,
        policies: schedule.policies,
        f"{policies}/test": schedule.test,
        alarms: schedule.alarms,
    }
    commands: dict[str, CommandEndpoint[Any]] = {
        path: CommandEndpoint(guard, path, kind, carry_out)
        for path, kind, carry_out in (
            (f"{jobs}/remove", JobPattern, schedule.remove),
            (f"{jobs}/pause", PolicyBody, schedule.pause),
            (f"{jobs}/resume", JobPattern, schedule.resume),
            (policies, PolicyBody, schedule.add),
            (f"{policies}/{{id}}/remove", Nothing, schedule.remove_policy),
        )
    }
    return [
        *(
            Route(path, View(guard, path, answer), methods=["GET"])
            for path, answer in views.items()
        ),
        Route(jobs, CommandEndpoint(guard, jobs, JobScheduleBody, schedule.set), methods=["PUT"]),
        *(Route(path, order, methods=["POST"]) for path, order in commands.items()),
    ]


async def _http_error(services: list[CallService], request: Request, error: Exception) -> Any:
    """Answers for unknown routes and methods."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    answer = not_offered(services, request.scope, request.url.path) if status == 404 else None
    if answer is not None:
        return answer
    sentence = {
        404: f"there is nothing at {request.url.path[:200]}",
        405: f"{request.url.path[:200]} does not take {request.method[:20]}",
    }.get(status, "the request cannot be answered")
    code = "not_found" if status == 404 else "unimplemented"
    headers = error.headers if isinstance(error, HTTPException) else None
    return JSONResponse({"code": code, "message": sentence}, status, headers=headers)


async def _internal_error(request: Request, error: Exception) -> Response:
    log.error("request failed path=%s", request.url.path, exc_info=error)
    return json_error(ServerFault(FAULT))
