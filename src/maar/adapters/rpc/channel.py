"""One channel to one process; it reconnects by itself, quickly, and repeats nothing."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import grpc.aio
import msgspec

from maar.adapters.rpc.methods import Method
from maar.adapters.rpc.parts import Joined
from maar.adapters.rpc.refusals import late, raised
from maar.adapters.rpc.server import LIMITS
from maar.model.errors import Unreachable

_OPTIONS = (
    *LIMITS,
    # A role that was restarted is found again at once, not after gRPC's usual minutes.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
# A process that was stopped, or a cable that was cut, is noticed long before a call's deadline,
# while one that only takes its time is left alone.
_WATCHED = (
    ("grpc.keepalive_time_ms", 1000),
    ("grpc.keepalive_timeout_ms", 1500),
    ("grpc.http2.ping_timeout_ms", 1500),
    ("grpc.http2.max_pings_without_data", 0),
)

R = TypeVar("R")


class Channel:
    """Calls of one process, each with a deadline."""

    def __init__(self, address: str, *, deadline_s: float, watched: bool = False) -> None:
        self._address = address
        self._deadline_s = deadline_s
        options = (*_OPTIONS, *_WATCHED) if watched else _OPTIONS
        self._channel = grpc.aio.insecure_channel(address, options=options)
        self._calls: dict[str, Any] = {}

    async def call(self, method: Method[R], arguments: tuple[Any, ...], *, within_s: float) -> R:
        """The reply, or, when it is large, its first part and each that follows, within a time."""
        try:
            if method.rows is not None:
                return await self._in_parts(method, arguments, within_s)
            reply: R = await self._caller(method)(arguments, timeout=within_s)
        except grpc.aio.AioRpcError as error:
            raise raised(error, path=method.path, address=self._address) from None
        except grpc.aio.UsageError as error:
            raise Unreachable(f"the channel to {self._address} is closed") from error
        return reply

    def _caller(self, method: Method[R]) -> Any:
        call = self._calls.get(method.path)
        if call is None and method.rows is not None:
            call = self._channel.unary_stream(
                method.parts_path, request_serializer=msgspec.msgpack.Encoder().encode
            )
        elif call is None:
            call = self._channel.unary_unary(
                method.path,
                request_serializer=msgspec.msgpack.Encoder().encode,
                response_deserializer=msgspec.msgpack.Decoder(method.reply).decode,
            )
        self._calls[method.path] = call
        return call

    async def _in_parts(self, method: Method[R], arguments: tuple[Any, ...], within_s: float) -> R:
        now = asyncio.get_running_loop().time
        joined = Joined(method)
        stream = self._caller(method)(arguments)
        try:
            async with asyncio.timeout(within_s) as patience:
                async for message in stream:
                    joined.take(message)
                    patience.reschedule(now() + within_s)
        except TimeoutError:
            raise late(method.path, self._address) from None
        finally:
            stream.cancel()  # nothing, unless it was left in the middle
        reply = joined.reply()
        if reply is None:
            raise Unreachable(f"{method.path} at {self._address} answered nothing; try again")
        return reply

    async def _call(self, method: Method[R], *arguments: Any) -> R:
        return await self.call(method, arguments, within_s=self._deadline_s)

    async def close(self) -> None:
        await self._channel.close()
