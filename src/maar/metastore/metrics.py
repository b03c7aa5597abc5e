"""What the metastore counts: everything bounded has a gauge, everything folded a counter."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from maar.metastore import reads
from maar.metastore.effects import AttemptEnded, Effect, Refused
from maar.metastore.plan import all_plans
from maar.metastore.state import MetaState, sizes
from maar.model.plan import PlanState
from maar.model.time import LeaseTime

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"maar_metastore_{name}", text, labels, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"maar_metastore_{name}", text, labels, registry=registry)

        self.blocks = gauge("blocks", "Live blocks", "level", "kind")
        self.bytes = gauge("blocks_bytes", "Bytes of live blocks", "level", "kind")
        self.queued = gauge("queued_blocks", "Blocks that wait for a plan", "level")
        self.oldest = gauge("oldest_queued_seconds", "Age of the oldest of them", "level")
        self.held = gauge("held_blocks", "Blocks held by excluded plans", "level")
        self.plans = gauge("plans", "Plans on the timeline", "state")
        self.items = gauge("state_items", "Items in each bounded collection", "collection")
        self.head = gauge("head_index", "Index of the last folded entry")
        self.snapshot = gauge("snapshot_index", "Index of the newest verified snapshot")
        self.lease_time = gauge("lease_time_seconds", "The log's own time")
        self.blocked = gauge("clean_blocked_blocks", "Retired blocks whose outputs are missing")
        self.effects = counter("effects_total", "What entries did", "effect")
        self.refusals = counter("refusals_total", "Items that the fold refused", "why")
        self.ended = counter("attempts_ended_total", "Attempts that did not succeed", "end")
        self.cleaned = counter("cleaned_blocks_total", "Retired blocks whose objects are deleted")
        self.snapshot_failures = counter("snapshot_failures_total", "Snapshots that went wrong")
        self.cycle = Histogram(
            "maar_metastore_cycle_seconds",
            "From taking requests to answering them",
            buckets=SECONDS,
            registry=registry,
        )

    def count(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self.effects.labels(type(effect).__name__).inc()
            if isinstance(effect, Refused):
                self.refusals.labels(effect.why.name.lower()).inc()
            elif isinstance(effect, AttemptEnded):
                self.ended.labels(effect.end.name.lower()).inc()

    def observe(self, state: MetaState, now: LeaseTime) -> None:
        for gauge in (self.blocks, self.bytes, self.queued, self.oldest, self.held, self.plans):
            gauge.clear()
        for level in reads.levels(state, now):
            number = str(level.level)
            self.blocks.labels(number, level.kind).set(level.blocks)
            self.bytes.labels(number, level.kind).set(level.bytes)
            if level.kind != "quarantine":
                self.queued.labels(number).set(level.queued)
                self.oldest.labels(number).set(level.oldest_queued_s)
                self.held.labels(number).set(level.held)
        counts = dict.fromkeys((member.name.lower() for member in PlanState), 0)
        for plan in all_plans(state):
            counts[plan.state.name.lower()] += 1
        for name, count in counts.items():
            self.plans.labels(name).set(count)
        for name, count in sizes(state).items():
            self.items.labels(name).set(count)
        self.head.set(state.index)
        self.lease_time.set(now / 1e9)
