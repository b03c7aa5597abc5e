"""A backfill from a Spark program: on your session, from your DataFrame or from files."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from maar.adapters.http_board import HttpBoard
from maar.app.backfill import Backfill, BulkEngine, FileFrame, Listed, list_files, whose_files
from maar.app.backfill import backfill as write
from maar.app.execution import Executor, site_of
from maar.distributor.settings import Limits
from maar.model.errors import InvalidInput
from maar.ports.stores.object_store import StoreSettings
from maar.ports.stores.stores import StorePlaces
from maar.runner.session import check
from maar.runner.settings import SparkSettings
from maar.services.ingest.source import SourceFile
from maar.spark.borrowed_spark import LoopThread, context_of
from maar.spark.plans import closing, own_stores
from maar.worker.settings import WorkerSettings

NEEDED = ("path", "content")


def backfill(
    spark: Any,
    source: Any,
    *,
    url: str,
    service: str,
    labels: Mapping[str, str] | None = None,
    tenant: str = "",
    store: str | StoreSettings | StorePlaces = "",
    lifeline_port: int = 0,
    settings: WorkerSettings | None = None,
    limits: Limits | None = None,
) -> dict[str, Any]:
    """Write many old pprof files at once, each with its own time, as blocks of their UTC days; the
    object that `maar backfill --json` prints.

    `source` is a path or several (files, directories, patterns, or one s3:// pattern), which your
    executors must be able to open, or a DataFrame with `path` and `content`, as
    `spark.read.format("binaryFile")` makes it. `url` is where the server listens; a `store` is
    given only to hold credentials. All of it shows at once, or, when this fails, nothing; repeated,
    it adds nothing.
    """
    context = context_of(spark)
    check(context)
    own = own_stores(store)
    whose = whose_files(tenant=tenant, service=service, labels=sorted((labels or {}).items()))
    wish = Backfill(_source(source, own.home.settings), whose, limits or Limits())
    engine = BulkEngine(SparkSettings(slots=1, lifeline_port=lifeline_port), None, context)
    loops: list[tuple[asyncio.AbstractEventLoop, Executor]] = []

    async def work() -> dict[str, Any]:
        async with closing(HttpBoard(url)) as board:
            site = await site_of(board, await board.setup(), own, server=url)
            executor = Executor(site, settings or WorkerSettings())
            loops.append((asyncio.get_running_loop(), executor))
            done = await write(
                wish,
                board=board,
                executor=executor,
                engine=engine,
                watch=lambda _: None,
            )
            return done.plain()

    life = LoopThread(work())
    try:
        life.join()
    except KeyboardInterrupt:  # in a notebook: what it wrote is rolled back
        for loop, executor in loops:
            loop.call_soon_threadsafe(executor.stop)
        life.join()
        raise
    found: dict[str, Any] = life.result
    return found


def _source(source: Any, own: StoreSettings) -> Listed | FileFrame:
    if hasattr(source, "rdd") and hasattr(source, "select"):
        lacks = [name for name in NEEDED if name not in source.columns]
        if lacks:
            raise InvalidInput(f"the DataFrame has no column {' and no column '.join(lacks)}")
        return FileFrame(source, _files_of(source))
    places: Sequence[str] = [source] if isinstance(source, str) else [str(each) for each in source]
    return list_files(places, own)


def _files_of(frame: Any) -> tuple[SourceFile, ...]:
    """By path and length, which `binaryFile` knows without reading what the files hold."""
    sized = "length" in frame.columns
    rows = frame.select(*(("path", "length") if sized else ("path",))).collect()
    return tuple(SourceFile(str(row[0]), int(row[1]) if sized else 0) for row in rows)
