"""Paths, kinds of content and messages that tests of HTTP/2 send."""

from __future__ import annotations

import asyncio
from typing import Any

QUERIER = "/querier.v1.QuerierService"
PROTO = [("content-type", "application/proto")]
JSON = [("content-type", "application/json")]
GRPC = [("content-type", "application/grpc"), ("te", "trailers")]


def message(payload: bytes, flags: int = 0) -> bytes:
    return bytes([flags]) + len(payload).to_bytes(4, "big") + payload


class Slow:
    """A method of the engine that takes for ever, and how it ended."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __call__(self, *_: Any, **__: Any) -> Any:
        self.begun.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
