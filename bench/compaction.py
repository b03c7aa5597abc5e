"""Compaction by Spark jobs against the same jobs in a bare process pool of the same size.

Each job merges the same generated segments (level 0 to 1: decode, split, sort, write), under a plan
of its own. Both ways are warm, and take turns. Prints: name value unit ratio baseline.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import secrets
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from maar.adapters.object_store import open_store
from maar.block.segment import segment_meta, write_segment
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.ids import (
    MAIN_STORE,
    NO_TENANT,
    FencingToken,
    Incarnation,
    PlanId,
    Shard,
    TenantId,
    segment_id,
)
from maar.model.labels import labels_of
from maar.model.plan import LeasedPlan, PlanResult, QueueKey, Service
from maar.model.profile import RawProfile, profile_id, profile_type
from maar.ports.object_store import ObjectStore, StoreSettings
from maar.pprof import gzip
from maar.pprof.encode import encode
from maar.pprof.plain import (
    PlainFunction,
    PlainLine,
    PlainLocation,
    PlainMapping,
    PlainProfile,
    PlainSample,
)
from maar.spark.runner import SparkRunner
from maar.spark.session import SparkSettings
from maar.spark.task import compact, load_compaction

START_NS = 1_790_000_000_000_000_000
SEGMENTS = 20  # what the planner gives to one job of level 0
INCARNATION = Incarnation("be9cbe9c")
SHARD = Shard(1)
JOB_SECONDS_LEAST = 0.5
LOAD_MOST = 0.5  # on a busy machine wall times say more about the neighbours

_tokens = iter(range(1, 1 << 30))


def profile(random: Random, number: int) -> RawProfile:
    """A CPU profile of some service: 160 samples over 1,400 locations, as agents send them."""
    service = f"service-{number % 4}"
    functions = [
        PlainFunction(f"pkg{n % 40}.(*Type{n % 9}).method{n}", f"pkg{n % 40}.m{n}", f"src/f{n}.go")
        for n in range(700)
    ]
    locations = [
        PlainLocation(0, 0x400000 + 64 * n, (PlainLine(n % len(functions), n % 900),))
        for n in range(1400)
    ]
    samples = [
        PlainSample(
            [random.randrange(1400) for _ in range(random.randrange(8, 40))],
            [random.randrange(1, 50), random.randrange(1, 50) * 10_000_000],
        )
        for _ in range(160)
    ]
    time_ns = START_NS + number * 1_000_000_000
    raw = encode(
        PlainProfile(
            sample_types=[("samples", "count"), ("cpu", "nanoseconds")],
            samples=samples,
            mappings=[PlainMapping(0x400000, 0x900000, 0, "/bin/app", "build-1")],
            locations=locations,
            functions=functions,
            time_ns=time_ns,
            duration_ns=10_000_000_000,
            period_type=("cpu", "nanoseconds"),
            period=10_000_000,
        )
    )
    labels = labels_of([("service_name", service), ("__name__", "process_cpu"), ("pod", "a")])
    tenant = TenantId("acme")
    return RawProfile(
        id=profile_id(tenant=tenant, labels=labels, time_ns=time_ns, client_id="", body=raw),
        tenant=tenant,
        service=service,
        labels=labels,
        types=tuple(
            profile_type(
                name="process_cpu",
                sample_type=kind,
                sample_unit=unit,
                period_type="cpu",
                period_unit="nanoseconds",
            )
            for kind, unit in (("samples", "count"), ("cpu", "nanoseconds"))
        ),
        time_ns=time_ns,
        duration_ns=10_000_000_000,
        samples=len(samples),
        payload=gzip.compress(raw),
        raw_size=len(raw),
    )


def segments(store: ObjectStore, *, profiles: int) -> tuple[BlockMeta, ...]:
    """The inputs of every job."""
    random = Random(4711)
    metas = []
    for number in range(SEGMENTS):
        first = number * profiles
        written = write_segment([profile(random, first + n) for n in range(profiles)])
        block = segment_id(lease_time_ns=number, entropy=random.getrandbits(64))
        key = keys.segment(shard=SHARD, block=block, incarnation=INCARNATION)
        store.create(key, written.body)
        metas.append(
            segment_meta(
                written,
                block=block,
                key=key,
                shard=SHARD,
                store=MAIN_STORE,
                created_by="bench",
                created_at_ns=START_NS,
            )
        )
    return tuple(metas)


def plan(inputs: tuple[BlockMeta, ...]) -> LeasedPlan:
    number = next(_tokens)
    return LeasedPlan(
        id=PlanId(number, 0),
        service=Service.COMPACT,
        token=FencingToken(INCARNATION, number),
        key=QueueKey(MAIN_STORE, NO_TENANT, SHARD, 0),
        inputs=inputs,
        target_block_bytes=1 << 30,
        lease_ns=15_000_000_000,
    )


def in_pool(job: tuple[LeasedPlan, StoreSettings, str]) -> PlanResult:
    """The bare way: the same function in a process that knows nothing of Spark."""
    leased, settings, parent = job
    scratch = Path(tempfile.mkdtemp(dir=parent))
    try:
        return compact(
            leased,
            store=open_store(settings),
            attempt=secrets.token_hex(6),
            scratch=scratch,
            wall_ns=time.time_ns(),
        )
    finally:
        shutil.rmtree(scratch)


def measure(
    directory: Path, *, jobs: int, rounds: int, slots: int, per_segment: int
) -> tuple[list[float], list[float]]:
    settings = StoreSettings(MAIN_STORE, (directory / "store").as_uri())
    inputs = segments(open_store(settings), profiles=per_segment)
    runner = SparkRunner(
        SparkSettings(master=f"local[{slots}]"), settings, directory, open_store=open_store
    )
    context = multiprocessing.get_context("spawn")  # as clean as Spark's own workers
    with (
        context.Pool(slots, initializer=load_compaction) as pool,
        ThreadPoolExecutor(slots) as threads,
    ):
        runner.warm()

        def bare(jobs: int) -> list[PlanResult]:
            work = [(plan(inputs), settings, str(directory)) for _ in range(jobs)]
            return pool.map(in_pool, work, chunksize=1)

        def spark(jobs: int) -> list[PlanResult]:
            return list(threads.map(runner.run, [plan(inputs) for _ in range(jobs)]))

        def seconds(way: Callable[[int], list[PlanResult]], jobs: int) -> float:
            begun = time.perf_counter()
            results = way(jobs)
            took = time.perf_counter() - begun
            assert all(result.account.kept == SEGMENTS * per_segment for result in results)
            shutil.rmtree(directory / "store" / "lake")
            return took

        try:
            for way in (bare, spark):
                seconds(way, 3 * slots)
            turns = []
            for number in range(rounds):  # who goes first changes, so that a drift hits both
                if number % 2 == 0:
                    turns.append((seconds(bare, jobs), seconds(spark, jobs)))
                else:
                    spark_first = seconds(spark, jobs)
                    turns.append((seconds(bare, jobs), spark_first))
        finally:
            runner.close()
    return [bare_s for bare_s, _ in turns], [spark_s for _, spark_s in turns]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slots", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--profiles", type=int, default=16, help="per segment")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="maar-bench-") as directory:
        bare, spark = measure(
            Path(directory),
            jobs=arguments.jobs,
            rounds=arguments.rounds,
            slots=arguments.slots,
            per_segment=arguments.profiles,
        )
    bare_s, spark_s = statistics.median(bare), statistics.median(spark)
    job_s = bare_s * arguments.slots / arguments.jobs
    if job_s < JOB_SECONDS_LEAST:
        print(f"# jobs took only {job_s:.2f} s each; ask for more --profiles")
    if load_before > LOAD_MOST:
        print(f"# load was {load_before:.1f} before we began: others ran too, do not quote this")
    ratios = " ".join(f"{s / b:.2f}" for b, s in zip(bare, spark, strict=True))
    print(f"# rounds {len(bare)}, ratio of each: {ratios}")
    print(f"compaction_pool {bare_s:.2f} s 1.00 bare_process_pool")
    print(f"compaction_spark {spark_s:.2f} s {spark_s / bare_s:.2f} bare_process_pool")


if __name__ == "__main__":
    main()
