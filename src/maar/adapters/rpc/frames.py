"""Calls between processes of one host: frames over a unix socket, for a third of gRPC's CPU.

A frame is a head (length of its body, number of its call, kind) and a body. A call is one frame
that names its path. Its reply is one frame, or several with rows, the last of which says so; or it
is a refusal. The number of a call lets many share a connection, and its caller cancel it. There is
no keepalive: the kernel tells at once when the other process ends, and deadlines do the rest.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import msgspec

from maar.adapters.rpc.parts import Joined
from maar.adapters.rpc.refusals import (
    MESSAGE_BYTES_MAX,
    WireRefusal,
    away,
    error_of_refusal,
    late,
    refusal_of,
    too_large,
)
from maar.model.errors import Unreachable
from maar.ports.calls import Call

log = logging.getLogger("maar.rpc")

UNIX = "unix:"
CALL, CANCEL = 0, 1  # to the server
LAST, PART, REFUSED = 0, 1, 2  # to the client
_HEAD = struct.Struct("<IIB")
_NUMBER_MAX = (1 << 32) - 1
PATH_BYTES_MAX = 200  # and the zero byte behind it

R = TypeVar("R")
Answer = Callable[[bytes], Awaitable[bytes | Iterator[bytes]]]  # whole, or in parts


class FrameProtocol(asyncio.Protocol):
    """One end of a connection: whole frames in, and frames out at the other end's pace."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.gone = asyncio.get_running_loop().create_future()
        self.message_bytes_max = MESSAGE_BYTES_MAX
        self._held = bytearray()
        self._skip = 0  # bytes of a frame that is too large
        self._room: asyncio.Future[None] | None = None  # while the other end does not read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Frames that came whole are taken from where they are; only what follows them is kept."""
        if self._held:
            self._held += data
            with memoryview(self._held) as view:
                first = self._take_all(view)
            del self._held[:first]
        else:
            with memoryview(data) as view:
                self._held += view[self._take_all(view) :]

    def _take_all(self, view: memoryview) -> int:
        """Take what is whole; returns where the rest begins."""
        first = 0
        while True:
            skipped = min(self._skip, len(view) - first)
            self._skip -= skipped
            first += skipped
            if len(view) - first < _HEAD.size:
                return first
            length, number, kind = _HEAD.unpack_from(view, first)
            if length > self.message_bytes_max:
                first += _HEAD.size
                self._skip = length
                self.take_too_large(number)
                continue
            end = first + _HEAD.size + length
            if len(view) < end:
                return first
            with view[first + _HEAD.size : end] as body:
                self.take(number, kind, body)
            first = end

    def take(self, number: int, kind: int, body: memoryview) -> None:
        """What is needed of the body later has to be copied."""
        raise NotImplementedError

    def take_too_large(self, number: int) -> None:
        raise NotImplementedError

    def send(self, number: int, kind: int, *body: bytes) -> None:
        """The pieces of a body are not put together: a push is large, and its path is not."""
        if not self.transport.is_closing():
            length = sum(map(len, body))
            self.transport.writelines((_HEAD.pack(length, number, kind), *body))

    async def drain(self) -> None:
        while self._room is not None:  # who waited longer may have filled it again
            await asyncio.shield(self._room)

    def pause_writing(self) -> None:
        self._room = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def connection_lost(self, _error: Exception | None) -> None:
        self.resume_writing()
        if not self.gone.done():
            self.gone.set_result(None)


# ------------------------------------------------------------------ the server's end


