"""A tenant's day in many shards before and after clustering, and clustering against bare DuckDB.

    python bench/cluster.py [--profiles 100000] [--shards 16] [--rounds 2]

The day lies in four finished blocks a shard, as compaction leaves it; a service lies in three
shards, and one profile in a hundred was pushed to two of them. Measured: what a flame graph of one
service of that day opens and reads, and its time (medians of five); the bytes of the day; and
clustering on Spark with two tasks against a DuckDB script with two threads that removes the same
duplicates and writes the same sorted files, by turns. MB are bytes of input at rest, a core is a
slot for the time of a round. Prints: name value unit ratio baseline.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import cast

import duckdb
from prometheus_client import CollectorRegistry

import synthetic
from maar.adapters.stores.open import open_store
from maar.model.block import TABLES, BlockMeta
from maar.model.ids import MAIN_STORE, NO_TENANT, FencingToken, PlanId, Shard
from maar.model.labels import labels_of
from maar.model.plan import LeasedPlan, PlanResult, QueueKey
from maar.model.profile import RawProfile, profile_id
from maar.model.time import DAY_NS, TimeRange
from maar.ports.calls import Caller, LocalPort
from maar.ports.reader.index import IndexReader, IndexView, ViewRequest
from maar.ports.reader.query import DrawFlameGraph, FlameGraph, Matcher, Scope
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from maar.pprof.encode import encode
from maar.pprof.gzip import compress
from maar.pprof.plain import PlainFunction, PlainLine, PlainLocation, PlainProfile, PlainSample
from maar.query.service import DuckEngine, QuerySettings
from maar.runner.runner import SparkRunner
from maar.runner.settings import SparkSettings
from maar.services.cluster.rules import CLUSTER
from maar.services.compact.rules import COMPACT
from maar.services.compact.run import run as compact

SLOTS = 2
SERVICES, SPREAD, BLOCKS = 48, 3, 4  # services, shards of each, blocks of a shard
BODIES, SAMPLES, FUNCTIONS = 60, 40, 400  # of each service: its profiles repeat themselves
SEGMENT = 1_000  # profiles
OUTPUTS = 4  # blocks that the day becomes, about
ASKED = "service-07"
CPU = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"
DAY_START_NS = synthetic.START_NS // DAY_NS * DAY_NS
READ = ("samples", "profiles", "stacks")  # by a flame graph
ROUNDS = 5  # of questions

_numbers = count(1)


def body(random: Random, service: str) -> bytes:
    """A plausible pprof: stacks that share their upper frames, functions of the service's own."""
    functions = [
        PlainFunction(name=f"{service}.package{n % 40}.function{n}") for n in range(FUNCTIONS)
    ]
    locations = [PlainLocation(lines=(PlainLine(n, n % 900),)) for n in range(FUNCTIONS)]
    samples = []
    for _ in range(SAMPLES):
        at, stack = 0, []
        for _ in range(random.randrange(8, 40)):
            at = (at * 7 + random.choice((1, 1, 1, 2, 3))) % FUNCTIONS
            stack.append(at)
        samples.append(PlainSample(locations=stack[::-1], values=[random.randrange(1, 50) * 10**7]))
    return encode(
        PlainProfile(
            sample_types=[("cpu", "nanoseconds")],
            samples=samples,
            functions=functions,
            locations=locations,
            period_type=("cpu", "nanoseconds"),
            period=10**7,
        )
    )


