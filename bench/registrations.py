"""How many registrations a second the metastore takes, and what a poll costs beside a backlog.

Baseline: the same log, one registration at a time, each waiting for its own commit. The ratio is
what group commit gives to callers that arrive together.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry

from maar.adapters.object_store import open_store
from maar.adapters.sqlite_log import SqliteLog
from maar.adapters.system_clock import SystemClock
from maar.metastore import snapshot
from maar.metastore.policy import Policy
from maar.metastore.service import MetastoreService
from maar.model.block import NO_DAY, BlockMeta, Dataset, File, Kind, Location
from maar.model.ids import MAIN_STORE, NO_TENANT, Shard, TenantId, WorkerId, segment_id
from maar.ports.metastore import PollRequest, Renewal
from maar.ports.object_store import StoreSettings

CALLERS = 32
REGISTRATIONS = 2_000
BACKLOGS = (1_000, 100_000)
POLLS = 200
ROUNDS = 5
DATASETS = 20  # services in a segment


def segment(number: int, lease_time_ns: int) -> BlockMeta:
    block = segment_id(lease_time_ns=lease_time_ns, entropy=number)
    start = 1_800_000_000_000_000_000 + number
    key = f"segments/v1/shard={number % 4 + 1}/{block}-0badcafe.parquet"
    types = ("process_cpu:cpu:nanoseconds:cpu:nanoseconds",)
    datasets = tuple(
        Dataset(TenantId("acme"), f"service-{n}", types, start, start + 1, 5, 50_000, n, 1)
        for n in range(DATASETS)
    )
    return BlockMeta(
        version=1,
        id=block,
        kind=Kind.SEGMENT,
        level=0,
        tenant=NO_TENANT,
        shard=Shard(number % 4 + 1),
        store=MAIN_STORE,
        day=NO_DAY,
        min_time_ns=start,
        max_time_ns=start + 1,
        profiles=5 * DATASETS,
        samples=500 * DATASETS,
        size=50_000 * DATASETS,
        files=(File("segment", 10**6, b"c" * 16, 4096, 100, (Location(MAIN_STORE, key),)),),
        datasets=datasets,
        created_by="bench",
        created_at_ns=start,
    )


@asynccontextmanager
async def metastore(directory: Path) -> AsyncIterator[MetastoreService]:
    log = SqliteLog.open(directory / "log")
    store = open_store(StoreSettings("main", (directory / "store").as_uri()))

    async def take_snapshot() -> int:
        reader = SqliteLog.open_reader(directory / "log")
        try:
            return await snapshot.make(reader, store)
        finally:
            await reader.close()

    service = MetastoreService(
        log,
        store,
        SystemClock(),
        Policy(snapshot_entries=10**9, snapshot_bytes=10**15),  # measured apart from this
        entropy=random.Random(1).randbytes,
        candidate="bench",
        take_snapshot=take_snapshot,
        registry=CollectorRegistry(),
    )
    await service.start()
    try:
        yield service
    finally:
        await service.stop()
        await log.close()


async def register(service: MetastoreService, metas: list[BlockMeta], callers: int) -> list[float]:
    """Seconds that each registration took, with some callers at once."""
    waiting = list(reversed(metas))
    took: list[float] = []

    async def caller() -> None:
        while waiting:
            meta = waiting.pop()
            begun = time.perf_counter()
            reply = await service.add_blocks((meta,))
            took.append(time.perf_counter() - begun)
            assert reply.refusals == ("",), reply.refusals

    await asyncio.gather(*(caller() for _ in range(callers)))
    return took


def quantiles(seconds: list[float]) -> str:
    cut = statistics.quantiles(seconds, n=100)
    return f"p50 {1e3 * cut[49]:.2f} ms  p99 {1e3 * cut[98]:.2f} ms"


async def registrations(directory: Path) -> None:
    alone: list[float] = []
    together: list[float] = []
    waits_alone: list[float] = []
    waits: list[float] = []
    async with metastore(directory) as service:
        number = 0
        for _ in range(ROUNDS):
            now = (await service.now()).lease_time
            few = [segment(number + n, now) for n in range(REGISTRATIONS // 10)]
            number += len(few)
            begun = time.perf_counter()
            waits_alone += await register(service, few, 1)
            alone.append(len(few) / (time.perf_counter() - begun))
            many = [segment(number + n, now) for n in range(REGISTRATIONS)]
            number += len(many)
            begun = time.perf_counter()
            waits += await register(service, many, CALLERS)
            together.append(len(many) / (time.perf_counter() - begun))
    slow, fast = statistics.median(alone), statistics.median(together)
    print(f"registrations, 1 caller:    {slow:7.0f} /s  {quantiles(waits_alone)}")
    print(f"registrations, {CALLERS} callers: {fast:7.0f} /s  {quantiles(waits)}")
    print(f"group commit against one at a time: {fast / slow:.1f}x")


async def polls(directory: Path, backlog: int) -> float:
    """Milliseconds of a poll that renews one lease and takes one plan."""
    async with metastore(directory) as service:
        now = (await service.now()).lease_time
        for first in range(0, backlog, 500):
            some = tuple(segment(n, now) for n in range(first, min(first + 500, backlog)))
            await service.add_blocks(some)
        worker = WorkerId("bench")
        took = []
        renewals: tuple[Renewal, ...] = ()
        for _ in range(min(POLLS, backlog // 25)):
            begun = time.perf_counter()
            reply = await service.poll(PollRequest(worker, 1, renewals))
            took.append(time.perf_counter() - begun)
            assert len(reply.granted) == 1
            plan = reply.granted[0]
            renewals = (Renewal(plan.id, plan.token, started=True),)
    print(f"poll beside {backlog:7,} queued blocks: {quantiles(took)}")
    return statistics.median(took) * 1e3


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        await registrations(Path(name) / "registrations")
        small, large = [await polls(Path(name) / f"polls-{n}", n) for n in BACKLOGS]
        print(f"poll beside {BACKLOGS[1]:,} against {BACKLOGS[0]:,} blocks: {large / small:.2f}x")


if __name__ == "__main__":
    asyncio.run(main())
