"""`top` over a fleet of many services, and over one small service of it, against bare DuckDB.

    python bench/top.py [--services 1055] [--profiles 7500]

The lake has four shards, blocks of levels 1 and 2, and a fifth of its profiles at level 0. DuckDB
gets the same profiles, all of them compacted, and what one would write by hand: no level 0 to
decode, no copies to look for. At first caches are cold, as after a start; then both take turns,
medians of five. CPU is of the whole process. Last the same profiles in a tenth of the services:
cost should follow rows, not services. Each line: name value unit ratio baseline.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, cast

import duckdb
from prometheus_client import CollectorRegistry

from maar.adapters.stores.open import open_store
from maar.block.decode import to_tables
from maar.model.block import BlockMeta
from maar.model.ids import Shard
from maar.model.labels import labels_of
from maar.model.profile import RawProfile, profile_id
from maar.model.time import TimeRange
from maar.ports.calls import Caller, LocalPort
from maar.ports.reader.index import IndexReader, IndexView, ViewRequest
from maar.ports.reader.query import Matcher, RankFunctions, Scope, Top
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from maar.pprof.encode import encode
from maar.pprof.gzip import compress
from maar.pprof.plain import PlainFunction, PlainLine, PlainLocation, PlainProfile, PlainSample
from maar.query.service import DuckEngine, QuerySettings
from maar.services.compact.run import run as compact
from synthetic import TENANT, lease, load_now, segment, tell_of_neighbours

CPU = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"
START = 1_790_000_000 * 10**9
SMALL, SMALL_PROFILES = "small", 120
SHARDS, IN_SEGMENT, SEGMENTS_IN_BLOCK, BLOCKS_IN_BLOCK = 4, 10, 20, 5
BODIES, SAMPLES, FUNCTIONS = 40, 160, 1200
LEVEL_0 = 0.2  # of the profiles
ROUNDS = 5
ALWAYS = TimeRange(START, START + 86_400 * 10**9)


class Fleet(NamedTuple):
    """The lake that is asked, and the same profiles without a level 0."""

    store: ObjectStore
    asked: list[BlockMeta]
    compacted: list[BlockMeta]


class Cost(NamedTuple):
    wall_s: float
    cpu_s: float


def body(random: Random) -> bytes:
    """A plausible pprof: stacks that share their upper frames."""
    functions = [PlainFunction(name=f"package{n % 40}.function{n}") for n in range(FUNCTIONS)]
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


def profiles_by_shard(services: int, profiles: int) -> list[list[RawProfile]]:
    """Profiles by shard, in the order in which they come; a service keeps to one shard."""
    random = Random(1)
    bodies = [body(random) for _ in range(BODIES)]
    payloads = [compress(raw) for raw in bodies]
    names = [SMALL] * SMALL_PROFILES
    names += [f"service-{n % (services - 1):05}" for n in range(profiles - SMALL_PROFILES)]
    random.shuffle(names)
    shards: list[list[RawProfile]] = [[] for _ in range(SHARDS)]
    for number, name in enumerate(names):
        labels = labels_of(
            [("service_name", name), ("__name__", "process_cpu"), ("pod", f"pod-{number % 5}")]
        )
        time_ns, place = START + number * 10**9, (sum(name.encode()) + number % 3) % BODIES
        ident = profile_id(
            tenant=TENANT, labels=labels, time_ns=time_ns, client_id="", body=bodies[place]
        )
        shards[sum(name.encode()) % SHARDS].append(
            RawProfile(
                id=ident,
                tenant=TENANT,
                service=name,
                labels=labels,
                types=(CPU,),
                time_ns=time_ns,
                duration_ns=10**10,
                samples=SAMPLES,
                payload=payloads[place],
                raw_size=len(bodies[place]),
            )
        )
    return shards


def build(directory: Path, services: int, profiles: int) -> Fleet:
    store = open_store(StoreSettings("main", (directory / "store").as_uri()))

    def merge(blocks: list[BlockMeta]) -> list[BlockMeta]:
        result = compact(
            lease(blocks), store=store, attempt="b", scratch=directory / "scratch", wall_ns=START
        )
        return list(result.outputs)

    def level(blocks: list[BlockMeta], *, size: int) -> list[BlockMeta]:
        some = [blocks[first : first + size] for first in range(0, len(blocks), size)]
        return [block for inputs in some for block in merge(inputs)]

    asked: list[BlockMeta] = []
    compacted: list[BlockMeta] = []
    for number, mine in enumerate(profiles_by_shard(services, profiles), 1):
        segments = [
            segment(store, mine[first : first + IN_SEGMENT], shard=Shard(number))
            for first in range(0, len(mine), IN_SEGMENT)
        ]
        cut = int(len(segments) * (1 - LEVEL_0))
        first = level(segments[:cut], size=SEGMENTS_IN_BLOCK)
        second = len(first) // BLOCKS_IN_BLOCK * BLOCKS_IN_BLOCK
        blocks = [*level(first[:second], size=BLOCKS_IN_BLOCK), *first[second:]]
        asked += [*blocks, *segments[cut:]]
        compacted += [*blocks, *level(segments[cut:], size=SEGMENTS_IN_BLOCK)]
    return Fleet(store, asked, compacted)


class Index(LocalPort):
    """An index that never changes."""

    def __init__(self, blocks: list[BlockMeta]) -> None:
        self._view = IndexView(1, tuple(blocks))

    async def view(self, request: ViewRequest) -> IndexView:
        del request
        return self._view


class Script:
    """What one would write by hand, with all files at hand."""

    def __init__(self, fleet: Fleet) -> None:
        self._database = duckdb.connect(config={"threads": 2})
        self._files = {
            table: "read_parquet(["
            + ", ".join(
                f"'{fleet.store.local_path(block.file(table).locations[0].key)}'"
                for block in fleet.compacted
            )
            + "], hive_partitioning = false)"
            for table in ("samples", "stacks")
        }

    def top(self, service: str = "") -> list[tuple[str, int]]:
        only = "AND service = $service" if service else ""
        text = f"""
            WITH sums AS (
                SELECT file_index, stack_id, sum(value) AS value FROM {self._files["samples"]}
                WHERE profile_type = $type {only} GROUP BY ALL
            ), stacks AS (
                SELECT file_index, stack_id, list_distinct(functions) AS functions
                FROM {self._files["stacks"]} WHERE true {only}
            )
            SELECT function, sum(value)::BIGINT AS total
            FROM (SELECT unnest(functions) AS function, value
                  FROM sums JOIN stacks USING (file_index, stack_id))
            GROUP BY function
        """
        values = {"type": CPU, **({"service": service} if service else {})}
        return cast(list[tuple[str, int]], self._database.execute(text, values).fetchall())


async def time_once(ask: Callable[[], Awaitable[Any]]) -> tuple[Cost, Any]:
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    answer = await ask()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu), answer


async def compare(fleet: Fleet, name: str, service: str) -> Cost:
    matchers = (Matcher("service_name", "=", service),) if service else ()
    scope = Scope(TENANT, ALWAYS, matchers)
    engine = open_engine(fleet)
    script = Script(fleet)

    async def ours() -> Top:
        return await engine.call(RankFunctions(scope, profile_type=CPU, limit=FUNCTIONS))

    async def theirs() -> list[tuple[str, int]]:
        return script.top(service)

    cold, answer = await time_once(ours)
    cold_script, rows = await time_once(theirs)
    assert Counter(dict(rows)) == Counter({r.function: r.total_value for r in answer.rows})
    turns = [((await time_once(ours))[0], (await time_once(theirs))[0]) for _ in range(ROUNDS)]
    engine.close()
    report(f"{name}_cold", cold, cold_script)
    warm = median([mine for mine, _ in turns])
    report(name, warm, median([other for _, other in turns]))
    return warm


def median(costs: list[Cost]) -> Cost:
    walls, cpus = zip(*costs, strict=True)
    return Cost(statistics.median(walls), statistics.median(cpus))


def open_engine(fleet: Fleet) -> DuckEngine:
    index = cast(Caller[IndexReader], Index(fleet.asked))
    return DuckEngine(QuerySettings(), index, fleet.store, CollectorRegistry())


def report(name: str, ours: Cost, theirs: Cost) -> None:
    ratios = ours.wall_s / theirs.wall_s, ours.cpu_s / theirs.cpu_s
    print(f"{name} {ours.wall_s * 1000:.0f} ms {ratios[0]:.2f} bare_duckdb_all_compacted")
    print(f"{name}_cpu {ours.cpu_s * 1000:.0f} ms {ratios[1]:.2f} bare_duckdb_all_compacted")


async def measure(directory: Path, services: int, profiles: int, mark: str = "") -> list[Cost]:
    fleet = build(directory, services, profiles)
    raw = sum(len(block.datasets) for block in fleet.asked if block.level == 0)
    blocks = [block for block in fleet.asked if block.level]
    print(
        f"# {profiles} profiles of {services} services: {len(blocks)} blocks with "
        f"{sum(len(block.datasets) for block in blocks)} datasets, and {raw} datasets at level 0"
    )
    return [
        await compare(fleet, f"top_fleet{mark}", ""),
        await compare(fleet, f"top_small{mark}", SMALL),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--services", type=int, default=1055)
    parser.add_argument("--profiles", type=int, default=7500)
    arguments = parser.parse_args()
    tell_of_neighbours(load_now())
    to_tables.warm()
    costs = []
    for mark, services in (("", arguments.services), ("_tenth", arguments.services // 10)):
        with tempfile.TemporaryDirectory(prefix="maar-bench-") as directory:
            work = measure(Path(directory), services, arguments.profiles, mark)
            costs.append(asyncio.run(work))
    for name, many, few in zip(("fleet", "small"), *costs, strict=True):
        grown = many.cpu_s / few.cpu_s
        print(f"top_{name}_growth {many.cpu_s * 1000:.0f} ms {grown:.2f} a_tenth_of_the_services")


if __name__ == "__main__":
    main()
