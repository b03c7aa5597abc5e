"""The front in this process: HTTP, distributor and segment writer."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from maar.adapters.rpc import MetastoreClient, QueryClient, RoleClient
from maar.adapters.system_clock import SystemClock
from maar.api.app import build_app
from maar.api.quarantine import causes_in
from maar.app.config import Settings
from maar.app.http import HttpServer
from maar.app.readiness import Readiness
from maar.app.wiring import build_store, new_registry, node_name
from maar.distributor.periods import Periods
from maar.distributor.service import Distributor
from maar.placement.ring import StaticRing
from maar.segment.service import SegmentService


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
    periods = Periods(settings.retention.default_ns)
    following = asyncio.create_task(periods.follow(metastore))
    distributor = Distributor(settings.limits, segments, StaticRing(node), clock, registry, periods)
    await distributor.start()
    readiness = Readiness(others, store, clock)
    app = build_app(
        distributor,
        engine,
        metastore,
        settings.api,
        registry,
        readiness,
        readiness.metrics,
        causes_in(store),
    )
    server = HttpServer(app, drain_s=settings.server.drain_s)
    life = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield life
    finally:
        server.should_exit = True  # no new connections; requests under way get their answers
        following.cancel()
        await asyncio.gather(life, following, return_exceptions=True)
        await segments.stop()
        distributor.close()
        for client in (metastore, engine, *others.values()):
            await client.close()
