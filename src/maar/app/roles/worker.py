"""The worker in this process: a Spark driver that stops its JVM when it exits."""

from __future__ import annotations

import asyncio
import functools
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import msgspec
from prometheus_client import CollectorRegistry

from maar.adapters.rpc import MetastoreClient, serve_role
from maar.adapters.stores.open import open_store
from maar.adapters.system_clock import SystemClock
from maar.app.health.troubles import Troubles
from maar.app.processes.process import end_the_session, take_the_session_along
from maar.app.roles.health_http import serve_health
from maar.app.roles.wiring import RoleStatus, build_stores, new_registry, node_name
from maar.app.settings.config import Settings
from maar.background import cancel
from maar.model.ids import WorkerId
from maar.runner.runner import SparkRunner
from maar.worker.service import Worker
from maar.worker.store_runner import Undoing

STARTING_S = 0.2


@asynccontextmanager
async def run(
    settings: Settings, listener: socket.socket | None, *, restarts: int
) -> AsyncIterator[asyncio.Task[None]]:
    """Gives the task that ends when the worker does, by itself or because Spark died.

    With a listener it serves health and metrics by HTTP there, else by RPC at its role's address.
    """
    _watching = take_the_session_along()
    registry = new_registry("worker")
    metastore = MetastoreClient(settings.roles.metastore)
    troubles = Troubles()
    runner = SparkRunner(
        settings.spark,
        settings.store_places(),
        settings.scratch_dir,
        open_store=open_store,
        told=troubles.note,
    )
    drain_ms = min(settings.worker.drain_ms, int(settings.server.drain_s * 1000))
    worker = Worker(
        msgspec.structs.replace(settings.worker, drain_ms=drain_ms),
        metastore,
        runner,
        SystemClock(),
        registry,
        WorkerId(f"{node_name()}-{secrets.token_hex(4)}"),
        random=Random(secrets.randbits(64)),
        restarts=restarts,
        undo=Undoing(
            metastore,
            functools.cache(lambda: build_stores(settings)),
            SystemClock(),
            asyncio.get_running_loop(),
        ).roll_back,
    )
    told = RoleStatus(registry, worker.ready)
    warm = asyncio.Event()

    async def live() -> None:
        await asyncio.to_thread(runner.warm)
        warm.set()
        await worker.run()

    async with _telling(settings, listener, told, registry):
        life = asyncio.create_task(live())
        telling = asyncio.create_task(troubles.tell(metastore))
        try:
            yield life
        finally:
            await cancel(telling)
            worker.stop()
            while not (warm.is_set() or life.done()):
                end_the_session()  # a Spark that is still starting is not worth waiting for
                await asyncio.wait({life}, timeout=STARTING_S)
            await asyncio.gather(life, return_exceptions=True)
            await asyncio.to_thread(runner.close)
            await metastore.close()


@asynccontextmanager
async def _telling(
    settings: Settings,
    listener: socket.socket | None,
    told: RoleStatus,
    registry: CollectorRegistry,
) -> AsyncIterator[None]:
    if listener is not None:
        async with serve_health(told, registry, listener):
            yield
        return
    rpc = await serve_role(settings.roles.worker, told)
    try:
        yield
    finally:
        await rpc.stop()
