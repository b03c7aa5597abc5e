"""The front in this process: HTTP, distributor and segment writer."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from random import Random
from typing import Any

import uvicorn

from maar.adapters.rpc import MetastoreClient, QueryClient, RoleClient
from maar.adapters.system_clock import SystemClock
from maar.api.app import build_app
from maar.app.config import Settings
from maar.app.readiness import Readiness
from maar.app.wiring import build_store, new_registry, node_name
from maar.distributor.service import Distributor
from maar.placement.ring import StaticRing
from maar.segment.service import SegmentService

KEEP_ALIVE_S = 75


@asynccontextmanager
async def run(settings: Settings, listener: socket.socket) -> AsyncIterator[asyncio.Task[None]]:
    """Gives the task that ends when the HTTP server does."""
    registry, clock, node = new_registry("front"), SystemClock(), node_name()
    metastore = MetastoreClient(settings.roles.metastore)
    engine = QueryClient(settings.roles.query)
    others = {
        "metastore": RoleClient(settings.roles.metastore),
        "query": RoleClient(settings.roles.query),
        "worker": RoleClient(settings.roles.worker),
    }
    store = build_store(settings)
    segments = SegmentService(
        settings.segment, store, metastore, clock, Random(secrets.randbits(64)), registry, node
    )
    await segments.start()
    distributor = Distributor(settings.limits, segments, StaticRing(node), clock, registry)
    await distributor.start()
    readiness = Readiness(others, store, clock)
    app = build_app(
        distributor, engine, metastore, settings.api, registry, readiness, readiness.metrics
    )
    server = _HttpServer(_http_config(app, settings))
    life = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield life
    finally:
        server.should_exit = True  # no new connections; requests under way get their answers
        await asyncio.gather(life, return_exceptions=True)
        await segments.stop()
        distributor.close()
        for client in (metastore, engine, *others.values()):
            await client.close()


class _HttpServer(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the role's business: the order of ending is not the server's to choose."""
        yield


def _http_config(app: Any, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        loop="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=max(1, int(settings.server.drain_s)),
        timeout_keep_alive=KEEP_ALIVE_S,
    )
