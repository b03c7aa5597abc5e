"""Several replicas of a metastore in one process, over one log in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from prometheus_client import CollectorRegistry

from maar.metastore.records.entries import Envelope
from maar.metastore.replica import snapshot
from maar.metastore.replica.log_fold import NEWEST, Edition
from maar.metastore.replica.timing import Timing
from maar.metastore.service import MetastoreService
from maar.model.errors import OutcomeUnknown, Unavailable, Unreachable
from maar.model.policy import Policy
from maar.model.time import SECOND_NS
from maar.ports.calls import Call, Caller
from maar.ports.metastore.log import Candidate, Head, Term
from maar.ports.metastore.replica import MetastoreReplica
from support.clock.fake_clock import FakeClock
from support.metastore.fold import entropy
from support.metastore.memory_log import MemoryLog, SharedLog
from support.metastore.next_version import read_whole
from support.metastore.world import PATIENT
from support.stores.memory_store import MemoryStore

R = TypeVar("R")
PATIENCE_S = 100.0
LOOK_NS = 5_000_000
BRISK = Timing(ask_peers_s=0.02)


class FaultyLog(MemoryLog):
    """A replica's door to the log, through which a test can make things go wrong."""

    def __init__(self, shared: SharedLog) -> None:
        super().__init__(shared)
        self.open = asyncio.Event()  # while it is not, appends are under way and do not arrive
        self.open.set()
        self.silent = False  # appends arrive, and nobody says so
        self.campaigns = True
        self.holds = 0

    def _check_open(self) -> None:
        super()._check_open()
        if not self.campaigns:
            raise Unavailable("nobody is elected")

    def hold(self, term: Term) -> None:
        self.holds += 1
        super().hold(term)

    async def append(
        self, bodies: Sequence[bytes], *, term: Term, head: Head, reserve: bool = False
    ) -> Head:
        await self.open.wait()
        stored = await super().append(bodies, term=term, head=head, reserve=reserve)
        if self.silent:
            self.cut = True
            raise OutcomeUnknown("no answer")
        return stored


class WorldReplica:
    """A replica, its log and its clock; it can be stopped and started again."""

    def __init__(self, world: ReplicatedWorld, name: str, edition: Edition) -> None:
        self.world = world
        self.candidate = Candidate(name, f"{name}:1")
        self.edition = edition  # of its program
        self.clock = FakeClock()
        self.renew()

    def renew(self) -> None:
        """As if its process began only now."""
        self.service = self._make()

    @property
    def address(self) -> str:
        return self.candidate.address

    def _make(self) -> MetastoreService:
        world = self.world
        self.registry = CollectorRegistry()
        self.log = FaultyLog(world.shared)
        return MetastoreService(
            self.log,
            world.store,
            self.clock,
            world.policy,
            entropy=entropy(world.random),
            candidate=self.candidate,
            take_snapshot=lambda: world.snapshot(),  # a test may replace it
            registry=self.registry,
            others=[a for a in world.addresses if a != self.address],
            connect=world.connect,
            edition=self.edition,
            timing=world.timing,
        )

    async def restart(self) -> None:
        await self.service.stop()
        self.renew()
        await self.service.start()

    def metric(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"maar_metastore_{name}")

    async def standing(self) -> str:
        return (await self.service.replica()).standing


class ReplicatedWorld:
    """What the replicas share. The time of each stands still unless a test waits or moves it."""

    def __init__(
        self,
        *,
        policy: Policy = PATIENT,
        editions: Sequence[Edition] = (NEWEST,) * 3,
        timing: Timing = BRISK,
    ) -> None:
        self.shared = SharedLog()
        self.store = MemoryStore()
        self.policy = policy
        self.timing = timing
        self.random = random.Random(7)
        self.cut: set[str] = set()  # addresses that nobody reaches
        self.addresses = [f"m{number}:1" for number in range(len(editions))]
        self.members = [WorldReplica(self, f"m{n}", edition) for n, edition in enumerate(editions)]

    def connect(self, address: str) -> Caller[MetastoreReplica]:
        return _Door(self, address)

    async def snapshot(self) -> int:
        """The leader's own program makes it."""
        edition = next((member.edition for member in self.leading()), NEWEST)
        return await snapshot.make(
            MemoryLog(self.shared, writes=False), self.store, edition=edition
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ReplicatedWorld]:
        try:
            await asyncio.gather(*(member.service.start() for member in self.members))
            yield self
        finally:
            await asyncio.gather(*(member.service.stop() for member in self.members))

    def leading(self) -> list[WorldReplica]:
        """By its own word and by the log's: one that was deposed may not know it yet."""
        leader_term = self.shared.leader_term
        holder = leader_term.holder if leader_term else None
        return [
            member
            for member in self.members
            if member.candidate == holder and member.service.standing().standing == "leader"
        ]

    async def leader(self, *, but: WorldReplica | None = None) -> WorldReplica:
        """The one that leads, once there is one (another than `but`)."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for member in self.leading():
                    if member is not but:
                        return member
                await asyncio.sleep(LOOK_NS / SECOND_NS)

    async def fail_over(self, leader: WorldReplica) -> WorldReplica:
        """Its leadership expires, again and again, until another replica has been faster."""
        while True:
            term = self.shared.term
            self.shared.depose()
            await self.until(lambda term=term: self.shared.term > term)  # type: ignore[misc]
            found = await self.leader()
            if found is not leader:
                return found

    async def followers(self) -> list[WorldReplica]:
        leader = await self.leader()
        return [member for member in self.members if member is not leader]

    async def until(self, reached: Callable[[], bool]) -> None:
        """Here the replicas' time goes on."""
        async with asyncio.timeout(PATIENCE_S):
            while not reached():
                for member in self.members:
                    member.clock.advance(LOOK_NS)
                await asyncio.sleep(LOOK_NS / SECOND_NS)

    async def even(self) -> None:
        """Until every replica that has not stopped has folded the same entries."""
        await self.until(
            lambda: all(
                m.service.standing().index == self.shared.head.index
                for m in self.members
                if m.service.standing().standing != "stopped"
            )
        )

    def entries(self) -> list[Envelope]:
        return [read_whole(record.body, index=record.index) for record in self.shared.records]

    def kinds(self) -> list[str]:
        return [type(envelope.entry).__name__ for envelope in self.entries()]


class _Door:
    """What another replica answers, unless it is cut off."""

    def __init__(self, world: ReplicatedWorld, address: str) -> None:
        self._world = world
        self._address = address

    async def call(self, request: Call[MetastoreReplica, R], /) -> R:
        if self._address in self._world.cut:
            raise Unreachable(f"nobody answers at {self._address}")
        for member in self._world.members:
            if member.address == self._address:
                return await member.service.call(request)
        raise Unreachable(f"there is nobody at {self._address}")
