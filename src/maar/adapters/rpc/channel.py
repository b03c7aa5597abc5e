"""Requests to one process; a channel reconnects quickly by itself and retries no request."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import grpc.aio
import msgspec

from maar.adapters.reconnecting import RECONNECT_OPTIONS
from maar.adapters.rpc.frames import UNIX, FrameChannel
from maar.adapters.rpc.parts import Joined
from maar.adapters.rpc.refusals import error_of, late
from maar.adapters.rpc.server import LIMITS, whole_name
from maar.model.errors import Unreachable
from maar.ports.calls import Call

_OPTIONS = (
    *LIMITS,
    *RECONNECT_OPTIONS,
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
# Keepalives notice a stopped process or a cut cable long before a call's deadline, and leave a
# process that is only slow alone.
_WATCHED = (
    ("grpc.keepalive_time_ms", 1000),
    ("grpc.keepalive_timeout_ms", 1500),
    ("grpc.http2.ping_timeout_ms", 1500),
    ("grpc.http2.max_pings_without_data", 0),
)

R = TypeVar("R")
Kind = type[Call[Any, Any]]


class Channel:
    """The ports of one process. Every request has a deadline: its own, or the channel's.

    A process of this host is spoken to by frames, others by gRPC.
    """

    def __init__(
        self, address: str, *, deadline_s: float | None = None, watched: bool = False
    ) -> None:
        self._address = address
        self._deadline_s = deadline_s
        self._closed = False
        self._frames = FrameChannel(address) if address.startswith(UNIX) else None
        if self._frames is not None:
            return
        options = (*_OPTIONS, *_WATCHED) if watched else _OPTIONS
        self._channel = grpc.aio.insecure_channel(address, options=options)
        self._callers: dict[Kind, Any] = {}
        self._wholes: dict[Kind, Any] = {}
        self._large: set[Kind] = set()  # whose last reply came in several parts

    async def call(self, request: Call[Any, R], /, *, within_s: float | None = None) -> R:
        """The reply, in parts when it is large, within the deadline."""
        kind = type(request)
        if within_s is None:
            within_s = self._deadline_s or kind.deadline_s
        if self._frames is not None:
            return await self._frames.call(request, within_s)
        caller = self._callers.get(kind) or self._new_caller(kind)
        try:
            if kind.rows is not None:
                whole = await self._at_once(request, within_s)
                if whole is not None:
                    return whole
                return await self._in_parts(kind, caller(request), within_s)
            reply: R = await caller(request, timeout=within_s)
        except grpc.aio.AioRpcError as error:
            raise error_of(error, path=kind.path(), address=self._address) from None
        except grpc.aio.UsageError as error:
            raise self._closed_error() from error
        except asyncio.CancelledError:
            # Closing a channel cancels its calls, not the tasks that wait for them.
            if not self._closed or _is_cancelled():
                raise
            raise self._closed_error() from None
        return reply

    def _closed_error(self) -> Unreachable:
        return Unreachable(f"the channel to {self._address} is closed")

    def _new_caller(self, kind: Kind) -> Any:
        encode = msgspec.msgpack.Encoder().encode
        if kind.rows is not None:
            caller = self._channel.unary_stream(kind.path(), request_serializer=encode)
        else:
            caller = self._channel.unary_unary(
                kind.path(),
                request_serializer=encode,
                response_deserializer=msgspec.msgpack.Decoder(kind.reply_type()).decode,
            )
        self._callers[kind] = caller
        return caller

    async def _at_once(self, request: Call[Any, R], within_s: float) -> R | None:
        """A reply that may be large, in one message; None when it has to come in parts. It is asked
        for so only if the last one of its kind was small, so that few are made in vain.
        """
        kind = type(request)
        if kind in self._large:
            return None
        whole = self._wholes.get(kind)
        if whole is None:
            encode = msgspec.msgpack.Encoder().encode
            path = f"/{kind.wire_service}/{whole_name(kind)}"
            whole = self._wholes[kind] = self._channel.unary_unary(path, request_serializer=encode)
        message = await whole(request, timeout=within_s)
        if not message:
            self._large.add(kind)
            return None
        joined: Joined[R] = Joined(kind)
        joined.take(message)
        return joined.reply()

    async def _in_parts(self, kind: type[Call[Any, R]], stream: Any, within_s: float) -> R:
        now = asyncio.get_running_loop().time
        joined: Joined[R] = Joined(kind)
        parts = 0
        try:
            async with asyncio.timeout(within_s) as patience:
                async for message in stream:
                    joined.take(message)
                    parts += 1
                    patience.reschedule(now() + within_s)
        except TimeoutError:
            raise late(kind.path(), self._address) from None
        finally:
            stream.cancel()  # has an effect only if we stopped reading in the middle
        reply = joined.reply()
        if reply is None:
            raise Unreachable(f"{kind.path()} at {self._address} answered nothing; try again")
        if parts == 1:
            self._large.discard(kind)
        return reply

    async def close(self) -> None:
        self._closed = True
        await (self._frames or self._channel).close()


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
