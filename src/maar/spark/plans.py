"""Plans from a Python program: for orchestrators and notebooks, on the Spark that they have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

from maar.adapters.http_board import HttpBoard
from maar.adapters.rpc import MetastoreClient
from maar.adapters.stores.open import open_store
from maar.app.execution import Executor, FindPlan, Site, open_site, rolled_back, site_of
from maar.model.errors import InvalidInput
from maar.model.ids import MAIN_STORE, PlanId
from maar.ports.metastore.log_time import GetNow
from maar.ports.operator.operator import GetPlan, PlanDetail
from maar.ports.plans.outcome import CLEANED
from maar.ports.stores.object_store import StoreSettings
from maar.ports.stores.stores import StorePlaces, places_of
from maar.runner.runner import SparkRunner
from maar.runner.session import check
from maar.runner.settings import SparkSettings
from maar.spark.borrowed_spark import LoopThread, context_of
from maar.worker.settings import WorkerSettings

StoreGiven = str | StoreSettings | StorePlaces  # a URL, a store, or all of several
C = TypeVar("C", HttpBoard, MetastoreClient)


def execute(
    spark: Any,
    plan: str,
    *,
    url: str = "",
    metastore: str = "",
    store: StoreGiven = "",
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
    reach = _by_url(url, own_stores(store)) if url else _by_rpc(metastore, own_stores(store))
    loops: list[tuple[asyncio.AbstractEventLoop, Executor]] = []

    async def work(plan_id: PlanId) -> dict[str, Any]:
        async with reach as (site, find):
            executor = Executor(site, settings or WorkerSettings())
            loops.append((asyncio.get_running_loop(), executor))
            outcome = await executor.execute(
                plan_id,
                find,
                lambda opened, slots, tell: SparkRunner(
                    SparkSettings(slots=slots, lifeline_port=lifeline_port),
                    opened,
                    None,
                    open_store=open_store,
                    borrowed=context,
                    told=tell,
                ),
            )
            return outcome.as_json()

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


def schedule(
    kind: str,
    *,
    url: str,
    tenant: str = "",
    shard: int = 0,
    level: int = 0,
    window: str = "",
    request_id: str = "",
) -> dict[str, Any]:
    """Schedule a plan and do not execute it; the object that `maar plans schedule --json` prints.

    `window` is a UTC day like 2026-11-15. The same wish finds the same plan.
    """
    wish = {"kind": kind, "tenant": tenant, "shard": shard, "level": level, "window": window}

    async def work() -> dict[str, Any]:
        async with closing(HttpBoard(url)) as board:
            found = await board.order("/api/v1/plans", {**wish, "request_id": request_id})
            return _without_error(found)

    return _in_thread(work())


def rollback(plan: str, *, url: str, store: StoreGiven = "") -> dict[str, Any]:
    """Roll a plan back; the object that `maar plans rollback --json` prints."""
    target = PlanId.parse(plan)

    async def work() -> dict[str, Any]:
        async with closing(HttpBoard(url)) as board:
            found = await board.order(f"/api/v1/plans/{target}/rollback", {})
            if found["outcome"] == "scheduled":
                executor = await _executor(board, url, store)
                done = await executor.finish_rollback(PlanId.parse(found["rollback"]))
                found |= rolled_back(done)
            return _without_error(found)

    return _in_thread(work())


def clean(
    *,
    url: str,
    store: StoreGiven = "",
    schedule_only: bool = False,
    rollbacks_only: bool = False,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Roll back what nobody finished; the object that `maar clean --json` prints."""
    asked = {"schedule_only": schedule_only, "rollbacks_only": rollbacks_only, "dry_run": dry_run}

    async def work() -> dict[str, Any]:
        async with closing(HttpBoard(url)) as board:
            found = await board.order("/api/v1/clean", asked)
            if found["pending"] and not dry_run and not schedule_only:
                await (await _executor(board, url, store)).execute_pending(found)
            return {name: found[name] for name in CLEANED if name in found}

    return _in_thread(work())


def delete(
    *,
    url: str,
    service: str = "",
    all_services: bool = False,
    tenant: str = "",
    from_ms: int = 0,
    until_ms: int | None = None,
    dry_run: bool = False,
    request_id: str = "",
) -> dict[str, Any]:
    """Delete what was pushed so far of a service, or of all of a tenant's, for good; the object
    that `maar delete --json` prints.

    Times are those of profiles, in milliseconds since 1970. The same `request_id` again gets the
    same answer, and deletes nothing that was pushed since.
    """
    asked = {"service": service, "all_services": all_services, "tenant": tenant}
    times = {"from_ms": from_ms, "until_ms": until_ms}
    how = {"dry_run": dry_run, "request_id": request_id}

    async def work() -> dict[str, Any]:
        async with closing(HttpBoard(url)) as board:
            return await board.order("/api/v1/deletions", {**asked, **times, **how})

    return _in_thread(work())


async def _executor(board: HttpBoard, url: str, store: StoreGiven) -> Executor:
    site = await site_of(board, await board.setup(), own_stores(store), server=url)
    return Executor(site, WorkerSettings())


def own_stores(store: StoreGiven) -> StorePlaces:
    return places_of(StoreSettings(MAIN_STORE, store) if isinstance(store, str) else store)


def _without_error(found: dict[str, Any]) -> dict[str, Any]:
    """A refusal is its outcome; that it was also an error of HTTP does not matter here."""
    return {name: value for name, value in found.items() if name not in ("code", "message")}


def _in_thread(work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """A notebook's own thread has a loop already."""
    life = LoopThread(work)
    life.join()
    found: dict[str, Any] = life.result
    return found


class Reached(NamedTuple):
    """A server, and how its plans are looked up."""

    site: Site
    find: FindPlan


@asynccontextmanager
async def _by_url(url: str, own: StorePlaces) -> AsyncIterator[Reached]:
    async with closing(HttpBoard(url)) as board:
        setup = await board.setup()
        yield Reached(await site_of(board, setup, own, server=url), board.plan)


@asynccontextmanager
async def _by_rpc(address: str, stores: StorePlaces) -> AsyncIterator[Reached]:
    metastore = MetastoreClient(address)

    async def find(plan: PlanId) -> PlanDetail:
        return await metastore.call(GetPlan(plan))

    async with closing(metastore):
        incarnation = (await metastore.call(GetNow())).incarnation
        yield Reached(await open_site(metastore, stores, incarnation, server=address), find)


@asynccontextmanager
async def closing(opened: C) -> AsyncIterator[C]:
    try:
        yield opened
    finally:
        await opened.close()
