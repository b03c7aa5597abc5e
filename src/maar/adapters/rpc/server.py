"""The services of a role's process at one address; a bug in one call does not end the server."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any, NoReturn, Protocol, TypeVar

import grpc
import grpc.aio
import msgspec

from maar.adapters.rpc.frames import UNIX, Answer, FrameServer
from maar.adapters.rpc.parts import split
from maar.adapters.rpc.refusals import MESSAGE_BYTES_MAX, WireRefusal, refusal_of, refuse
from maar.model import errors
from maar.model.errors import MaarError, Unavailable
from maar.ports import role as role_port
from maar.ports.calls import Call
from maar.ports.metastore import metastore as metastore_port
from maar.ports.metastore import replica
from maar.ports.metastore.metastore import Metastore
from maar.ports.metastore.replica import MetastoreReplica
from maar.ports.reader import query
from maar.ports.reader.query import QueryEngine
from maar.ports.role import Role
from maar.ports.writer import rates as rates_port
from maar.ports.writer import segment_writer
from maar.ports.writer.rates import RateKeeper
from maar.ports.writer.segment_writer import SegmentWriter

log = logging.getLogger("maar.rpc")

P = TypeVar("P")

LIMITS = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
)
_SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),  # else a second server on the port would get half of the calls
    # Clients of replicas send keepalive pings every second.
    ("grpc.http2.min_ping_interval_without_data_ms", 100),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 100),
    ("grpc.http2.max_ping_strikes", 0),
    # A caller that was paused in the middle of a long answer must not block it for ever.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)


class RpcServer:
    """The services of one role process at one address: by frames on this host, else by gRPC."""

    def __init__(self, *, message_bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        limits = (
            ("grpc.max_send_message_length", message_bytes_max),
            ("grpc.max_receive_message_length", message_bytes_max),
        )
        self._options = (*limits, *_SERVER_OPTIONS)
        self._services: dict[str, dict[str, Any]] = {}
        self._answers: dict[str, Answer] = {}
        self._message_bytes_max = message_bytes_max
        self._server: Any = None
        self.port = 0  # of a TCP address, once started

    def add(self, calls: tuple[type[Call[P, Any]], ...], port: P) -> None:
        """Have a port answer its requests."""
        for kind in calls:
            handlers = self._services.setdefault(kind.wire_service, {})
            handlers[kind.__name__] = _handler(kind, port)
            if kind.rows is not None:
                handlers[whole_name(kind)] = _whole_handler(kind, port)
            self._answers[kind.path()] = _framed_answer(kind, port)

    async def start(self, address: str) -> None:
        try:
            if address.startswith(UNIX):
                self._server = FrameServer(
                    self._answers, _refusal, message_bytes_max=self._message_bytes_max
                )
                await self._server.start(address.removeprefix(UNIX))
                return
            self._server = grpc.aio.server(options=self._options)
            for service, handlers in self._services.items():
                self._server.add_generic_rpc_handlers(
                    (grpc.method_handlers_generic_handler(service, handlers),)
                )
            self.port = self._server.add_insecure_port(address)
        except (RuntimeError, OSError) as error:
            raise Unavailable(
                f"cannot listen on {address}; another process may hold it, or its directory "
                "does not exist"
            ) from error
        await self._server.start()

    async def stop(self, grace_s: float = 1.0) -> None:
        if self._server is not None:
            await self._server.stop(grace_s)


class WholeMetastore(Metastore, MetastoreReplica, Protocol):
    """A replica: others, and operators, also reach it by itself."""


async def serve_metastore(
    address: str,
    metastore: WholeMetastore,
    role: Role,
    *,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
) -> RpcServer:
    server = RpcServer(message_bytes_max=message_bytes_max)
    server.add(metastore_port.CALLS, metastore)
    server.add(replica.CALLS, metastore)
    return await _start(server, address, role)


async def serve_query(address: str, engine: QueryEngine, role: Role) -> RpcServer:
    server = RpcServer()
    server.add(query.CALLS, engine)
    return await _start(server, address, role)


async def serve_writer(
    address: str, writer: SegmentWriter, role: Role, *, rates: RateKeeper | None = None
) -> RpcServer:
    """With the rates of tenants, when the distributors of this host share them."""
    server = RpcServer()
    if rates is not None:
        server.add(rates_port.CALLS, rates)
    server.add(segment_writer.CALLS, writer)
    return await _start(server, address, role)


async def serve_role(address: str, role: Role) -> RpcServer:
    return await _start(RpcServer(), address, role)


async def _start(server: RpcServer, address: str, role: Role) -> RpcServer:
    server.add(role_port.CALLS, role)
    await server.start(address)
    return server


def _handler(kind: type[Call[P, Any]], port: P) -> Any:
    """A reply that may be large goes in parts."""
    decode, encode = msgspec.msgpack.Decoder(kind).decode, msgspec.msgpack.Encoder().encode

    async def answer(body: bytes, context: Any) -> bytes:
        try:
            return encode(await decode(body).answer(port))
        except Exception as error:  # noqa: BLE001  # the edge: one call must not end the server
            return await _refuse(kind, context, error)

    async def answer_in_parts(body: bytes, context: Any) -> AsyncIterator[bytes]:
        try:
            reply = await decode(body).answer(port)
        except Exception as error:  # noqa: BLE001  # as above
            await _refuse(kind, context, error)
        for part in split(reply, kind.rows or ""):
            yield part

    if kind.rows is None:
        return grpc.unary_unary_rpc_method_handler(answer)
    return grpc.unary_stream_rpc_method_handler(answer_in_parts)


def whole_name(kind: type[Call[Any, Any]]) -> str:
    """The method that gives a reply which may be large at once, if it is not: a stream costs half
    as much again as a single reply.
    """
    return f"{kind.__name__}Whole"


def _whole_handler(kind: type[Call[P, Any]], port: P) -> Any:
    """The reply, or nothing when it has to be asked for in parts."""
    decode = msgspec.msgpack.Decoder(kind).decode

    async def answer(body: bytes, context: Any) -> bytes:
        try:
            parts = split(await decode(body).answer(port), kind.rows or "")
        except Exception as error:  # noqa: BLE001  # as above
            return await _refuse(kind, context, error)
        first = next(parts)
        return b"" if next(parts, None) else first

    return grpc.unary_unary_rpc_method_handler(answer)


def _framed_answer(kind: type[Call[P, Any]], port: P) -> Answer:
    decode, encode = msgspec.msgpack.Decoder(kind).decode, msgspec.msgpack.Encoder().encode
    rows = kind.rows

    async def answer(body: bytes) -> bytes | Iterator[bytes]:
        reply = await decode(body).answer(port)
        return encode(reply) if rows is None else split(reply, rows)

    return answer


async def _refuse(kind: type[Call[P, Any]], context: Any, error: Exception) -> NoReturn:
    known = _error_for_caller(kind.path(), error)
    if known is not None:
        await refuse(context, known)
    else:
        await context.abort(grpc.StatusCode.INTERNAL, _bug(kind.path()))
    raise AssertionError("abort raises")


def _refusal(path: str, error: Exception) -> WireRefusal:
    known = _error_for_caller(path, error)
    return WireRefusal(_bug(path)) if known is None else refusal_of(known)


def _error_for_caller(path: str, error: Exception) -> MaarError | None:
    """The error as the caller gets it; None for a bug of ours, which is logged."""
    if isinstance(error, msgspec.ValidationError):
        sentence = f"{path} was called with arguments of another version: {error}"
        return errors.InvalidInput(sentence)
    if isinstance(error, MaarError):
        return error
    log.error("call failed method=%s", path, exc_info=error)
    return None


def _bug(path: str) -> str:
    return f"{path} failed because of a bug in maar; its log has the details"
