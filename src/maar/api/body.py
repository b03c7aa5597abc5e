"""Request bodies within bounds: each by itself, and all that are being read together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Receive, Scope

from maar.api.errors import EndlessBody, TooSlow
from maar.model.errors import InvalidInput, MalformedProfile, Overloaded, TooLarge, Unavailable
from maar.pprof.gzip import MAGIC, gunzip

READ_SECONDS_MAX = 30.0


class BodyShare:
    """What one request holds of the budget; counted in the event loop only."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.read_s = budget.read_s
        self.held = 0

    def take(self, size: int) -> None:
        budget = self._budget
        if budget.held + size > budget.bytes_max:
            raise Overloaded(
                f"requests being read hold {budget.held} bytes already, and the server allows "
                f"{budget.bytes_max}; send it again later"
            )
        budget.held += size
        self.held += size


class BodyBudget:
    """Bytes that all requests together may hold in memory."""

    def __init__(self, bytes_max: int, *, read_s: float = READ_SECONDS_MAX) -> None:
        self.bytes_max = bytes_max
        self.read_s = read_s  # a body that takes longer to arrive is given up
        self.held = 0

    @contextmanager
    def hold(self) -> Iterator[BodyShare]:
        hold = BodyShare(self)
        try:
            yield hold
        finally:
            self.held -= hold.held


async def read_body(scope: Scope, receive: Receive, *, limit: int, hold: BodyShare) -> bytes:
    """The whole body, or TooLarge as soon as it is known to be over the limit."""
    announced = header(scope, b"content-length")
    if announced.isdigit() and int(announced) > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(hold.read_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Unavailable("the client hung up before its body was complete")
                chunk, more = message.get("body", b""), message.get("more_body", False)
                size += len(chunk)
                if size > limit:
                    error = _too_large(limit)
                    raise EndlessBody(str(error)) if chunks or more else error
                hold.take(len(chunk))
                chunks.append(chunk)
                if not more:
                    return b"".join(chunks)  # a single one is not copied
    except TimeoutError as error:
        raise TooSlow(
            f"the body did not arrive within {hold.read_s:.0f} s; send it again"
        ) from error


def decompress(body: bytes, *, limit: int) -> bytes:
    """The body without its gzip, which is sniffed: headers get lost between agents and us."""
    if body[:2] != MAGIC:
        if len(body) > limit:
            raise _too_large(limit)
        return body
    try:
        return gunzip(body, limit=limit)
    except TooLarge as error:
        raise TooLarge(f"the request is over {limit} bytes when decompressed") from error
    except MalformedProfile as error:
        raise InvalidInput(str(error), reason=error.reason) from error


def header(scope: Scope, name: bytes) -> str:
    """A header's value, or ''; names are lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return str(value.decode("latin-1"))
    return ""


def all_headers(scope: Scope, name: bytes) -> list[str]:
    """Every value of a header, which may be given more than once."""
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the request's body is over the limit of {limit} bytes")
