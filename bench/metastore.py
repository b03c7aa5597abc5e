"""What the metastore costs beside 1 k, 100 k and 1 M queued blocks, over its SQLite log.

    python bench/metastore.py [--sizes 1000 100000 1000000] [--registrations 5000] [--polls 400]

Every size is a process of its own, on one core: it fills the queue, registers blocks one by one
with many writers at once, polls as a worker does that reports, and asks for work (what it takes
comes back as new segments), has a snapshot made by another process, and restarts. The segments
hold 20 services each, with times, sizes and checksums that no two share.

    register   blocks a second, against one writer who waits for every commit
    poll       milliseconds, against the same beside the smallest queue
    memory     bytes that the process grew by for each queued block beyond those of the smallest
               queue (beside which it is mostly buffers), against the block as msgpack
    pause      the most that the loop computed without a break, against the same beside the
               smallest queue; in all phases, those of filling and of the snapshot too
    restart    seconds from nothing to leading, against reading and checksumming the snapshot

Each line: name value unit ratio baseline.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from prometheus_client import CollectorRegistry

import synthetic
from maar.adapters.sqlite.log import SqliteLog
from maar.adapters.stores.open import open_store
from maar.adapters.system_clock import SystemClock
from maar.app.processes.long_lived import long_lived
from maar.metastore.records.packs import pack
from maar.metastore.replica import snapshot
from maar.metastore.replica.timing import Timing
from maar.metastore.service import MetastoreService
from maar.model import keys
from maar.model.block import NO_DAY, TABLES, BlockMeta, Dataset, File, Kind, Location
from maar.model.ids import (
    MAIN_STORE,
    NO_TENANT,
    Incarnation,
    Shard,
    TenantId,
    WorkerId,
    output_id,
    segment_id,
)
from maar.model.plan import Account, LeasedPlan, PlanResult
from maar.model.policy import Policy
from maar.model.time import DAY_NS, utc_day
from maar.ports.metastore.log import Candidate
from maar.ports.plans.board import PollRequest, Report
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from maar.services.compact.rules import COMPACT

SIZES = (1_000, 100_000, 1_000_000)
WRITERS = 64
SHARDS = 4
SERVICES = 20  # in a segment
BLOCKS_A_CALL = 50  # while the queue is filled
AT_ONCE = 1_000  # segments made at a time
TENANT = TenantId("acme")
START_NS = 1_800_000_000_000_000_000
TIMING = Timing(snapshot_first_s=float("inf"))  # a snapshot is measured by itself
INCARNATION = Incarnation("0badcafe")
TYPES = (
    ("process_cpu:cpu:nanoseconds:cpu:nanoseconds",),
    ("memory:inuse_objects:count:space:bytes", "memory:inuse_space:bytes:space:bytes"),
    ("wall:wall:nanoseconds:wall:nanoseconds",),
)


# ── segments and what becomes of them ──────────────────────────────────────────────────────────


def entropy(size: int) -> bytes:
    """The log that a service begins with it is the one whose segments are made here."""
    life = bytes.fromhex(INCARNATION)
    return life if size == len(life) else Random(1).randbytes(size)


class Segments:
    """As the writers of some shards make them: the same services again, everything else new."""

    def __init__(self) -> None:
        self._draw = Random(1)
        self._made = 0

    def make(self, count: int, lease_time_ns: int) -> list[BlockMeta]:
        return [self._one(lease_time_ns) for _ in range(count)]

    def _one(self, lease_time_ns: int) -> BlockMeta:
        self._made += 1
        bits = self._draw.getrandbits
        shard = Shard(self._made % SHARDS + 1)
        block = segment_id(lease_time_ns=lease_time_ns + self._made, entropy=bits(64))
        end = START_NS + self._made * 1_000_000
        datasets = tuple(self._dataset(shard * SERVICES + n, n, end, bits) for n in range(SERVICES))
        size = sum(dataset.size for dataset in datasets)
        key = keys.segment(shard=shard, block=block, incarnation=INCARNATION)
        file = File(
            *("segment", size, self._draw.randbytes(16), 4096 + bits(12), SERVICES),
            (Location(MAIN_STORE, key),),
        )
        return BlockMeta(
            version=1,
            id=block,
            kind=Kind.SEGMENT,
            level=0,
            tenant=NO_TENANT,
            shard=shard,
            store=MAIN_STORE,
            day=NO_DAY,
            min_time_ns=min(dataset.min_time_ns for dataset in datasets),
            max_time_ns=max(dataset.max_time_ns for dataset in datasets),
            profiles=sum(dataset.profiles for dataset in datasets),
            samples=bits(17),
            size=size,
            files=(file,),
            datasets=datasets,
            created_by="front-1",
            created_at_ns=end,
        )

    def _dataset(
        self, service: int, row_group: int, end: int, bits: Callable[[int], int]
    ) -> Dataset:
        first = end - bits(33)
        return Dataset(
            *(TENANT, f"service-{service}", TYPES[service % len(TYPES)]),
            *(first, first + bits(32), 1 + bits(3), 2_000 + bits(16), row_group, 1),
        )


def result(plan: LeasedPlan) -> PlanResult:
    """One block of what the inputs held."""
    profiles = sum(meta.profiles for meta in plan.inputs)
    block = output_id(plan=plan.id, oldest_input=min(m.id for m in plan.inputs), ordinal=0)
    end = max(meta.max_time_ns for meta in plan.inputs)
    day = utc_day(end)
    stem = keys.stem(block=block, plan=plan.id, token=plan.token, attempt="0-0-bench")
    first = plan.inputs[0]
    size = sum(meta.size for meta in plan.inputs)
    made = BlockMeta(
        version=1,
        id=block,
        kind=Kind.BLOCK,
        level=plan.key.level + 1,
        tenant=TENANT,
        shard=plan.key.shard,
        store=MAIN_STORE,
        day=day,
        min_time_ns=max(day * DAY_NS, min(meta.min_time_ns for meta in plan.inputs)),
        max_time_ns=end,
        profiles=profiles,
        samples=profiles * 100,
        size=size,
        files=tuple(
            File(
                table, size // len(TABLES), b"c" * 16, 4096, profiles, (Location(MAIN_STORE, key),)
            )
            for table in TABLES
            for key in [keys.table(name=table, tenant=TENANT, day=day, stem=stem)]
        ),
        datasets=first.datasets,
        created_by=str(plan.id),
        created_at_ns=START_NS,
        plan=plan.id,
    )
    return PlanResult(COMPACT, (made,), Account(profiles, 0, 0))


# ── a metastore, and what is measured of it ────────────────────────────────────────────────────


def open_objects(directory: Path) -> ObjectStore:
    return open_store(StoreSettings("main", (directory / "store").as_uri()))


def service_of(directory: Path, log: SqliteLog) -> MetastoreService:
    async def take_snapshot() -> int:
        command = (sys.executable, __file__, "--snapshot-of", str(directory))
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        shown, _ = await process.communicate()
        return int(shown)

    return MetastoreService(
        log,
        open_objects(directory),
        SystemClock(),
        # Snapshots are made when the measurement says so, and a plan is one batch however much
        # waits: then a poll is as much work beside every queue, and in every revision.
        Policy(snapshot_entries=10**9, snapshot_bytes=10**15, backlog_count=0),
        entropy=entropy,
        candidate=Candidate("bench"),
        take_snapshot=take_snapshot,
        registry=CollectorRegistry(),
        timing=TIMING,
        loading=long_lived,
    )


@asynccontextmanager
async def metastore(directory: Path) -> AsyncIterator[MetastoreService]:
    log = SqliteLog.open(directory / "log")
    service = service_of(directory, log)
    await service.start()
    try:
        yield service
    finally:
        await service.stop()
        await log.close()


class Pauses:
    """The most that the loop's thread computed from one turn of this watcher to the next."""

    def __init__(self) -> None:
        self.longest: dict[str, float] = {}
        self.phase = "fill"

    async def watch(self) -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0.001)
            now = time.thread_time()
            self.longest[self.phase] = max(self.longest.get(self.phase, 0.0), now - before)
            before = now


