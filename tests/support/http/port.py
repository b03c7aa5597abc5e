"""A front on a loopback port with the real server, and clients of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
import uvloop

from maar.api.protocol.wire import PushRequest
from maar.app.http.gate import Gate
from maar.app.http.server import HttpServer
from support.http.front import Front
from support.http.pushed import pprof

PUSH = "/push.v1.PusherService/Push"
PATIENCE_S = 30.0


def request(*services: str, body: bytes | None = None) -> bytes:
    message = PushRequest()
    for service in services or ("shop",):
        series = message.series.add()
        series.labels.add(name="service_name", value=service)
        series.samples.add(raw_profile=pprof() if body is None else body, ID="1")
    return bytes(message.SerializeToString())


class Port:
    """A front that listens, and clients of both kinds."""

    def __init__(self, front: Front, number: int, server: HttpServer):
        self.front = front
        self.number = number
        self.http_server = server
        self.ended: asyncio.Task[None]
        self.opened: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def channel(self, compression: Any = None) -> AsyncIterator[grpc.aio.Channel]:
        options = (
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_http_proxy", 0),
            ("grpc.max_send_message_length", -1),
        )
        address = f"127.0.0.1:{self.number}"
        async with grpc.aio.insecure_channel(
            address, options=options, compression=compression
        ) as made:
            yield made

    async def push(self, body: bytes, *, tenant: str = "", compression: Any = None) -> Any:
        """The call, answered."""
        async with self.channel(compression) as channel:
            return await call_push(channel, body, tenant=tenant)

    async def refusal_of(self, body: bytes, **how: Any) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.push(body, **how)
        return caught.value

    async def get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False, verify=False) as client:
            return await client.get(f"http://127.0.0.1:{self.number}{path}")

    async def raw(self, *parts: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.number)
        self.opened.append(writer)
        for part in parts:
            writer.write(part)
            await writer.drain()
        return reader, writer

    async def stop(self) -> None:
        self.http_server.should_exit = True
        await self.ended


async def call_push(channel: grpc.aio.Channel, body: bytes, *, tenant: str = "") -> Any:
    metadata = (("x-scope-orgid", tenant),) if tenant else ()
    call = channel.unary_unary(PUSH)(body, metadata=metadata, timeout=PATIENCE_S)
    await call
    return call


Story = Callable[[Port], Coroutine[Any, Any, None]]


def run_story(story: Story, front: Front | None = None, *, drain_s: float = 5) -> Front:
    """Tell a story of a port in the event loop that real servers have."""
    front = front or Front()

    async def whole() -> None:
        gate = Gate(front.door.settings, front.registry, bounds=front.bounds)
        server = HttpServer(front.app, drain_s=drain_s, gate=gate)
        listener = socket.create_server(("127.0.0.1", 0))
        port = Port(front, listener.getsockname()[1], server)
        port.ended = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started)
        try:
            async with asyncio.timeout(90):
                await story(port)
        finally:
            for writer in port.opened:
                writer.transport.abort()
                await asyncio.gather(writer.wait_closed(), return_exceptions=True)
            await port.stop()
        assert front.door.budget.held == 0

    uvloop.run(whole())
    return front


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not true():
            await asyncio.sleep(0.005)
