"""The query role in this process."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import msgspec

from maar.adapters.rpc import MetastoreClient, serve_query
from maar.app.health.troubles import Troubles
from maar.app.roles.wiring import RoleStatus, build_stores, new_registry, node_name
from maar.app.settings.config import Settings
from maar.background import cancel
from maar.pprof.compile_once import doing
from maar.query.service import DuckEngine, QuerySettings
from maar.runner.scratch import WorkerScratch

LOADING = "is loading maar's compiled code"


@asynccontextmanager
async def run(settings: Settings) -> AsyncIterator[asyncio.Task[None]]:
    """Gives the task that ends when the engine cannot be made ready; it answers before it is."""
    registry = new_registry("query")
    metastore = MetastoreClient(settings.roles.metastore)
    with room_to_spill(settings) as query:
        reader = f"{node_name()}-{secrets.token_hex(4)}"
        troubles = Troubles()
        engine = DuckEngine(
            query,
            metastore,
            build_stores(settings, told=troubles.note),
            registry,
            reader=reader,
            letters=settings.dead_letters.enabled,
        )
        warm = asyncio.Event()
        told = RoleStatus(registry, lambda: "" if warm.is_set() else doing() or LOADING)
        server = await serve_query(settings.roles.query, engine, told)
        life = asyncio.create_task(_live(engine, warm))
        telling = asyncio.create_task(troubles.tell(metastore))
        try:
            yield life
        finally:
            await server.stop()
            await cancel(life, telling)
            engine.close()
            await metastore.close()


async def _live(engine: DuckEngine, warm: asyncio.Event) -> None:
    await asyncio.to_thread(engine.warm)
    warm.set()
    await asyncio.Event().wait()


@contextmanager
def room_to_spill(settings: Settings) -> Iterator[QuerySettings]:
    """The spill directory: our own, unless one is set; a killed predecessor's files are deleted."""
    if settings.query.spill_dir:
        yield settings.query
        return
    scratch = WorkerScratch(settings.scratch_dir / "query")
    try:
        yield msgspec.structs.replace(settings.query, spill_dir=str(scratch.path))
    finally:
        scratch.close()
