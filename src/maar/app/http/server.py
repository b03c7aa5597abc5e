"""An HTTP server on a socket that was opened before, stopped by its role and not by signals."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from maar.app.http.gate import Gate
from maar.app.http.one_port import both
from maar.app.http.turns import ConnectionCounts, accept_in_turn
from maar.background import cancel

KEEP_ALIVE_S = 75


class HttpServer(uvicorn.Server):
    """HTTP/1.1 and HTTP/2, and whatever is spoken over them, on the same port."""

    def __init__(
        self,
        app: Any,
        *,
        drain_s: float,
        gate: Gate,
        counts: ConnectionCounts | None = None,  # when other processes accept from the socket too
    ) -> None:
        self._gate = gate
        self._counts = counts
        self._accepting: list[asyncio.Task[None]] = []
        super().__init__(
            uvicorn.Config(
                app,
                http=both(gate),  # type: ignore[arg-type]
                ws="none",
                loop="none",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,  # nobody asks who the client is, or how it came
                timeout_graceful_shutdown=max(1, int(drain_s)),
                timeout_keep_alive=KEEP_ALIVE_S,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._counts is None or sockets is None:
            await super().startup(sockets)
            return
        await self.lifespan.startup()
        self.servers = []
        self._accepting = [
            asyncio.create_task(
                accept_in_turn(each, self._protocol, self._counts, self._connections)
            )
            for each in sockets
        ]
        for task in self._accepting:
            task.add_done_callback(self._on_accepting_end)
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await cancel(*self._accepting)
        await super().shutdown(sockets)

    def _protocol(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    def _connections(self) -> int:
        return self._gate.waiting.connections

    def _on_accepting_end(self, task: asyncio.Task[None]) -> None:
        """A front that accepts nothing must not look alive: it ends, and is started again."""
        self.should_exit = True
        if not task.cancelled():
            task.result()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        self._gate.sweep()
        if self._counts is not None:
            self._counts.tell(self._connections())
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not handle signals: the role decides in which order its parts stop."""
        yield
