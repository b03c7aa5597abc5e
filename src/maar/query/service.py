"""Runs queries: each has a slot, a pinned view, a thread with its own cursor, and a deadline."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import msgspec
from prometheus_client import CollectorRegistry

from maar.model.errors import Corrupt, InvalidInput, NotFound, Overloaded, Unavailable
from maar.model.ids import TenantId, profile_id_text
from maar.model.labels import Labels
from maar.model.time import TimeRange
from maar.ports.calls import Caller, LocalPort
from maar.ports.metastore.log_time import GetNow
from maar.ports.reader.index import IndexReader, IndexView, ViewRequest
from maar.ports.reader.query import (
    DrawFlameGraph,
    FlameGraph,
    GetProfile,
    ListLabelNames,
    ListLabelValues,
    ListProfileTypes,
    ListSeries,
    RankFunctions,
    Scope,
    SelectSeries,
    SeriesPoints,
    Top,
)
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores, stores_of
from maar.query import answers, compiled
from maar.query.decide.budget import AnswerBudget
from maar.query.decide.select import (
    PATTERNS,
    PROFILE_TYPE,
    check_matchers,
    datasets_of,
    parts_of,
    profile_type_of,
    service_of,
)
from maar.query.decide.steps import MILLISECOND_NS, Steps, steps_of
from maar.query.decide.turns import NoTurn, TurnLimits, Turns
from maar.query.metrics import Metrics
from maar.query.read.block_reader import BlockReader
from maar.query.read.damaged import Tried, find_bad_copies, name_damage, suspects
from maar.query.read.database import QueryDatabase
from maar.query.read.find import find
from maar.query.read.known_copies import KnownCopies
from maar.query.read.known_views import KnownViews
from maar.query.read.letters import Letters
from maar.query.read.level0 import Level0
from maar.query.read.part_cache import PartCache
from maar.query.read.reading import PartGone, Reading, TakesLonger
from maar.query.settings import QuerySettings

__all__ = ["DuckEngine", "QuerySettings"]

log = logging.getLogger("maar.query")

T = TypeVar("T")
AtOnce = Callable[[Reading], bool]
STOP_REPEAT_S = 0.05
SAMPLES_SHARE = 4  # a part of the cache is for samples, and the rest for what they belong to
VIEWS_SHARE = 32  # beside it, so much is for what the index has said
# What is looked at on the event loop, in about a millisecond: datasets of a view, and runs for
# labels and for values over time.
DATASETS_AT_ONCE = 1_000
LABEL_RUNS_AT_ONCE = 20_000
POINT_RUNS_AT_ONCE = 4_000


class DuckEngine(LocalPort):
    """See ports.query.QueryEngine."""

    def __init__(
        self,
        settings: QuerySettings,
        metastore: Caller[IndexReader],
        store: ObjectStore | Stores,
        registry: CollectorRegistry,
        *,
        reader: str = "query",
        letters: bool = False,  # whether segment writers may leave dead letters (S20)
    ) -> None:
        self._reader = reader  # names our pins: no two processes may share them (S10)
        self._settings = settings
        self._metastore = metastore
        self._stores = stores_of(store)
        self._metrics = Metrics(registry)
        self.level0 = Level0(
            self._stores,
            bytes_max=settings.level0_cache_bytes_max,
            metrics=self._metrics,
        )
        self._metrics.level0_cache.set_function(lambda: self.level0.bytes)
        self.letters = Letters(self._stores, self._metrics) if letters else None
        self._database = QueryDatabase(settings, self._stores)
        kept = settings.part_cache_bytes_max
        hits, misses = (self._metrics.part_lookups.labels(result) for result in ("hit", "miss"))
        self.parts = PartCache(
            kept - kept // SAMPLES_SHARE, count=lambda r: (hits if r == "hit" else misses).inc()
        )
        samples = PartCache(kept // SAMPLES_SHARE)
        self._metrics.part_cache.set_function(lambda: self.parts.bytes + samples.bytes)
        self.blocks = BlockReader(self._stores, self.parts, samples)
        self._copies = KnownCopies(self.parts)
        self._views = KnownViews(kept // VIEWS_SHARE)
        # Not `background.Threads`: closing waits for each thread, without an event loop.
        self._threads = ThreadPoolExecutor(settings.concurrency, thread_name_prefix="maar-query")
        # A slot is a permission to run and the name of a pin: one that another query takes
        # over must not let go of the blocks that this one still reads.
        self._turns: Turns[asyncio.Future[int]] = Turns(
            TurnLimits(
                slots=settings.concurrency,
                tenant_slots=settings.tenant_concurrency,
                waiting=settings.waiting_max,
                tenant_waiting=settings.tenant_waiting_max,
            )
        )
        self._metrics.waiting.set_function(lambda: self._turns.waiting)
        self._at_work: dict[int, asyncio.Future[Any]] = {}
        self._readings: dict[Future[Any], Reading] = {}
        self._stopping: set[asyncio.Task[None]] = set()

    async def profile_types(self, request: ListProfileTypes) -> tuple[str, ...]:
        with self._metrics.measure("profile_types"):
            sets = await self._label_sets(request.scope, (PROFILE_TYPE,))
        return tuple(sorted(labels[0][1] for labels in sets))

    async def label_names(self, request: ListLabelNames) -> tuple[str, ...]:
        with self._metrics.measure("label_names"):
            scope = request.scope
            names = await self.ask(
                scope,
                lambda reading: answers.label_names(reading, scope),
                at_once=lambda reading: reading.has_at_hand(scope, LABEL_RUNS_AT_ONCE),
            )
        return tuple(sorted(names))

    async def label_values(self, request: ListLabelValues) -> tuple[str, ...]:
        with self._metrics.measure("label_values"):
            if not request.name:
                raise InvalidInput("the label to list values of has no name", reason="labels")
            sets = await self._label_sets(request.scope, (request.name,))
        return tuple(sorted(labels[0][1] for labels in sets))

    async def series(self, request: ListSeries) -> tuple[Labels, ...]:
        with self._metrics.measure("series"):
            return await self._label_sets(request.scope, request.label_names)

    async def flamegraph(self, request: DrawFlameGraph) -> FlameGraph:
        scope = request.scope
        nodes = min(request.max_nodes, self._settings.nodes_max)
        nodes = nodes if nodes > 0 else self._settings.nodes_default
        with self._metrics.measure("flamegraph"):
            wanted = profile_type_of(request.profile_type)
            return await self.ask(
                scope,
                lambda reading: answers.draw(
                    reading,
                    scope,
                    profile_type=wanted,
                    max_nodes=nodes,
                    most=self._settings.nodes_max,
                    tidy=self._settings.tidy_go_stacks,
                ),
                at_once=lambda reading: answers.draws_at_once(
                    reading, scope, profile_type=wanted, tidy=self._settings.tidy_go_stacks
                ),
            )

    async def top(self, request: RankFunctions) -> Top:
        scope, limit = request.scope, request.limit
        with self._metrics.measure("top"):
            wanted = profile_type_of(request.profile_type)
            if limit <= 0:
                raise InvalidInput(f"a table of {limit} rows cannot be made; ask for 1 or more")
            return await self.ask(
                scope,
                lambda reading: answers.top(
                    reading,
                    scope,
                    profile_type=wanted,
                    limit=limit,
                    tidy=self._settings.tidy_go_stacks,
                ),
            )

    async def select_series(self, request: SelectSeries) -> tuple[SeriesPoints, ...]:
        scope, aggregation = request.scope, request.aggregation
        with self._metrics.measure("select_series"):
            wanted = profile_type_of(request.profile_type)
            steps = self._check_steps(scope.range, request.step_ns)
            if aggregation not in ("sum", "avg"):
                raise InvalidInput(f"{aggregation!r} is not an aggregation; use sum or avg")
            counted = msgspec.structs.replace(scope, range=steps.range)
            return await self.ask(
                counted,
                lambda reading: answers.select_series(
                    reading,
                    counted,
                    profile_type=wanted,
                    group_by=request.group_by,
                    steps=steps,
                    average=aggregation == "avg",
                    limit=request.limit,
                    series_max=self._settings.series_max,
                ),
                at_once=lambda reading: reading.has_at_hand(counted, POINT_RUNS_AT_ONCE),
            )

    async def profile(self, request: GetProfile) -> bytes:
        tenant, profile = request.tenant, request.profile
        with self._metrics.measure("profile"):
            found = await self.ask(
                Scope(tenant, request.hint),
                lambda reading: find(reading, tenant, profile),
                decodes=False,
            )
            if found is None:
                raise NotFound(
                    f"profile {profile_id_text(profile)} is not among this tenant's profiles in "
                    "the time range; widen the range, or check the tenant"
                )
        return found

    def warm(self) -> None:
        """Return when the first query would not have to wait for a compilation. Blocks."""
        compiled.warm()

    def close(self) -> None:
        """Stop what is at work, then give everything back."""
        while readings := dict(self._readings):
            for reading in readings.values():
                reading.stop()
            wait(readings, timeout=STOP_REPEAT_S)
        self._threads.shutdown()
        if self.letters:
            self.letters.close()
        self._database.close()

    async def _label_sets(self, scope: Scope, names: tuple[str, ...]) -> tuple[Labels, ...]:
        known = bool(names) and answers.index_knows(scope, names)
        sets = await self.ask(
            scope,
            lambda reading: answers.label_sets(reading, scope, names=names),
            decodes=not known,
            at_once=lambda reading: (
                (known and len(reading.parts.datasets) <= DATASETS_AT_ONCE)
                or reading.has_at_hand(scope, LABEL_RUNS_AT_ONCE)
            ),
        )
        if len(sets) > self._settings.series_max:
            raise InvalidInput(
                f"{len(sets)} different label sets are more than the {self._settings.series_max} "
                "allowed in one answer; add a selector or a shorter time range",
                reason="series",
            )
        return sets

    async def ask(
        self,
        scope: Scope,
        work: Callable[[Reading], T],
        *,
        decodes: bool = True,
        at_once: AtOnce = lambda _: False,
    ) -> T:
        """One query from slot to answer, within its time. `at_once` tells whether all that it reads
        is in memory and small: a thread would take longer to wake up than the work does.
        """
        check_matchers(scope.matchers)
        _check_range(scope.range)
        slot = await self._take_slot(scope.tenant)
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                try:
                    return await self._attempt(slot, scope, work, decodes, at_once)
                # The first time the view may have been too old; the second is damage.
                except PartGone as gone:
                    log.warning("query repeated with a new view slot=%d cause=%s", slot, gone)
                return await self._attempt(slot, scope, work, decodes, at_once, again=True)
        except TimeoutError as error:
            raise Unavailable(
                f"the query took longer than {self._settings.timeout_s:g} s and was stopped; "
                "ask for a shorter time range, or raise query.timeout_s"
            ) from error
        finally:
            self._free_slot(slot)

    async def _attempt(
        self,
        slot: int,
        scope: Scope,
        work: Callable[[Reading], T],
        decodes: bool,
        at_once: AtOnce,
        *,
        again: bool = False,
    ) -> T:
        service = service_of(scope.matchers)
        view = await self._view(scope, service, f"{self._reader}/{slot}")
        blocks = [meta for meta in view.blocks if meta.id not in scope.without]
        parts = parts_of(
            blocks, tenant=scope.tenant, time=scope.range, service=service, masks=view.masks
        )
        backlog = sum(each.profiles for _, some in parts.raw for each in some)
        if decodes and backlog > self._settings.level0_profiles_max:
            raise Overloaded(
                f"{backlog} profiles in the time range are not compacted yet, more than the "
                f"{self._settings.level0_profiles_max} that one query may decode; ask for a "
                "shorter time range, or wait for compaction to catch up"
            )
        self._metrics.blocks.inc(len(parts.blocks))
        self._metrics.raw.inc(sum(len(datasets) for _, datasets in parts.raw))
        reading = Reading(
            self._database,
            parts,
            stores=self._stores,
            level0=self.level0,
            blocks=self.blocks,
            copies=self._copies,
            budget=AnswerBudget(self._settings.answer_bytes_max),
        )
        try:
            with reading.hurry():
                if at_once(reading):
                    answer = work(reading)
                    self._metrics.held.observe(reading.budget.taken)
                    return answer
        except (TakesLonger, Corrupt, PartGone, Unavailable):
            reading.budget.back_to(0)  # a thread begins anew, and finds out what is wrong
        thread = self._threads.submit(_run_work, reading, scope, work, again)
        self._readings[thread] = reading
        thread.add_done_callback(lambda ended: self._readings.pop(ended, None))
        thread.add_done_callback(lambda _: self._metrics.held.observe(reading.budget.taken))
        running = asyncio.wrap_future(thread)
        self._at_work[slot] = running
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            stopping = asyncio.create_task(_stop_running(running, reading))
            self._stopping.add(stopping)
            stopping.add_done_callback(self._stopping.discard)
            raise

    async def _view(self, scope: Scope, service: str, reader: str) -> IndexView:
        """The blocks of the index, and those in dead letters that are not in it yet.

        Letters are read first: one that is delivered meanwhile is in the view then. The index says
        which of them it has never seen, since it also knows what was merged or expired (S4, S20).
        """
        request = ViewRequest(
            tenant=scope.tenant, range=scope.range, service=service, reader=reader
        )
        if self.letters is None:
            return await self._views.ask(self._metastore.call, request)
        incarnation = (await self._metastore.call(GetNow())).incarnation
        found = await self.letters.waiting(incarnation)
        wanted = {
            meta.id: meta
            for meta in found
            if datasets_of(meta, tenant=scope.tenant, time=scope.range, service=service)
        }
        view = await self._metastore.call(msgspec.structs.replace(request, letters=tuple(wanted)))
        unseen = await self.letters.whole(incarnation, [wanted[block] for block in view.letters])
        self._metrics.letters.inc(len(unseen))
        return msgspec.structs.replace(view, blocks=(*view.blocks, *unseen))

    async def _take_slot(self, tenant: TenantId) -> int:
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        try:
            slot = self._turns.ask(tenant, waiter)
        except NoTurn as refused:
            self._metrics.refusals.labels(refused.reason).inc()
            raise
        if slot is not None:
            return slot
        with self._metrics.measure_wait():
            try:
                async with asyncio.timeout(self._settings.timeout_s):
                    return await waiter
            except BaseException as error:  # raised again: a slot that came must not be lost
                self._leave(tenant, waiter)
                if not isinstance(error, TimeoutError):
                    raise
                self._metrics.refusals.labels("timeout").inc()
                raise Overloaded(
                    f"{self._settings.concurrency} queries are running and it was not this one's "
                    f"turn within {self._settings.timeout_s:g} s; ask again later"
                ) from error

    def _leave(self, tenant: TenantId, waiter: asyncio.Future[int]) -> None:
        if waiter.done() and not waiter.cancelled():
            self._release(waiter.result())  # its turn came when it had given up
        else:
            self._turns.leave(tenant, waiter)

    def _release(self, slot: int) -> None:
        for waiter, given in self._turns.free(slot):
            if waiter.done():  # it is about to leave, and has not been heard yet
                self._release(given)
            else:
                waiter.set_result(given)

    def _free_slot(self, slot: int) -> None:
        """Release the slot when its thread has ended, which may be after the client has gone."""
        running = self._at_work.pop(slot, None)
        if running is None or running.done():
            self._release(slot)
        else:
            running.add_done_callback(lambda _: self._release(slot))

    def _check_steps(self, time: TimeRange, step_ns: int) -> Steps:
        _check_range(time)
        step_ms = step_ns // MILLISECOND_NS
        if step_ms < 1:
            raise InvalidInput("the step must be at least one millisecond", reason="step")
        steps = steps_of(time, step_ms)
        if steps.count > self._settings.points_max:
            raise InvalidInput(
                f"{steps.count} points are more than the {self._settings.points_max} allowed; use "
                "a longer step or a shorter time range",
                reason="step",
            )
        return steps


def _check_range(time: TimeRange) -> None:
    if time.start_ns > time.end_ns:
        raise InvalidInput(
            "the time range ends before it starts; swap its bounds", reason="time_range"
        )


def _run_work(reading: Reading, scope: Scope, work: Callable[[Reading], T], again: bool) -> T:
    tried = Tried()
    try:
        reading.compile([m.value for m in scope.matchers if m.op in PATTERNS])
        while True:
            try:
                return work(reading)
            except (Corrupt, PartGone, Unavailable) as error:
                if isinstance(error, PartGone) and not again:
                    raise  # the view may have been too old
                if find_bad_copies(reading.stores, reading.parts, error, tried):
                    reading.choose_copies_again(tried.blocks.values())
                elif isinstance(error, Unavailable):
                    raise
                else:
                    damage = name_damage(reading.stores, reading.parts, error)
                    if isinstance(error, Corrupt):
                        reading.forget(suspects(reading.parts, damage))
                    raise damage from error
    finally:
        reading.close()


async def _stop_running(running: asyncio.Future[Any], reading: Reading) -> None:
    """Interrupt until the thread has ended: one that comes between two statements is lost."""
    while not running.done():
        reading.stop()
        await asyncio.wait([running], timeout=STOP_REPEAT_S)
    if error := running.exception():
        log.info("query stopped cause=%s", type(error).__name__)
