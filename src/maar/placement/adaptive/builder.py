"""Builds the rules: statistics in, a share for each dataset out, by what it had before.

A dataset is judged by the zone in which it is largest: zones have rings of their own, and the rules
hold in all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from maar.model.ids import HOME, TenantId, Zone
from maar.model.time import SECOND_NS
from maar.placement.adaptive import allocator, balancing
from maar.placement.adaptive.allocator import Allotment
from maar.placement.adaptive.balancing import DatasetLoad, SpreadState
from maar.placement.adaptive.ewma import MovingMean
from maar.placement.adaptive.statistics import (
    DatasetRates,
    DatasetStats,
    ShardUse,
    Statistics,
    Stats,
    WriteSource,
)
from maar.placement.rules import Balancing, PlacementSettings, Rules, Share, TenantLimits

Dataset = tuple[TenantId, str]


class Surroundings(NamedTuple):
    """What the builder does not know by itself."""

    limits: Callable[[TenantId], TenantLimits]
    zones: Mapping[str, Zone] = {}  # of the writers that are known; others are at home
    shards: Mapping[Zone, int] = {}  # of a zone's ring


class BuiltRules(NamedTuple):
    rules: Rules
    stats: Stats
    switched: Mapping[Dataset, Balancing]  # those that are balanced in another way than before


class Known(NamedTuple):
    """What is remembered of a dataset from one build to the next."""

    share: Share
    allotment: Allotment
    standing: SpreadState
    spread: MovingMean
    seen_ns: int  # when it was last in the statistics
    moved_ns: int  # when it last got another number of shards


class RulesBuilder:
    def __init__(self, settings: PlacementSettings) -> None:
        self._settings = settings
        self._statistics = Statistics(
            window_s=settings.stats_window_s,
            kept_s=settings.stats_kept_s,
            datasets_max=settings.datasets_max,
        )
        self._known: dict[Dataset, Known] = {}

    @property
    def statistics(self) -> Statistics:
        return self._statistics

    def record(
        self, tenant: TenantId, service: str, source: WriteSource, size: int, now_ns: int
    ) -> None:
        """Some bytes of a dataset were written."""
        self._statistics.record(tenant, service, source, size, now_ns)

    def resume(self, rules: Rules, now_ns: int) -> None:
        """Go on from the rules of another: no dataset loses shards for a decay window."""
        self._known = {
            dataset: Known(
                share,
                allocator.resume(share.dataset_shards, now_ns),
                _resume_spread(share, now_ns),
                MovingMean(self._settings.stats_window_s),
                now_ns,
                now_ns,
            )
            for dataset, share in rules.datasets.items()
        }

    def build(self, around: Surroundings, now_ns: int) -> BuiltRules:
        stats: list[DatasetStats] = []
        known: dict[Dataset, Known] = {}
        switched: dict[Dataset, Balancing] = {}
        for seen in self._statistics.read(now_ns):
            dataset = (seen.tenant, seen.service)
            before = self._known.get(dataset)
            after, told = self._judge(seen, before, around, now_ns)
            known[dataset] = after
            stats.append(told)
            was = before.standing.balancing if before else Balancing.FINGERPRINT
            if after.standing.balancing is not was:
                switched[dataset] = after.standing.balancing
        self._known = known | self._silent(known, now_ns)
        shares = {dataset: one.share for dataset, one in sorted(self._known.items())}
        return BuiltRules(Rules(now_ns, shares), Stats(now_ns, tuple(stats)), switched)

    def _silent(self, known: Mapping[Dataset, Known], now_ns: int) -> dict[Dataset, Known]:
        """Those without data keep their rules for a while; of too many, those last heard of."""
        kept_ns = self._settings.rules_kept_s * SECOND_NS
        silent = [
            (dataset, one)
            for dataset, one in self._known.items()
            if dataset not in known and now_ns - one.seen_ns < kept_ns
        ]
        silent.sort(key=lambda each: each[1].seen_ns, reverse=True)
        return dict(silent[: max(0, self._settings.datasets_max - len(known))])

    def _judge(
        self, seen: DatasetRates, before: Known | None, around: Surroundings, now_ns: int
    ) -> tuple[Known, DatasetStats]:
        limits = around.limits(seen.tenant)
        uses = tuple(
            ShardUse(source.shard, source.owner, usage, around.zones.get(source.owner, HOME))
            for source, usage in seen.usages
        )
        zone, usages = busiest(uses)
        before = before or self._new_dataset(limits, now_ns)
        allotment = allocator.observe(before.allotment, sum(usages), limits, now_ns)
        shards = reachable(allotment.shards, limits, around.shards.get(zone))
        moved_ns = now_ns if allotment.shards != before.allotment.shards else before.moved_ns
        settled = now_ns - moved_ns >= self._settings.stats_window_s * SECOND_NS
        usage, usages = sum(usages), comparable(usages, shards, settled=settled)
        now = balancing.deviation(usages)
        deviation = round(before.spread.look(now, now_ns))
        load = DatasetLoad(usage, usages, deviation, now, shards)
        standing = balancing.judge(before.standing, load, limits, now_ns)
        share = Share(limits.tenant_shards, allotment.shards, standing.balancing)
        after = Known(share, allotment, standing, before.spread, now_ns, moved_ns)
        return after, DatasetStats(seen.tenant, seen.service, uses, deviation)

    def _new_dataset(self, limits: TenantLimits, now_ns: int) -> Known:
        """A dataset that nothing is known of has had the shards that distributors give to such."""
        return Known(
            Share(),
            allocator.resume(limits.dataset_shards, now_ns),
            SpreadState(),
            MovingMean(self._settings.stats_window_s),
            now_ns,
            now_ns,
        )


def busiest(uses: tuple[ShardUse, ...]) -> tuple[Zone, list[int]]:
    """The zone where a dataset is largest, and what its shards take there, whoever wrote it."""
    zones: dict[Zone, Counter[int]] = {}
    for use in uses:
        zones.setdefault(use.zone, Counter())[use.shard] += use.usage
    zone = max(sorted(zones), key=lambda name: zones[name].total())
    return zone, sorted(zones[zone].values(), reverse=True)


def reachable(shards: int, limits: TenantLimits, ring: int | None) -> int:
    """Of a dataset's shards, those that its tenant and the ring really have."""
    if limits.tenant_shards:
        shards = min(shards, limits.tenant_shards)
    return min(shards, ring) if ring else shards


def comparable(usages: list[int], shards: int, *, settled: bool) -> list[int]:
    """What is left on shards that it no longer uses does not count; a shard that it has had for
    long and that takes nothing does: its series are too few.
    """
    usages = usages[:shards]
    return usages + [0] * (shards - len(usages)) if settled else usages


def _resume_spread(share: Share, now_ns: int) -> SpreadState:
    if share.balancing is Balancing.ROUND_ROBIN:
        return SpreadState(Balancing.ROUND_ROBIN, now_ns)
    return SpreadState()