class FrameServer:
    """Answers calls at one socket. `answers` has what answers each path, `refused` what to say."""

    def __init__(
        self,
        answers: dict[str, Answer],
        refused: Callable[[str, Exception], WireRefusal],
        *,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        self.answers = answers
        self.refused = refused
        self.message_bytes_max = message_bytes_max
        self.ends: set[_ServerEnd] = set()
        self._server: asyncio.Server | None = None

    async def start(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _ServerEnd(self), path)

    async def stop(self, grace_s: float) -> None:
        """Take no more connections; calls that run have some time to end."""
        if self._server is not None:
            self._server.close()
        running = [task for end in self.ends for task in end.running.values()]
        if running:
            await asyncio.wait(running, timeout=grace_s)
        ends = list(self.ends)
        for end in ends:
            end.transport.close()
        if ends:
            await asyncio.wait([end.gone for end in ends], timeout=grace_s)
        for end in ends:
            end.transport.abort()
            await end.gone


class _ServerEnd(FrameProtocol):
    def __init__(self, server: FrameServer) -> None:
        super().__init__()
        self._server = server
        self.message_bytes_max = server.message_bytes_max
        self.running: dict[int, asyncio.Task[None]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.ends.add(self)

    def take(self, number: int, kind: int, body: memoryview) -> None:
        if kind == CANCEL:
            if (task := self.running.get(number)) is not None:
                task.cancel()
            return
        path, _, _ = bytes(body[:PATH_BYTES_MAX]).partition(b"\0")
        message = bytes(body[len(path) + 1 :])
        task = asyncio.get_running_loop().create_task(self._answer(number, path.decode(), message))
        self.running[number] = task
        task.add_done_callback(lambda _: self.running.pop(number, None))

    def take_too_large(self, number: int) -> None:
        self._refuse(number, refusal_of(too_large("a call")))

    async def _answer(self, number: int, path: str, message: bytes) -> None:
        try:
            answer = self._server.answers.get(path)
            if answer is None:
                self._refuse(number, WireRefusal("", served=False))
                return
            reply = await answer(message)
            if isinstance(reply, bytes):
                if len(reply) > self._server.message_bytes_max:
                    raise too_large(path)
                self.send(number, LAST, reply)
            else:
                await self._send_parts(number, reply)
        except Exception as error:  # noqa: BLE001  # the edge: one call must not end the server
            self._refuse(number, self._server.refused(path, error))

    async def _send_parts(self, number: int, parts: Iterator[bytes]) -> None:
        """One frame behind, so that the last one is known for it; other calls have their turn."""
        waiting = next(parts)
        for part in parts:
            self.send(number, PART, waiting)
            await asyncio.sleep(0)
            await self.drain()
            waiting = part
        self.send(number, LAST, waiting)

    def _refuse(self, number: int, refusal: WireRefusal) -> None:
        self.send(number, REFUSED, msgspec.msgpack.encode(refusal))

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._server.ends.discard(self)
        for task in list(self.running.values()):
            task.cancel()  # nobody waits for it any more


# ------------------------------------------------------------------ the client's end


class _Waiting:
    """A call whose reply has not come whole."""

    def __init__(self, kind: type[Call[Any, Any]]) -> None:
        self.future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.joined: Joined[Any] | None = Joined(kind) if kind.rows is not None else None
        self.heard: Callable[[], None] | None = None  # what to do when a part came


class _ClientEnd(FrameProtocol):
    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[int, _Waiting] = {}
        self.lost = False

    def take(self, number: int, kind: int, body: memoryview) -> None:
        waiting = self.waiting.get(number)
        if waiting is None or waiting.future.done():
            return  # it was given up
        if kind == REFUSED:
            refusal = msgspec.msgpack.decode(body, type=WireRefusal)
            waiting.future.set_exception(_Refused(refusal))
            return
        if kind == PART:
            assert waiting.joined is not None
            waiting.joined.take(bytes(body))
            if waiting.heard is not None:
                waiting.heard()
            return
        waiting.future.set_result(bytes(body))

    def take_too_large(self, number: int) -> None:
        refusal = msgspec.msgpack.encode(refusal_of(too_large("a call")))
        self.take(number, REFUSED, memoryview(refusal))

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self.lost = True
        for waiting in self.waiting.values():
            if not waiting.future.done():
                waiting.future.set_exception(_Lost(str(error or "it closed the connection")))


class _Refused(Exception):
    def __init__(self, refusal: WireRefusal) -> None:
        super().__init__(refusal.sentence)
        self.refusal = refusal


class _Lost(Exception):
    """The connection, or that there is none."""


class FrameChannel:
    """The ports of a process on this host. It connects with the first call after each loss."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._end: _ClientEnd | None = None
        self._connecting: asyncio.Task[_ClientEnd] | None = None
        self._number = 0
        self._closed = False
        self._encode = msgspec.msgpack.Encoder().encode
        self._decoders: dict[type[Call[Any, Any]], Any] = {}

    async def call(self, request: Call[Any, R], within_s: float) -> R:
        kind = type(request)
        path = kind.path()
        body = self._encode(request)
        if len(path) + 1 + len(body) > MESSAGE_BYTES_MAX:
            raise too_large(path)
        waiting = _Waiting(kind)
        try:
            async with asyncio.timeout(within_s) as patience:
                end = self._end
                if end is None or end.lost:
                    end = await self._connection()
                now = asyncio.get_running_loop().time
                waiting.heard = lambda: patience.reschedule(now() + within_s)
                last = await self._exchange(end, waiting, path, body)
        except TimeoutError:
            raise late(path, self._address) from None
        except _Refused as refused:
            raise error_of_refusal(refused.refusal, path=path, address=self._address) from None
        except _Lost as lost:
            if self._closed:
                raise self._closed_error() from None
            raise away(path, self._address, str(lost)) from None
        if waiting.joined is not None:
            waiting.joined.take(last)
            reply: R | None = waiting.joined.reply()
            assert reply is not None
            return reply
        decode = self._decoders.get(kind)
        if decode is None:
            decode = self._decoders[kind] = msgspec.msgpack.Decoder(kind.reply_type()).decode
        return decode(last)  # type: ignore[no-any-return]

    async def _exchange(self, end: _ClientEnd, waiting: _Waiting, path: str, body: bytes) -> bytes:
        if end.lost:
            raise _Lost("it closed the connection")
        self._number = number = (self._number + 1) & _NUMBER_MAX
        end.waiting[number] = waiting
        sent = False
        try:
            # Before it is sent: else what the other end does not read, since it hangs, would stay
            # in memory when its caller has given up long ago.
            await end.drain()
            end.send(number, CALL, path.encode() + b"\0", body)
            sent = True
            return await waiting.future
        finally:
            del end.waiting[number]
            if not waiting.future.done() or waiting.future.cancelled():
                if sent:
                    end.send(number, CANCEL)
            elif not waiting.future.cancelled():
                waiting.future.exception()  # mark it as retrieved

    async def _connection(self) -> _ClientEnd:
        """One connection for all calls that wait for it; who gives up does not end it."""
        if self._closed:
            raise _Lost("closed")
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
            self._connecting.add_done_callback(self._is_connected)
        return await asyncio.shield(self._connecting)

    async def _connect(self) -> _ClientEnd:
        path = self._address.removeprefix(UNIX)
        try:
            _, end = await asyncio.get_running_loop().create_unix_connection(_ClientEnd, path)
        except OSError as error:
            raise _Lost(error.strerror or str(error)) from None
        return end

    def _is_connected(self, task: asyncio.Task[_ClientEnd]) -> None:
        self._connecting = None
        if task.cancelled() or task.exception() is not None:
            return
        self._end = task.result()
        if self._closed:
            self._end.transport.abort()

    def _closed_error(self) -> Unreachable:
        return Unreachable(f"the channel to {self._address} is closed")

    async def close(self) -> None:
        """Calls that wait end with an error."""
        self._closed = True
        if self._connecting is not None:
            await asyncio.wait([self._connecting])
        if self._end is not None:
            self._end.transport.abort()
            await asyncio.wait([self._end.gone])
