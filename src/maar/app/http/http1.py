"""uvicorn's HTTP/1.1, with limits in time and size for incomplete requests."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from maar.app.http.gate import TAKEN_MIN, Gate, answer_in_http1, caller_of, hung_up
from maar.app.http.unfinished import Why

PIPELINED_MAX = 32  # requests of a connection that wait for the answers to those before them

_UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*(?=\r\n)", re.IGNORECASE)  # a whole line


def without_upgrade(data: bytes) -> bytes:
    """Remove offers to upgrade from a request's first bytes (curl and Java send one).

    We stay with HTTP/1.1, which is allowed; but the parser would take the body for the other
    protocol.
    """
    end = data.find(b"\r\n\r\n")
    head = end + 2 if end >= 0 else len(data)
    if _UPGRADE.search(data, 0, head) is None:
        return data
    return _UPGRADE.sub(b"", data[:head]) + data[head:]


class Http1(HttpToolsProtocol):
    def __init__(self, gate: Gate, **how: Any) -> None:
        super().__init__(**how)
        self._gate = gate
        self._arriving = False  # a part of a request is here
        self._in_head = False
        self._held = False  # the gate knows of it
        self._head_bytes = 0
        self._head_began = False  # in the bytes that are being parsed
        self._body_came = False  # with them
        self._too_large = False
        self._left = False
        self._unsent = 0
        self._stall: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------ what arrives

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._address = caller_of(transport)
        self._gate.on_open(self, self._address)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._not_stalled()
        self._gate.waiting.on_close(self)

    def data_received(self, data: bytes) -> None:
        if self._left:
            return
        if not self._arriving:  # empty lines count too: they could keep a connection open for ever
            self._arriving = self._in_head = True
            self._head_bytes = 0
            self._gate.waiting.busy(self)
            data = without_upgrade(data)
        self._head_began = self._body_came = False
        super().data_received(data)
        if self._left or self.transport.is_closing():
            return
        # The parser keeps what is of no body yet: of the head, and of a trailer without end.
        if self._arriving and not self._head_began and not self._body_came:
            self._head_bytes += len(data)
            if self._head_bytes > self._gate.settings.head_bytes_max:
                self._gate.count(Why.HEAD_LARGE)
                self.refuse(Why.HEAD_LARGE)
                return
        self._tell_gate()

    def _tell_gate(self) -> None:
        """Called after each piece; a request that arrives in one piece costs nothing here."""
        if self._arriving and not self._held:
            self._held = True
            self._gate.on_begin(self, self._address)
        elif self._held and not self._arriving:
            self._held = False
            self._gate.waiting.whole(self)
        if self._held and not self._in_head:
            self._gate.head_whole(self)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._held:  # the one before has come to its end in the same piece
            self._held = False
            self._gate.waiting.whole(self)
        self._arriving = self._in_head = self._head_began = True
        self._head_bytes = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)
            return
        # A trailer. It is ignored, since as a header it could name a tenant or a host that no proxy
        # has checked.
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._gate.settings.head_bytes_max:
            self._too_large = True
            raise ValueError("over the limit")  # as below

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._gate.settings.head_bytes_max:
            self._too_large = True
            raise ValueError("over the limit")  # ends the parsing; answered below
        # An offer to upgrade that did not come in one piece: the parser would pass over the body's
        # length, and take what a client sends as a body for the next request.
        if self.parser.should_upgrade():
            raise ValueError("an offer to upgrade in pieces")
        # They all are in memory, a hundred times as large as they came.
        if len(self.pipeline) >= PIPELINED_MAX:
            raise ValueError("too many at once")
        self._in_head = False
        self._head_bytes = 0  # from here on, of what comes between and behind the body's pieces
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        self._body_came = True
        self._head_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._body_came = True
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._arriving = False
        super().on_message_complete()
        self._idle_if_done()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._idle_if_done()

    def _idle_if_done(self) -> None:
        answered = self.cycle is not None and self.cycle.response_complete
        if not answered or self._arriving or self.transport.is_closing():
            return
        self._gate.waiting.idle(self)
        if self.timeout_keep_alive_task is None:  # the answer was there before the request
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def timeout_keep_alive_handler(self) -> None:
        hung_up(self.transport)

    # ------------------------------------------------------------------ answers that nobody reads

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent = self.transport.get_write_buffer_size()
        self._stall = self.loop.call_later(self._gate.bounds.stall_s, self._look_at_stall)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._not_stalled()

    def _not_stalled(self) -> None:
        if self._stall is not None:
            self._stall.cancel()

    def _look_at_stall(self) -> None:
        unsent, self._unsent = self._unsent, self.transport.get_write_buffer_size()
        if unsent - self._unsent >= TAKEN_MIN:  # slow, but it does read
            self._stall = self.loop.call_later(self._gate.bounds.stall_s, self._look_at_stall)
        else:
            self._gate.count(Why.ANSWER_STALLED)
            self.transport.abort()

    # ------------------------------------------------------------------ how it ends early

    @property
    def _answering(self) -> bool:
        """Whether a request whose head was whole is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def send_400_response(self, msg: str) -> None:
        if self._too_large:
            self._gate.count(Why.HEAD_LARGE)
            self.refuse(Why.HEAD_LARGE)
            return
        self._left = True
        in_body = self._arriving and not self._in_head
        if self._answering and not in_body:  # an answer now would pass for that to those before
            self._held = False
            self._gate.waiting.whole(self)
            self.cycle.keep_alive = False
        else:
            super().send_400_response(msg)

    def refuse(self, why: Why) -> None:
        """Close the connection, with an error response if none was begun."""
        self._held = False
        if self._left:
            self.transport.abort()
        if self.transport.is_closing():
            return
        answering = self._answering
        if answering and self._in_head:
            self.cycle.keep_alive = False  # an earlier request is still being answered
            return
        # We paused reading: not the client's fault.
        if why is Why.BODY_SLOW and self.flow.read_paused:
            self._held = True
            self._gate.on_begin(self, self._address)
            self._gate.head_whole(self)
            return
        self._left = True
        self._gate.waiting.idle(self)  # first to go when there is no room
        heard = self._arriving and (self._in_head or answering)
        if answering:
            heard = heard and not self.cycle.response_started
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if heard:
            self.transport.write(answer_in_http1(self._gate.refusal(why)))
        hung_up(self.transport, answered=heard)
