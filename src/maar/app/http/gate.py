"""Limits connections and slow requests of the port: carries out what `unfinished` decides."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Hashable
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol, cast
from urllib.parse import quote

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge

from maar.api.body import READ_SECONDS_MAX
from maar.api.settings import ApiSettings
from maar.app.http.unfinished import (
    ConnectionLimits,
    RefusedConnection,
    Unfinished,
    Why,
    address_of,
    connections_within,
)

LINGER_S = 1.0
TAKEN_MIN = 16 << 10  # at least so many bytes, or the answer would stay in memory for ever
BODY_GRACE_S = 5.0  # the handler that reads a body gives up first, and with a better answer


_GRPC_CODES = {"deadline_exceeded": 4, "resource_exhausted": 8, "unavailable": 14}
Headers = list[tuple[bytes, bytes]]


class PortBounds(NamedTuple):
    """How patient a port is with its clients, beside what the settings say."""

    silent_s: float = 75.0  # for a client that says nothing at all, as between two requests
    stall_s: float = 60.0  # for a client to take some of its answer, see TAKEN_MIN
    streams_max: int = 128  # at once, on one connection of HTTP/2; beyond this, REFUSED_STREAM


PORT_BOUNDS = PortBounds()


class HttpRefusal(NamedTuple):
    status: int
    code: str
    sentence: str

    def in_json(self) -> tuple[Headers, bytes]:
        body = msgspec.json.encode({"code": self.code, "message": self.sentence})
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
        ]
        if self.status in (429, 503):
            headers.append((b"retry-after", b"1"))
        return headers, body

    def in_grpc(self) -> tuple[Headers, bytes]:
        headers = [
            (b"content-type", b"application/grpc"),
            (b"grpc-status", b"%d" % _GRPC_CODES[self.code]),
            (b"grpc-message", quote(self.sentence, safe=" ").encode()),
        ]
        return headers, b""


class HangsUp(Hashable, Protocol):
    """A connection or a request that can be closed."""

    def refuse(self, why: Why) -> None: ...


class GateMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.refused = Counter(
            "maar_front_refused",
            "Connections and incomplete requests that were closed",
            ["reason"],
            registry=registry,
        )
        self.connections = Gauge("maar_front_connections", "Open connections", registry=registry)
        self.unfinished = Gauge(
            "maar_front_unfinished_requests",
            "Requests that have begun to arrive and are incomplete",
            registry=registry,
        )
        for why in Why:
            self.refused.labels(why.value)


class Gate:
    """One for all connections of a port; used in the event loop only."""

    def __init__(
        self,
        settings: ApiSettings,
        registry: CollectorRegistry,
        *,
        bounds: PortBounds = PORT_BOUNDS,
    ) -> None:
        self.settings = settings
        self.bounds = bounds
        connections_max = connections_within(
            settings.connections_max, descriptors=_descriptors_raised()
        )
        self.waiting = Unfinished(
            ConnectionLimits(
                head_s=settings.head_s,
                body_s=READ_SECONDS_MAX + BODY_GRACE_S,
                unfinished_max=settings.unfinished_max,
                unfinished_per_address_max=settings.unfinished_per_address_max,
                connections_max=connections_max,
            )
        )
        self._metrics = GateMetrics(registry)
        self._metrics.connections.set_function(lambda: self.waiting.connections)
        self._metrics.unfinished.set_function(lambda: self.waiting.requests)

    def on_open(self, who: HangsUp, address: str) -> None:
        if (refused := self.waiting.on_open(who, address)) is not None:
            self._carry_out(refused)

    def on_begin(self, what: HangsUp, address: str) -> None:
        if (refused := self.waiting.on_begin(what, address, _now())) is not None:
            self._carry_out(refused)

    def head_whole(self, what: HangsUp) -> None:
        self.waiting.head_whole(what, _now())

    def sweep(self) -> None:
        """Called periodically: close connections that are late."""
        for refused in self.waiting.overdue(_now()):
            self._carry_out(refused)

    def count(self, why: Why) -> None:
        self._metrics.refused.labels(why.value).inc()

    def refusal(self, why: Why) -> HttpRefusal:
        """The answer to a client that is closed: what happened, and what to do."""
        settings = self.settings
        match why:
            case Why.HEAD_SLOW:
                sentence = f"the request's headers did not arrive within {settings.head_s:g} s"
                return HttpRefusal(408, "deadline_exceeded", f"{sentence}; send it again")
            case Why.BODY_SLOW:
                sentence = f"the body did not arrive within {READ_SECONDS_MAX:.0f} s"
                return HttpRefusal(408, "deadline_exceeded", f"{sentence}; send it again")
            case Why.HEAD_LARGE:
                return HttpRefusal(
                    431,
                    "resource_exhausted",
                    "the request line and headers are over the limit of "
                    f"{settings.head_bytes_max} bytes",
                )
            case Why.ADDRESS_FULL:
                return HttpRefusal(
                    429,
                    "resource_exhausted",
                    f"more than {settings.unfinished_per_address_max} requests from this address "
                    "are incomplete, and this is the oldest; send it again without pauses",
                )
            case Why.FULL:
                return HttpRefusal(
                    503,
                    "unavailable",
                    f"more than {settings.unfinished_max} requests are incomplete; send it later",
                )
            case Why.CONNECTIONS | Why.FLOOD | Why.ANSWER_STALLED:
                return HttpRefusal(
                    503,
                    "unavailable",
                    "the server has as many connections as it can keep; connect again later",
                )

    def _carry_out(self, refused: RefusedConnection) -> None:
        held = cast(HangsUp, refused.who)
        self.waiting.whole(held)  # whatever it does, it is no longer waited for
        self.count(refused.why)
        held.refuse(refused.why)


def hung_up(transport: asyncio.Transport, *, answered: bool = False) -> None:
    """Close within a time limit, whether or not the client reads its answer.

    After an answer we keep reading meanwhile: else the kernel resets a connection whose client
    still sends, and the answer is lost.
    """
    if answered:
        transport.write_eof()
    else:
        transport.close()
    asyncio.get_running_loop().call_later(LINGER_S, transport.abort)


def caller_of(transport: asyncio.BaseTransport) -> str:
    peer: Any = transport.get_extra_info("peername")
    return address_of(peer[0]) if isinstance(peer, tuple) else ""


def answer_in_http1(refusal: HttpRefusal) -> bytes:
    headers, body = refusal.in_json()
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    head = f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\n".encode()
    return head + lines + b"connection: close\r\n\r\n" + body


def _descriptors_raised() -> int:
    """How many descriptors this process may open; raised to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return 1 << 20 if hard == resource.RLIM_INFINITY else hard


def _now() -> float:
    return asyncio.get_running_loop().time()
