"""What the distributor counts: what agents pushed, and how it reached the segment writers."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class PushMetrics:
    """Of the pushes, as agents see them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.profiles = Counter(
            "maar_distributor_profiles", "Profiles acknowledged", registry=registry
        )
        self.bytes = Counter(
            "maar_distributor_bytes",
            "Bytes of acknowledged profiles, compressed and raw",
            ["form"],
            registry=registry,
        )
        self.samples = Counter(
            "maar_distributor_samples", "Samples acknowledged", registry=registry
        )
        self.refused = Counter(
            "maar_distributor_refused",
            "Pushes refused by admission, or failed behind it",
            ["reason"],
            registry=registry,
        )
        self.over_rate = Counter(
            "maar_distributor_over_rate",
            "Pushes refused because their tenant was over its rate; the log names it",
            registry=registry,
        )
        self.seconds = Histogram(
            "maar_distributor_push_seconds",
            "From the parsed push to its acknowledgement",
            buckets=(0.05, 0.1, 0.25, 0.5, 0.75, 1, 2, 5, 10),
            registry=registry,
        )


class RouterMetrics:
    """Of the way to the writers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.tries = Counter(
            "maar_distributor_tries",
            "Batches sent to a segment writer, by outcome",
            ["outcome"],
            registry=registry,
        )
        self.failovers = Counter(
            "maar_distributor_failovers",
            "Batches handed to the next writer after one that did not take them",
            registry=registry,
        )
        self.budget_exhausted = Counter(
            "maar_distributor_budget_exhausted",
            "Batches not retried because the retry budget was used up",
            registry=registry,
        )
        self.breakers = Gauge(
            "maar_distributor_breakers",
            "Segment writers by the state of their circuit breaker",
            ["state"],
            registry=registry,
        )
        self.writers = Gauge(
            "maar_distributor_writers",
            "Segment writers of the home zone that are active and alive",
            registry=registry,
        )
        self.crossed_bytes = Counter(
            "maar_distributor_crossed_bytes",
            "Bytes of profiles stored in another zone because home was down",
            ["zone"],
            registry=registry,
        )
        self.crossed_profiles = Counter(
            "maar_distributor_crossed_profiles",
            "Profiles stored in another zone because home was down",
            ["zone"],
            registry=registry,
        )
