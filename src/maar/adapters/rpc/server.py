"""The services of a role's process at one address; a fault in one call does not end the server."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import grpc
import grpc.aio
import msgspec

from maar.adapters.rpc.methods import (
    METASTORE_METHODS,
    QUERY_METHODS,
    REPLICA_METHODS,
    ROLE_METHODS,
    WRITER_METHODS,
    Method,
)
from maar.adapters.rpc.parts import split
from maar.adapters.rpc.refusals import MESSAGE_BYTES_MAX, refuse
from maar.model import errors
from maar.model.errors import MaarError, Unavailable
from maar.ports.metastore import Metastore
from maar.ports.query import QueryEngine
from maar.ports.segment_writer import SegmentWriter

log = logging.getLogger("maar.rpc")

LIMITS = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
)
_SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),  # else a second one on the port gets half of the calls
    # Clients of replicas ask every second whether we are still there.
    ("grpc.http2.min_ping_interval_without_data_ms", 100),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 100),
    ("grpc.http2.max_ping_strikes", 0),
    # A caller that was stopped in the middle of a long answer must not hold it for ever.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)


class Role(Protocol):
    """What every role process tells about itself."""

    async def metrics(self) -> str:
        """Its metrics in the text form of Prometheus."""
        ...

    async def ready(self) -> str:
        """'' when it can do its work, else why not."""
        ...


class RpcServer:
    """The services of one role process at one address."""

    def __init__(self) -> None:
        self._server = grpc.aio.server(options=(*LIMITS, *_SERVER_OPTIONS))
        self.port = 0  # of a TCP address, once started

    def add(self, methods: tuple[Method[Any], ...], target: object) -> None:
        handlers = {method.name: _handler(method, target) for method in methods}
        for method in methods:
            if method.rows is not None:
                name = method.parts_path.rpartition("/")[2]
                handlers[name] = _handler_in_parts(method, target, method.rows)
        service = methods[0].service
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, handlers),)
        )

    async def start(self, address: str) -> None:
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise Unavailable(
                f"cannot listen on {address}; another process may hold it, or its directory "
                "does not exist"
            ) from error
        await self._server.start()

    async def stop(self, grace_s: float = 1.0) -> None:
        await self._server.stop(grace_s)


async def serve_metastore(address: str, metastore: Metastore, role: Role) -> RpcServer:
    """Others, and operators, also reach the replica itself when it is one."""
    return await _serve(
        address,
        (METASTORE_METHODS, metastore),
        (REPLICA_METHODS, metastore),
        (ROLE_METHODS, role),
    )


async def serve_query(address: str, engine: QueryEngine, role: Role) -> RpcServer:
    return await _serve(address, (QUERY_METHODS, engine), (ROLE_METHODS, role))


async def serve_writer(address: str, writer: SegmentWriter, role: Role) -> RpcServer:
    return await _serve(address, (WRITER_METHODS, writer), (ROLE_METHODS, role))


async def serve_role(address: str, role: Role) -> RpcServer:
    return await _serve(address, (ROLE_METHODS, role))


async def _serve(address: str, *services: tuple[tuple[Method[Any], ...], object]) -> RpcServer:
    server = RpcServer()
    for methods, target in services:
        server.add(methods, target)
    await server.start(address)
    return server


def _handler(method: Method[Any], target: object) -> Any:
    answered = _answering(method, target)
    encode = msgspec.msgpack.Encoder().encode

    async def answer(body: bytes, context: Any) -> bytes:
        return encode(await answered(body, context))

    return grpc.unary_unary_rpc_method_handler(answer)


def _handler_in_parts(method: Method[Any], target: object, rows: str) -> Any:
    answered = _answering(method, target)

    async def answer(body: bytes, context: Any) -> AsyncIterator[bytes]:
        for part in split(await answered(body, context), rows):
            yield part

    return grpc.unary_stream_rpc_method_handler(answer)


def _answering(method: Method[Any], target: object) -> Callable[[bytes, Any], Awaitable[Any]]:
    call = getattr(target, method.name)
    names = [name for name, _ in method.arguments]
    decoder = msgspec.msgpack.Decoder(method.argument_types())

    async def answered(body: bytes, context: Any) -> Any:
        try:
            return await call(**dict(zip(names, decoder.decode(body), strict=True)))
        except MaarError as error:
            await refuse(context, error)
        except msgspec.ValidationError as error:
            sentence = f"{method.path} was called with arguments of another version: {error}"
            await refuse(context, errors.InvalidInput(sentence))
        except Exception:  # the edge: a fault in one call must not end the server
            log.exception("call failed method=%s", method.path)
            sentence = f"{method.path} failed by a fault in maar; its log has the details"
            await context.abort(grpc.StatusCode.INTERNAL, sentence)
        raise AssertionError("abort raises")

    return answered
