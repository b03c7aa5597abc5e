"""Connect's unary calls over HTTP/1.1: a message in, a message out, as protobuf or JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from starlette.responses import Response
from starlette.types import Receive, Scope

from maar.api.body import Hold, header, read_body
from maar.api.door import Door, Endpoint
from maar.api.errors import UnsupportedMedia
from maar.api.wire import json_of
from maar.model.errors import InvalidInput
from maar.model.ids import TenantId

PROTO = "application/proto"
JSON = "application/json"

# What a method gives: its message, and headers to send along.
Reply = tuple[Any, dict[str, str] | None]
Method = Callable[[TenantId, Any], Awaitable[Reply]]


class RequestLimits(msgspec.Struct, frozen=True):
    """Bytes of one request: as it comes, and expanded.

    Expanded JSON has its own, since a byte of it may become thirty bytes of Python objects.
    """

    body: int = 1 << 20
    proto: int = 4 << 20
    json: int = 4 << 20


class Unary(Endpoint):
    """One method of one service. `check` sees the protobuf bytes before they are parsed."""

    def __init__(
        self,
        door: Door,
        route: str,
        request_type: Any,
        method: Method,
        *,
        limits: RequestLimits = RequestLimits(),  # noqa: B008 - frozen
        check: Callable[[bytes], None] | None = None,
    ) -> None:
        super().__init__(door, route)
        self._request_type = request_type
        self._method = method
        self._limits = limits
        self._check = check

    async def respond(self, scope: Scope, receive: Receive) -> Response:
        tenant = self.door.tenant(scope)
        codec = _codec(scope)
        with self.door.budget.hold() as hold:
            body = await read_body(scope, receive, limit=self._limits.body, hold=hold)
            reply, headers = await self.call(tenant, codec, body, hold)
        if codec == JSON:
            size = reply.ByteSize()
            content = await self.door.parsed(size, lambda: msgspec.json.encode(json_of(reply)))
        else:
            content = reply.SerializeToString()
        return Response(content, headers=headers, media_type=codec)

    async def call(self, tenant: TenantId, codec: str, body: bytes, hold: Hold) -> Reply:
        """What the method gives for a body that is here, gzip or not, and counted in."""
        limit = self._limits.proto if codec == PROTO else self._limits.json
        raw = await self.door.expanded(body, limit=limit, hold=hold)
        request = await self.door.parsed(len(raw), self._parse, codec, raw)
        return await self._method(tenant, request)

    def _parse(self, codec: str, raw: bytes) -> Any:
        try:
            if codec == PROTO:
                if self._check is not None:
                    self._check(raw)
                return self._request_type.FromString(raw)
            return json_format.Parse(raw, self._request_type(), ignore_unknown_fields=True)
        except (DecodeError, json_format.ParseError, ValueError, RecursionError) as error:
            raise InvalidInput(
                f"the request is not a {self._request_type.DESCRIPTOR.full_name} in {codec}: "
                f"{str(error)[:200]}",
                reason="request",
            ) from error


def _codec(scope: Scope) -> str:
    encoding = header(scope, b"content-encoding").strip().lower()
    if encoding not in ("", "identity", "gzip"):
        raise UnsupportedMedia(f"content-encoding {encoding[:60]!r} is not read here; use gzip")
    kind = header(scope, b"content-type").partition(";")[0].strip().lower()
    if kind not in (PROTO, JSON):
        raise UnsupportedMedia(
            f"content-type {kind[:60]!r} is not read here; use {PROTO} or {JSON}"
        )
    return kind
