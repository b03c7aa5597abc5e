"""/api/v1/repairs: how repairs are getting on, and one now."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from maar.api.admin.schedule import time_text
from maar.api.guard import RequestGuard
from maar.model.ids import TenantId, tenant_id
from maar.model.plain import plain
from maar.model.plan import JobId
from maar.model.repair import RepairType
from maar.ports.calls import Caller
from maar.ports.metastore.metastore import Metastore
from maar.ports.operator.repairs import AskRepair, GetAskedRepair, ListRepairs, RepairTold
from maar.services.repair.rules import REPAIR


class RepairBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A repair of a tenant, now; or an end of one that goes on."""

    tenant: str = ""  # else the one of the request
    type: str = RepairType.VNODE
    dry_run: bool = False
    cancel: bool = False


class RepairCommands:
    def __init__(self, guard: RequestGuard, metastore: Caller[Metastore]) -> None:
        self._guard = guard
        self._metastore = metastore

    async def ask(self, request: Request, asked: RepairBody) -> Any:
        tenant = tenant_id(asked.tenant) if asked.tenant else self._guard.tenant(request.scope)
        job = JobId(tenant, REPAIR, asked.type)
        call = AskRepair(job, wanted=not asked.cancel, dry_run=asked.dry_run)
        return as_json(await self._metastore.call(call))

    async def last_asked(self, tenant: TenantId, request: Request) -> Response:
        """The last one that somebody asked for: what came of it so far."""
        query = request.query_params
        whose = tenant_id(query["tenant"]) if query.get("tenant") else tenant
        job = JobId(whose, REPAIR, query.get("type", RepairType.VNODE))
        return JSONResponse(as_json(await self._metastore.call(GetAskedRepair(job))))

    async def status(self, _tenant: TenantId, request: Request) -> Response:
        found = await self._metastore.call(ListRepairs(request.query_params.get("tenant", "")))
        jobs = [
            {**plain(job), "max_repaired_at": time_text(job.max_repaired_at)} for job in found.jobs
        ]
        return JSONResponse({"jobs": jobs, "lost": plain(found.lost)})


def as_json(found: RepairTold) -> dict[str, Any]:
    name = f"{found.job.tenant}/{found.job.type}"
    rest: dict[str, Any] = plain(found)
    return {**rest, "job": name, "tenant": found.job.tenant, "type": found.job.type}
