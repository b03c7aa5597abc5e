"""Rates at which each dataset is written, by shard and writer, averaged in bounded memory.

Every tenant may fill the room that others leave. When it is full, the tenants with the most
datasets lose those that were silent longest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from maar.model.ids import HOME, Shard, TenantId, Zone
from maar.model.time import SECOND_NS
from maar.placement.adaptive.ewma import MovingRate

RATES_EACH = 16  # times as many rates as datasets
TRIMMED_TO = 0.9  # so that a flood of new ones does not trim at each


class WriteSource(NamedTuple):
    """Where bytes were written."""

    shard: Shard
    owner: str  # the writer, which is not always the one that the shard belongs to


class DatasetRates(NamedTuple):
    """What a dataset takes now, by source, in bytes a second."""

    tenant: TenantId
    service: str
    usages: tuple[tuple[WriteSource, int], ...]


class ShardUse(msgspec.Struct, frozen=True, array_like=True):
    shard: Shard
    owner: str
    usage: int  # bytes a second
    zone: Zone = HOME


class DatasetStats(msgspec.Struct, frozen=True, array_like=True):
    tenant: TenantId
    service: str
    shards: tuple[ShardUse, ...]
    std_dev: int = 0  # of the shards' usage, over the last builds

    @property
    def usage(self) -> int:
        return sum(use.usage for use in self.shards)


class Stats(msgspec.Struct, frozen=True):
    """What rules were made from, as of one lease time."""

    created_at: int = 0
    datasets: tuple[DatasetStats, ...] = ()


class Statistics:
    """Samples go in, rates come out; everything else is forgotten."""

    def __init__(self, *, window_s: float, kept_s: float, datasets_max: int) -> None:
        self._window_s = window_s
        self._kept_ns = int(kept_s * SECOND_NS)
        self._datasets_max = datasets_max
        # the services of a tenant, those silent longest first
        self._tenants: dict[TenantId, dict[str, dict[WriteSource, MovingRate]]] = {}
        self._datasets = 0
        self._rates = 0
        self.evicted = 0  # datasets that had to leave a full room

    def __len__(self) -> int:
        return self._datasets

    @property
    def rates(self) -> int:
        return self._rates

    def record(
        self, tenant: TenantId, service: str, source: WriteSource, size: int, now_ns: int
    ) -> None:
        services = self._tenants.setdefault(tenant, {})
        rates = services.pop(service, None)
        if rates is None:
            rates = {}
            self._datasets += 1
        services[service] = rates  # the last of its tenant to be let go
        rate = rates.get(source)
        if rate is None:
            rate = rates[source] = MovingRate(self._window_s)
            self._rates += 1
        rate.add(size, now_ns)
        if self._datasets > self._datasets_max or self._rates > self._rates_max:
            self._trim()

    def read(self, now_ns: int) -> Iterator[DatasetRates]:
        """All datasets by tenant and name, without what has been silent for too long."""
        self._expire(now_ns)
        for tenant, services in sorted(self._tenants.items()):
            for service, rates in sorted(services.items()):
                usages = ((source, round(rate.read(now_ns))) for source, rate in rates.items())
                yield DatasetRates(tenant, service, tuple(sorted(usages)))

    @property
    def _rates_max(self) -> int:
        return self._datasets_max * RATES_EACH

    def _expire(self, now_ns: int) -> None:
        for tenant, services in list(self._tenants.items()):
            for service, rates in list(services.items()):
                old = [one for one, rate in rates.items() if self._is_old(rate, now_ns)]
                for source in old:
                    del rates[source]
                self._rates -= len(old)
                if not rates:
                    self._forget(tenant, service)

    def _is_old(self, rate: MovingRate, now_ns: int) -> bool:
        return now_ns - rate.touched_ns >= self._kept_ns

    def _trim(self) -> None:
        """The newest of every tenant stay, then the second newest, as far as there is room."""
        ranked = sorted(
            (rank, -max(rate.touched_ns for rate in rates.values()), tenant, service)
            for tenant, services in self._tenants.items()
            for rank, (service, rates) in enumerate(reversed(services.items()))
        )
        room, rates_room = self._datasets_max * TRIMMED_TO, self._rates_max * TRIMMED_TO
        for place, (_, _, tenant, service) in enumerate(ranked, start=1):
            rates_room -= len(self._tenants[tenant][service])
            if place > max(1.0, room) or rates_room < 0:
                self._forget(tenant, service)
                self.evicted += 1

    def _forget(self, tenant: TenantId, service: str) -> None:
        services = self._tenants[tenant]
        self._rates -= len(services.pop(service))
        self._datasets -= 1
        if not services:
            del self._tenants[tenant]
