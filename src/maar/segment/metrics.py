"""The segment writer's metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class SegmentMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"maar_segment_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"maar_segment_{name}", text, registry=registry)

        self.buffered_bytes = gauge("buffered_bytes", "Bytes that wait for their segment")
        self.buffered_profiles = gauge("buffered_profiles", "Profiles that wait for their segment")
        self.tenants_held = gauge("tenants_held", "Tenants whose profiles wait for their segment")
        self.in_flight = gauge("in_flight", "Segments cut and not yet acknowledged")
        self.flush_interval = gauge(
            "flush_interval_seconds", "How long shards collect now; the mean of those that do"
        )
        self.cuts = counter("cuts", "Segments cut", "cause")
        self.fixed_cuts = counter(
            "fixed_cuts", "Segments that a flush at a fixed interval would have cut"
        )
        self.refusals = counter("refusals", "Pushes refused before they were buffered", "reason")
        self.retries = counter("retries", "Steps repeated after a failure")
        self.puts = counter("puts", "Objects that the store was asked to create, hedges included")
        self.hedges = counter("hedges", "Creates tried a second time beside a slow first")
        self.hedge_wins = counter("hedge_wins", "Creates whose second try was the first to succeed")
        self.dead_letters = counter("dead_letters", "Segments acknowledged by a dead letter")
        self.datasets_failed = counter("datasets_failed", "Datasets that could not be written")
        self.segments = counter("written", "Segments acknowledged")
        self.profiles = counter("profiles", "Profiles in acknowledged segments")
        self.bytes = counter("bytes", "Bytes of acknowledged segments")
        self.failures = counter("failures", "Segments given up", "cause")
        self.seconds = Histogram(
            "maar_segment_flush_seconds",
            "From the cut to the acknowledgement",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=registry,
        )


class MembershipMetrics:
    """The writer's own view of its place in the ring."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.beats = Counter(
            "maar_segment_beats", "Heartbeats to the ring", ["answer"], registry=registry
        )
        self.active = Gauge(
            "maar_segment_active", "1 while the ring knows this writer as active", registry=registry
        )
