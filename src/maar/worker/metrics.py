"""The worker's metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_TASK_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0)


class WorkerMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.running = Gauge(
            "maar_worker_running", "Slots taken, cancelled plans included.", registry=registry
        )
        self.capacity = Gauge(
            "maar_worker_capacity", "Plans that may run at once; 0 until warm.", registry=registry
        )
        self.completed = Counter(
            "maar_worker_completed", "Plans whose result was accepted.", registry=registry
        )
        self.refused = Counter(
            "maar_worker_refused", "Reports that the metastore refused.", registry=registry
        )
        self.failed = Counter("maar_worker_failed", "Plans that failed.", registry=registry)
        self.faults = Counter(
            "maar_worker_faults",
            "Runs that failed because of the engine or the store, and were or will be repeated.",
            registry=registry,
        )
        self.lost = Counter(
            "maar_worker_lost",
            "Plans given up: their lease was gone, they ran too long, or the worker had to leave.",
            registry=registry,
        )
        self.task_seconds = Histogram(
            "maar_worker_task_seconds",
            "Wall time of a run, by service and how it ended.",
            ["service", "end"],
            buckets=_TASK_SECONDS,
            registry=registry,
        )
        self.poll_failures = Counter(
            "maar_worker_poll_failures", "Polls that got no answer.", registry=registry
        )
        self.restarts = Gauge(
            "maar_worker_restarts", "How often this worker was restarted.", registry=registry
        )
