"""A zone's ring and segment writers that store, refuse, fall silent or hang as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random

from prometheus_client import CollectorRegistry

from maar.distributor.rings import FollowedRings
from maar.distributor.service import Router
from maar.distributor.settings import RouterSettings
from maar.model.errors import MaarError
from maar.model.ids import HOME, NodeId, ProfileId, Shard, TenantId, Zone
from maar.model.labels import fingerprint
from maar.model.profile import RawProfile
from maar.model.ring import Ring, Writer, WriterState
from maar.placement.locate import Placement
from maar.placement.rules import Rules, TenantLimits
from maar.placement.table import new_table
from maar.ports.calls import Caller, LocalPort
from maar.ports.clock import Clock
from maar.ports.writer.membership import RingView
from maar.ports.writer.segment_writer import SegmentWriter
from support.clock.virtual_time import LoopClock

ACME = TenantId("acme")


def profile(service: str = "shop", *, number: int = 0, payload: bytes = b"x") -> RawProfile:
    labels = (("__name__", "cpu"), ("pod", str(number)), ("service_name", service))
    name = ProfileId(f"{service}-{number}".encode().ljust(16, b"-"))
    return RawProfile(name, ACME, service, labels, ("cpu",), 1, 1, 1, payload, len(payload))


class Writing(LocalPort):
    """One segment writer. `failure` is raised instead of storing; `hangs` answers never."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.stored: list[tuple[Shard, RawProfile]] = []
        self.tries = 0
        self.failure: MaarError | None = None
        self.hangs = False
        self.gate: asyncio.Event | None = None  # answers only when it is set
        self.cancelled = 0
        self.closed = 0

    async def push(self, shard: Shard, profiles: tuple[RawProfile, ...]) -> None:
        self.tries += 1
        try:
            if self.gate is not None:
                await self.gate.wait()
            if self.hangs:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.failure is not None:
            raise self.failure
        self.stored += [(shard, profile) for profile in profiles]

    async def close(self) -> None:
        self.closed += 1


class Fleet:
    """Writers in zones and a router to them; every writer's address is its name."""

    def __init__(
        self,
        *nodes: str,
        settings: RouterSettings | None = None,
        clock: Clock | None = None,
        shards: int = 4,
        local: str = "",
        limits: Callable[[TenantId], TenantLimits] | None = None,
    ) -> None:
        self.writers: dict[str, Writing] = {}
        self.connected: list[str] = []
        self.rings = FollowedRings(HOME)
        self.registry = CollectorRegistry()
        self.rules = Rules()
        self._shards = shards
        self._at = 0
        here: tuple[NodeId, Caller[SegmentWriter]] | None = None
        if local:
            here = NodeId(local), self.writer(local)
        self.router = Router(
            settings or RouterSettings(),
            self.rings,
            lambda: self.rules,
            limits or (lambda _: TenantLimits()),
            self._connect,
            clock or LoopClock(),
            Random(7),
            self.registry,
            local=here,
        )
        if nodes:
            self.ring(*nodes)

    def writer(self, node: str) -> Writing:
        if node not in self.writers:
            self.writers[node] = Writing(node)
        return self.writers[node]

    def ring(
        self,
        *nodes: str,
        zone: Zone = HOME,
        states: dict[str, WriterState] | None = None,
        dead: Sequence[str] = (),
        complete: bool = True,
        sessions: dict[str, str] | None = None,
    ) -> None:
        """The metastore tells this ring; with the same nodes the table is the same."""
        self._at += 1
        names = sorted(nodes)
        owners = new_table({NodeId(node): self._shards for node in names})
        writers = tuple(
            Writer(
                NodeId(node),
                node,
                (sessions or {}).get(node, "s1"),
                self._shards,
                (states or {}).get(node, WriterState.ACTIVE),
            )
            for node in names
        )
        ring = Ring(zone, self._at, writers, tuple(names.index(owner) for owner in owners))
        self.rings.learn((RingView(ring, tuple(map(NodeId, dead)), complete),))

    def owner_of(self, service: str) -> tuple[Shard, list[str]]:
        """The shard of a service (of one shard), and its writers in the order that `push` meets."""
        view = self.rings.home()
        assert view is not None
        placement = Placement(view.ring, self.rules, lambda _: TenantLimits(), lambda _: 0)
        place = placement.place(ACME, service, fingerprint(profile(service).labels))
        return place.shard, [writer.node for writer in placement.writers(place)]

    async def push(self, *services: str) -> None:
        await self.router.push([profile(service) for service in services or ("shop",)])

    def stored_services(self) -> dict[str, list[str]]:
        """Services by writer."""
        return {
            node: [one.service for _, one in writer.stored]
            for node, writer in self.writers.items()
            if writer.stored
        }

    def metric_value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"maar_distributor_{name}", labels) or 0.0

    def _connect(self, address: str) -> Writing:
        self.connected.append(address)
        return self.writer(address)
