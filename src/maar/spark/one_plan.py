"""One plan on a Spark session that somebody else owns: for orchestrators and notebooks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from maar.adapters.http_board import HttpBoard
from maar.adapters.rpc import MetastoreClient
from maar.adapters.stores.open import open_store
from maar.app.execution import Executor, FindPlan, Site, open_site, site_of
from maar.model.errors import InvalidInput
from maar.model.ids import MAIN_STORE, PlanId
from maar.ports.log_time import GetNow
from maar.ports.object_store import StoreSettings
from maar.ports.operator import GetPlan, PlanDetail
from maar.runner.runner import SparkRunner
from maar.runner.session import check
from maar.runner.settings import SparkSettings
from maar.spark.borrowed_spark import LoopThread, context_of
from maar.worker.settings import WorkerSettings


def execute(
    spark: Any,
    plan: str,
    *,
    url: str = "",
    metastore: str = "",
    store: str | StoreSettings = "",
    lifeline_port: int = 0,
    settings: WorkerSettings | None = None,
) -> dict[str, Any]:
    """Execute one plan on your SparkSession or SparkContext, under a lease; what came of it is the
    object that `maar plans execute --json` prints.

    `url` is where the server listens, which tells its store; or name `metastore` and `store`
    yourself, as for run_worker. Credentials of a store are never told: with `url` too, give a
    `store` that holds them. A plan that needs no Spark (a rollback, a cleaning) is executed in
    this process.

    Raises InvalidInput when your Spark cannot be used as it is set up, and Unavailable when nothing
    was executed since the server does not answer.
    """
    context = context_of(spark)
    check(context)
    if bool(url) == bool(metastore) or (metastore and not store):
        raise InvalidInput("give either url, or metastore and store", reason="settings")
    chosen = SparkSettings(slots=1, lifeline_port=lifeline_port)
    given = store if isinstance(store, StoreSettings) else StoreSettings(MAIN_STORE, store)
    reach = _by_url(url, given) if url else _by_rpc(metastore, given)
    loops: list[tuple[asyncio.AbstractEventLoop, Executor]] = []

    async def work(plan_id: PlanId) -> dict[str, Any]:
        async with reach as (site, find):
            executor = Executor(site, settings or WorkerSettings())
            loops.append((asyncio.get_running_loop(), executor))
            outcome = await executor.execute(
                plan_id,
                find,
                lambda opened: SparkRunner(
                    chosen, opened, None, open_store=open_store, borrowed=context
                ),
            )
            return outcome.told()

    life = LoopThread(work(PlanId.parse(plan)))
    try:
        life.join()
    except KeyboardInterrupt:  # in a notebook: its plan is handed back
        for loop, executor in loops:
            loop.call_soon_threadsafe(executor.stop)
        life.join()
        raise
    found: dict[str, Any] = life.result
    return found


class Reached(NamedTuple):
    """A server, and how its plans are looked up."""

    site: Site
    find: FindPlan


@asynccontextmanager
async def _by_url(url: str, own: StoreSettings) -> AsyncIterator[Reached]:
    board = HttpBoard(url)
    try:
        setup = await board.setup()
        yield Reached(await site_of(board, setup, own, server=url), board.plan)
    finally:
        await board.close()


@asynccontextmanager
async def _by_rpc(address: str, store: StoreSettings) -> AsyncIterator[Reached]:
    metastore = MetastoreClient(address)

    async def find(plan: PlanId) -> PlanDetail:
        return await metastore.call(GetPlan(plan))

    try:
        incarnation = (await metastore.call(GetNow())).incarnation
        yield Reached(await open_site(metastore, store, incarnation, server=address), find)
    finally:
        await metastore.close()
