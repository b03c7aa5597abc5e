"""One request over HTTP/2 and its answer, as the application sees them (ASGI, with trailers)."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from maar.app.http.gate import TAKEN_MIN
from maar.app.http.http2_frames import Code, header_block
from maar.app.http.unfinished import Why

if TYPE_CHECKING:
    from maar.app.http.http2 import Http2

log = logging.getLogger("maar.front")

STREAM_WINDOW = 1 << 20  # what a client may send ahead of whoever reads its body


class Stream:
    """One request and its answer; what the application calls."""

    def __init__(self, connection: Http2, number: int, window: int) -> None:
        self.connection = connection
        self.number = number
        self.window_out = window
        self.window_in = STREAM_WINDOW
        self.returned = 0  # of window_in, by whoever read the body
        self.received = 0
        self.expected = -1
        self.chunks: list[bytes] = []
        self.ended = False  # the request is whole
        self.held = False  # the gate knows that it is not
        self.gone = False  # nobody waits for the answer
        self.started: dict[str, Any] | None = None  # the answer's head, not sent yet
        self.trailers = False  # and more after its body
        self.answering = False
        self.answered = False
        self.bodyless = False  # the answer to HEAD
        self.read = False  # the application has the whole request
        self.grpc = False
        self.news = asyncio.Event()
        self.room = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self._stalls_at = 0.0
        self._sent_then = 0  # on the whole connection, when that was set

    async def run(self, app: Any, scope: dict[str, Any]) -> None:
        try:
            await app(scope, self.receive, self.send)
            if not self.answered and not self.gone:
                raise RuntimeError("the application returned without an answer")
        except asyncio.CancelledError:  # the server ends
            self.connection.reset(self, Code.CANCEL)
            raise
        except Exception:  # a bug in one request must not end the others
            log.exception("request failed path=%s", scope["path"])
            self.connection.reset(self, Code.INTERNAL_ERROR)

    async def receive(self) -> dict[str, Any]:
        while not (self.chunks or self.gone or self.answered or self.ended):
            self.news.clear()
            await self.news.wait()
        if self.gone or self.answered or (self.ended and not self.chunks and self.read):
            while not (self.gone or self.answered):
                self.news.clear()
                await self.news.wait()
            return {"type": "http.disconnect"}
        body = b"".join(self.chunks)
        self.chunks.clear()
        self.connection.on_read(self, len(body))
        self.read = self.ended
        return {"type": "http.request", "body": body, "more_body": not self.ended}

    async def send(self, message: dict[str, Any]) -> None:
        if self.gone or self.answered:  # also of an answer to HEAD, whose body nobody wants
            return
        match message["type"]:
            case "http.response.start":
                self.started = message
            case "http.response.body":
                await self._send_body(message.get("body", b""), message.get("more_body", False))
            case "http.response.trailers":
                self._headers(message["headers"], end=True)
            case other:
                raise RuntimeError(f"an application cannot send {other!r} here")

    async def _send_body(self, body: bytes, more: bool) -> None:
        assert self.started is not None or self.answering
        if self.bodyless:
            body, more = b"", False
        if self.started is not None:
            started, self.started, self.answering = self.started, None, True
            self.trailers = bool(started.get("trailers"))
            end = not body and not more and not self.trailers
            headers = list(started.get("headers", ()))
            if not self.grpc:  # to whom they would be metadata of the call
                headers += self.connection.default_headers
            self._headers(headers, status=started["status"], end=end)
            if end:
                return
        await self._send_data(body, end=not more and not self.trailers)

    async def _send_data(self, body: bytes, *, end: bool) -> None:
        connection = self.connection
        at = 0
        while at < len(body) and not self.gone:
            size = min(
                len(body) - at, self.window_out, connection.window_out, connection.frame_bytes_out
            )
            if size <= 0 or connection.write_paused:
                await self._room()
                continue
            self.window_out -= size
            connection.window_out -= size
            last = end and at + size == len(body)
            connection.write_data(self, body[at : at + size], end=last)
            at += size
        if end and not body and not self.gone:
            connection.write_data(self, b"", end=True)

    async def _room(self) -> None:
        """Restart the timer when the connection makes progress, also for streams that wait."""
        now, sent = asyncio.get_running_loop().time(), self.connection.sent
        if now >= self._stalls_at or sent - self._sent_then >= TAKEN_MIN:
            self._stalls_at, self._sent_then = now + self.connection.stall_s, sent
        self.room.clear()
        self.connection.waiting.add(self)
        try:
            async with asyncio.timeout_at(self._stalls_at):
                await self.room.wait()
        except TimeoutError:
            self.connection.on_stall(self)
        finally:
            self.connection.waiting.discard(self)

    def _headers(self, headers: Any, *, status: int = 0, end: bool) -> None:
        pairs = [(name.lower(), value) for name, value in headers if name.lower() != b"connection"]
        self.connection.write_headers(self, header_block(pairs, status), end=end)

    def leave(self) -> None:
        """The client is gone; tell the application."""
        self.gone = True
        self.chunks.clear()
        self.news.set()
        self.room.set()

    def refuse(self, why: Why) -> None:
        self.held = False
        self.connection.refuse_stream(self, why)
