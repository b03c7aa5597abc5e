"""Compaction at every level by Spark jobs, against the same jobs in a bare process pool.

    python bench/compaction.py [--jobs 30] [--rounds 3] [--slots N] [--profiles 16] [--batches 4]

Each job merges the same generated inputs under a plan of its own: 20 segments (level 0 to 1:
decode, split, sort, write), or 10 blocks of level 1 or 2. A block of level 2 is made of `batches`
blocks of level 1. Both ways are warm, and take turns. MB are bytes of input at rest, a core is a
slot for the time of a round. Peaks are of the process that carries a task out, all its libraries
included. Prints: name value unit ratio baseline.
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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import synthetic
from maar.adapters.stores.open import open_store
from maar.model.block import BlockMeta
from maar.model.ids import MAIN_STORE
from maar.model.plan import LeasedPlan, PlanResult
from maar.ports.stores.object_store import StoreSettings
from maar.runner.runner import SparkRunner
from maar.runner.settings import SparkSettings
from maar.services.compact.run import load
from maar.services.compact.run import run as compact

SEGMENTS = 20  # what the planner gives to one job of level 0
BLOCKS = 10  # and of the levels above
JOB_SECONDS_MIN = 0.5
PROMISE_BYTES = 1 << 30  # of memory for one task

Carried = Callable[[Sequence[LeasedPlan]], list[PlanResult]]
Job = tuple[LeasedPlan, StoreSettings, str]


def in_pool(job: Job) -> PlanResult:
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


@dataclass(frozen=True)
class Way:
    """How plans are carried out, and a word in the command lines of the processes that do it."""

    carry_out: Carried
    process: str


@contextmanager
def both_ways(directory: Path, settings: StoreSettings, *, slots: int) -> Iterator[dict[str, Way]]:
    runner = SparkRunner(
        SparkSettings(master=f"local[{slots}]"), settings, directory, open_store=open_store
    )
    context = multiprocessing.get_context("spawn")  # as clean as Spark's own workers
    with (
        context.Pool(slots, initializer=load) as pool,
        ThreadPoolExecutor(slots) as threads,
    ):

        def bare(plans: Sequence[LeasedPlan]) -> list[PlanResult]:
            jobs = [(plan, settings, str(directory)) for plan in plans]
            return pool.map(in_pool, jobs, chunksize=1)

        def spark(plans: Sequence[LeasedPlan]) -> list[PlanResult]:
            return list(threads.map(runner.run, plans))

        runner.warm()
        try:
            yield {
                "pool": Way(bare, "multiprocessing.spawn"),
                "spark": Way(spark, "maar.runner.daemon"),
            }
        finally:
            runner.close()


# ── inputs ─────────────────────────────────────────────────────────────────────────────────────


class Inputs:
    """Those of one job of each level; merged by the bare pool, level by level."""

    def __init__(self, settings: StoreSettings, bare: Carried, *, profiles: int) -> None:
        self._store = open_store(settings)
        self._bare = bare
        self._profiles = profiles
        chance = Random(4711)
        self._templates = [synthetic.profile(chance, n) for n in range(SEGMENTS * profiles)]

    def of_levels(self, *, batches: int) -> list[tuple[BlockMeta, ...]]:
        groups = [self._segments(number) for number in range(BLOCKS * batches)]
        ones = self._merge(groups)
        twos = self._merge([ones[n::BLOCKS] for n in range(BLOCKS)])
        return [tuple(groups[0]), tuple(ones[:BLOCKS]), tuple(twos)]

    def _segments(self, number: int) -> list[BlockMeta]:
        """The same stacks in every group, at other times: programs repeat themselves."""
        shift_ns = number * len(self._templates) * 1_000_000_000
        profiles = [
            synthetic.again(one, time_ns=one.time_ns + shift_ns) if number else one
            for one in self._templates
        ]
        return [synthetic.segment(self._store, profiles[n::SEGMENTS]) for n in range(SEGMENTS)]

    def _merge(self, groups: Sequence[Sequence[BlockMeta]]) -> list[BlockMeta]:
        results = self._bare([synthetic.lease(group) for group in groups])
        return [
            meta
            for group, result in zip(groups, results, strict=True)
            for meta in (group if result.adopted else result.outputs)
        ]


# ── measurement ────────────────────────────────────────────────────────────────────────────────


@dataclass
class Taken:
    """What the rounds of one level took in one way."""

    seconds: list[float] = field(default_factory=list)
    peak: int = 0  # bytes


class Rounds:
    """The same jobs of one level, in both ways by turns."""

    def __init__(self, settings: StoreSettings, ways: dict[str, Way]) -> None:
        self._store = open_store(settings)
        self._ways = ways

    def run(
        self, inputs: tuple[BlockMeta, ...], *, jobs: int, rounds: int, slots: int
    ) -> dict[str, Taken]:
        taken = {name: Taken() for name in self._ways}
        for way in self._ways.values():
            self._carry_out(way, inputs, slots)  # warm at this level, too
        for number in range(rounds):  # who goes first changes, so that a drift hits both
            for name in sorted(self._ways, reverse=number % 2 == 1):
                seconds, peak = self._carry_out(self._ways[name], inputs, jobs)
                taken[name].seconds.append(seconds)
                taken[name].peak = max(taken[name].peak, peak)
        return taken

    def _carry_out(self, way: Way, inputs: tuple[BlockMeta, ...], jobs: int) -> tuple[float, int]:
        """Seconds, and the peak memory of a process; the outputs are removed again."""
        plans = [synthetic.lease(inputs) for _ in range(jobs)]
        forget_peaks(way.process)
        begun = time.perf_counter()
        results = way.carry_out(plans)
        seconds = time.perf_counter() - begun
        peak = peak_of(way.process)
        came = sum(meta.profiles for meta in inputs)
        assert all(result.account.kept == came for result in results), "profiles were lost"
        for file in (f for result in results for meta in result.outputs for f in meta.files):
            self._store.delete(file.locations[0].key)
        return seconds, peak


def forget_peaks(process: str) -> None:
    for pid in below_us(process):
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the high-water mark begins anew


def peak_of(process: str) -> int:
    """The highest high-water mark of the processes with this word in their command lines."""
    found = [0]
    for pid in below_us(process):
        status = Path(f"/proc/{pid}/status").read_text()
        found += [int(line.split()[1]) << 10 for line in status.splitlines() if "VmHWM" in line]
    return max(found)


def below_us(process: str) -> list[int]:
    """Our children and theirs, those with a word in their command lines."""
    parents = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            fields = (directory / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        parents[int(directory.name)] = int(fields[1])
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return [pid for pid in found if process in _command(pid)]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def report(
    level: int, inputs: Sequence[BlockMeta], taken: dict[str, Taken], *, jobs: int, slots: int
) -> None:
    size = sum(meta.size for meta in inputs) / 1e6
    rounds = zip(taken["pool"].seconds, taken["spark"].seconds, strict=True)
    ratios = " ".join(f"{spark / pool:.2f}" for pool, spark in rounds)
    base = statistics.median(taken["pool"].seconds)
    print(
        f"# level {level}: {jobs} jobs of {size:.1f} MB in {len(inputs)} inputs, "
        f"{base * slots / jobs:.2f} s each in the pool; time ratio of each round: {ratios}"
    )
    if level == 0 and base * slots / jobs < JOB_SECONDS_MIN:
        print("# jobs were short, which overstates what Spark adds; ask for more --profiles")
    for name, one in sorted(taken.items()):
        seconds = statistics.median(one.seconds)
        rate = size * jobs / seconds / slots
        print(
            f"compaction_level_{level}_{name} {rate:.2f} MB/s_per_core {base / seconds:.2f} "
            "bare_process_pool"
        )
        print(
            f"compaction_level_{level}_{name}_peak {one.peak / (1 << 20):.0f} MiB "
            f"{one.peak / PROMISE_BYTES:.2f} promise_1_GiB",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=30, help="of level 0 in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slots", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--profiles", type=int, default=16, help="per segment")
    parser.add_argument("--batches", type=int, default=4, help="blocks of level 1 in one of 2")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    load = synthetic.load_now()
    with tempfile.TemporaryDirectory(prefix="maar-bench-") as name:
        directory = Path(name)
        settings = StoreSettings(MAIN_STORE, (directory / "store").as_uri())
        with both_ways(directory, settings, slots=options.slots) as ways:
            inputs = Inputs(settings, ways["pool"].carry_out, profiles=options.profiles)
            rounds = Rounds(settings, ways)
            for level, some in enumerate(inputs.of_levels(batches=options.batches)):
                jobs = max(options.slots, options.jobs // (1, 3, 6)[level])  # they grow longer
                taken = rounds.run(some, jobs=jobs, rounds=options.rounds, slots=options.slots)
                report(level, some, taken, jobs=jobs, slots=options.slots)
    synthetic.tell_of_neighbours(load)


if __name__ == "__main__":
    main()
