"""What a question about the last hour has to open, against the same hour by the peer's rules.

    python bench/read_amplification.py [--minutes 60] [--workers 4] [--slots 4] [--late-only]

A virtual clock drives the real metastore (fold, planner, scheduler) through an hour of segments
with a fleet of simulated workers; the time and the output of their merges follow from real merges,
made first in the same run. The same segments, costs and fleet then go through a model of the peer:
see synthetic_peer.py for what it keeps to. Four loads: steady, many small tenants, bursts, and a
tail (traffic stopped 15 minutes ago). Means over questions at sixty random moments.

Before that: steady traffic of which 5 % comes late, by 1 to 14 days, against the same without any
late profiles, and against the same planner when lanes mix days. `late_day` is a question about one
of the days before, at the end.

A block of ours is several files, of which a flame graph reads four; a block of the peer is one
object: `blocks` compares the rules, `files` the requests. Prints: name value unit ratio baseline.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np

import synthetic
import synthetic_hour
from maar.adapters.stores.open import open_store
from maar.block.decode import to_tables
from maar.model.block import BlockMeta, BlockOutline
from maar.model.ids import MAIN_STORE, TenantId
from maar.model.plan import PlanResult, QueueKey
from maar.model.time import DAY_NS, TimeRange
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from maar.services.compact.rules import Compaction
from maar.services.compact.run import run as compact
from synthetic_hour import (
    NOON_NS,
    Cost,
    Costs,
    Hour,
    Load,
    Opened,
    Ours,
    Seen,
    Theirs,
    VirtualClock,
)

SEGMENTS = 20
PROFILES = 4  # in a segment
TEMPLATES = 40
MANY = 15  # tenants


class Merge(NamedTuple):
    """One real merge."""

    seconds: float
    came: int  # bytes
    went: int
    outputs: int


class Sample:
    """Real segments and merges in this process."""

    def __init__(self, directory: Path) -> None:
        self._store: ObjectStore = open_store(
            StoreSettings(MAIN_STORE, (directory / "store").as_uri())
        )
        self._scratch = directory / "scratch"
        chance = Random(4711)
        self._templates = [synthetic.profile(chance, number) for number in range(TEMPLATES)]
        self._made = 0

    def segments(self, count: int, *, tenants: int = 1) -> list[BlockMeta]:
        found = []
        for _ in range(count):
            profiles = []
            for _ in range(PROFILES):
                template = self._templates[self._made % TEMPLATES]
                time_ns = synthetic.START_NS + self._made * 1_000_000
                tenant = TenantId(f"tenant-{self._made % tenants}")
                profiles.append(synthetic.again(template, time_ns=time_ns, tenant=tenant))
                self._made += 1
            found.append(synthetic.segment(self._store, profiles))
        return found

    def merge(self, inputs: Sequence[BlockMeta]) -> tuple[PlanResult, Merge]:
        begun = time.perf_counter()
        result = compact(
            synthetic.lease(inputs),
            store=self._store,
            attempt="a1",
            scratch=self._scratch,
            wall_ns=synthetic.START_NS,
        )
        seconds = time.perf_counter() - begun
        came, went = (sum(m.size for m in metas) for metas in (inputs, result.outputs))
        return result, Merge(seconds, came, went, len(result.outputs))


def sample(directory: Path, *, merges: int) -> Costs:
    """What merges cost on this machine, now."""
    sample = Sample(directory)
    to_tables.warm()
    sample.merge(sample.segments(2))  # the first is not like the others
    segments = [sample.segments(SEGMENTS) for _ in range(merges)]
    results = [sample.merge(inputs) for inputs in segments]
    decoding = [merge for _, merge in results]
    decoding.append(sample.merge(segments[0][: SEGMENTS // 4])[1])
    decoding.append(sample.merge(sample.segments(SEGMENTS, tenants=MANY))[1])
    blocks = [meta for result, _ in results for meta in result.outputs]
    merging = [sample.merge(blocks[:count])[1] for count in {2, merges // 2, merges} if count > 1]
    size = statistics.mean(meta.size for inputs in segments for meta in inputs)
    return Costs(int(size / PROFILES), fit(decoding), fit(merging))


def fit(merges: Sequence[Merge]) -> Cost:
    """The plane that fits best, as far as it makes sense: nothing takes less than no time."""
    rows = np.array([[1.0, merge.came / 1e6, merge.outputs - 1.0] for merge in merges])
    seconds = np.array([merge.seconds for merge in merges])
    fixed, megabyte, further = np.linalg.lstsq(rows, seconds, rcond=None)[0].clip(0)
    shrink = statistics.median(merge.went / merge.came for merge in merges)
    return Cost(float(fixed), float(megabyte) / 1e6, float(further), shrink)


@contextmanager
def lanes_of_all_days() -> Iterator[None]:
    """The real planner with the keys that lanes had before they had days."""
    by_day = Compaction.lane

    def of_all_days(self: Compaction, meta: BlockOutline) -> QueueKey:  # noqa: ARG001
        return QueueKey(meta.store, meta.tenant, meta.shard, meta.level)

    Compaction.lane = of_all_days  # type: ignore[method-assign]
    try:
        yield
    finally:
        Compaction.lane = by_day  # type: ignore[method-assign]


async def by_our_rules(load: Load, costs: Costs, *, workers: int, slots: int) -> Seen:
    clock = VirtualClock()
    with tempfile.TemporaryDirectory(prefix="maar-hour-") as directory:
        store = open_store(StoreSettings(MAIN_STORE, Path(directory).as_uri()))
        ours = Ours(clock, costs, store)
        await ours.service.start()
        try:
            seen = await Hour(ours, load, clock).run(workers=workers, slots=slots)
            for day in range(1, load.late_days + 1):
                start_ns = NOON_NS - DAY_NS // 2 - day * DAY_NS
                asked = TimeRange(start_ns, start_ns + DAY_NS)
                seen.opened_days.append(await ours.open_range(load.tenants[0], asked))
            return seen
        finally:
            await ours.service.stop()


async def by_the_peers(load: Load, costs: Costs, *, workers: int, slots: int) -> Seen:
    clock = VirtualClock()
    return await Hour(Theirs(costs), load, clock).run(workers=workers, slots=slots)


def loads(minutes: int) -> list[Load]:
    return [
        synthetic_hour.steady(minutes, profiles=PROFILES),
        synthetic_hour.tenants(minutes, profiles=1),
        synthetic_hour.bursts(minutes, profiles=PROFILES),
        synthetic_hour.tail(minutes, profiles=PROFILES),
    ]


def report(load: Load, ours: Seen, theirs: Seen, *, threads: int) -> None:
    seconds = max(load.looks_ns) / 1e9
    for whose, seen in (("ours", ours), ("peer", theirs)):
        print(
            f"# {load.name}, {whose}: {len(load.flushes)} segments, {seen.jobs} jobs, workers "
            f"{seen.busy_s / threads / seconds:.0%} busy, {len(seen.opened)} questions, at most "
            f"{max(opened.blocks for opened in seen.opened)} blocks"
        )
    for what in ("segments", "blocks", "files"):
        mine, its = (
            statistics.mean(getattr(opened, what) for opened in seen.opened)
            for seen in (ours, theirs)
        )
        ratio = f"{mine / its:.2f}" if its else "-"
        print(
            f"opened_{load.name}_{what} {mine:.1f} {what} {ratio} peer_rules_{its:.1f}", flush=True
        )


def report_late(punctual: Seen, mixed: Seen, ours: Seen) -> None:
    """With late profiles, against the same load without any, and against lanes of all days."""

    def blocks(opened: Sequence[Opened]) -> float:
        return statistics.mean(one.blocks for one in opened)

    def line(name: str, value: float, baseline: float, called: str) -> None:
        print(f"{name} {value:.1f} blocks {value / baseline:.2f} {called}_{baseline:.1f}")

    hour, day = blocks(ours.opened), blocks(ours.opened_days)
    line("opened_late_blocks", hour, blocks(punctual.opened), "without_late")
    line("opened_late_blocks_by_day", hour, blocks(mixed.opened), "mixed_days")
    line("opened_late_day_blocks", day, blocks(mixed.opened_days), "mixed_days")
    print(f"# late: {ours.jobs} jobs, without late profiles {punctual.jobs}, mixed {mixed.jobs}")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--minutes", type=int, default=60, help="of traffic before the first question"
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--merges", type=int, default=10, help="in the sample")
    parser.add_argument("--late-only", action="store_true", help="no comparison with the peer")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="maar-bench-") as directory:
        costs = sample(Path(directory), merges=options.merges)
    for name, cost in (("0", costs.decode), ("1+", costs.merge)):
        print(
            f"# a merge of level {name}: {cost.fixed_s:.3f} s + {cost.byte_s * 1e6:.3f} s/MB + "
            f"{cost.further_s:.3f} s per further block, output {cost.shrink:.2f} of the input"
        )
    fleet = {"workers": options.workers, "slots": options.slots}
    steady, *others = loads(options.minutes)
    punctual = await by_our_rules(steady, costs, **fleet)
    late = synthetic_hour.late(options.minutes, profiles=PROFILES)
    with lanes_of_all_days():
        mixed = await by_our_rules(late, costs, **fleet)
    report_late(punctual, mixed, await by_our_rules(late, costs, **fleet))
    if options.late_only:
        return
    threads = options.workers * options.slots
    report(steady, punctual, await by_the_peers(steady, costs, **fleet), threads=threads)
    for load in others:
        ours = await by_our_rules(load, costs, **fleet)
        report(load, ours, await by_the_peers(load, costs, **fleet), threads=threads)


if __name__ == "__main__":
    asyncio.run(main())