def day_of(number: int) -> Iterator[tuple[str, int, RawProfile]]:
    """Service, place within it, and profile, in the order of time."""
    random = Random(1)
    names = [f"service-{n:02d}" for n in range(SERVICES)]
    each = min(BODIES, -(-number // SERVICES))  # a small day has fewer profiles than bodies
    bodies = {name: [body(random, name) for _ in range(each)] for name in names}
    packed = {name: [compress(raw) for raw in bodies[name]] for name in names}
    for n in range(number):
        name = names[n % SERVICES]
        labels = labels_of(
            [
                ("service_name", name),
                ("__name__", "process_cpu"),
                ("pod", f"pod-{n // SERVICES % 30}"),
            ]
        )
        time_ns, which = DAY_START_NS + n * DAY_NS // number, n // SERVICES % each
        raw = bodies[name][which]
        tenant = synthetic.TENANT
        made = profile_id(tenant=tenant, labels=labels, time_ns=time_ns, client_id="", body=raw)
        yield (
            name,
            n // SERVICES,
            RawProfile(
                id=made,
                tenant=tenant,
                service=name,
                labels=labels,
                types=(CPU,),
                time_ns=time_ns,
                duration_ns=10**10,
                samples=SAMPLES,
                payload=packed[name][which],
                raw_size=len(raw),
            ),
        )


def finished_blocks(
    store: ObjectStore, scratch: Path, *, number: int, shards: int
) -> list[BlockMeta]:
    """As compaction leaves a day: four blocks a shard, one after the other."""
    quarters: list[dict[int, list[RawProfile]]] = [defaultdict(list) for _ in range(BLOCKS)]
    for ordinal, (name, place, profile) in enumerate(day_of(number)):
        quarter = quarters[ordinal * BLOCKS // number]
        first = int(name[-2:]) * 5
        quarter[(first + place % SPREAD) % shards].append(profile)
        if place % 100 == 0:
            quarter[(first + (place + 1) % SPREAD) % shards].append(profile)
    return [
        compact_all(store, scratch, quarter[shard], Shard(shard + 1))
        for quarter in quarters
        for shard in sorted(quarter)
    ]


def compact_all(
    store: ObjectStore, scratch: Path, profiles: list[RawProfile], shard: Shard
) -> BlockMeta:
    inputs = [
        synthetic.segment(store, profiles[first : first + SEGMENT], shard=shard)
        for first in range(0, len(profiles), SEGMENT)
    ]
    key = QueueKey(MAIN_STORE, NO_TENANT, shard, 0)
    plan = lease(inputs, key, kind=COMPACT, target=1 << 30)
    (made,) = compact(plan, store=store, attempt="bench", scratch=scratch, wall_ns=0).outputs
    for meta in inputs:
        store.delete(meta.files[0].locations[0].key)
    return made


def lease(inputs: Sequence[BlockMeta], key: QueueKey, *, kind: str, target: int) -> LeasedPlan:
    number = 1_000_000 + next(_numbers)
    return LeasedPlan(
        id=PlanId(number, 0),
        kind=kind,  # type: ignore[arg-type]
        token=FencingToken(synthetic.INCARNATION, number),
        key=key,
        inputs=tuple(inputs),
        target_block_bytes=target,
        lease_ns=10**12,
        slots=SLOTS,
    )


# ── the two ways ───────────────────────────────────────────────────────────────────────────────


def by_maar(runner: SparkRunner, blocks: Sequence[BlockMeta]) -> PlanResult:
    key = QueueKey(MAIN_STORE, synthetic.TENANT, Shard(0), 0, day=blocks[0].day)
    target = sum(meta.size for meta in blocks) // OUTPUTS
    return runner.run(lease(blocks, key, kind=CLUSTER, target=target))


class Script:
    """What one would write by hand: the same rows in the same order, a file a table and range."""

    def __init__(
        self, store: ObjectStore, blocks: Sequence[BlockMeta], outputs: Sequence[BlockMeta]
    ) -> None:
        self._files = {table: _files(store, blocks, table) for table in TABLES}
        self._ranges = [_range(store, meta) for meta in outputs]

    def run(self, directory: Path) -> int:
        """How many profiles it kept."""
        directory.mkdir()
        database = duckdb.connect(
            config={"threads": SLOTS, "temp_directory": str(directory / "spill")}
        )
        files = self._files
        database.execute(
            f"""CREATE TABLE kept AS SELECT profile_id, min(file_index) AS file_index
                FROM {files["profiles"]} GROUP BY profile_id"""
        )
        for number, inside in enumerate(self._ranges):
            self._write(database, directory / str(number), inside)
        ((kept,),) = database.execute("SELECT count(*) FROM kept").fetchall()
        database.close()
        return cast(int, kept)

    def _write(self, database: duckdb.DuckDBPyConnection, place: Path, inside: str) -> None:
        place.mkdir()
        files = self._files
        once = "SEMI JOIN kept USING (profile_id, file_index)"
        for table, order in (
            ("samples", "service, profile_type, series_id, time, stack_id"),
            ("profiles", "service, time, profile_id"),
        ):
            self._copy(
                database,
                place / f"{table}.parquet",
                f"""SELECT * EXCLUDE file_index FROM (SELECT file_index, * FROM {files[table]})
                    {once} WHERE {inside} ORDER BY {order}""",
            )
        own = f"read_parquet('{place / 'samples.parquet'}')"
        for table, column, order in (
            ("stacks", "stack_id", "service, functions, stack_id"),
            ("series", "series_id", "service, series_id"),
        ):
            self._copy(
                database,
                place / f"{table}.parquet",
                f"""SELECT DISTINCT ON ({column}) * FROM {files[table]} SEMI JOIN
                    (SELECT DISTINCT {column} FROM {own}) USING ({column}) ORDER BY {order}""",
            )
        stacks = f"read_parquet('{place / 'stacks.parquet'}')"
        self._copy(
            database,
            place / "locations.parquet",
            f"""SELECT DISTINCT ON (location_id) * FROM {files["locations"]} SEMI JOIN
                (SELECT DISTINCT unnest(location_ids) AS location_id FROM {stacks})
                USING (location_id) ORDER BY file, function, line, location_id""",
        )

    def _copy(self, database: duckdb.DuckDBPyConnection, path: Path, query: str) -> None:
        database.execute(f"COPY ({query}) TO '{path}' (FORMAT parquet, COMPRESSION zstd)")


def _files(store: ObjectStore, blocks: Sequence[BlockMeta], table: str) -> str:
    paths = [store.local_path(meta.file(table).locations[0].key) for meta in blocks]
    listed = ", ".join(f"'{path}'" for path in paths)
    return f"read_parquet([{listed}], hive_partitioning = false)"


def _range(store: ObjectStore, meta: BlockMeta) -> str:
    """The rows of an output, by service and time."""
    own = _files(store, [meta], "profiles")
    text = f"""SELECT min((service, epoch_us(time))), max((service, epoch_us(time))) FROM {own}"""
    ((first, last),) = duckdb.execute(text).fetchall()
    (low, low_us), (high, high_us) = map(_pair, (first, last))
    return (
        f"(service > '{low}' OR (service = '{low}' AND epoch_us(time) >= {low_us})) AND "
        f"(service < '{high}' OR (service = '{high}' AND epoch_us(time) <= {high_us}))"
    )


def _pair(value: object) -> tuple[str, int]:
    service, time_us = value.values() if isinstance(value, dict) else cast(tuple[str, int], value)
    return service, time_us


# ── questions ──────────────────────────────────────────────────────────────────────────────────


class Index(LocalPort):
    def __init__(self, blocks: Sequence[BlockMeta]) -> None:
        self._view = IndexView(1, tuple(blocks))

    async def view(self, request: ViewRequest) -> IndexView:
        del request
        return self._view


class Asked:
    """The flame graph of one service of the day, over some blocks."""

    def __init__(self, store: ObjectStore, blocks: Sequence[BlockMeta]) -> None:
        index = cast(Caller[IndexReader], Index(blocks))
        self._engine = DuckEngine(QuerySettings(), index, store, CollectorRegistry())
        self.seconds: list[float] = []
        touched = [
            (meta, each) for meta in blocks for each in meta.datasets if each.service == ASKED
        ]
        self.files = len(touched) * len(READ)
        self.bytes = sum(
            each.size + sum(meta.file(table).footer_size for table in READ)
            for meta, each in touched
        )

    async def ask(self) -> FlameGraph:
        scope = Scope(
            synthetic.TENANT,
            TimeRange(DAY_START_NS, DAY_START_NS + DAY_NS),
            (Matcher("service_name", "=", ASKED),),
        )
        gc.collect()
        began = time.perf_counter()
        graph = await self._engine.call(DrawFlameGraph(scope, profile_type=CPU, max_nodes=1 << 20))
        self.seconds.append(time.perf_counter() - began)
        return graph

    def close(self) -> None:
        self._engine.close()

    def median_s(self) -> float:
        return statistics.median(self.seconds[2:])  # the first ones warm the caches


async def compare(before: Asked, after: Asked) -> None:
    for _ in range(ROUNDS + 2):
        assert await before.ask() == await after.ask()


def measure(directory: Path, *, number: int, shards: int, rounds: int) -> None:
    settings = StoreSettings("main", (directory / "store").as_uri())
    store = open_store(settings)
    blocks = finished_blocks(store, directory / "compact", number=number, shards=shards)
    size = sum(meta.size for meta in blocks)
    print(f"# {len(blocks)} blocks of {shards} shards, {size / 1e6:.0f} MB")
    spark = SparkSettings(master=f"local[{SLOTS}]")
    runner = SparkRunner(spark, settings, directory, open_store=open_store)
    runner.warm()
    ours: list[float] = []
    theirs: list[float] = []
    try:
        result = by_maar(runner, blocks)  # warms
        script = Script(store, blocks, result.outputs)
        for turn in range(rounds):
            began = time.perf_counter()
            result = by_maar(runner, blocks)
            middle = time.perf_counter()
            kept = script.run(directory / f"script-{turn}")
            theirs.append(time.perf_counter() - middle)
            ours.append(middle - began)
            assert kept == result.account.kept == number
            shutil.rmtree(directory / f"script-{turn}")
    finally:
        runner.close()
    before, after = Asked(store, blocks), Asked(store, result.outputs)
    asyncio.run(compare(before, after))
    before.close()
    after.close()
    clustered = sum(meta.size for meta in result.outputs)
    speed = size / 1e6 / SLOTS / statistics.median(ours)
    ratio = statistics.median(theirs) / statistics.median(ours)
    print(f"cluster {speed:.2f} MB/s/core {ratio:.2f} bare_duckdb_script")
    print(f"day_bytes {clustered / 1e6:.1f} MB {clustered / size:.2f} before_clustering")
    print(
        f"flamegraph_files {after.files} files {after.files / before.files:.3f} before_clustering"
    )
    read = after.bytes / before.bytes
    print(f"flamegraph_bytes {after.bytes / 1e6:.3f} MB {read:.2f} before_clustering")
    taken = after.median_s() / before.median_s()
    print(f"flamegraph_time {1000 * after.median_s():.1f} ms {taken:.2f} before_clustering")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profiles", type=int, default=100_000)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    load = synthetic.load_now()
    with tempfile.TemporaryDirectory(prefix="maar-bench-") as directory:
        measure(Path(directory), number=asked.profiles, shards=asked.shards, rounds=asked.rounds)
    synthetic.tell_of_neighbours(load)


if __name__ == "__main__":
    main()
