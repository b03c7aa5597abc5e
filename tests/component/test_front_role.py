"""The front in its process: how long it waits for others, and that whoever waits is answered."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from maar.adapters.rpc import serve_role
from maar.app.roles import front
from maar.app.roles.wiring import Here
from maar.app.settings.config import load
from maar.model.errors import MaarError, Unavailable
from maar.ports.role import GetReadiness

pytestmark = [pytest.mark.component, pytest.mark.timeout(120)]


class Pondering:
    """A metastore that takes its time to say how it is."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()

    async def ready(self) -> str:
        self.asked.set()
        await self.go_on.wait()
        return "it has thought about it"

    async def metrics(self) -> str:
        return ""


@pytest.mark.parametrize("fails", [False, True], ids=["by order", "by a role that failed"])
def test_who_waits_is_answered_before_the_front_is_gone(tmp_path: Path, fails: bool) -> None:
    async def story() -> None:
        address = f"unix:{tmp_path}/metastore.sock"
        metastore = Pondering()
        server = await serve_role(address, metastore)
        settings = load(
            file=None,
            environ={"MAAR_SERVER__DATA_DIR": str(tmp_path), "MAAR_ROLES__METASTORE": address},
        )
        listener = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/ready"
        async with httpx.AsyncClient(timeout=30, trust_env=False, verify=False) as client:
            asked = asyncio.create_task(client.get(url))  # the listener lets it wait
            try:
                async with front.run(settings, Here(), listener, pushes=True, asks=False):
                    await metastore.asked.wait()
                    asyncio.get_running_loop().call_later(0.5, metastore.go_on.set)
                    if fails:
                        raise Unavailable("another process has our name")
            except Unavailable:
                assert fails
            assert metastore.go_on.is_set(), "it went before it had answered"
            assert "it has thought about it" in (await asked).text
        await server.stop(0)

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_query_on_another_host_may_wait_and_take_what_the_owner_allows() -> None:
    """It had the 30 s of a call that says nothing, whatever was set."""

    async def story() -> None:
        left_s: list[float] = []

        async def refuse(_: bytes, context: Any) -> None:
            left_s.append(context.time_remaining())
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")

        handlers = {GetReadiness.__name__: grpc.unary_unary_rpc_method_handler(refuse)}
        querier = grpc.method_handlers_generic_handler(GetReadiness.wire_service, handlers)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((querier,))
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        environ = {"MAAR_ROLES__QUERY": address, "MAAR_QUERY__TIMEOUT_S": "1000"}
        channel = front.query_channel(load(file=None, environ=environ))
        with pytest.raises(MaarError):
            await channel.call(GetReadiness())
        await channel.close()
        await server.stop(0)
        (given_s,) = left_s
        assert 1900 < given_s < 2100  # the wire rounds long ones

    asyncio.run(story())
