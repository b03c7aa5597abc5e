"""Partial answers on request: damaged blocks are left out, and the answer says so.

Never by default, since a partial answer looks like a complete one. A client that accepts it says so
in the request, and the answer says how many blocks are missing, and from when to when.
"""

from __future__ import annotations

from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TypeVar
from urllib.parse import parse_qs

import msgspec
from prometheus_client import CollectorRegistry, Counter
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as HttpScope

from maar.api.body import header
from maar.model.errors import Damaged
from maar.model.ids import BlockId
from maar.model.time import SECOND_NS
from maar.ports.calls import Call, Caller
from maar.ports.reader.query import QueryEngine, ScopedCall

ASKED = b"x-maar-allow-partial"
PARAMETER = "allow_partial"
TOLD = "X-Maar-Partial"
ROUNDS_MAX = 10  # each leaves out every block that its error names
YES = ("1", "true", "yes")

R = TypeVar("R")


class MissingBlocks:
    """The blocks that one answer lacks, with the times of their first and last profiles."""

    def __init__(self) -> None:
        self.blocks: dict[str, tuple[int, int]] = {}

    def __str__(self) -> str:
        start, end = (
            min(first for first, _ in self.blocks.values()),
            max(last for _, last in self.blocks.values()),
        )
        return f"blocks={len(self.blocks)} from={_moment(start)} until={_moment(end)}"


_asked: ContextVar[MissingBlocks | None] = ContextVar("asked", default=None)


class PartlyEngine:
    """See ports.query.QueryEngine: the same, for requests that allow it without what is damaged."""

    def __init__(self, engine: Caller[QueryEngine], registry: CollectorRegistry) -> None:
        self._engine = engine
        self._answers = Counter(
            "maar_api_partial_answers",
            "Answers without the profiles of damaged blocks, to requests that allow it",
            registry=registry,
        )

    async def call(self, request: Call[QueryEngine, R], /) -> R:
        missing = _asked.get()
        if missing is not None and isinstance(request, ScopedCall):  # of one profile is no part
            return await self._left(request, missing)
        return await self._engine.call(request)

    async def _left(self, request: ScopedCall[R], missing: MissingBlocks) -> R:
        for _ in range(ROUNDS_MAX):
            try:
                answer: R = await self._engine.call(request)
            except Damaged as error:
                if not error.blocks:
                    raise
                missing.blocks.update({block: (first, last) for block, first, last in error.blocks})
                without = tuple(BlockId(block) for block in missing.blocks)
                scope = msgspec.structs.replace(request.scope, without=without)
                request = msgspec.structs.replace(request, scope=scope)
            else:
                self._answers.inc(1 if request.scope.without else 0)
                return answer
        return await self._engine.call(request)


class Partly:
    """An application whose answers say what they lack, where the request allows that."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: HttpScope, receive: Receive, send: Send) -> None:
        # Said of every request: one that is pipelined begins in the context of the one before it.
        missing = MissingBlocks() if scope["type"] == "http" and _allows(scope) else None

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start" and missing and missing.blocks:
                mark = (TOLD.lower().encode(), str(missing).encode())
                message["headers"] = [*message.get("headers", ()), mark]
            await send(message)

        token = _asked.set(missing)
        try:
            await self.app(scope, receive, send_marked if missing else send)
        finally:
            _asked.reset(token)


def _allows(scope: HttpScope) -> bool:
    given = header(scope, ASKED)
    if not given and (asked := scope.get("query_string", b"")):
        query = parse_qs(asked.decode(errors="replace"))
        given = query.get(PARAMETER, [""])[-1]
    return given.strip().lower() in YES


def _moment(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // SECOND_NS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
