"""A worker on a Spark session that it does not own: it stops its own jobs, never the session."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable
from random import Random
from typing import Any

from prometheus_client import CollectorRegistry
from pyspark import SparkContext

from maar.adapters.rpc import MetastoreClient
from maar.adapters.stores.open import open_store
from maar.adapters.system_clock import SystemClock
from maar.app.health.troubles import Troubles
from maar.app.roles import marker
from maar.app.roles.wiring import node_name
from maar.background import cancel
from maar.model.errors import InvalidInput, Unavailable
from maar.model.ids import MAIN_STORE, WorkerId
from maar.ports.metastore.log_time import GetNow
from maar.ports.plans.runner import RunnerDied
from maar.ports.stores.object_store import StoreSettings
from maar.ports.stores.stores import StorePlaces, Stores, places_of
from maar.runner.runner import SparkRunner
from maar.runner.session import check
from maar.runner.settings import SparkSettings
from maar.worker.service import Worker
from maar.worker.settings import WorkerSettings
from maar.worker.store_runner import Undoing

_LOOK_S = 0.2


def run_worker(
    spark: Any,
    *,
    metastore: str,
    store: str | StoreSettings | StorePlaces,
    stop: threading.Event | None = None,
    slots: int = 0,
    lifeline_port: int = 0,
    settings: WorkerSettings | None = None,
    registry: CollectorRegistry | None = None,
) -> None:
    """Carry out maar's plans on your SparkSession or SparkContext until `stop` is set.

    `metastore` is the address of the server's metastore (its setting roles.metastore; of several
    replicas all, with commas), `store` the server's object store, like s3://bucket/prefix, or its
    stores (`StorePlaces`). At most `slots` plans run at once (0: as many as your own jobs leave
    free). Tasks connect back to this process at `lifeline_port` (0: any port).

    Returns when stopped and all plans in hand are finished or given up. Raises InvalidInput when
    your Spark cannot be used as it is set up, and Unavailable when it or the metastore is gone.
    """
    context = context_of(spark)
    check(context)
    settings = settings or WorkerSettings()
    given = places_of(StoreSettings(MAIN_STORE, store) if isinstance(store, str) else store)
    troubles = Troubles()
    runner = SparkRunner(
        SparkSettings(slots=slots, lifeline_port=lifeline_port),
        given,
        None,
        open_store=open_store,
        borrowed=context,
        told=troubles.note,
    )
    leaving = threading.Event()
    life = LoopThread(
        _work(
            runner,
            Stores(given, open_store, told=troubles.note),
            metastore,
            settings,
            registry or CollectorRegistry(),
            troubles,
            lambda: leaving.is_set() or (stop is not None and stop.is_set()),
        )
    )
    try:
        life.join()
    except BaseException:  # Ctrl-C in a notebook
        leaving.set()
        life.join()
        raise


def context_of(spark: Any) -> Any:
    """The SparkContext behind what we were given, or InvalidInput."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise InvalidInput(
            "this is a Spark Connect session, which runs no jobs of ours: it has no SparkContext. "
            "Use a classic session (SparkSession.builder.master(…)), or run `maar worker "
            "--spark-master …` beside it",
            reason="settings",
        )
    context = spark if isinstance(spark, SparkContext) else getattr(spark, "sparkContext", None)
    if not isinstance(context, SparkContext):
        raise InvalidInput(
            f"a {type(spark).__name__} is neither a SparkSession nor a SparkContext",
            reason="settings",
        )
    if context._jsc is None:
        raise InvalidInput("the Spark session is stopped; make a new one", reason="settings")
    return context


class LoopThread:
    """A coroutine in a thread with a loop of its own: a notebook's thread has one already."""

    def __init__(self, work: Any) -> None:
        self._error: BaseException | None = None
        self.result: Any = None
        self._thread = threading.Thread(target=self._run, args=(work,), name="maar-worker")
        self._thread.start()

    def join(self) -> None:
        while self._thread.is_alive():
            self._thread.join(_LOOK_S)  # not for ever at once, so that Ctrl-C is heard
        if self._error is not None:
            raise self._error

    def _run(self, work: Any) -> None:
        try:
            self.result = asyncio.run(work)
        except BaseException as error:  # noqa: BLE001  # raised again in the caller's thread
            self._error = error


async def _work(
    runner: SparkRunner,
    stores: Stores,
    address: str,
    settings: WorkerSettings,
    registry: CollectorRegistry,
    troubles: Troubles,
    stopped: Callable[[], bool],
) -> None:
    metastore = MetastoreClient(address)
    try:
        incarnation = (await metastore.call(GetNow())).incarnation
        home = await asyncio.to_thread(lambda: stores.home)
        await asyncio.to_thread(marker.check, home, incarnation, metastore=address)
        if not await warm_up(runner, stopped):
            return
        worker = Worker(
            settings,
            metastore,
            runner,
            SystemClock(),
            registry,
            WorkerId(f"{node_name()}-{secrets.token_hex(4)}"),
            random=Random(secrets.randbits(64)),
            undo=Undoing(
                metastore, lambda: stores, SystemClock(), asyncio.get_running_loop()
            ).roll_back,
        )
        life = asyncio.create_task(worker.run())
        telling = asyncio.create_task(troubles.tell(metastore))
        while not life.done():
            if stopped():
                worker.stop()
            await asyncio.wait({life}, timeout=_LOOK_S)
        await cancel(telling)
        await life
    except RunnerDied as error:
        raise Unavailable(f"the Spark session cannot be used any more: {error}") from error
    finally:
        await asyncio.to_thread(runner.close)
        await metastore.close()


async def warm_up(runner: SparkRunner, stopped: Callable[[], bool]) -> bool:
    """False when we were stopped before there was an executor to warm up."""
    warming = asyncio.create_task(asyncio.to_thread(runner.warm))
    while not warming.done():
        if stopped():
            await asyncio.to_thread(runner.close)  # again, if its job was not yet there to cancel
        await asyncio.wait({warming}, timeout=_LOOK_S)
    if stopped():
        await asyncio.gather(warming, return_exceptions=True)
        return False
    await warming
    return True
