"""The flame graph of one service from many compacted profiles, against a bare DuckDB script.

    python bench/flamegraph.py [--profiles 10000]

The script reads the same files, removes the same duplicates, joins the same frames and builds the
same tree. Both are warm and take turns; medians of five. Each line: name value unit ratio baseline.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any, cast

import duckdb
from prometheus_client import CollectorRegistry

from maar.adapters.stores.open import open_store
from maar.block.format.segment import segment_meta, write_segment
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
from maar.model.plan import LeasedPlan, QueueKey
from maar.model.profile import RawProfile, profile_id
from maar.model.time import TimeRange
from maar.ports.calls import Caller, LocalPort
from maar.ports.reader.index import IndexReader, IndexView, ViewRequest
from maar.ports.reader.query import DrawFlameGraph, Matcher, Scope
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from maar.pprof.encode import encode
from maar.pprof.gzip import compress
from maar.pprof.plain import PlainFunction, PlainLine, PlainLocation, PlainProfile, PlainSample
from maar.query.service import DuckEngine, QuerySettings
from maar.services.compact.rules import COMPACT
from maar.services.compact.run import run as compact

TENANT = TenantId("bench")
SERVICE = "checkout"
OTHERS = ("search", "payment", "mail")  # their rows share the files
CPU = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"
START = 1_763_208_000 * 10**9
INCARNATION = Incarnation("0badcafe")
BODIES, SAMPLES, FUNCTIONS, BLOCKS, SEGMENTS = 60, 160, 1200, 4, 5
ROUNDS = 5


def body(random: Random) -> bytes:
    """A plausible pprof: stacks that share their upper frames."""
    functions = [PlainFunction(name=f"package{n % 40}.function{n}") for n in range(FUNCTIONS)]
    locations = [PlainLocation(lines=(PlainLine(n, n % 900),)) for n in range(FUNCTIONS)]
    samples = []
    for _ in range(SAMPLES):
        depth, at, stack = random.randrange(8, 40), 0, []
        for _ in range(depth):
            at = (at * 7 + random.choice((1, 1, 1, 2, 3))) % FUNCTIONS
            stack.append(at)
        samples.append(PlainSample(locations=stack[::-1], values=[random.randrange(1, 50) * 10**7]))
    profile = PlainProfile(
        sample_types=[("cpu", "nanoseconds")],
        samples=samples,
        functions=functions,
        locations=locations,
        period_type=("cpu", "nanoseconds"),
        period=10**7,
    )
    return encode(profile)


def profiles_of(service: str, number: int, bodies: list[bytes]) -> list[RawProfile]:
    payloads = [compress(raw) for raw in bodies]
    made = []
    for n in range(number):
        labels = labels_of(
            [("service_name", service), ("__name__", "process_cpu"), ("pod", f"pod-{n % 25}")]
        )
        time_ns, raw = START + n * 10**9 // 4, bodies[n % len(bodies)]
        made.append(
            RawProfile(
                id=profile_id(
                    tenant=TENANT, labels=labels, time_ns=time_ns, client_id="", body=raw
                ),
                tenant=TENANT,
                service=service,
                labels=labels,
                types=(CPU,),
                time_ns=time_ns,
                duration_ns=10**10,
                samples=SAMPLES,
                payload=payloads[n % len(bodies)],
                raw_size=len(raw),
            )
        )
    return made


def compact_all(store: ObjectStore, profiles: list[RawProfile], scratch: Path) -> list[BlockMeta]:
    """Level-1 blocks; neighbours share some profiles, as after a push that was repeated."""
    blocks: list[BlockMeta] = []
    share = len(profiles) // BLOCKS
    for number in range(BLOCKS):
        mine = profiles[number * share : (number + 1) * share]
        mine += profiles[max(number * share - share // 50, 0) : number * share]
        size = -(-len(mine) // SEGMENTS)
        inputs = [
            store_segment(store, mine[first : first + size], number * SEGMENTS + ordinal)
            for ordinal, first in enumerate(range(0, len(mine), size))
        ]
        plan = LeasedPlan(
            id=PlanId(number + 1, 0),
            kind=COMPACT,
            token=FencingToken(INCARNATION, number + 1),
            key=QueueKey(MAIN_STORE, NO_TENANT, Shard(1), 0),
            inputs=tuple(inputs),
            target_block_bytes=1 << 30,
            lease_ns=10**12,
        )
        result = compact(plan, store=store, attempt="bench", scratch=scratch, wall_ns=START)
        blocks += result.outputs
    return blocks


def store_segment(store: ObjectStore, profiles: list[RawProfile], number: int) -> BlockMeta:
    segment = write_segment(profiles)
    block = segment_id(lease_time_ns=number + 1, entropy=number)
    key = keys.segment(shard=Shard(1), block=block, incarnation=INCARNATION)
    store.create(key, segment.body)
    return segment_meta(
        segment,
        block=block,
        key=key,
        shard=Shard(1),
        store=MAIN_STORE,
        created_by="bench",
        created_at_ns=START,
    )


class Index(LocalPort):
    """An index that never changes."""

    def __init__(self, blocks: list[BlockMeta]) -> None:
        self._view = IndexView(1, tuple(blocks))

    async def view(self, request: ViewRequest) -> IndexView:
        del request
        return self._view


class Script:
    """What one would write by hand, with the files at hand."""

    def __init__(self, store: ObjectStore, blocks: list[BlockMeta]) -> None:
        self._database = duckdb.connect(config={"threads": 2})
        self._files = {
            table: "read_parquet(["
            + ", ".join(f"'{store.local_path(b.file(table).locations[0].key)}'" for b in blocks)
            + "], hive_partitioning = false)"
            for table in ("samples", "profiles", "stacks")
        }

    def rows(self) -> list[tuple[list[str], int]]:
        files = self._files
        text = f"""
            WITH kept AS (
                SELECT profile_id, min(file_index) AS file_index FROM {files["profiles"]}
                WHERE service = $service GROUP BY profile_id
            ), sums AS (
                SELECT s.file_index, s.stack_id, sum(s.value)::BIGINT AS value
                FROM (SELECT file_index, * FROM {files["samples"]}) s
                SEMI JOIN kept USING (profile_id, file_index)
                WHERE s.service = $service AND s.profile_type = $type
                GROUP BY ALL
            )
            SELECT functions, sum(value)::BIGINT
            FROM sums
            JOIN (SELECT file_index, stack_id, functions FROM {files["stacks"]}
                  WHERE service = $service) USING (file_index, stack_id)
            GROUP BY functions
        """
        values = {"service": SERVICE, "type": CPU}
        return cast(list[tuple[list[str], int]], self._database.execute(text, values).fetchall())

    def levels(self) -> tuple[int, list[list[int]]]:
        root: dict[str, Any] = _node()
        for functions, value in self.rows():
            node = root
            node["total"] += value
            for name in functions:
                node = node["children"][name]
                node["total"] += value
            node["self"] += value
        levels: list[list[int]] = []
        ends: list[int] = []
        names: dict[str, int] = {"total": 0}
        pending = [("total", root, 0, 0)]
        while pending:
            name, node, left, depth = pending.pop()
            if depth == len(levels):
                levels.append([])
                ends.append(0)
            index = names.setdefault(name, len(names))
            levels[depth] += [left - ends[depth], node["total"], node["self"], index]
            ends[depth] = left + node["total"]
            left += node["self"]
            below = []
            for child in sorted(node["children"]):
                below.append((child, node["children"][child], left, depth + 1))
                left += node["children"][child]["total"]
            pending += reversed(below)
        return root["total"], levels


def _node() -> dict[str, Any]:
    return {"self": 0, "total": 0, "children": defaultdict(_node)}


async def measure(number: int, directory: Path) -> None:
    store = open_store(StoreSettings("main", (directory / "store").as_uri()))
    random = Random(1)
    bodies = [body(random) for _ in range(BODIES)]
    profiles = profiles_of(SERVICE, number, bodies)
    for other in OTHERS:
        profiles += profiles_of(other, number // 10, bodies[:10])
    random.shuffle(profiles)
    blocks = compact_all(store, profiles, directory / "scratch")
    engine = DuckEngine(
        QuerySettings(), cast(Caller[IndexReader], Index(blocks)), store, CollectorRegistry()
    )
    scope = Scope(
        TENANT,
        TimeRange(START, START + 86_400 * 10**9),
        (Matcher("service_name", "=", SERVICE),),
    )
    script = Script(store, blocks)
    ours: list[float] = []
    theirs: list[float] = []
    sql_only: list[float] = []
    for turn in range(ROUNDS + 2):
        gc.collect()
        start = time.perf_counter()
        graph = await engine.call(DrawFlameGraph(scope, profile_type=CPU, max_nodes=1 << 20))
        middle = time.perf_counter()
        total, levels = script.levels()
        end = time.perf_counter()
        script.rows()
        last = time.perf_counter()
        assert graph.total == total
        assert [len(level) for level in graph.levels] == [len(level) for level in levels]
        if turn >= 2:  # the first ones warm the page cache and both engines
            ours.append(middle - start)
            theirs.append(end - middle)
            sql_only.append(last - end)
    engine.close()
    value, script_time, sql_time = map(statistics.median, (ours, theirs, sql_only))
    name = f"flamegraph_{number}_profiles"
    print(f"{name} {value * 1000:.1f} ms {value / script_time:.2f} bare_duckdb_script")
    print(f"{name} {value * 1000:.1f} ms {value / sql_time:.2f} its_sql_alone_without_the_tree")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profiles", type=int, default=10_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="maar-bench-") as directory:
        asyncio.run(measure(arguments.profiles, Path(directory)))


if __name__ == "__main__":
    main()
