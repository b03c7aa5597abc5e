"""Health and metrics by HTTP, for a process whose role answers nothing else there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from maar.app.roles.wiring import RoleStatus

DRAIN_S = 0.2


@asynccontextmanager
async def serve_health(
    told: RoleStatus, registry: CollectorRegistry, listener: socket.socket | None
) -> AsyncIterator[None]:
    """Serve /ready, /healthz and /metrics on the listener, if there is one."""
    if listener is None:
        yield
        return
    # Import late: in `maar serve` only the front serves HTTP, and others can spare the memory.
    from starlette.applications import Starlette

    from maar.api.health import health_routes
    from maar.api.settings import ApiSettings
    from maar.app.http.gate import Gate
    from maar.app.http.server import HttpServer

    http = HttpServer(
        Starlette(routes=health_routes([registry], lambda _duty: told.ready(), _nothing_more)),
        drain_s=DRAIN_S,
        gate=Gate(ApiSettings(), CollectorRegistry()),
    )
    serving = asyncio.create_task(http.serve(sockets=[listener]))
    try:
        yield
    finally:
        http.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)


async def _nothing_more() -> list[str]:
    return []
