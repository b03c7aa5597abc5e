"""A metastore over a real log, which a test starts, stops and starts again."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry

from maar.adapters.sqlite.log import SqliteLog
from maar.metastore.replica import snapshot
from maar.metastore.service import MetastoreService
from maar.model.policy import Policy
from maar.model.time import SECOND_NS
from maar.ports.metastore.log import Candidate, Log
from support.clock.fake_clock import FakeClock
from support.metastore.fold import SMALL, entropy
from support.stores.memory_store import MemoryStore

PATIENT = msgspec.structs.replace(SMALL, stall_ns=10**6 * SECOND_NS)  # the test's clock may leap


class World:
    """A directory, a store and a clock, which outlive the services that run on them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = MemoryStore()
        self.clock = FakeClock()
        self.random = random.Random(7)
        self.registry = CollectorRegistry()
        self.log: Log | None = None  # of the service that runs

    async def snapshot(self) -> int:
        reader = SqliteLog.open_reader(self.directory)
        try:
            return await snapshot.make(reader, self.store)
        finally:
            await reader.close()

    def service(self, log: Log, policy: Policy = PATIENT) -> MetastoreService:
        self.registry = CollectorRegistry()
        return MetastoreService(
            log,
            self.store,
            self.clock,
            policy,
            entropy=entropy(self.random),
            candidate=Candidate("test"),
            take_snapshot=self.snapshot,
            registry=self.registry,
        )

    @asynccontextmanager
    async def running(
        self,
        policy: Policy = PATIENT,
        wrap: Callable[[Log], Log] = lambda log: log,
    ) -> AsyncIterator[MetastoreService]:
        log = self.log = SqliteLog.open(self.directory)
        service = self.service(wrap(log), policy)
        try:
            await service.start()
            yield service
        finally:
            await service.stop()
            await log.close()
