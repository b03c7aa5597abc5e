"""How long after a push its other store has it, in a real server at 30 % of the load it takes.

    python bench/replication_lag.py [--seconds 180] [--warm 60] [--rate 0]

`maar serve` with all its processes, Spark in local mode and two directories as stores takes pushes
as fast as it can for a moment, then at 30 % of that rate. Its log tells, for every segment of the
measured time, when it was acknowledged, when a block of level 1 held its profiles at home, and when
a block that holds them lay in both stores, whichever level it had by then.

    replication_lag     from the acknowledged segment to both stores, against the time to level 1,
                        before which nothing is copied
    replication_copy    from the first block at home to both stores, against the default interval

Prints: name value unit ratio baseline.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import synthetic
from maar.adapters.sqlite.log import SqliteLog
from maar.adapters.stores.open import open_store
from maar.metastore.records.effects import Completed, Registered
from maar.metastore.records.entries import BlocksAdded, decode
from maar.metastore.replica.log_fold import LogFold
from maar.model.ids import BlockId, StoreName
from maar.model.stores import stores_of
from maar.ports.stores.object_store import StoreSettings

SHARE = 0.3
STORES = ("a", "b")
INTERVAL_S = 60.0  # of the incremental repair, by default
READY_S = 300.0
PATIENCE_S = 300.0  # after the measured time, until all of it must be in both stores
SOON = ("compaction.level_ages_s=1,100000,100000", "segment.flush_interval_ms=200")
MANY = "100000"  # a second: as fast as it can


@contextmanager
def server(directory: Path, *settings: str) -> Iterator[str]:
    log = directory / "server.log"
    command = [sys.executable, "-m", "maar.cli.main", "serve", "--listen", "127.0.0.1:0"]
    command += ["--data", str(directory)]
    command += ["--set", "compaction.snapshot_entries=1000000000"]  # the log is read at the end
    for pair in settings:
        command += ["--set", pair]
    for name in STORES:
        command += ["--set", f"stores.{name}.url={(directory / name).as_uri()}"]
    command += ["--set", f"tenant_defaults.stores={json.dumps(STORES)}"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield synthetic.url_when_ready(process, log, patience_s=READY_S)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()  # its children go with it
            process.wait()


def load(url: str, *options: str) -> Any:
    command = [sys.executable, "-m", "maar.cli.main", "load", "--server", url, "--json"]
    command += ["--services", "16", "--pods", "8", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


@dataclass
class Passage:
    """What became of a segment; wall times in seconds."""

    acknowledged: float
    at_home: float = 0.0
    copied: float = 0.0


@dataclass
class Story:
    """What the log tells so far; a block stands for all segments that came into it."""

    log: SqliteLog
    replica: LogFold
    segments: dict[BlockId, Passage] = field(default_factory=dict)
    _held: dict[BlockId, list[Passage]] = field(default_factory=dict)  # by blocks, not copied yet

    async def read_on(self) -> None:
        while records := await self.log.read(after=self.replica.head.index):
            for record in records:
                envelope = decode(record.body, index=record.index)
                wall = envelope.wall_time / 1e9
                if isinstance(envelope.entry, BlocksAdded):
                    for meta in envelope.entry.blocks:
                        self.segments.setdefault(meta.id, Passage(wall))
                for effect in await self.replica.fold([record]):
                    if isinstance(effect, Registered) and effect.refusal:
                        self.segments.pop(effect.block, None)
                    if isinstance(effect, Completed):
                        self._merge(effect, wall)
                self._note_copies(wall)

    def _merge(self, effect: Completed, wall: float) -> None:
        came = [self.segments[block] for block in effect.retired if block in self.segments]
        for passage in came:
            passage.at_home = passage.at_home or wall
        for block in effect.retired:
            came += self._held.pop(block, [])
        for block in effect.added:
            self._held[block] = came

    def _note_copies(self, wall: float) -> None:
        blocks = self.replica.state.blocks
        for block in list(self._held):
            if block in blocks and len(stores_of(blocks.get(block))) == len(STORES):
                for passage in self._held.pop(block):
                    passage.copied = passage.copied or wall

    def measure(self, began: float, *, warm: float, seconds: float) -> list[Passage]:
        """From some time after the first push of a load that began after a time."""
        all_ = [p for p in self.segments.values() if p.acknowledged >= began]
        first = min((p.acknowledged for p in all_), default=0.0) + warm
        return [p for p in all_ if first <= p.acknowledged < first + seconds]


async def a_share_of_the_most(url: str, *, seconds: float) -> float:
    most = await asyncio.to_thread(load, url, "--rate", MANY, "--seconds", str(seconds))
    rate: float = SHARE * most["rate_reached"]
    print(f"# {most['rate_reached']:.0f} pushes a second at most; measured at {rate:.0f}")
    return rate


async def measure(directory: Path, url: str, options: argparse.Namespace) -> list[Passage]:
    rate = options.rate or await a_share_of_the_most(url, seconds=options.flat_out)
    seconds = str(options.warm + options.seconds + options.tail)
    began = time.time()
    found = await asyncio.to_thread(load, url, "--rate", f"{rate:.1f}", "--seconds", seconds)
    log = SqliteLog.open_reader(directory / "log")

    def passages() -> list[Passage]:
        return story.measure(began, warm=options.warm, seconds=options.seconds)

    try:
        print(f"# {found['acknowledged']} pushes of {found['bytes'] / 1e6:.1f} MB acknowledged")
        home = StoreSettings(StoreName(STORES[0]), (directory / STORES[0]).as_uri())
        story = Story(log, LogFold(open_store(home)))
        deadline = time.monotonic() + PATIENCE_S
        await story.read_on()
        while not all(p.copied for p in passages()):
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.5)
            await story.read_on()
    finally:
        await log.close()
    return passages()


def report(passages: list[Passage]) -> None:
    done = [p for p in passages if p.copied]
    print(f"# {len(passages)} segments, {len(done)} of them in both stores")
    if len(done) < len(passages) or len(done) < 2:
        raise SystemExit(f"some were not in both stores within {PATIENCE_S:.0f} s")
    home = statistics.median(p.at_home - p.acknowledged for p in done)
    for name, waits, base, baseline in (
        ("lag", [p.copied - p.acknowledged for p in done], home, f"until_level_1_{home:.1f}_s"),
        ("copy", [p.copied - p.at_home for p in done], INTERVAL_S, "interval_60_s"),
    ):
        cut = statistics.quantiles(waits, n=100, method="inclusive")
        for quantile, value in (("p50", cut[49]), ("p99", cut[98])):
            print(f"replication_{name}_{quantile} {value:.1f} s {value / base:.2f} {baseline}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=180.0, help="of load that are measured")
    parser.add_argument("--warm", type=float, default=60.0, help="seconds of load before that")
    parser.add_argument("--tail", type=float, default=60.0, help="and after that")
    parser.add_argument("--flat-out", type=float, default=5.0, help="seconds to find the most")
    parser.add_argument("--rate", type=float, default=0.0, help="pushes a second; 0: 30 %%")
    parser.add_argument("--soon", action="store_true", help="merge and copy at once, for tests")
    options = parser.parse_args()
    before = synthetic.load_now()
    with tempfile.TemporaryDirectory(prefix="maar-bench-") as name:
        directory = Path(name)
        with server(directory, *(SOON if options.soon else ())) as url:
            passages = asyncio.run(measure(directory, url, options))
    report(passages)
    synthetic.tell_of_neighbours(before)


if __name__ == "__main__":
    main()
