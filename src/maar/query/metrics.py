"""The query role's metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_BYTES = tuple(1 << shift for shift in range(16, 33, 2))


class Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "maar_query_seconds",
            "Time of queries, waiting for a slot included",
            ["kind"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._seconds_of: dict[str, Histogram] = {}
        self._errors = Counter(
            "maar_query_errors", "Queries that failed", ["kind", "error"], registry=registry
        )
        self._running = Gauge(
            "maar_query_running", "Queries in progress, waiting ones included", registry=registry
        )
        self.waiting = Gauge(
            "maar_query_waiting", "Queries that wait for a slot", registry=registry
        )
        self._waits = Histogram(
            "maar_query_wait_seconds",
            "Time that queries waited for a slot, of those that had to",
            registry=registry,
            buckets=_SECONDS,
        )
        self.refusals = Counter(
            "maar_query_refused",
            "Queries refused for lack of room to wait, or of time",
            ["reason"],
            registry=registry,
        )
        self.held = Histogram(
            "maar_query_held_bytes",
            "Memory that queries held outside of DuckDB",
            registry=registry,
            buckets=_BYTES,
        )
        self.blocks = Counter(
            "maar_query_blocks_read", "Blocks that queries touched", registry=registry
        )
        self.raw = Counter(
            "maar_query_level0_datasets_read",
            "Datasets of segments that queries touched",
            registry=registry,
        )
        self.level0_decoded = Counter(
            "maar_query_level0_profiles_decoded",
            "Raw profiles decoded for queries",
            registry=registry,
        )
        self.level0_lookups = Counter(
            "maar_query_level0_cache_lookups",
            "Lookups in the cache of decoded datasets",
            ["result"],
            registry=registry,
        )
        self.part_lookups = Counter(
            "maar_query_part_cache_lookups",
            "Lookups in the cache of what was read of blocks",
            ["result"],
            registry=registry,
        )
        self.part_cache = Gauge(
            "maar_query_part_cache_bytes", "Size of that cache", registry=registry
        )
        self.letters = Counter(
            "maar_query_letters_read",
            "Dead letters whose segments queries touched",
            registry=registry,
        )
        self.letters_unreadable = Counter(
            "maar_query_letters_unreadable",
            "Dead letters that queries had to leave out, each once",
            registry=registry,
        )
        self.level0_cache = Gauge(
            "maar_query_level0_cache_bytes", "Size of that cache", registry=registry
        )

    @contextmanager
    def measure(self, kind: str) -> Iterator[None]:
        start = time.perf_counter()
        seconds = self._seconds_of.get(kind)
        if seconds is None:  # looking for a label costs more than observing
            seconds = self._seconds_of[kind] = self._seconds.labels(kind)
        self._running.inc()
        try:
            yield
        except BaseException as error:  # raised again: queries that are given up count, too
            self._errors.labels(kind, type(error).__name__).inc()
            raise
        finally:
            self._running.dec()
            seconds.observe(time.perf_counter() - start)

    @contextmanager
    def measure_wait(self) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._waits.observe(time.perf_counter() - start)
