"""HTTP/1.1 and HTTP/2 on one port: a connection's first bytes say which of the two it speaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from maar.app.http.gate import Gate, answer_in_http1, caller_of, hung_up
from maar.app.http.http1 import Http1
from maar.app.http.http2_frames import PREFACE
from maar.app.http.unfinished import Why

if TYPE_CHECKING:  # it is loaded when somebody speaks it
    from maar.app.http.http2 import Http2


def both(gate: Gate) -> Callable[..., asyncio.Protocol]:
    """What uvicorn makes for each connection."""
    return partial(_Undecided, gate)


class _Undecided(asyncio.Protocol):
    """A connection that has said nothing yet, or too little."""

    def __init__(self, gate: Gate, **how: Any) -> None:
        self._gate = gate
        self._how = how
        self._connections = how["server_state"].connections
        self._heard = b""
        self._known = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)
        loop = asyncio.get_running_loop()
        self._too_late = loop.call_later(self._gate.bounds.silent_s, self._transport.abort)
        self._gate.on_open(self, caller_of(transport))
        self._known = True

    def connection_lost(self, _error: Exception | None) -> None:
        self._forgotten()

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        heard = self._heard = self._heard + data
        if heard.startswith(PREFACE):
            from maar.app.http.http2 import Http2

            app, state = self._how["config"].loaded_app, self._how["server_state"]
            self._hand_over(Http2(self._gate, app, state), heard[len(PREFACE) :])
        elif not PREFACE.startswith(heard):
            self._hand_over(Http1(self._gate, **self._how), heard)
        elif heard == data:  # its first bytes; later ones do not extend the time
            self._too_late.cancel()
            self._gate.waiting.busy(self)
            self._gate.on_begin(self, caller_of(self._transport))

    def shutdown(self) -> None:
        """As uvicorn asks every connection when it ends."""
        self._transport.close()

    def refuse(self, why: Why) -> None:
        if not self._known:  # the one for which there is no room
            self._transport.write(answer_in_http1(self._gate.refusal(why)))
        hung_up(self._transport)

    def _hand_over(self, protocol: Http1 | Http2, heard: bytes) -> None:
        self._forgotten()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        if heard:
            protocol.data_received(heard)

    def _forgotten(self) -> None:
        self._gate.waiting.on_close(self)
        self._connections.discard(self)
        self._too_late.cancel()
