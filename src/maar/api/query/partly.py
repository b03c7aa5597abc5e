"""Questions that ask for what is left: damaged blocks are left out, and the answer says so.

Never by default: half an answer looks like a whole one. Whoever can live with it says so in the
request, and is told in the answer how many blocks are missing, and from when to when.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TypeVar
from urllib.parse import parse_qs

import msgspec
from prometheus_client import CollectorRegistry, Counter
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Call

from maar.api.body import header
from maar.model.errors import Damaged
from maar.model.ids import BlockId, ProfileId, TenantId
from maar.model.labels import Labels
from maar.model.time import SECOND_NS, TimeRange
from maar.ports.query import FlameGraph, QueryEngine, Scope, SeriesPoints, Top

ASKED = b"x-maar-allow-partial"
PARAMETER = "allow_partial"
TOLD = "X-Maar-Partial"
ROUNDS_MAX = 10  # each leaves out every block that its error names
YES = ("1", "true", "yes")

T = TypeVar("T")


class Missing:
    """The blocks that one answer lacks, with the times of their first and last profiles."""

    def __init__(self) -> None:
        self.blocks: dict[str, tuple[int, int]] = {}

    def __str__(self) -> str:
        start, end = (
            min(first for first, _ in self.blocks.values()),
            max(last for _, last in self.blocks.values()),
        )
        return f"blocks={len(self.blocks)} from={_moment(start)} until={_moment(end)}"


_asked: ContextVar[Missing | None] = ContextVar("asked", default=None)


class PartlyEngine:
    """See ports.query.QueryEngine: the same, for requests that allow it without what is damaged."""

    def __init__(self, engine: QueryEngine, registry: CollectorRegistry) -> None:
        self._engine = engine
        self._answers = Counter(
            "maar_api_partial_answers",
            "Answers without the profiles of damaged blocks, to requests that allow it",
            registry=registry,
        )

    async def profile_types(self, scope: Scope) -> tuple[str, ...]:
        return await self._left(scope, self._engine.profile_types)

    async def label_names(self, scope: Scope) -> tuple[str, ...]:
        return await self._left(scope, self._engine.label_names)

    async def label_values(self, scope: Scope, *, name: str) -> tuple[str, ...]:
        return await self._left(scope, lambda left: self._engine.label_values(left, name=name))

    async def series(self, scope: Scope, *, label_names: tuple[str, ...]) -> tuple[Labels, ...]:
        return await self._left(
            scope, lambda left: self._engine.series(left, label_names=label_names)
        )

    async def flamegraph(self, scope: Scope, *, profile_type: str, max_nodes: int) -> FlameGraph:
        return await self._left(
            scope,
            lambda left: self._engine.flamegraph(
                left, profile_type=profile_type, max_nodes=max_nodes
            ),
        )

    async def top(self, scope: Scope, *, profile_type: str, limit: int) -> Top:
        return await self._left(
            scope, lambda left: self._engine.top(left, profile_type=profile_type, limit=limit)
        )

    async def select_series(
        self,
        scope: Scope,
        *,
        profile_type: str,
        group_by: tuple[str, ...],
        step_ns: int,
        aggregation: str,
        limit: int,
    ) -> tuple[SeriesPoints, ...]:
        return await self._left(
            scope,
            lambda left: self._engine.select_series(
                left,
                profile_type=profile_type,
                group_by=group_by,
                step_ns=step_ns,
                aggregation=aggregation,
                limit=limit,
            ),
        )

    async def profile(self, tenant: TenantId, profile: ProfileId, hint: TimeRange) -> bytes:
        """Of one profile there is no part."""
        return await self._engine.profile(tenant, profile, hint)

    async def _left(self, scope: Scope, ask: Callable[[Scope], Awaitable[T]]) -> T:
        missing = _asked.get()
        for _ in range(ROUNDS_MAX):
            try:
                answer = await ask(scope)
            except Damaged as error:
                if missing is None or not error.blocks:
                    raise
                missing.blocks.update({block: (first, last) for block, first, last in error.blocks})
                without = tuple(BlockId(block) for block in missing.blocks)
                scope = msgspec.structs.replace(scope, without=without)
            else:
                self._answers.inc(1 if scope.without else 0)
                return answer
        return await ask(scope)


class Partly:
    """An application whose answers say what they lack, where the request allows that."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Call, receive: Receive, send: Send) -> None:
        # Said of every request: one that is pipelined begins in the context of the one before it.
        missing = Missing() if scope["type"] == "http" and _allows(scope) else None

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start" and missing and missing.blocks:
                mark = (TOLD.lower().encode(), str(missing).encode())
                message["headers"] = [*message.get("headers", ()), mark]
            await send(message)

        token = _asked.set(missing)
        try:
            await self._app(scope, receive, told if missing else send)
        finally:
            _asked.reset(token)


def _allows(scope: Call) -> bool:
    given = header(scope, ASKED)
    if not given:
        query = parse_qs(scope.get("query_string", b"").decode(errors="replace"))
        given = query.get(PARAMETER, [""])[-1]
    return given.strip().lower() in YES


def _moment(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // SECOND_NS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
