"""The leader's placement manager: counts registered bytes, and writes placement rules.

Its statistics are in memory only and not replicated (S13): a new leader begins with the newest
rules of the store and empty statistics, and takes no shards away for a decay window. When the store
does not answer, the rules stay as they are and the manager tries again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from maar.background import EXPECTED, Loop
from maar.metastore.leader.background import Led
from maar.metastore.records.effects import Effect, Registered
from maar.metastore.state.state import MetaState
from maar.model import keys
from maar.model.block import BlockMeta, Kind
from maar.model.errors import MaarError
from maar.model.ids import TenantId
from maar.model.time import SECOND_NS, LeaseTime
from maar.placement import stored, wire
from maar.placement.adaptive.builder import BuiltRules, RulesBuilder, Surroundings
from maar.placement.adaptive.statistics import DatasetStats, Stats, WriteSource
from maar.placement.rules import Balancing, PlacementSettings, Rules, TenantLimits
from maar.placement.stored import StoredNames
from maar.ports.clock import Clock
from maar.ports.stores.object_store import ObjectStore

log_ = logging.getLogger("maar.metastore")

RECORD_S = 1.0  # what was registered goes into the statistics this often
HEARD_MAX = 200_000  # sums that wait for that; more are dropped, and counted as dropped
KEPT = 3  # sets of rules, and of statistics
RETRY_S = 5.0  # at most, after the store failed
SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)


class WrittenBytes(NamedTuple):
    """What a writer wrote of a dataset in a second, of which the bytes are summed up."""

    tenant: TenantId
    service: str
    source: WriteSource
    second: int


class PlacementMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"maar_placement_{name}", text, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"maar_placement_{name}", text, labels, registry=registry)

        self.datasets = gauge("datasets", "Datasets in the statistics")
        self.rates = gauge("rates", "Rates in them: one for each dataset, shard and writer")
        self.rules = gauge("rules", "Datasets that have a rule")
        self.round_robin = gauge("round_robin_datasets", "Of those, spread by chance")
        self.age = gauge("rules_age_seconds", "Since the rules in the store were last up to date")
        self.switches = counter(
            "switches_total", "Datasets that are balanced in another way than before", "to"
        )
        self.evicted = counter("evictions_total", "Datasets that full statistics had to forget")
        self.dropped = counter("dropped_samples_total", "Registrations that were not counted")
        self.failures = counter("failures_total", "What could not be done with the store", "what")
        self.build = Histogram(
            "maar_placement_build_seconds",
            "From statistics to rules",
            buckets=SECONDS,
            registry=registry,
        )


class PlacementTerm:
    """What the manager of one term knows; the next term begins with another."""

    def __init__(self, settings: PlacementSettings) -> None:
        self.builder = RulesBuilder(settings)
        self.loaded = False  # rules made before would forget which shards datasets have
        self.rules = Rules()  # those in the store
        self.stats: tuple[DatasetStats, ...] = ()
        self.shelf = StoredNames()  # names in the store, some perhaps of objects that are not there
        self.evicted = 0
        self.turn = asyncio.Lock()  # to use the builder


class PlacementManager:
    """Counts on the leader's loop; records and builds rules in threads, one after the other."""

    def __init__(
        self,
        settings: PlacementSettings,
        limits: Callable[[TenantId], TenantLimits] | None,
        store: ObjectStore,
        clock: Clock,
        registry: CollectorRegistry,
        *,
        heard_max: int = HEARD_MAX,
    ) -> None:
        self._settings = settings
        self._heard_max = heard_max
        self._limits = limits or (lambda _: settings.tenant)
        self._store = store
        self._clock = clock
        self._metrics = PlacementMetrics(registry)
        self._heard: dict[WrittenBytes, int] = {}  # bytes, since they were last recorded
        self._leader_term = PlacementTerm(settings)
        self._done_ns: int | None = None  # None while another replica leads
        self._metrics.age.set_function(self._age_s)

    def _age_s(self) -> float:
        done_ns, now_ns = self._done_ns, self._clock.monotonic_ns()
        return 0.0 if done_ns is None else (now_ns - done_ns) / SECOND_NS

    # ── on the leader's loop ───────────────────────────────────────────────────────────────────

    def start_leading(self) -> None:
        """Start over: another replica may have led meanwhile, so what was known may be outdated."""
        self._leader_term = PlacementTerm(self._settings)
        self._done_ns = self._clock.monotonic_ns()

    def _stop_leading(self) -> None:
        """Clear the gauges: the next leader sets its own."""
        self._done_ns = None
        self._heard.clear()
        for gauge in (self._metrics.datasets, self._metrics.rates, self._metrics.rules):
            gauge.set(0)
        self._metrics.round_robin.set(0)

    def hear(self, blocks: Iterable[BlockMeta], effects: Sequence[Effect], now: LeaseTime) -> None:
        """Segments were registered; those that were known before, or refused, do not count."""
        new = {one.block for one in effects if isinstance(one, Registered) and one.profiles}
        heard, second = self._heard, now // SECOND_NS
        for meta in blocks:
            if meta.id not in new or meta.kind is not Kind.SEGMENT:
                continue
            new.discard(meta.id)  # sent twice at once, it is still one
            source = WriteSource(meta.shard, meta.created_by)
            for dataset in meta.datasets:
                written = WrittenBytes(dataset.tenant, dataset.service, source, second)
                size = min(max(dataset.size, 0), meta.size)
                if written in heard or len(heard) < self._heard_max:
                    heard[written] = heard.get(written, 0) + size
                else:
                    self._metrics.dropped.inc()

    # ── in the background ──────────────────────────────────────────────────────────────────────

    async def forever(self, leader: Led) -> None:
        recording = Loop(
            self._record_in_turn,
            failed="placement statistics lost",
            log=log_,
            every_s=RECORD_S,
            on_failure=self._count_defect,
        )
        try:
            async with asyncio.TaskGroup() as parts:
                parts.create_task(recording.run(first_after_s=RECORD_S))
                parts.create_task(self.ruling(leader).run())
        finally:
            self._stop_leading()

    def ruling(self, leader: Led) -> Loop[None]:
        interval_s = self._settings.interval_s
        return Loop(
            lambda: self._rule(leader),
            failed="placement rules not updated",
            log=log_,
            every_s=interval_s,
            retry_s=min(interval_s, RETRY_S),
            on_failure=self._count_defect,
        )

    def _count_defect(self, error: Exception) -> None:
        if not isinstance(error, EXPECTED):  # others are counted where they arise
            self._metrics.failures.labels("defect").inc()

    async def _record_in_turn(self) -> None:
        leader_term = self._leader_term
        async with leader_term.turn:
            await self._record(leader_term)

    async def _rule(self, leader: Led) -> None:
        """Make the rules of this moment, and store what changed."""
        leader_term = self._leader_term
        if not leader_term.loaded:
            await self._load(leader_term, leader)
        built = await self._build(leader_term, leader)
        await self._store_changes(leader_term, built, leader)
        self._done_ns = self._clock.monotonic_ns()

    async def _load(self, leader_term: PlacementTerm, leader: Led) -> None:
        """Continue where the previous leader stopped."""
        incarnation = leader.state.incarnation
        with self._metrics.failures.labels("load").count_exceptions():
            leader_term.shelf = await asyncio.to_thread(stored.list_names, self._store, incarnation)
            names = leader_term.shelf.rules
            found = await asyncio.to_thread(stored.newest_rules, self._store, names)
        for sentence in found.unreadable:
            self._metrics.failures.labels("damaged").inc()
            log_.error("placement rules unreadable cause=%s", sentence)
        if found.value is not None:
            leader_term.builder.resume(found.value, leader.now())
            leader_term.rules = found.value
        leader_term.loaded = True
        log_.info("placement rules loaded datasets=%d", len(leader_term.rules.datasets))

    async def _record(self, leader_term: PlacementTerm) -> None:
        """What is heard before the rules are loaded is recorded, too."""
        if self._heard:
            heard, self._heard = self._heard, {}
            await asyncio.to_thread(_record_all, leader_term.builder, heard)

    async def _build(self, leader_term: PlacementTerm, leader: Led) -> BuiltRules:
        async with leader_term.turn:
            await self._record(leader_term)
            around = surroundings(leader.state, self._limits)
            with self._metrics.build.time():
                built = await asyncio.to_thread(leader_term.builder.build, around, leader.now())
        self._tell(leader_term, built)
        return built

    def _tell(self, leader_term: PlacementTerm, built: BuiltRules) -> None:
        statistics, shares = leader_term.builder.statistics, built.rules.datasets.values()
        self._metrics.datasets.set(len(statistics))
        self._metrics.rates.set(statistics.rates)
        self._metrics.rules.set(len(shares))
        by_chance = sum(share.balancing is Balancing.ROUND_ROBIN for share in shares)
        self._metrics.round_robin.set(by_chance)
        self._metrics.evicted.inc(statistics.evicted - leader_term.evicted)
        leader_term.evicted = statistics.evicted
        for (tenant, service), balancing in built.switched.items():
            self._metrics.switches.labels(balancing.spoken).inc()
            log_.info(
                "placement switched tenant=%s service=%s to=%s", tenant, service, balancing.spoken
            )

    # ── the store ──────────────────────────────────────────────────────────────────────────────

    async def _store_changes(
        self, leader_term: PlacementTerm, built: BuiltRules, leader: Led
    ) -> None:
        """Write only what changed: a lake without traffic costs no requests."""
        leader.confirm()
        incarnation = leader.state.incarnation
        created_at = next_time(leader_term.shelf, leader.now())
        if built.stats.datasets != leader_term.stats:
            key = keys.placement_stats(incarnation=incarnation, created_at=created_at)
            leader_term.shelf = leader_term.shelf._replace(stats=(key, *leader_term.shelf.stats))
            stats = Stats(created_at, built.stats.datasets)
            await self._create(key, lambda: wire.encode_stats(stats))
            leader_term.stats = stats.datasets
        if built.rules.datasets != leader_term.rules.datasets:
            key = keys.placement_rules(incarnation=incarnation, created_at=created_at)
            leader_term.shelf = leader_term.shelf._replace(rules=(key, *leader_term.shelf.rules))
            rules = Rules(created_at, built.rules.datasets)
            await self._create(key, lambda: wire.encode_rules(rules))
            leader_term.rules = rules
        leader.confirm()
        leader_term.shelf = await self._delete_old(leader_term.shelf)

    async def _create(self, key: str, encode: Callable[[], bytes]) -> None:
        with self._metrics.failures.labels("store").count_exceptions():
            await asyncio.to_thread(lambda: self._store.create(key, encode()))

    async def _delete_old(self, shelf: StoredNames) -> StoredNames:
        """Delete all but the newest few; what cannot be deleted now is deleted later."""
        old = (*shelf.rules[KEPT:], *shelf.stats[KEPT:])
        try:
            with self._metrics.failures.labels("delete").count_exceptions():
                for key in old:
                    await asyncio.to_thread(self._store.delete, key)
        except (MaarError, OSError) as error:
            log_.warning("old placement rules not deleted cause=%s", error)
            return shelf
        return StoredNames(shelf.rules[:KEPT], shelf.stats[:KEPT])


def next_time(shelf: StoredNames, now: LeaseTime) -> int:
    """A time later than any name in the store: the previous leader's clock may be ahead of ours."""
    names = (("rules", shelf.rules), ("stats", shelf.stats))
    times = [keys.placement_time(key, kind=kind) or 0 for kind, found in names for key in found[:1]]
    return max(now, *(time + 1 for time in times)) if times else now


def surroundings(state: MetaState, limits: Callable[[TenantId], TenantLimits]) -> Surroundings:
    rings = state.rings.values()
    return Surroundings(
        limits,
        zones={writer.node: ring.zone for ring in rings for writer in ring.writers},
        shards={ring.zone: len(ring.owners) for ring in rings},
    )


def _record_all(builder: RulesBuilder, heard: Mapping[WrittenBytes, int]) -> None:
    for (tenant, service, source, second), size in heard.items():
        builder.record(tenant, service, source, size, second * SECOND_NS)
