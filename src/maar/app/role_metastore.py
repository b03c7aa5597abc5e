"""The metastore in this process: its log, its fold, its service, and snapshots in another one."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec

from maar.adapters.object_store import probe
from maar.adapters.rpc import serve_metastore
from maar.adapters.sqlite_log import SqliteLog
from maar.adapters.system_clock import SystemClock
from maar.app.config import Settings
from maar.app.marker import mark
from maar.app.tenants import Tenants
from maar.app.wiring import Told, build_store, first_end, new_registry, node_name
from maar.metastore.service import MetastoreService
from maar.model.errors import StoreFull, Unavailable

log = logging.getLogger("maar.metastore")

SNAPSHOT_TIMEOUT_S = 600


@asynccontextmanager
async def run(settings: Settings) -> AsyncIterator[asyncio.Task[None]]:
    """Gives the task that ends when the metastore cannot go on."""
    registry = new_registry("metastore")
    store = build_store(settings)
    try:
        await asyncio.to_thread(probe, store)
    except StoreFull as error:
        # Questions need no room, and a store that honoured conditional writes still will.
        log.warning("store not probed cause=%s", error)
    tenants = Tenants(settings)
    service = MetastoreService(
        SqliteLog.open(settings.log_dir),
        store,
        SystemClock(),
        settings.policy(),
        entropy=secrets.token_bytes,
        candidate=node_name(),
        take_snapshot=snapshot_in_another_process(settings),
        registry=registry,
        dead_after_ms=settings.ring.dead_after_ms,
        placement=settings.placement,
        limits=tenants.placement,
    )
    try:
        await service.start()
        await asyncio.to_thread(mark, store, (await service.now()).incarnation)
        told = Told(registry, service.ready)
        server = await serve_metastore(settings.roles.metastore, service, told)
        lives = [asyncio.create_task(work) for work in (service.ended(), tenants.follow())]
        life = asyncio.create_task(first_end(*lives))
        try:
            yield life
        finally:
            for task in (life, *lives):
                task.cancel()
            await asyncio.gather(life, *lives, return_exceptions=True)
            await server.stop()
    finally:
        await service.stop()


def snapshot_in_another_process(settings: Settings) -> Callable[[], Awaitable[int]]:
    """Folding the whole log would stall the metastore; another process does it (S13, S15)."""

    async def take() -> int:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "maar.app.snapshotter", str(os.getpid())),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(SNAPSHOT_TIMEOUT_S):
                shown, _ = await process.communicate(msgspec.json.encode(settings))
        except TimeoutError:
            raise Unavailable(f"the snapshot took over {SNAPSHOT_TIMEOUT_S} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise Unavailable(f"the snapshot process ended with code {process.returncode}")
        return int(shown)

    return take
