"""Request bodies within bounds: each by itself, and all that are being read together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.types import Receive, Scope

from maar.api.errors import EndlessBody, TooSlow
from maar.model.errors import InvalidInput, MalformedProfile, Overloaded, TooLarge, Unavailable
from maar.pprof.gzip import MAGIC, gunzip

READ_SECONDS_MAX = 30.0


class BodyShare:
    """What one request holds of the budget."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.held = 0

    def take(self, size: int) -> None:
        self._budget.take(size)
        self.held += size


class BodyBudget:
    """Bytes that all requests together may hold in memory; counted in the event loop only."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.held = 0

    @contextmanager
    def hold(self) -> Iterator[BodyShare]:
        hold = BodyShare(self)
        try:
            yield hold
        finally:
            self.held -= hold.held

    def take(self, size: int) -> None:
        if self.held + size > self._bytes_max:
            raise Overloaded(
                f"requests being read hold {self.held} bytes already, and the server allows "
                f"{self._bytes_max}; send it again later"
            )
        self.held += size


async def read_body(scope: Scope, receive: Receive, *, limit: int, hold: BodyShare) -> bytes:
    """The whole body, or TooLarge as soon as it is known to be over the limit."""
    announced = header(scope, b"content-length")
    if announced.isdigit() and int(announced) > limit:
        raise _too_large(limit)
    try:
        async with asyncio.timeout(READ_SECONDS_MAX):
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body", False):
                return _whole(message, limit=limit, hold=hold)
            return await _read_on(message, receive, limit=limit, hold=hold)
    except TimeoutError as error:
        raise TooSlow(
            f"the body did not arrive within {READ_SECONDS_MAX:.0f} s; send it again"
        ) from error


def _whole(message: Any, *, limit: int, hold: BodyShare) -> bytes:
    body = bytes(message.get("body", b""))
    if len(body) > limit:
        raise _too_large(limit)
    hold.take(len(body))
    return body


async def _read_on(message: Any, receive: Receive, *, limit: int, hold: BodyShare) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        if message["type"] == "http.disconnect":
            raise Unavailable("the client hung up before its body was complete")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise EndlessBody(str(_too_large(limit)))
        hold.take(len(chunk))
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)
        message = await receive()


def expanded(body: bytes, *, limit: int) -> bytes:
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
