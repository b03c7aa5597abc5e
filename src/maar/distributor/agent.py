"""The placement rules as the distributor last read them from the store; older ones are ignored."""

from __future__ import annotations

import asyncio
import logging

from prometheus_client import CollectorRegistry, Counter, Gauge

from maar.background import Loop
from maar.model.errors import MaarError
from maar.model.ids import Incarnation
from maar.placement import stored
from maar.placement.rules import Rules
from maar.placement.stored import Newest
from maar.ports.calls import Caller
from maar.ports.metastore.log_time import GetNow, LogTime
from maar.ports.stores.object_store import ObjectStore

log = logging.getLogger("maar.distributor")


class AgentMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.rules = Gauge(
            "maar_distributor_rules", "Datasets that have a placement rule", registry=registry
        )
        self.failures = Counter(
            "maar_distributor_rules_failures_total",
            "Failed checks for newer placement rules",
            ("what",),
            registry=registry,
        )


class PlacementAgent:
    """Starts without any rules; a store that does not answer changes nothing."""

    def __init__(
        self, store: ObjectStore, metastore: Caller[LogTime], registry: CollectorRegistry
    ) -> None:
        self._store = store
        self._metastore = metastore
        self._incarnation: Incarnation | None = None
        self.rules = Rules()
        self._created_at = 0  # of the rules of that log; 0: none yet
        self._told: tuple[str, ...] = ()  # of damaged rules
        self._metrics = AgentMetrics(registry)

    async def follow(self, *, every_s: float) -> None:
        """Check for newer rules, for ever."""
        await self.following(every_s=every_s).run()

    def following(self, *, every_s: float) -> Loop[None]:
        return Loop(
            self._look,
            failed="placement rules not read, the last ones stay in force",
            recovered="placement rules can be read again",
            log=log,
            every_s=every_s,
            on_failure=lambda _: self._metrics.failures.labels("store").inc(),
        )

    async def _look(self) -> None:
        """Once: take newer rules, if there are some."""
        await self._find_log()
        if self._incarnation is not None:
            self._take(await asyncio.to_thread(self._newer, self._incarnation))

    async def _find_log(self) -> None:
        """Which log's rules to read. A restored log makes its own rules; until then those of the
        log before it apply. While the metastore does not answer, the last known log is used.
        """
        try:
            incarnation = (await self._metastore.call(GetNow())).incarnation
        except MaarError as error:
            log.debug("log of the placement rules not asked, using the last known cause=%s", error)
            return
        if incarnation != self._incarnation:
            self._incarnation, self._created_at = incarnation, 0

    def _newer(self, incarnation: Incarnation) -> Newest[Rules]:
        names = stored.list_names(self._store, incarnation).rules
        return stored.newest_rules(self._store, names, newer_than=self._created_at)

    def _take(self, found: Newest[Rules]) -> None:
        if found.unreadable and found.unreadable != self._told:
            self._metrics.failures.labels("damaged").inc(len(found.unreadable))
            for sentence in found.unreadable:
                log.error("placement rules unreadable cause=%s", sentence)
        self._told = found.unreadable
        if found.value is not None:
            self.rules, self._created_at = found.value, found.value.created_at
            self._metrics.rules.set(len(self.rules.datasets))