async def register(
    service: MetastoreService, calls: Iterator[list[BlockMeta]], writers: int
) -> None:
    async def writer() -> None:
        for metas in calls:
            reply = await service.add_blocks(tuple(metas))
            assert not any(reply.refusals), reply.refusals

    await asyncio.gather(*(writer() for _ in range(writers)))


def calls_of(metas: Sequence[BlockMeta], each: int) -> Iterator[list[BlockMeta]]:
    return (list(metas[at : at + each]) for at in range(0, len(metas), each))


async def make(segments: Segments, service: MetastoreService, count: int) -> list[BlockMeta]:
    """In a thread: the loop's own computing is measured."""
    now = (await service.now()).lease_time
    return await asyncio.to_thread(segments.make, count, now)


async def fill(service: MetastoreService, segments: Segments, size: int) -> float:
    """The mean size of a block as msgpack, of a few."""
    few: list[BlockMeta] = []
    for first in range(0, size, AT_ONCE):
        metas = await make(segments, service, min(AT_ONCE, size - first))
        few = few or metas[:100]
        await register(service, calls_of(metas, BLOCKS_A_CALL), 8)
    return statistics.mean(len(pack(meta)) for meta in few)


async def rate(service: MetastoreService, metas: list[BlockMeta], writers: int) -> float:
    begun = time.perf_counter()
    await register(service, calls_of(metas, 1), writers)
    return len(metas) / (time.perf_counter() - begun)


