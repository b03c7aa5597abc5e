"""What every endpoint shares: the tenant, limits on input, and how errors are answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from maar.api.body import READ_SECONDS_MAX, BodyBudget, BodyShare, all_headers, decompress
from maar.api.errors import Forbidden, json_error
from maar.api.hosts import Hosts, refusal
from maar.api.settings import ApiSettings
from maar.background import Threads
from maar.model.errors import InvalidInput, MaarError, TooLarge
from maar.model.ids import ANONYMOUS, TenantId, tenant_id

# Beyond these, bodies are unpacked and parsed in a thread, so that others are served meanwhile.
INLINE_BYTES_MAX = 512 << 10
INLINE_EXPANDED_BYTES_MAX = 4 << 20
THREADS = 2

T = TypeVar("T")


class RequestGuard:
    def __init__(
        self,
        settings: ApiSettings,
        registry: CollectorRegistry,
        *,
        inline_bytes_max: int = INLINE_BYTES_MAX,
        body_read_s: float = READ_SECONDS_MAX,
    ) -> None:
        self.settings = settings
        self._inline_bytes_max = inline_bytes_max
        self.budget = BodyBudget(settings.reading_bytes_max, read_s=body_read_s)
        self._threads = Threads(THREADS, "api")
        self._errors = Counter(
            "maar_api_errors",
            "Requests answered with an error",
            ["route", "status", "reason"],
            registry=registry,
        )

    def tenant(self, scope: Scope) -> TenantId:
        """The tenant of a request; two are refused, since a client's could override its proxy's."""
        given = all_headers(scope, b"x-scope-orgid")
        if len(given) > 1:
            raise InvalidInput(
                f"the request has {len(given)} X-Scope-OrgID headers; a proxy that sets the tenant "
                "must replace the client's header, not add another",
                reason="tenant",
            )
        return tenant_id(given[0]) if given and given[0] else ANONYMOUS

    async def parse(self, size: int, call: Callable[..., T], *arguments: Any) -> T:
        """Run a parser: inline when the input is small, else in a thread."""
        if size <= self._inline_bytes_max:
            return call(*arguments)
        return await self._threads.do(call, *arguments)

    async def decompress(self, body: bytes, *, limit: int, hold: BodyShare) -> bytes:
        """The decompressed body, counted in the budget. One that grows large is unpacked in a
        thread.
        """
        raw: bytes | None = None
        if len(body) <= self._inline_bytes_max:
            try:
                raw = decompress(body, limit=min(limit, INLINE_EXPANDED_BYTES_MAX))
            except TooLarge:
                if limit <= INLINE_EXPANDED_BYTES_MAX:
                    raise
        if raw is None:
            raw = await self._threads.do(lambda: decompress(body, limit=limit))
        if raw is not body:
            hold.take(len(raw))
        return raw

    def count(self, route: str, status: int | str, error: MaarError) -> None:
        reason = error.reason if isinstance(error, InvalidInput) else type(error).__name__.lower()
        self._errors.labels(route, str(status), reason.strip("_")).inc()


class OurNames:
    """An application that answers only to our host names, and only our own pages may change."""

    def __init__(self, app: ASGIApp, hosts: Hosts, guard: RequestGuard) -> None:
        self.app = app
        self._hosts = hosts
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        why = refusal(
            self._hosts,
            scope["method"],
            all_headers(scope, b"host"),
            all_headers(scope, b"origin"),
        )
        if not why:
            await self.app(scope, receive, send)
            return
        error = Forbidden(why)
        self._guard.count("any", 403, error)
        await json_error(error)(scope, receive, send)


class Endpoint:
    """One route as a bare ASGI application; our errors become answers here."""

    def __init__(self, guard: RequestGuard, route: str) -> None:
        self.guard = guard
        self.route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self.respond(scope, receive)
        except MaarError as error:
            response = self.refuse(error)
            self.guard.count(self.route, response.status_code, error)
        await response(scope, receive, send)

    async def respond(self, scope: Scope, receive: Receive) -> Response:
        raise NotImplementedError

    def refuse(self, error: MaarError) -> Response:
        return json_error(error)
