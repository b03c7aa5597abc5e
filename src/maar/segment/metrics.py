"""What the segment writer tells Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from maar.model.block import BlockMeta
from maar.model.errors import MaarError


class SegmentMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.buffered_bytes = Gauge(
            "maar_segment_buffered_bytes", "Bytes that wait for their segment", registry=registry
        )
        self.in_flight = Gauge(
            "maar_segment_in_flight", "Segments cut and not yet acknowledged", registry=registry
        )
        self.retries = Counter(
            "maar_segment_retries", "Steps repeated after a failure", registry=registry
        )
        self._segments = Counter("maar_segment_written", "Segments acknowledged", registry=registry)
        self._profiles = Counter(
            "maar_segment_profiles", "Profiles in acknowledged segments", registry=registry
        )
        self._bytes = Counter(
            "maar_segment_bytes", "Bytes of acknowledged segments", registry=registry
        )
        self._failures = Counter(
            "maar_segment_failures", "Segments given up", ["cause"], registry=registry
        )
        self._seconds = Histogram(
            "maar_segment_flush_seconds",
            "From the cut to the acknowledgement",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=registry,
        )

    def written(self, meta: BlockMeta, seconds: float) -> None:
        self._segments.inc()
        self._profiles.inc(meta.profiles)
        self._bytes.inc(meta.size)
        self._seconds.observe(seconds)

    def failed(self, error: MaarError) -> None:
        self._failures.labels(type(error).__name__.strip("_").lower()).inc()