async def polls(service: MetastoreService, segments: Segments, count: int) -> list[float]:
    """Seconds of each poll that reports a plan's end and takes the next one."""
    took: list[float] = []
    reports: tuple[Report, ...] = ()
    for _ in range(count):
        begun = time.perf_counter()
        reply = await service.poll(PollRequest(WorkerId("bench"), 1, (), reports, kinds=(COMPACT,)))
        took.append(time.perf_counter() - begun)
        assert all(outcome.accepted for outcome in reply.outcomes), reply.outcomes
        (plan,) = reply.granted
        reports = (Report(plan.id, plan.token, result(plan)),)
        again = await make(segments, service, len(plan.inputs))
        await register(service, calls_of(again, len(again)), 1)
    return took


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def measure(directory: Path, options: argparse.Namespace) -> dict[str, float]:
    segments, pauses = Segments(), Pauses()
    found: dict[str, float] = {}
    async with metastore(directory) as service:
        await make(segments, service, 2 * AT_ONCE)  # so that what passes through has its room
        await fill(service, segments, 100)
        watcher = asyncio.create_task(pauses.watch())
        gc.collect()
        before = resident()
        found["msgpack"] = await fill(service, segments, options.size)
        gc.collect()
        found["grown"] = resident() - before
        pauses.phase = "register"
        few = await make(segments, service, max(1, options.registrations // 20))
        found["alone"] = await rate(service, few, 1)
        many = await make(segments, service, options.registrations)
        begun = time.process_time()
        found["register"] = await rate(service, many, WRITERS)
        found["register_cpu"] = len(many) / (time.process_time() - begun)
        pauses.phase = "poll"
        cuts = statistics.quantiles(await polls(service, segments, options.polls), n=100)
        found |= {"p50": cuts[49] * 1e3, "p99": cuts[98] * 1e3}
        pauses.phase = "snapshot"
        begun_at = time.perf_counter()
        await service.snapshot()
        found["snapshot"] = time.perf_counter() - begun_at
        watcher.cancel()
    return found | {f"pause_{name}": s * 1e3 for name, s in pauses.longest.items()}


async def restart(directory: Path) -> dict[str, float]:
    begun = time.perf_counter()
    store = open_objects(directory)
    (_, key), *_ = snapshot.list_snapshots(store)
    snapshot.check(store.read(key))
    read = time.perf_counter() - begun
    begun = time.perf_counter()
    async with metastore(directory) as service:
        took = time.perf_counter() - begun
        blocks = sum(level.blocks for level in (await service.status()).levels)
    return {"restart": took, "read": read, "blocks": blocks}


async def snapshot_of(directory: Path) -> int:
    log = SqliteLog.open_reader(directory / "log")
    try:
        return await snapshot.make(log, open_objects(directory))
    finally:
        await log.close()


# ── one process for each size ──────────────────────────────────────────────────────────────────


def on_one_core() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def child(*arguments: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, __file__, *arguments], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def numbers(size: int, options: argparse.Namespace) -> dict[str, float]:
    counts = ("--registrations", str(options.registrations), "--polls", str(options.polls))
    with tempfile.TemporaryDirectory(prefix="maar-bench-") as name:
        found = child("--size", str(size), "--directory", name, *counts)
        return found | child("--restart-of", name)


def report(size: int, found: dict[str, float], first: dict[str, float], smallest: int) -> None:
    def line(name: str, value: float, unit: str, baseline: float, called: str) -> None:
        print(f"{name}_{size} {value:.5g} {unit} {value / baseline:.2f} {called}", flush=True)

    line("register", found["register"], "blocks/s", found["alone"], "one_writer_at_a_time")
    line(
        "register_cpu",
        found["register_cpu"],
        "blocks/cpu-s",
        found["alone"],
        "one_writer_at_a_time",
    )
    for quantile in ("p50", "p99"):
        line(f"poll_{quantile}", found[quantile], "ms", first[quantile], f"beside_{smallest}")
    grown, more = found["grown"], size
    if size > smallest:
        grown, more = grown - first["grown"], size - smallest
    line("memory", grown / more, "bytes/block", found["msgpack"], "the_block_as_msgpack")
    for phase in ("fill", "register", "poll", "snapshot"):
        name = f"pause_{phase}"
        line(name, found[name], "ms", first[name], f"beside_{smallest}")
    line("snapshot", found["snapshot"], "s", found["read"], "reading_and_checksumming_it")
    line("restart", found["restart"], "s", found["read"], "reading_and_checksumming_it")
    print(f"# {size}: {found['blocks']:.0f} blocks after the restart", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--registrations", type=int, default=5_000)
    parser.add_argument("--polls", type=int, default=400)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--restart-of", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--snapshot-of", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.snapshot_of:
        print(asyncio.run(snapshot_of(options.snapshot_of)))
    elif options.restart_of:
        on_one_core()
        print(json.dumps(asyncio.run(restart(options.restart_of))))
    elif options.size:
        on_one_core()
        print(json.dumps(asyncio.run(measure(options.directory, options))))
    else:
        load = synthetic.load_now()
        first: dict[str, float] = {}
        for size in options.sizes:
            found = numbers(size, options)
            first = first or found
            report(size, found, first, options.sizes[0])
        synthetic.tell_of_neighbours(load)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
