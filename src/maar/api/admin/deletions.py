"""/api/v1/deletions: what was pushed so far of a service or a tenant is deleted (S8)."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from maar.api.guard import RequestGuard
from maar.model.errors import InvalidInput
from maar.model.ids import TenantId, tenant_id
from maar.model.plain import plain
from maar.model.predicate import EVER_NS, Mask
from maar.ports.calls import Caller
from maar.ports.metastore.metastore import Metastore
from maar.ports.operator.deletions import DeleteProfiles, Deletion, ListDeletions, PendingDeletion

MS_NS = 1_000_000

Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=EVER_NS // MS_NS)]


class DeletionBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be deleted; all services of a tenant only when that is said."""

    service: str = ""
    all_services: bool = False
    tenant: str = ""  # else the one of the request
    from_ms: Milliseconds = 0  # included; both by the time of a profile
    until_ms: Milliseconds | None = None  # excluded; None: whatever the time
    dry_run: bool = False
    request_id: str = ""  # the same again gets the same answer, and deletes nothing more


class Deletions:
    def __init__(self, guard: RequestGuard, metastore: Caller[Metastore]) -> None:
        self._guard = guard
        self._metastore = metastore

    async def delete(self, request: Request, asked: DeletionBody) -> Any:
        if bool(asked.service) == asked.all_services:
            raise InvalidInput("name a service, or say all_services", reason="request")
        tenant = tenant_id(asked.tenant) if asked.tenant else self._guard.tenant(request.scope)
        until_ns = EVER_NS if asked.until_ms is None else asked.until_ms * MS_NS
        mask = Mask(tenant, asked.service, asked.from_ms * MS_NS, until_ns)
        call = DeleteProfiles(mask, asked.dry_run, asked.request_id)
        return _as_json(await self._metastore.call(call))

    async def pending(self, _tenant: TenantId, _request: Request) -> Response:
        found = await self._metastore.call(ListDeletions())
        return JSONResponse({"deletions": [_pending(each) for each in found]})


def _as_json(made: Deletion) -> dict[str, Any]:
    """Ids are text, as those of plans."""
    name = None if made.predicate is None else str(made.predicate)
    told: dict[str, Any] = plain(made)
    return {**told, "predicate": name}


def _pending(each: PendingDeletion) -> dict[str, Any]:
    mask = each.mask
    return {
        "predicate": str(each.predicate),
        "tenant": mask.tenant,
        "service": mask.service,
        "from_ms": mask.from_ns // MS_NS,
        "until_ms": None if mask.until_ns == EVER_NS else mask.until_ns // MS_NS,
        "waits_for": each.waits,
    }
