"""A backfill: many old profiles are written as blocks under one plan, by whoever has the files.

The plan is opened and leased before anything is written. A wish for the same files finds the plan
that is pending; one that died is rolled back first, and then begun anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from glob import glob, has_magic
from pathlib import Path
from time import time_ns
from typing import Any, NamedTuple

from maar.adapters.http_board import HttpBoard
from maar.adapters.stores.open import open_store
from maar.app.execution import Executor
from maar.distributor.admit import admit_file
from maar.distributor.settings import Limits
from maar.model.errors import InvalidInput, Unavailable
from maar.model.ids import ANONYMOUS, PlanId, StoreName, tenant_id
from maar.ports.plans.board import Answer, RollBackPlan, SchedulePlan
from maar.ports.plans.outcome import DONE, OutcomeName, PlanOutcome, refusal_of
from maar.ports.plans.runner import JobRunner
from maar.ports.stores.object_store import ObjectInfo, StoreSettings
from maar.ports.stores.stores import StorePlaces
from maar.runner.bulk import Bulk, Read, of_files, of_frame, read_local, read_object
from maar.runner.runner import RowSource, RunnerTiming, SparkRunner
from maar.runner.settings import SparkSettings
from maar.services.ingest import run as ingesting
from maar.services.ingest.known import known_blocks
from maar.services.ingest.rules import INGEST, INGESTION
from maar.services.ingest.run import Told
from maar.services.ingest.source import SourceFile, Whose, listing_id

TRIES_MAX = 3  # a plan that died is rolled back, and the wish is made again
WATCH_S = 0.5
S3 = "s3://"
# Reading comes first, and its tasks write nothing: a seat is not asked for before the shuffle.
TIMING = RunnerTiming(seat_wait_s=7 * 86_400.0)

Watch = Callable[[float], None]  # how much is done, from 0 to 1


class Listed(NamedTuple):
    """Files by name, and how a task opens one."""

    files: tuple[SourceFile, ...]
    read: Read


class FileFrame(NamedTuple):
    """A DataFrame with `path` and `content`, and the files that it is of."""

    frame: Any
    files: tuple[SourceFile, ...]


class BulkEngine(NamedTuple):
    """The Spark that reads and writes: our own, or somebody's."""

    settings: SparkSettings
    scratch: Path | None
    borrowed: Any = None

    def runner(self, stores: StorePlaces, source: RowSource) -> SparkRunner:
        return SparkRunner(
            self.settings,
            stores,
            self.scratch,
            open_store=open_store,
            join=INGESTION.join,
            load=ingesting.load,
            kinds=(INGEST,),
            timing=TIMING,
            borrowed=self.borrowed,
            source=source,
        )


class Backfill(NamedTuple):
    """What somebody wants to have written."""

    source: Listed | FileFrame
    whose: Whose
    limits: Limits

    def request_id(self) -> str:
        return listing_id(self.whose, self.source.files)


class Backfilled(NamedTuple):
    """What came of it."""

    outcome: PlanOutcome
    told: Told | None  # of a completed plan

    def plain(self) -> dict[str, Any]:
        if self.told is None:
            return self.outcome.as_json()
        return {
            "plan": str(self.outcome.plan),
            "files": self.told.files,
            "profiles": self.told.kept,
            "duplicates": self.told.duplicates,
            "quarantined": [_as_json(each) for each in self.told.quarantined],
            "refused": [_as_json(each) for each in self.told.refused],
        }


def _as_json(each: ingesting.NamedFile) -> dict[str, str]:
    return {"file": each.file, "cause": each.cause}


def whose_files(*, tenant: str, service: str, labels: Sequence[tuple[str, str]]) -> Whose:
    """InvalidInput when a name is not allowed: it would be the same for every file."""
    whose = Whose(tenant_id(tenant) if tenant else ANONYMOUS, service, tuple(labels))
    if not service:
        raise InvalidInput("a backfill needs the service that the profiles belong to")
    whose.all_labels()
    return whose


# ── which files ────────────────────────────────────────────────────────────────────────────────


def list_files(places: Sequence[str], own: StoreSettings) -> Listed:
    """The files of paths, directories and patterns, or of one pattern in a bucket."""
    far = [place for place in places if place.startswith(S3)]
    if not far:
        found = {name: None for place in places for name in _local(place)}
        files = tuple(SourceFile(name, Path(name).stat().st_size) for name in found)
        return _require_files(Listed(files, read_local), places)
    if len(places) > 1:
        raise InvalidInput("give one s3:// pattern, or files of this host")
    settings, pattern = _split(far[0], own)
    infos = [info for info in open_store(settings).list("") if _matches(info, pattern)]
    named = tuple(SourceFile(f"{settings.url}/{info.key}", info.size) for info in infos)
    read = partial(read_object, settings=settings, open_store=open_store)
    return _require_files(Listed(named, read), places)


