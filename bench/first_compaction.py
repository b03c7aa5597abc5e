"""From a push to its first compaction, in a real server under a steady load.

    python bench/first_compaction.py [--seconds 120] [--warm 30] [--count 20]

`maar serve` with all its processes and Spark in local mode takes pushes to every shard, often
enough that each writes at least two segments a second. Then its log tells, for every segment that
was written in the measured time, when its oldest profile was pushed and when the plan that merged
it was completed. The load goes on until all of them are merged.

The baseline is what the rule itself asks for: the time in which a shard writes the 20 segments of
a batch (`--count`: as many), at the measured rate. The peer claims a median below 15 s. Prints:
name value unit ratio baseline.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx

import synthetic
from maar.adapters.sqlite.log import SqliteLog
from maar.adapters.stores.open import open_store
from maar.metastore.records.effects import Completed, Leased, Registered
from maar.metastore.records.entries import BlocksAdded, decode
from maar.metastore.replica.log_fold import LogFold
from maar.model.ids import ANONYMOUS, HOME, MAIN_STORE, BlockId, NodeId, PlanId, Shard
from maar.model.policy import CompactionSettings
from maar.model.ring import Ring, Writer, WriterState
from maar.placement.locate import Placement
from maar.placement.rules import Rules, TenantLimits
from maar.ports.stores.object_store import StoreSettings
from maar.pprof import gzip

COUNTS = CompactionSettings().level_counts
SHARDS = 4  # of the server's one segment writer
FLUSH_MS = 400  # from a shard's first profile: with the gap before it, more than two a second
GAP_S = 0.05  # between the pushes to one shard
RATE_MIN = 2.0  # segments a second and shard, for a number that can be quoted
CLAIM_S = 15.0  # the peer's median
READY_S = 300.0
PATIENCE_S = 180.0  # after the measured time, until all its segments must be merged


@contextmanager
def server(directory: Path, count: int) -> Iterator[str]:
    """A server on a port of its own; its address."""
    log = directory / "server.log"
    command = [sys.executable, "-m", "maar.cli.main", "serve", "--listen", "127.0.0.1:0"]
    command += ["--data", str(directory), "--set", f"ring.shards={SHARDS}"]
    command += ["--set", f"segment.flush_interval_ms={FLUSH_MS}"]
    command += ["--set", f"segment.flush_interval_max_ms={FLUSH_MS}"]  # trickles wait no longer
    command += ["--set", "placement.tenant.dataset_shards_max=1"]
    counts = ",".join(str(each) for each in (count, *COUNTS[1:]))
    command += ["--set", f"compaction.level_counts={counts}"]
    command += ["--set", "compaction.snapshot_entries=1000000000"]  # the log is read at the end
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield synthetic.url_when_ready(process, log, patience_s=READY_S)  # Spark is warm then
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()  # its children go with it
            process.wait()


class Pushes:
    """An open loop: a push to every shard each GAP_S, whether the last was answered or not."""

    def __init__(self, url: str) -> None:
        self._url = url
        raw = synthetic.pprof(Random(1), time_ns=0, samples=40, locations=200)
        self._body = gzip.compress(raw)
        self.failures: Counter[str] = Counter()

    async def run(self) -> None:
        limits = httpx.Limits(max_connections=200)
        services = one_service_per_shard()
        async with (
            httpx.AsyncClient(limits=limits, trust_env=False, verify=False, timeout=30) as client,
            asyncio.TaskGroup() as group,
        ):
            for number in itertools.count():
                service = services[number % len(services)]
                group.create_task(self._push(client, service))
                await asyncio.sleep(GAP_S / len(services))

    async def _push(self, client: httpx.AsyncClient, service: str) -> None:
        params = {"name": service, "format": "pprof", "from": str(time.time_ns())}
        headers = {"content-encoding": "gzip"}
        try:
            answer = await client.post(
                f"{self._url}/ingest", params=params, headers=headers, content=self._body
            )
        except httpx.HTTPError as error:
            self.failures[type(error).__name__] += 1
        else:
            if answer.status_code != 200:
                self.failures[f"{answer.status_code} {answer.text[:200]}"] += 1


def one_service_per_shard() -> list[str]:
    """As long as a dataset has one shard, its place depends on the number of shards alone."""
    writer = Writer(NodeId("bench"), "", "", SHARDS, WriterState.ACTIVE)
    ring = Ring(HOME, 1, (writer,), (0,) * SHARDS)
    placement = Placement(ring, Rules(), lambda _: TenantLimits(), lambda _: 0)
    found: dict[Shard, str] = {}
    for number in itertools.count():
        service = f"service-{number}"
        found.setdefault(placement.place(ANONYMOUS, service, 0).shard, service)
        if len(found) == SHARDS:
            return [found[shard] for shard in sorted(found)]
    raise AssertionError("a count never ends")


@dataclass
class Passage:
    """What became of a segment; wall times in seconds."""

    shard: Shard
    pushed: float  # its oldest profile
    registered: float
    leased: float = 0.0
    merged: float = 0.0


@dataclass
class Story:
    """What the log of a living server tells so far."""

    log: SqliteLog
    replica: LogFold
    segments: dict[BlockId, Passage] = field(default_factory=dict)
    _leased: dict[PlanId, float] = field(default_factory=dict)

    async def read_on(self) -> None:
        while records := await self.log.read(after=self.replica.head.index):
            for record in records:
                envelope = decode(record.body, index=record.index)
                wall = envelope.wall_time / 1e9
                if isinstance(envelope.entry, BlocksAdded):
                    for meta in envelope.entry.blocks:
                        passage = Passage(meta.shard, meta.min_time_ns / 1e9, wall)
                        self.segments.setdefault(meta.id, passage)
                for effect in await self.replica.fold([record]):
                    match effect:
                        case Registered() if effect.refusal:
                            self.segments.pop(effect.block, None)
                        case Leased():
                            self._leased[effect.plan] = wall
                        case Completed():
                            self._on_merge(effect, wall)
                        case _:
                            pass

    def _on_merge(self, effect: Completed, wall: float) -> None:
        for block in effect.retired:
            passage = self.segments.get(block)
            if passage is not None and not passage.merged:
                passage.leased, passage.merged = self._leased[effect.plan], wall

    def between(self, first: float, last: float) -> list[Passage]:
        return [p for p in self.segments.values() if first <= p.pushed < last]


async def measure(directory: Path, url: str, *, warm: float, seconds: float) -> list[Passage]:
    pushes = Pushes(url)
    load = asyncio.create_task(pushes.run())
    store = open_store(StoreSettings(MAIN_STORE, (directory / "store").as_uri()))
    log = SqliteLog.open_reader(directory / "log")
    try:
        await asyncio.sleep(warm)
        first = time.time()
        await asyncio.sleep(seconds)
        last = time.time()
        story = Story(log, LogFold(store))
        await story.read_on()
        deadline = time.monotonic() + PATIENCE_S
        while not all(p.merged for p in story.between(first, last)):
            if load.done():
                await load  # it never ends by itself: say why
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.5)
            await story.read_on()
    finally:
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
        await log.close()
    for failure, count in pushes.failures.items():
        print(f"# {count} pushes failed: {failure}")
    return story.between(first, last)


def report(passages: list[Passage], *, seconds: float, count: int) -> None:
    rates = Counter(p.shard for p in passages)
    rate = min(rates.values()) / seconds
    shown = " ".join(f"{number / seconds:.2f}" for _, number in sorted(rates.items()))
    merged = [p for p in passages if p.merged]
    print(f"# {len(passages)} segments, {shown} a second and shard, {len(merged)} of them merged")
    if len(merged) < len(passages):
        raise SystemExit(f"some were not merged within {PATIENCE_S:.0f} s of steady load")
    if rate < RATE_MIN or len(rates) < SHARDS:
        print(f"# a shard wrote less than {RATE_MIN} segments a second: do not quote this")
    steps = (
        ("in the index", [p.registered - p.pushed for p in merged]),
        ("its batch handed out", [p.leased - p.registered for p in merged]),
        ("merged", [p.merged - p.leased for p in merged]),
    )
    told = ", ".join(f"{name} after {statistics.median(took):.2f} s" for name, took in steps)
    print(f"# medians of the steps: {told}")
    waits = [p.merged - p.pushed for p in merged]
    rule_s = count / rate
    cut = statistics.quantiles(waits, n=10, method="inclusive")
    for name, value in (("p50", statistics.median(waits)), ("p90", cut[8]), ("max", max(waits))):
        ratio = value / rule_s
        print(f"first_compaction_{name} {value:.2f} s {ratio:.2f} count_rule_{rule_s:.2f}_s")
    median = statistics.median(waits)
    print(f"first_compaction_p50 {median:.2f} s {median / CLAIM_S:.2f} peer_claim_below_15_s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="of load that are measured")
    parser.add_argument("--warm", type=float, default=30.0, help="seconds of load before that")
    parser.add_argument("--count", type=int, default=COUNTS[0], help="segments that make a batch")
    options = parser.parse_args()
    load = synthetic.load_now()
    with tempfile.TemporaryDirectory(prefix="maar-bench-") as name:
        directory = Path(name)
        with server(directory, options.count) as url:
            passages = asyncio.run(
                measure(directory, url, warm=options.warm, seconds=options.seconds)
            )
    report(passages, seconds=options.seconds, count=options.count)
    synthetic.tell_of_neighbours(load)


if __name__ == "__main__":
    main()
