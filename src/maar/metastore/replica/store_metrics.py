"""Metrics of the stores: what each holds and lacks, and what readers met there."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from maar.metastore.state.copies import StoreCopies
from maar.model.ids import StoreName
from maar.model.trouble import Trouble


class StoreMetrics:
    """With a single store there are no copies, and these say nothing."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"maar_store_{name}", text, ["store"], registry=registry)

        self.blocks = gauge("blocks", "Live blocks that a store holds")
        self.bytes = gauge("bytes", "Bytes of them")
        self.missing = gauge("missing_blocks", "Blocks that a store should hold and does not")
        self.damaged = gauge("damaged_copies", "Copies that readers found bad, not yet healed")
        self.fallovers = Counter(
            "maar_store_fallovers",
            "Copies that could not be read while there was another one",
            ["store", "why"],
            registry=registry,
        )

    def hear(self, troubles: Iterable[Trouble], known: Container[str]) -> None:
        for each in troubles:
            if each.another and each.store in known:
                self.fallovers.labels(each.store, each.why).inc()

    def observe(
        self, copies: Mapping[StoreName, StoreCopies], damaged: Mapping[StoreName, int]
    ) -> None:
        for gauge in (self.blocks, self.bytes, self.missing, self.damaged):
            gauge.clear()
        for name, found in copies.items():
            self.blocks.labels(name).set(found.held.blocks)
            self.bytes.labels(name).set(found.held.bytes)
            self.missing.labels(name).set(found.missing.blocks)
            self.damaged.labels(name).set(damaged.get(name, 0))