def _local(place: str) -> list[str]:
    path = Path(place)
    if path.is_dir():
        inside = path.resolve().rglob("*")
        return sorted(str(each) for each in inside if each.is_file() and each.name[0] != ".")
    if path.is_file():
        return [str(path.resolve())]
    if not has_magic(place):
        raise InvalidInput(f"{place} is neither a file nor a directory")
    found = map(Path, glob(place, recursive=True))
    return sorted(str(each.resolve()) for each in found if each.is_file())


def _split(place: str, own: StoreSettings) -> tuple[StoreSettings, str]:
    """The folder of a pattern as a store, and what its objects have to match."""
    parts = place.removeprefix(S3).split("/")
    fixed = next((at for at, part in enumerate(parts) if has_magic(part)), len(parts) - 1)
    folder = parts[: max(1, fixed)]
    pattern = "/".join(parts[len(folder) :]) or "*"
    return StoreSettings(StoreName("source"), S3 + "/".join(folder), own.options), pattern


def _matches(info: ObjectInfo, pattern: str) -> bool:
    return fnmatchcase(info.key, pattern) or info.key.startswith(f"{pattern.rstrip('/')}/")


def _require_files(listed: Listed, places: Sequence[str]) -> Listed:
    if not listed.files:
        raise InvalidInput(f"no file matches {', '.join(places)}")
    return listed


# ── writing them ───────────────────────────────────────────────────────────────────────────────


async def backfill(
    wish: Backfill,
    *,
    board: HttpBoard,
    executor: Executor,
    engine: BulkEngine,
    watch: Watch,
) -> Backfilled:
    for _ in range(TRIES_MAX):
        plan = await _open(wish, board)
        would = (await board.plan(plan)).execution
        if would is not None and would.answer is not Answer.GRANTED:
            outcome = refusal_of(would)
        else:
            done = await _write(wish, plan, board, executor, engine, watch)
            if done.outcome.outcome is not OutcomeName.MUST_BE_ROLLED_BACK:
                return done
            outcome = done.outcome
        if outcome.outcome is not OutcomeName.MUST_BE_ROLLED_BACK:
            return Backfilled(outcome, None)
        await _undo(plan, board, executor)
    raise Unavailable("somebody else opens and gives up the same backfill; ask again")


async def _open(wish: Backfill, board: HttpBoard) -> PlanId:
    """The plan of these files: a new one, or the one that is pending."""
    made = await board.call(
        SchedulePlan(INGEST, tenant=wish.whose.tenant, request_id=wish.request_id())
    )
    if made.plan is None:
        raise Unavailable(f"no backfill can be opened: {made.why}")
    return made.plan


async def _undo(plan: PlanId, board: HttpBoard, executor: Executor) -> None:
    """An earlier try died in the middle: what it wrote goes first."""
    reply = await board.call(RollBackPlan(plan))
    if reply.rollback is not None:
        await executor.finish_rollback(reply.rollback)


async def _write(
    wish: Backfill,
    plan: PlanId,
    board: HttpBoard,
    executor: Executor,
    engine: BulkEngine,
    watch: Watch,
) -> Backfilled:
    told: list[Told] = []
    source = _source(wish, await _bulk(wish, board), told.append)
    runner = engine.runner(executor.places, source)
    watching = asyncio.create_task(_watch(runner, watch))
    try:
        outcome = await executor.execute_with(plan, lambda: runner)
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    return Backfilled(outcome, told[-1] if outcome.outcome in DONE and told else None)


async def _bulk(wish: Backfill, board: HttpBoard) -> Bulk:
    whose = wish.whose
    admit = partial(
        admit_file,
        tenant=whose.tenant,
        now_ns=time_ns(),
        limits=wish.limits,
        kept_ns=await board.period_ns(whose.tenant),
    )
    read = wish.source.read if isinstance(wish.source, Listed) else read_local
    metas = await board.blocks_of(whose.tenant, whose.service)
    return Bulk(whose, admit, read, known_blocks(metas, whose))


def _source(wish: Backfill, bulk: Bulk, told: Callable[[Told], None]) -> RowSource:
    if isinstance(wish.source, FileFrame):
        return of_frame(bulk, wish.source.frame, told)
    return of_files(bulk, wish.source.files, told)


async def _watch(runner: JobRunner, watch: Watch) -> None:
    assert isinstance(runner, SparkRunner)
    while True:
        await asyncio.sleep(WATCH_S)
        watch(await asyncio.to_thread(runner.progress))
