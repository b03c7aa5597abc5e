"""/api/v1, the part that changes something: operator commands as JSON bodies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope

from maar.api.admin.admin import period_of, retention_of
from maar.api.body import header, read_body
from maar.api.errors import UnsupportedMedia
from maar.api.guard import Endpoint, RequestGuard
from maar.model.errors import InvalidInput, NotFound
from maar.model.ids import BlockId, NodeId, PlanId, Zone, tenant_id
from maar.model.plain import plain
from maar.model.time import SECOND_NS
from maar.ports.calls import Caller
from maar.ports.operator.dead_letters import RetryLetter
from maar.ports.operator.operator import (
    ExcludePlan,
    LoseBlock,
    Operator,
    RaiseLimit,
    RemoveWriter,
    RequeuePlan,
)
from maar.ports.operator.retention import (
    HoldRetention,
    ReleaseRetention,
    SetRetention,
    UndoRetention,
)
from maar.ports.writer.membership import ListRings

BODY_BYTES_MAX = 64 << 10

Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e10)]  # about 300 years


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command without parameters."""


class Exclusion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: str


class Limit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often plans may fail, for how long; 0 seconds: back to the limit of the settings."""

    for_s: Seconds
    limit: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0


class Period(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long a tenant's profiles are kept; 0: for ever, null: as long as everybody else's."""

    period_s: Seconds | None


class LoseBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A block to give up; with force also one that is intact."""

    reason: str = ""
    force: bool = False


class Pause(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why retention is put on hold; for an undo, whose blocks come back ('': all)."""

    reason: str = ""
    tenant: str = ""


class WriterRemoval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A segment writer that will not come back; '' is the zone that has it, if only one has."""

    node: str
    zone: str = ""


Body = TypeVar("Body", bound=msgspec.Struct)


class CommandEndpoint(Endpoint, Generic[Body]):
    """A route that changes something.

    Its body has to say that it is JSON: a page of another site cannot send that without asking
    first, and is not answered.
    """

    def __init__(
        self,
        guard: RequestGuard,
        route: str,
        kind: type[Body],
        carry_out: Callable[[Request, Body], Awaitable[Any]],
        *,
        bytes_max: int = BODY_BYTES_MAX,
    ) -> None:
        super().__init__(guard, route)
        self._kind = kind
        self._carry_out = carry_out
        self._bytes_max = bytes_max

    async def respond(self, scope: Scope, receive: Receive) -> Response:
        content = header(scope, b"content-type").partition(";")[0].strip().lower()
        if content != "application/json":
            raise UnsupportedMedia(
                f"content-type {content[:60]!r} is not read here; use application/json"
            )
        with self.guard.budget.hold() as hold:
            body = await read_body(scope, receive, limit=self._bytes_max, hold=hold)
        try:
            asked = msgspec.json.decode(body or b"{}", type=self._kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidInput(
                f"the body is not what {self.route} takes: {error}", reason="request"
            ) from error
        answer = await self._carry_out(Request(scope), asked)
        return answer if isinstance(answer, Response) else JSONResponse(answer)


class OperatorCommands:
    def __init__(self, metastore: Caller[Operator]) -> None:
        self._metastore = metastore

    async def requeue(self, request: Request, _asked: Nothing) -> Any:
        return plain(await self._metastore.call(RequeuePlan(_plan(request))))

    async def exclude(self, request: Request, asked: Exclusion) -> Any:
        if not asked.reason.strip():
            raise InvalidInput("a reason is required: it is shown with the plan", reason="request")
        return plain(await self._metastore.call(ExcludePlan(_plan(request), asked.reason)))

    async def lose(self, request: Request, asked: LoseBody) -> Any:
        block = BlockId(request.path_params["id"])
        loss = await self._metastore.call(LoseBlock(block, asked.reason, asked.force))
        return plain(loss)

    async def limit(self, _request: Request, asked: Limit) -> Any:
        for_ns = int(asked.for_s * SECOND_NS)
        until = await self._metastore.call(RaiseLimit(asked.limit, for_ns))
        return {"limit": asked.limit, "for_s": asked.for_s, "until_lease_time": until}

    async def retry_letter(self, request: Request, _asked: Nothing) -> Any:
        return plain(await self._metastore.call(RetryLetter(request.path_params["id"])))

    async def retention(self, request: Request, asked: Period) -> Any:
        tenant = tenant_id(request.path_params["tenant"])
        period_ns = None if asked.period_s is None else int(asked.period_s * SECOND_NS)
        return period_of(await self._metastore.call(SetRetention(tenant, period_ns)), tenant)

    async def hold_retention(self, _request: Request, asked: Pause) -> Any:
        return retention_of(await self._metastore.call(HoldRetention(asked.reason)))

    async def release_retention(self, _request: Request, _asked: Nothing) -> Any:
        return retention_of(await self._metastore.call(ReleaseRetention()))

    async def undo_retention(self, _request: Request, asked: Pause) -> Any:
        tenant = tenant_id(asked.tenant) if asked.tenant else ""
        undone = await self._metastore.call(UndoRetention(tenant, asked.reason))
        return plain(undone)

    async def remove_writer(self, _request: Request, asked: WriterRemoval) -> Any:
        node = NodeId(asked.node)
        zone = Zone(asked.zone) if asked.zone else await self._zone_of(node)
        ring = await self._metastore.call(RemoveWriter(zone, node))
        return {
            "zone": ring.zone,
            "changed_at": ring.changed_at,
            "writers": len(ring.writers),
            "shards": len(ring.owners),
        }

    async def _zone_of(self, node: NodeId) -> Zone:
        rings = [view.ring for view in await self._metastore.call(ListRings())]
        zones = [ring.zone for ring in rings if any(w.node == node for w in ring.writers)]
        if not zones:
            raise NotFound(f"there is no writer {node[:60]!r} in any zone")
        if len(zones) > 1:
            raise InvalidInput(
                f"the zones {', '.join(zones)} have a writer {node}; say which you mean",
                reason="request",
            )
        return zones[0]


def _plan(request: Request) -> PlanId:
    return PlanId.parse(request.path_params["id"])
