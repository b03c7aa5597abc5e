"""Small real stand-ins for what is behind the front, and an HTTP client to its front door."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from prometheus_client import CollectorRegistry

from maar.api.admin.placement import ReadPlaced, nothing_placed
from maar.api.admin.quarantine import Causes
from maar.api.app import QueryDeps, build_app
from maar.api.body import READ_SECONDS_MAX
from maar.api.guard import INLINE_BYTES_MAX, RequestGuard
from maar.api.hosts import Hosts
from maar.api.settings import ApiSettings
from maar.app.http.gate import PORT_BOUNDS, PortBounds
from maar.distributor.service import Distributor
from maar.distributor.settings import Limits
from maar.model.block import BlockMeta
from maar.ports.stores.object_store import StoreSettings
from maar.ports.stores.stores import places_of
from support.http.memory_metastore import MemoryMetastore
from support.http.plain_engine import PlainEngine
from support.http.pushed import MemoryWriter, OneShard, SetClock, run

CALLED = Hosts(frozenset(("maar", "x")))  # how tests call it, beside its loopback address


async def no_causes(_meta: BlockMeta) -> tuple[str, ...]:
    return ()


class Front:
    """The whole front in this process, over a writer in memory."""

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        api: ApiSettings | None = None,
        causes: Causes = no_causes,
        placed: ReadPlaced = nothing_placed,
        hosts: Hosts = CALLED,
        inline_bytes_max: int = INLINE_BYTES_MAX,
        body_read_s: float = READ_SECONDS_MAX,
        bounds: PortBounds = PORT_BOUNDS,
        store: StoreSettings | None = None,
    ) -> None:
        self.registry = CollectorRegistry()
        self.writer = MemoryWriter()
        self.metastore = MemoryMetastore()
        self.clock = SetClock()
        self.not_ready = ""
        self.failing = "push"  # the purpose that it is not ready for
        self.processes: list[dict[str, Any]] = []
        self.disks: list[dict[str, Any]] = []
        self.pauses: list[float] = []  # that commands would have made; nobody waits here
        self.limits = limits or Limits()
        self.distributor = Distributor(
            self.limits, OneShard(self.writer), self.clock, self.registry
        )
        self.door = RequestGuard(
            api or ApiSettings(),
            self.registry,
            inline_bytes_max=inline_bytes_max,
            body_read_s=body_read_s,
        )
        self.bounds = bounds  # of the port, if it gets one
        self.app = build_app(
            self.door.settings,
            [self.registry],
            self._ready,
            self._extra_metrics,
            distributor=self.distributor,
            asked=QueryDeps(
                PlainEngine(self.writer),
                self.metastore,
                causes,
                self.clock,
                self.limits.future_ns,
                placed,
                lambda: self.processes,
                lambda: self.disks,
                places_of(store) if store is not None else None,
                "127.0.0.1:4041",
            ),
            guard=self.door,
            hosts=hosts,
        )

    def request(self, method: str, url: str, **how: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with self.client() as client:
                return await client.request(method, url, **how)

        return run(ask())

    def post(self, url: str, **how: Any) -> httpx.Response:
        return self.request("POST", url, **how)

    def get(self, url: str, **how: Any) -> httpx.Response:
        return self.request("GET", url, **how)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://maar") as client:
            yield client

    def metric_value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    async def _ready(self, purpose: str) -> str:
        return self.not_ready if purpose in ("", self.failing) else ""

    async def _extra_metrics(self) -> list[str]:
        return ["maar_other_up 1.0\n"]
