"""From profiles to answers with real parts and no Spark: segments, a metastore, merges, queries."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from maar.adapters.sqlite.log import SqliteLog
from maar.block.format import dead_letter
from maar.block.format.segment import segment_meta, write_segment
from maar.metastore.leader.letters.letters_of_stores import LettersOfStores
from maar.metastore.replica import snapshot
from maar.metastore.replica.timing import Timing
from maar.metastore.service import MetastoreService
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.ids import HOME, MAIN_STORE, Shard, TenantId, WorkerId, segment_id
from maar.model.policy import Level, Policy
from maar.model.time import DAY_NS, SECOND_NS, TimeRange
from maar.ports.metastore.log import Candidate
from maar.ports.plans.board import PollRequest, Report
from maar.ports.reader.query import DrawFlameGraph, GetProfile, RankFunctions, Scope, SelectSeries
from maar.ports.stores.object_store import ObjectStore
from maar.query.service import DuckEngine, QuerySettings
from maar.services.compact.rules import COMPACT
from maar.services.compact.run import run as compact
from support.clock.fake_clock import FakeClock
from support.lake.query_lake import CPU, TENANT, Known, known_profile

NOON_NS = 20_500 * DAY_NS + DAY_NS // 2
ALWAYS = TimeRange(NOON_NS - DAY_NS, NOON_NS + DAY_NS)
WORKER = WorkerId("w")
AGE_NS = SECOND_NS

POLICY = Policy(
    levels=tuple(Level(count=1000, bytes=1 << 40, age_ns=AGE_NS) for _ in range(3)),
    stall_ns=10**9 * SECOND_NS,  # the test's clock leaps
)

# Letters are scanned once when a leader is elected, and then when a test says so.
WHEN_TOLD = Timing(drain_s=10**6, clean_s=0.02)


def profile(name: str, value: int, *, time_ns: int = NOON_NS, **how: Any) -> Known:
    """One whose samples are known by a function that no other has."""
    return known_profile([(("main", name), {}, (1, value))], time_ns=time_ns, **how)


class WholeLake:
    """A log, a store and a clock, which outlive the services that run on them."""

    def __init__(
        self,
        directory: Path,
        store: ObjectStore,
        policy: Policy = POLICY,
        timing: Timing = WHEN_TOLD,
    ) -> None:
        self.directory = directory
        self.store = store
        self.policy = policy
        self.timing = timing
        self.clock = FakeClock(wall_ns=NOON_NS)
        self.random = Random(7)
        self._attempts = count(1)
        self._engines = count(1)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[MetastoreService]:
        log = SqliteLog.open(self.directory / "log")

        async def take_snapshot() -> int:
            reader = SqliteLog.open_reader(self.directory / "log")
            try:
                return await snapshot.make(reader, self.store)
            finally:
                await reader.close()

        service = MetastoreService(
            log,
            self.store,
            self.clock,
            self.policy,
            entropy=self.random.randbytes,
            candidate=Candidate("test"),
            take_snapshot=take_snapshot,
            registry=CollectorRegistry(),
            timing=self.timing,
        )
        try:
            await service.start()
            yield service
        finally:
            await service.stop()
            await log.close()

    # what a segment writer does

    async def write(
        self,
        service: MetastoreService,
        profiles: Iterable[Known],
        *,
        shard: int = 1,
        writer: str = "writer-1",
    ) -> BlockMeta:
        """A segment in the store, of which the index knows nothing yet."""
        now = await service.now()
        block = segment_id(lease_time_ns=now.lease_time, entropy=self.random.getrandbits(64))
        written = write_segment([each.raw for each in profiles], zone=HOME)
        key = keys.segment(shard=Shard(shard), block=block, incarnation=now.incarnation)
        await asyncio.to_thread(self.store.create, key, written.body)
        return segment_meta(
            written,
            block=block,
            shard=Shard(shard),
            store=MAIN_STORE,
            key=key,
            created_by=writer,
            created_at_ns=self.clock.wall_ns(),
        )

    async def announce(self, service: MetastoreService, meta: BlockMeta) -> None:
        reply = await service.add_blocks((meta,))
        assert reply.refusals == ("",)

    async def post_letter(self, service: MetastoreService, meta: BlockMeta) -> str:
        """The index did not answer: a dead letter."""
        incarnation = (await service.now()).incarnation
        key = keys.dead_letter(incarnation=incarnation, block=meta.id)
        await asyncio.to_thread(self.store.create, key, dead_letter.encode(meta))
        return key

    async def push(
        self, service: MetastoreService, profiles: Iterable[Known], **how: Any
    ) -> BlockMeta:
        meta = await self.write(service, profiles, **how)
        await self.announce(service, meta)
        return meta

    # what a worker does

    async def compact_all(self, service: MetastoreService) -> set[int]:
        """Every block is merged into the next level; the levels that are live then."""
        self.clock.advance(AGE_NS + 1)
        while granted := (await service.poll(PollRequest(WORKER, 4, kinds=(COMPACT,)))).granted:
            for plan in granted:
                attempt = f"a{next(self._attempts)}"
                result = await asyncio.to_thread(
                    compact,
                    plan,
                    store=self.store,
                    attempt=attempt,
                    scratch=self.directory,
                    wall_ns=self.clock.wall_ns(),
                )
                report = Report(plan.id, plan.token, result)
                reply = await service.poll(PollRequest(WORKER, 0, reports=(report,)))
                assert reply.outcomes[0].accepted, reply.outcomes[0].refusal
        return await self.levels(service)

    async def levels(self, service: MetastoreService) -> set[int]:
        return {level.level for level in (await service.status()).levels}

    # what a reader does

    @asynccontextmanager
    async def engine(
        self, metastore: Any, *, letters: bool = True, registry: CollectorRegistry | None = None
    ) -> AsyncIterator[Asker]:
        engine = DuckEngine(
            QuerySettings(threads=1, concurrency=2),
            metastore,
            self.store,
            registry or CollectorRegistry(),
            reader=f"test-{next(self._engines)}",
            letters=letters,
        )
        try:
            yield Asker(engine)
        finally:
            engine.close()


class Asker:
    def __init__(self, engine: DuckEngine) -> None:
        self.engine = engine

    async def values(self, *, tenant: TenantId = TENANT) -> Counter[str]:
        """What every function but `main` spent itself."""
        scope = Scope(tenant, ALWAYS)
        top = await self.engine.call(RankFunctions(scope, profile_type=CPU, limit=1_000_000))
        return Counter({row.function: row.self_value for row in top.rows if row.self_value})

    async def sees(self, profiles: Sequence[Known]) -> None:
        """These profiles and no others, each once, whichever way one asks."""
        expected: Counter[str] = Counter()
        for each in {one.raw.id: one for one in profiles}.values():
            expected.update({stack[-1]: values[1] for stack, _, values in each.samples})
        assert await self.values() == expected
        total = sum(expected.values())
        scope = Scope(TENANT, ALWAYS)
        graph = await self.engine.call(DrawFlameGraph(scope, profile_type=CPU, max_nodes=100_000))
        assert graph.total == total
        series = await self.engine.call(
            SelectSeries(
                scope,
                profile_type=CPU,
                group_by=(),
                step_ns=60 * SECOND_NS,
                aggregation="sum",
                limit=0,
            )
        )
        assert sum(point.value for one in series for point in one.points) == total
        for each in profiles:
            assert await self.engine.call(GetProfile(TENANT, each.raw.id, ALWAYS))


def letters_of(service: MetastoreService) -> LettersOfStores:
    assert service.leader_term is not None
    return service.leader_term.letters


def patient(policy: Policy = POLICY, **changes: Any) -> Policy:
    return msgspec.structs.replace(policy, **changes)
