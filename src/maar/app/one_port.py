"""HTTP/1.1 and gRPC on one port: a connection's first bytes say which of the two it speaks.

A connection that begins like HTTP/2 is spliced to the gRPC server on its private socket; all others
are uvicorn's, from their first byte on, at the cost of one comparison.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

from maar.app.gate import Gate, answer_in_http1, caller_of, hung_up
from maar.app.http1 import Http1
from maar.app.unfinished import Why

log = logging.getLogger("maar.front")

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SPLICING: set[asyncio.Task[None]] = set()  # the loop itself remembers tasks only weakly
SILENT_S = 75.0  # for one that says nothing at all, as between two requests


def both(gate: Gate, grpc_socket: str) -> Callable[..., asyncio.Protocol]:
    """What uvicorn makes for each connection; `grpc_socket` is the path of the gRPC server's."""

    def accept(**how: Any) -> asyncio.Protocol:
        return _Undecided(gate, grpc_socket, lambda: Http1(gate, **how), how["server_state"])

    return accept


class _Undecided(asyncio.Protocol):
    """A connection that has said nothing yet, or too little."""

    def __init__(
        self, gate: Gate, grpc_socket: str, http: Callable[[], Http1], server_state: Any
    ) -> None:
        self._gate = gate
        self._grpc_socket = grpc_socket
        self._http = http
        self._connections = server_state.connections
        self._heard = b""
        self._known = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections.add(self)
        loop = asyncio.get_running_loop()
        self._too_late = loop.call_later(SILENT_S, self._transport.abort)
        self._gate.opened(self, caller_of(transport))
        self._known = True

    def connection_lost(self, _error: Exception | None) -> None:
        self._decided()

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        heard = self._heard = self._heard + data
        if heard.startswith(PREFACE):
            self._decided()
            self._transport.pause_reading()
            front = _Front(self._gate, self._connections)
            splicing = splice(self._transport, front, self._grpc_socket, heard)
            task = asyncio.create_task(splicing)
            _SPLICING.add(task)
            task.add_done_callback(_SPLICING.discard)
        elif PREFACE.startswith(heard):
            if heard == data:  # its first bytes; later ones buy no time
                self._too_late.cancel()
                self._gate.busy(self)
                self._gate.begun(self, caller_of(self._transport))
        else:
            self._decided()
            http = self._http()
            self._transport.set_protocol(http)
            http.connection_made(self._transport)
            http.data_received(heard)

    def shutdown(self) -> None:
        """As uvicorn asks every connection when it ends."""
        self._transport.close()

    def refuse(self, why: Why) -> None:
        if not self._known:  # the one for which there is no room
            self._transport.write(answer_in_http1(self._gate.refusal(why)))
        hung_up(self._transport)

    def _decided(self) -> None:
        self._gate.closed(self)
        self._connections.discard(self)
        self._too_late.cancel()


class Spliced(asyncio.Protocol):
    """One end of a splice: what comes in here goes out there, no faster than it is taken."""

    def __init__(self, other: Spliced | None = None) -> None:
        self._other = other

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._other is not None:
            self._other._other = self

    def data_received(self, data: bytes) -> None:
        if self._other is not None:
            self._other._transport.write(data)

    def pause_writing(self) -> None:
        if self._other is not None:
            self._other._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None and not self._other._transport.is_closing():
            self._other._transport.resume_reading()

    def connection_lost(self, _error: Exception | None) -> None:
        """Both ends go together; HTTP/2 knows no connection that is open in one direction."""
        if self._other is not None:
            self._other._transport.close()  # after what it still has to send


class _Front(Spliced):
    """The client's end; uvicorn waits for it when it ends, as for connections of its own."""

    def __init__(self, gate: Gate, connections: set[Any]) -> None:
        super().__init__()
        self._gate = gate
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connections.add(self)
        self._gate.opened(self, caller_of(transport))
        self._gate.busy(self)

    def refuse(self, _why: Why) -> None:
        self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._gate.closed(self)
        self._connections.discard(self)
        super().connection_lost(error)

    def shutdown(self) -> None:
        """Its calls end by the order of the gRPC server, which then hangs up."""


async def splice(client: asyncio.Transport, front: _Front, path: str, heard: bytes) -> None:
    """Join a client to the server at a unix socket, and tell that what was heard already.

    The client is not read meanwhile; when there is no server, it is hung up on.
    """
    front.connection_made(client)
    client.set_protocol(front)
    try:
        behind, _ = await asyncio.get_running_loop().create_unix_connection(
            lambda: Spliced(front), path
        )
    except OSError as error:  # it is ending, or was never there
        log.info("gRPC connection refused cause=%s", error)
        client.abort()
        return
    if client.is_closing():  # it left while we connected
        behind.close()
        return
    behind.write(heard)
    client.resume_reading()
