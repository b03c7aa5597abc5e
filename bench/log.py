"""Appends to the log: etcd with three members against SQLite, on the same disk in the same run.

    python bench/log.py [--seconds 5] [--members 3]

One leader appends entries of 1 KiB, one batch after the other as the metastore does, in batches of
1, 10 and 100; then everything is read back in pages. Both logs sync before they acknowledge. Three
members on one machine share its disk, which is the worst case for etcd: apart, each has its own.

Each line: name value unit ratio baseline; the ratio is to SQLite with the same batch.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from maar.adapters.etcd.log import EtcdLog
from maar.adapters.sqlite.log import SqliteLog
from maar.ports.metastore.log import Candidate, Head, Log, Term
from support.etcd.cluster import running

ENTRY = b"x" * 1024
BATCHES = (1, 10, 100)


class Speed(NamedTuple):
    entries_per_s: float
    p50_ms: float
    p99_ms: float


async def append(
    log: Log, term: Term, head: Head, *, batch: int, seconds: float
) -> tuple[Head, Speed]:
    took: list[float] = []
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        log.hold(term)
        start = time.perf_counter()
        head = await log.append([ENTRY] * batch, term=term, head=head)
        took.append(time.perf_counter() - start)
    elapsed = time.perf_counter() - began
    percent = statistics.quantiles(took, n=100) if len(took) > 1 else took * 99
    speed = Speed(batch * len(took) / elapsed, percent[49] * 1e3, percent[98] * 1e3)
    return head, speed


async def read_back(log: Log) -> float:
    """Entries per second, from the first to the last."""
    began = time.perf_counter()
    seen = 0
    while some := await log.read(after=seen):
        seen = some[-1].index
    return seen / (time.perf_counter() - began)


async def measure(log: Log, seconds: float) -> tuple[dict[int, Speed], float]:
    term = await log.campaign(Candidate("bench"))
    head = await log.head()
    speeds: dict[int, Speed] = {}
    for batch in BATCHES:
        head, speeds[batch] = await append(log, term, head, batch=batch, seconds=seconds)
    return speeds, await read_back(log)


def with_log(
    opened: Callable[[], Awaitable[EtcdLog | SqliteLog]], seconds: float
) -> tuple[dict[int, Speed], float]:
    async def run() -> tuple[dict[int, Speed], float]:
        log = await opened()
        try:
            return await measure(log, seconds)
        finally:
            await log.close()

    return asyncio.run(run())


def line(name: str, value: float, unit: str, against: float) -> None:
    print(f"{name} {value:.2f} {unit} {value / against:.2f} sqlite", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0, help="per batch size and log")
    parser.add_argument("--members", type=int, default=3, choices=(1, 3))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="maar-log-") as temporary:

        async def sqlite() -> SqliteLog:
            return SqliteLog.open(Path(temporary) / "sqlite")

        speeds, read = with_log(sqlite, arguments.seconds)
        with running(Path(temporary), members=arguments.members) as cluster:
            etcd, etcd_read = with_log(lambda: EtcdLog.open(cluster.settings()), arguments.seconds)
    for batch in BATCHES:
        for name, speed in (("sqlite", speeds[batch]), ("etcd", etcd[batch])):
            base = speeds[batch]
            line(f"{name}_{batch}", speed.entries_per_s, "entries/s", base.entries_per_s)
            line(f"{name}_{batch}_p50", speed.p50_ms, "ms", base.p50_ms)
            line(f"{name}_{batch}_p99", speed.p99_ms, "ms", base.p99_ms)
    line("sqlite_read", read, "entries/s", read)
    line("etcd_read", etcd_read, "entries/s", read)


if __name__ == "__main__":
    main()
