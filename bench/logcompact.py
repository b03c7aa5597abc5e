"""What a query opens while compaction is behind, before and after segments are joined; the cost.

    python bench/logcompact.py [--segments 10000] [--shards 4] [--profiles 4] [--samples 40]

A backlog of segments waits in the lanes of a real fold, and nothing is compacted meanwhile. The
kind's own rules cut the plans, its own task carries them out, and the fold takes their results. The
same flame graph of one service is asked before and after, cold, of the real query engine over a
store that counts what is opened; both answers must be equal. Then what joining costs for a megabyte
of segments, against compaction of the same segments from level 0 to 1, in batches as the planner
cuts them; both in this process. Prints: name value unit ratio baseline.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, cast

from prometheus_client import CollectorRegistry

import synthetic
from maar.adapters.stores.open import open_store
from maar.block.decode import to_tables
from maar.metastore.fold.apply import Indexed, apply
from maar.metastore.records.effects import Completed
from maar.metastore.records.entries import (
    BlocksAdded,
    Entry,
    Envelope,
    Genesis,
    Grant,
    PlanCompleted,
    PlansLeased,
    PlansScheduled,
)
from maar.metastore.state.state import MetaState
from maar.metastore.views import reads
from maar.model.block import BlockMeta
from maar.model.ids import MAIN_STORE, PlanId, Shard, WorkerId
from maar.model.plan import LeasedPlan, PlanResult
from maar.model.policy import HOUR_NS
from maar.model.time import LeaseTime, TimeRange, WallTime
from maar.ports.calls import Caller, LocalPort
from maar.ports.reader.index import IndexReader, IndexView, ViewRequest
from maar.ports.reader.query import DrawFlameGraph, FlameGraph, Matcher, Scope
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from maar.query.service import DuckEngine, QuerySettings
from maar.services.compact.run import run as compact
from maar.services.logcompact.rules import LOGCOMPACTION
from maar.services.logcompact.run import run as logcompact

CPU = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"
SERVICE = "service-0"
TEMPLATES = 40
WEEK_NS = 7 * 24 * HOUR_NS
COST_ROUNDS = 5


class Counting:
    """A store that counts how often an object is opened."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.opened = 0

    def open(self, key: str) -> Any:
        self.opened += 1
        return self._store.open(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Lake(LocalPort):
    """A fold over entries that no log keeps: what the metastore knows of the backlog."""

    def __init__(self) -> None:
        self.state = MetaState()
        self.now = 0
        self.put(Genesis(synthetic.INCARNATION))

    def put(self, entry: Entry) -> tuple[object, ...]:
        wall = WallTime(synthetic.START_NS + self.now)
        envelope = Envelope(self.state.version, LeaseTime(self.now), wall, entry)
        return apply(self.state, Indexed(self.state.index + 1, envelope))

    def blocks(self) -> list[BlockMeta]:
        return [self.state.blocks.get(block) for block in self.state.blocks.where]

    async def view(self, request: ViewRequest) -> IndexView:
        del request
        return IndexView(self.state.index, tuple(self.blocks()))

    def plans(self) -> Iterator[LeasedPlan]:
        """Joins that are due, one at a time, as a worker with one slot gets them."""
        while spec := next(LOGCOMPACTION.due(self.state, 0, now=LeaseTime(self.now)), None):
            self.put(PlansScheduled((spec,)))
            plan = PlanId(self.state.index, 0)
            until = LeaseTime(self.now + HOUR_NS)
            self.put(PlansLeased((Grant(plan, WorkerId("bench"), until),)))
            yield reads.leased_plan(self.state, plan)

    def complete(self, plan: LeasedPlan, result: PlanResult) -> None:
        (effect,) = self.put(PlanCompleted(plan.id, plan.token, result))
        assert isinstance(effect, Completed), effect


def backlog(store: ObjectStore, lake: Lake, options: argparse.Namespace) -> None:
    """Shard after shard in turn, every segment in an entry of its own."""
    chance = Random(4711)
    templates = [
        synthetic.profile(chance, number, samples=options.samples, locations=options.locations)
        for number in range(TEMPLATES)
    ]
    made = 0
    for number in range(options.segments):
        profiles = []
        for _ in range(options.profiles):
            time_ns = synthetic.START_NS + made * 1_000_000
            profiles.append(synthetic.again(templates[made % TEMPLATES], time_ns=time_ns))
            made += 1
        shard = Shard(1 + number % options.shards)
        lake.put(BlocksAdded((synthetic.segment(store, profiles, shard=shard),)))
    lake.now += HOUR_NS


class Asked(NamedTuple):
    """One flame graph, cold."""

    graph: FlameGraph
    opened: int
    seconds: float


def ask(store: ObjectStore, lake: Lake) -> Asked:
    counting = Counting(store)
    engine = DuckEngine(
        QuerySettings(timeout_s=3600),  # 30 s do not suffice to open ten thousand
        cast(Caller[IndexReader], lake),
        cast(ObjectStore, counting),
        CollectorRegistry(),
    )
    time_range = TimeRange(synthetic.START_NS, synthetic.START_NS + WEEK_NS)
    scope = Scope(synthetic.TENANT, time_range, (Matcher("service_name", "=", SERVICE),))
    begun = time.perf_counter()
    try:
        graph = asyncio.run(engine.call(DrawFlameGraph(scope, profile_type=CPU, max_nodes=1 << 20)))
    finally:
        engine.close()
    return Asked(graph, counting.opened, time.perf_counter() - begun)


def join_all(store: ObjectStore, lake: Lake, scratch: Path) -> list[float]:
    """What is deep becomes little; the seconds of every plan."""
    taken = []
    for plan in lake.plans():
        begun = time.perf_counter()
        result = logcompact(
            plan, store=store, attempt="a", scratch=scratch, wall_ns=synthetic.START_NS
        )
        taken.append(time.perf_counter() - begun)
        lake.complete(plan, result)
    return taken


def costs(
    store: ObjectStore, inputs: Sequence[BlockMeta], scratch: Path, *, batch: int
) -> tuple[float, float]:
    """Seconds of CPU for a megabyte, joined and compacted, by turns; medians."""
    size = sum(meta.size for meta in inputs) / 1e6
    batches = [inputs[first : first + batch] for first in range(0, len(inputs), batch)]
    joined, compacted = [], []
    for number in range(COST_ROUNDS + 1):
        begun = time.process_time()
        plan = synthetic.lease(inputs)
        logcompact(plan, store=store, attempt="c", scratch=scratch, wall_ns=0)
        middle = time.process_time()
        for some in batches:
            compact(synthetic.lease(some), store=store, attempt="c", scratch=scratch, wall_ns=0)
        end = time.process_time()
        if number:  # the first is not like the others
            joined.append((middle - begun) / size)
            compacted.append((end - middle) / size)
    return statistics.median(joined), statistics.median(compacted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=10_000)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--profiles", type=int, default=4, help="per segment")
    parser.add_argument("--samples", type=int, default=40, help="per profile")
    parser.add_argument("--locations", type=int, default=200, help="per profile")
    parser.add_argument("--cost-segments", type=int, default=400, help="in the measure of cost")
    options = parser.parse_args()
    load = synthetic.load_now()
    to_tables.warm()
    with tempfile.TemporaryDirectory(prefix="maar-bench-") as name:
        directory = Path(name)
        store = open_store(StoreSettings(MAIN_STORE, (directory / "store").as_uri()))
        lake = Lake()
        backlog(store, lake, options)
        segments = lake.blocks()
        size = sum(meta.size for meta in segments) / 1e6
        before = ask(store, lake)
        taken = join_all(store, lake, directory / "scratch")
        after = ask(store, lake)
        assert sorted(map(sorted, before.graph.levels)) == sorted(map(sorted, after.graph.levels))
        assert before.graph.total == after.graph.total
        sample = list(islice((m for m in segments if m.shard == 1), options.cost_segments))
        batch = lake.state.policy.levels[0].count
        joined, compacted = costs(store, sample, directory / "scratch", batch=batch)
    print(
        f"# {len(segments)} segments of {size:.1f} MB in {options.shards} shards; {len(taken)} "
        f"plans, {sum(taken):.1f} s together; {len(lake.blocks())} segments afterwards"
    )
    opened, seconds = f"before_{before.opened}", f"before_{before.seconds:.2f}_s"
    print(f"logcompact_opened {after.opened} objects {after.opened / before.opened:.4f} {opened}")
    print(
        f"logcompact_flamegraph {after.seconds:.2f} s {after.seconds / before.seconds:.2f} "
        f"{seconds}"
    )
    print(
        f"logcompact_cost {joined * 1000:.1f} cpu_ms/MB {joined / compacted:.3f} "
        f"level_0_to_1_{compacted * 1000:.1f}_cpu_ms/MB"
    )
    synthetic.tell_of_neighbours(load)


if __name__ == "__main__":
    main()
