"""Unary calls: a message in, a message out, by Connect, gRPC or gRPC-Web, as protobuf or JSON.

Connect and gRPC-Web come over HTTP/1.1 and HTTP/2, gRPC over HTTP/2. The content type says which.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack
from typing import Any, NamedTuple

import msgspec
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from maar.api.body import BodyShare, header, read_body
from maar.api.errors import (
    FAULT,
    ServerFault,
    TooLate,
    Unimplemented,
    UnsupportedMedia,
    answer_to,
    json_error,
)
from maar.api.guard import RequestGuard
from maar.api.protocol.grpc import (
    PREFIX_BYTES,
    Framing,
    GrpcAnswer,
    framing_of,
    grpc_error,
    message_in,
    timeout_s_of,
)
from maar.api.protocol.json_request import parse_json
from maar.api.protocol.wire import Prepared, json_of
from maar.model.errors import InvalidInput, MaarError, Unavailable
from maar.model.ids import TenantId

log = logging.getLogger("maar.api")

PROTO = "application/proto"
JSON = "application/json"
PART_BYTES = 32  # of a message, for each of its parts
LISTEN_AFTER_S = 0.02  # before this, whether the client is still there is not asked: most are done

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


class Spoken(NamedTuple):
    """The client's protocol: Connect, unless its content type is one of gRPC's."""

    content_type: str
    framing: Framing | None
    codec: str

    @property
    def label(self) -> str:
        """Before the route, in metrics."""
        if self.framing is None:
            return ""
        return "grpc-web:" if self.framing.web else "grpc:"

    def answer(self, content: bytes, headers: dict[str, str] | None) -> ASGIApp:
        if self.framing is not None:
            return GrpcAnswer(self.framing, content, headers)
        return Response(content, headers=headers, media_type=self.codec)

    def refusal(self, error: MaarError) -> tuple[str, ASGIApp]:
        """The status as it is counted, and the answer."""
        answer = answer_to(error)
        if self.framing is None:
            return str(answer.status), json_error(error)
        return answer.code.upper(), grpc_error(self.framing, error)


def protocol_of(scope: Scope) -> Spoken:
    """As the answer must have it; gRPC over HTTP/1.1 cannot be answered in its own way."""
    kind = header(scope, b"content-type").partition(";")[0].strip().lower()
    framing = framing_of(kind)
    if framing is not None and not framing.web and scope["http_version"] != "2":
        framing = None
    is_json = kind == JSON if framing is None else framing.json
    return Spoken(kind, framing, JSON if is_json else PROTO)


def check_media(spoken: Spoken, scope: Scope) -> None:
    """UnsupportedMedia, unless the request can be read as what it says it is."""
    kind = spoken.content_type
    if spoken.framing is not None:
        return
    known = kind in (PROTO, JSON)
    if not known and framing_of(kind) is not None:
        raise UnsupportedMedia(f"{kind} is not read here without HTTP/2; use {PROTO}, or gRPC-Web")
    encoding = header(scope, b"content-encoding").strip().lower()
    if encoding not in ("", "identity", "gzip"):
        raise UnsupportedMedia(f"content-encoding {encoding[:60]!r} is not read here; use gzip")
    if not known:
        raise UnsupportedMedia(
            f"content-type {kind[:60]!r} is not read here; use {PROTO} or {JSON}"
        )


class Unary:
    """One method of one service. `check` sees the protobuf bytes before they are parsed."""

    def __init__(
        self,
        guard: RequestGuard,
        route: str,
        request_type: Any,
        method: Method,
        *,
        limits: RequestLimits = RequestLimits(),  # noqa: B008 - frozen
        check: Callable[[bytes], None] | None = None,
        finishes: bool = False,  # also when its client is gone, or has waited long enough
    ) -> None:
        self.guard = guard
        self.route = route
        self._request_type = request_type
        self._method = method
        self._limits = limits
        self._check = check
        self._finishes = finishes
        self._left: set[asyncio.Task[Reply]] = set()  # their clients are gone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        spoken = protocol_of(scope)
        response: ASGIApp
        try:
            response = await self._respond(spoken, scope, receive)
        except MaarError as error:
            response = self._refuse(spoken, error)
        except Exception:  # a bug in one call must not end others
            log.exception("call failed route=%s", self.route)
            response = self._refuse(spoken, ServerFault(FAULT))
        await response(scope, receive, send)

    def _refuse(self, spoken: Spoken, error: MaarError) -> ASGIApp:
        status, response = spoken.refusal(error)
        self.guard.count(f"{spoken.label}{self.route}", status, error)
        return response

    async def _respond(self, spoken: Spoken, scope: Scope, receive: Receive) -> ASGIApp:
        tenant = self.guard.tenant(scope)
        check_media(spoken, scope)
        deadline_s = _deadline_s(spoken, scope)
        with ExitStack() as stack:
            hold = stack.enter_context(self.guard.budget.hold())
            limit = self._limits.body
            if spoken.framing is not None:
                limit = limit * (4 if spoken.framing.text else 3) // 3 + PREFIX_BYTES
            body = await read_body(scope, receive, limit=limit, hold=hold)
            if spoken.framing is not None:
                encoding = header(scope, b"grpc-encoding").strip().lower()
                body = message_in(spoken.framing, body, encoding=encoding)
            work = self._work(stack.pop_all(), tenant, spoken.codec, body, hold)
        del body  # a push waits for its segment, and many wait at once: nobody keeps it twice
        if not self._finishes:
            reply, headers = await _while_wanted(work, receive, deadline_s)
        elif deadline_s is None:
            reply, headers = await work
        else:
            reply, headers = await self._in_time(work, deadline_s)
        return spoken.answer(await self._encode(spoken.codec, reply), headers)

    async def _encode(self, codec: str, reply: Any) -> bytes:
        if isinstance(reply, Prepared):
            size = PART_BYTES * reply.parts
            if codec != JSON:
                return await self.guard.parse(size, lambda: _serialize(reply.message()))
            size = 0 if reply.json_is_text else size
            return await self.guard.parse(size, lambda: msgspec.json.encode(reply.json()))
        if codec == JSON:
            size = reply.ByteSize()
            return await self.guard.parse(size, lambda: msgspec.json.encode(json_of(reply)))
        return _serialize(reply)

    async def _work(
        self, held: ExitStack, tenant: TenantId, codec: str, body: bytes, hold: BodyShare
    ) -> Reply:
        """What the method gives for a body that is here, gzip or not, and counted in."""
        with held:
            limit = self._limits.proto if codec == PROTO else self._limits.json
            raw = await self.guard.decompress(body, limit=limit, hold=hold)
            del body
            request = await self.guard.parse(len(raw), self._parse, codec, raw)
            del raw
            reply = self._method(tenant, request)
            del request
            return await reply

    async def _in_time(self, work: Coroutine[Any, Any, Reply], deadline_s: float) -> Reply:
        """The reply of a push, which continues when its client's deadline has passed: its bytes
        stay counted.
        """
        task = asyncio.create_task(work)
        try:
            await asyncio.wait({task}, timeout=deadline_s)
        except asyncio.CancelledError:  # the server ends
            task.cancel()
            raise
        if task.done():
            return task.result()
        self._left.add(task)
        task.add_done_callback(self._over)
        raise _too_late(deadline_s)

    def _over(self, task: asyncio.Task[Reply]) -> None:
        self._left.discard(task)
        if not task.cancelled():
            task.exception()  # mark it as retrieved: nobody waits for it

    def _parse(self, codec: str, raw: bytes) -> Any:
        try:
            if codec == PROTO:
                if self._check is not None:
                    self._check(raw)
                return self._request_type.FromString(raw)
            return parse_json(raw, self._request_type)
        except (DecodeError, json_format.ParseError, ValueError, RecursionError) as error:
            raise InvalidInput(
                f"the request is not a {self._request_type.DESCRIPTOR.full_name} in {codec}: "
                f"{str(error)[:200]}",
                reason="request",
            ) from error


def _serialize(message: Any) -> bytes:
    content: bytes = message.SerializeToString()
    return content


class CallService(NamedTuple):
    """The one declaration of a service: its calls, by name, in every protocol."""

    name: str
    calls: dict[str, Unary]


class CallsFirst:
    """An application whose calls are found by their paths, before it looks for any other route."""

    def __init__(self, services: list[CallService], app: ASGIApp) -> None:
        self.app = app
        self._calls = {
            f"/{service.name}/{name}": call
            for service in services
            for name, call in service.calls.items()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_call = scope["type"] == "http" and scope["method"] == "POST"
        answer = self._calls.get(scope["path"]) if is_call else None
        await (answer or self.app)(scope, receive, send)


def not_offered(services: list[CallService], scope: Scope, path: str) -> ASGIApp | None:
    """The answer to a call that there is not, in its own protocol; None for other paths."""
    service, _, method = path.strip("/").partition("/")
    framing = protocol_of(scope).framing
    if framing is None and ("." not in service or not method or "/" in method):
        return None
    calls = {one.name: ", ".join(one.calls) for one in services}.get(service)
    error = Unimplemented(
        f"{method[:60]} is not offered; there are {calls}"
        if calls
        else f"there is nothing at {path[:200]}"
    )
    return json_error(error) if framing is None else grpc_error(framing, error)


async def _while_wanted(
    work: Coroutine[Any, Any, Reply], receive: Receive, deadline_s: float | None
) -> Reply:
    """The reply, unless the client's deadline passes or the client disconnects before: then the
    work is cancelled.
    """
    loop = asyncio.get_running_loop()
    listening: asyncio.Task[None] | None = None
    patience = asyncio.timeout(deadline_s)
    try:
        async with patience:

            def listen() -> None:
                nonlocal listening
                listening = loop.create_task(_end_on_hang_up(receive, patience))

            starting = loop.call_later(LISTEN_AFTER_S, listen)
            try:
                return await work
            finally:
                starting.cancel()
                if listening is not None:
                    listening.cancel()
    except TimeoutError:
        if not patience.expired():
            raise
        if listening is not None and listening.done() and not listening.cancelled():
            raise Unavailable("the client hung up before it was answered") from None
        raise _too_late(deadline_s or 0.0) from None


async def _end_on_hang_up(receive: Receive, patience: asyncio.Timeout) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    patience.reschedule(asyncio.get_running_loop().time())


def _too_late(deadline_s: float) -> TooLate:
    return TooLate(f"there was no answer within the {deadline_s:g} s that the client gave it")


def _deadline_s(spoken: Spoken, scope: Scope) -> float | None:
    if spoken.framing is not None:
        return timeout_s_of(header(scope, b"grpc-timeout"))
    text = header(scope, b"connect-timeout-ms")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise InvalidInput(f"connect-timeout-ms {text[:40]!r} is no number", reason="request")
    return int(text) / 1000
