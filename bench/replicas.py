"""What a replica costs: registrations through etcd and SQLite, replay, and snapshots.

    python bench/replicas.py [--registrations 5000] [--entries 1000000] [--etcd-entries 100000]
                             [--quiet 5] [--here]

One metastore in a process of its own, first over SQLite, then over three members of etcd on the
same disk. The logs that are replayed are made beforehand: `registrations` holds nothing but
segments of 20 services that nobody ever merges, `pipeline` is everyday (see synthetic_log.py). The
snapshot is of the state that `registrations` gives: as many blocks as it has entries. etcd gets
fewer entries, since no replica ever leaves a million of them behind a snapshot there.

    register   blocks a second by 64 writers, against one who waits for every commit; through etcd,
               against SQLite; and how long one of 64 waited
    replay     seconds from an empty state to the end of the log, against reading and checking it
    snapshot   bytes of each block, against the block as msgpack; and seconds until it is made, by
               another process that begins with the one before, against reading and checksumming it
    stall      the longest that one of four writers waited for an append while a snapshot was made
               and the log was truncated behind the one before, against a time without
    pause      the longest that the leader's loop computed without a break meanwhile, and without

Each line: name value unit ratio baseline.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from prometheus_client import CollectorRegistry

import metastore as bench
import synthetic
import synthetic_log
from maar.adapters.etcd.log import EtcdLog, EtcdSettings
from maar.adapters.sqlite.log import SqliteLog
from maar.adapters.system_clock import SystemClock
from maar.app.processes.long_lived import long_lived
from maar.metastore.records.packs import pack
from maar.metastore.replica import snapshot
from maar.metastore.replica.log_fold import LogFold
from maar.metastore.service import MetastoreService
from maar.model.policy import Policy
from maar.ports.metastore.log import Candidate, Log
from support.etcd.cluster import running

KINDS = ("registrations", "pipeline")
QUOTA_BYTES = 8 << 30
WRITERS = 64
APPENDERS = 4
QUIET_MAX_S = 60.0  # of appends without a snapshot, at most


class Place:
    """A directory for the store, and a log beside it or in etcd; it passes as text to children."""

    def __init__(self, directory: Path, endpoints: str = "") -> None:
        self.directory = directory
        self.endpoints = endpoints
        self.made_s = 0.0

    def words(self) -> tuple[str, ...]:
        return ("--directory", str(self.directory), "--endpoints", self.endpoints)

    async def open(self) -> Log:
        if self.endpoints:
            return await EtcdLog.open(self._etcd())
        return SqliteLog.open(self.directory / "log")

    async def reader(self) -> Log:
        if self.endpoints:
            return await EtcdLog.open_reader(self._etcd())
        return SqliteLog.open_reader(self.directory / "log")

    def _etcd(self) -> EtcdSettings:
        return EtcdSettings(
            endpoints=tuple(self.endpoints.split(",")),
            prefix=f"/{self.directory.name}",
            quota_bytes=QUOTA_BYTES,
        )


# ── what children measure ──────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def metastore(place: Place) -> AsyncIterator[MetastoreService]:
    """In `place.made_s` is how long its last snapshot took."""

    async def take_snapshot() -> int:
        command = (sys.executable, __file__, "--measure", "make", *place.words())
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        begun = time.perf_counter()
        shown, _ = await process.communicate()
        place.made_s = time.perf_counter() - begun
        return int(json.loads(shown)["index"])

    log = await place.open()
    service = MetastoreService(
        log,
        bench.open_objects(place.directory),
        SystemClock(),
        Policy(snapshot_entries=10**9, snapshot_bytes=10**15),  # when the measurement says so
        entropy=bench.entropy,
        candidate=Candidate("bench"),
        take_snapshot=take_snapshot,
        registry=CollectorRegistry(),
        loading=long_lived,
    )
    await service.start()
    try:
        yield service
    finally:
        await service.stop()
        await log.close()


async def appends(service: MetastoreService, segments: Iterator[object]) -> list[float]:
    """Seconds of each of one writer's registrations, until there are no more."""
    took = []
    for meta in segments:
        begun = time.perf_counter()
        reply = await service.add_blocks((meta,))  # type: ignore[arg-type]
        took.append(time.perf_counter() - begun)
        assert not any(reply.refusals), reply.refusals
    return took


async def register(place: Place, options: argparse.Namespace) -> dict[str, float]:
    segments = bench.Segments()
    async with metastore(place) as service:
        few = await bench.make(segments, service, max(20, options.registrations // 20))
        begun = time.perf_counter()
        await appends(service, iter(few))
        alone = len(few) / (time.perf_counter() - begun)
        many = iter(await bench.make(segments, service, options.registrations))
        begun = time.perf_counter()
        waits = await asyncio.gather(*(appends(service, many) for _ in range(WRITERS)))
        took = time.perf_counter() - begun
    cuts = statistics.quantiles(itertools.chain(*waits), n=100)
    rate = options.registrations / took
    return {"alone": alone, "rate": rate, "p50": cuts[49] * 1e3, "p99": cuts[98] * 1e3}


async def write(place: Place, options: argparse.Namespace) -> dict[str, float]:
    log = await place.open()
    bodies = getattr(synthetic_log, options.kind)()
    size = await synthetic_log.write(log, bodies, options.entries)
    await log.close()
    return {"bytes": size}


async def replay(place: Place, _options: argparse.Namespace) -> dict[str, float]:
    log = await place.reader()
    begun, after = time.perf_counter(), 0
    while records := await log.read(after=after):
        after = records[-1].index
    read = time.perf_counter() - begun
    replica = LogFold(bench.open_objects(place.directory))
    begun, begun_cpu = time.perf_counter(), time.process_time()
    await replica.catch_up(log)
    took, cpu = time.perf_counter() - begun, time.process_time() - begun_cpu
    await log.close()
    return {
        "read": read,
        "took": took,
        "cpu": cpu,
        "entries": replica.head.index,
        "blocks": len(replica.state.blocks),
    }


async def make_snapshot(place: Place, _options: argparse.Namespace) -> dict[str, float]:
    """As the snapshot's own process does."""
    log = await place.reader()
    begun = time.perf_counter()
    index = await snapshot.make(log, bench.open_objects(place.directory))
    took = time.perf_counter() - begun
    await log.close()
    return {"index": index, "took": took}


async def stall(place: Place, options: argparse.Namespace) -> dict[str, float]:
    """A snapshot while four writers register as they can, and as long a time without."""
    segments, pauses = bench.Segments(), bench.Pauses()
    found: dict[str, float] = {}
    begun = time.perf_counter()
    async with metastore(place) as service:
        found["restart"] = time.perf_counter() - begun
        await appends(service, iter(await bench.make(segments, service, 1)))
        await service.snapshot()  # lets go of the log that was made: no replica is so far behind
        watcher = asyncio.create_task(pauses.watch())
        found["longest_snapshot"], whole_s = await longest(service, segments, pauses, True)
        found["took"], found["truncating"] = place.made_s, whole_s - place.made_s
        lasting_s = min(QUIET_MAX_S, max(options.quiet, whole_s))
        found["longest_quiet"], _ = await longest(service, segments, pauses, False, lasting_s)
        watcher.cancel()
    (_, key), *_ = snapshot.list_snapshots(store := bench.open_objects(place.directory))
    begun = time.perf_counter()
    snapshot.check(body := store.read(key))
    found["read"] = time.perf_counter() - begun
    state, _ = snapshot.decode(body)
    found |= {"bytes": len(body), "blocks": len(state.blocks)}
    found["msgpack"] = statistics.mean(len(pack(meta)) for meta in segments.make(100, 1))
    return found | {f"pause_{name}": s * 1e3 for name, s in pauses.longest.items()}


async def longest(
    service: MetastoreService,
    segments: bench.Segments,
    pauses: bench.Pauses,
    taking: bool,
    lasting_s: float = 0.0,
) -> tuple[float, float]:
    """The longest wait of a writer in milliseconds, and how long all of it took."""
    pauses.phase = "snapshot" if taking else "quiet"
    over = asyncio.Event()
    now = (await service.now()).lease_time

    def some() -> Iterator[object]:
        while not over.is_set():
            yield segments.make(1, now)[0]

    begun = time.perf_counter()
    writers = [asyncio.create_task(appends(service, some())) for _ in range(APPENDERS)]
    await (service.snapshot() if taking else asyncio.sleep(lasting_s))
    took = time.perf_counter() - begun
    over.set()
    waits = [wait for each in await asyncio.gather(*writers) for wait in each]
    return max(waits) * 1e3, took


MEASURES = {
    "register": register,
    "write": write,
    "replay": replay,
    "make": make_snapshot,
    "stall": stall,
}


# ── what is printed ────────────────────────────────────────────────────────────────────────────


def child(options: argparse.Namespace, measure: str, place: Place, *more: str) -> dict[str, float]:
    if options.here:
        words = ("--measure", measure, *place.words(), *more)
        return asyncio.run(MEASURES[measure](place, parser().parse_args(words)))
    done = subprocess.run(
        [sys.executable, __file__, "--measure", measure, *place.words(), *more],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def line(name: str, value: float, unit: str, baseline: float, called: str) -> None:
    print(f"{name} {value:.5g} {unit} {value / baseline:.2f} {called}", flush=True)


def registrations(directory: Path, endpoints: str, options: argparse.Namespace) -> None:
    asked = ("--registrations", str(options.registrations))
    sqlite = child(options, "register", Place(directory / "register"), *asked)
    etcd = child(options, "register", Place(directory / "register-etcd", endpoints), *asked)
    line("register_sqlite", sqlite["rate"], "blocks/s", sqlite["alone"], "one_writer_at_a_time")
    line("register_etcd", etcd["rate"], "blocks/s", sqlite["rate"], "through_sqlite")
    for quantile in ("p50", "p99"):
        value = etcd[quantile]
        line(f"register_{quantile}_etcd", value, "ms", sqlite[quantile], "through_sqlite")


def replays(directory: Path, endpoints: str, options: argparse.Namespace) -> None:
    """Leaves the log of registrations of both kinds for the snapshots."""
    for kind in KINDS:
        found = {}
        places = (
            ("sqlite", Place(directory / kind), options.entries),
            ("etcd", Place(directory / f"{kind}-etcd", endpoints), options.etcd_entries),
        )
        for name, place, entries in places:
            child(options, "write", place, "--kind", kind, "--entries", str(entries))
            found[name] = told = child(options, "replay", place)
            called = "reading_and_checking_it"
            line(f"replay_{kind}_{name}_{entries}", told["took"], "s", told["read"], called)
            print(f"# {told['blocks']:.0f} blocks, {told['cpu']:.1f} s of computing", flush=True)
        each = {name: told["took"] / told["entries"] * 1e6 for name, told in found.items()}
        line(f"replay_{kind}_etcd", each["etcd"], "us/entry", each["sqlite"], "from_sqlite")


def snapshots(directory: Path, endpoints: str, options: argparse.Namespace) -> None:
    for name, place in (
        ("sqlite", Place(directory / KINDS[0])),
        ("etcd", Place(directory / f"{KINDS[0]}-etcd", endpoints)),
    ):
        first = child(options, "make", place)
        found = child(options, "stall", place, "--quiet", str(options.quiet))
        blocks = found["blocks"]
        each, called = found["bytes"] / blocks, "the_block_as_msgpack"
        line(f"snapshot_size_{name}", each, "bytes/block", found["msgpack"], called)
        line(f"snapshot_{name}", found["took"], "s", found["read"], "reading_and_checksumming_it")
        stall, quiet = found["longest_snapshot"], found["longest_quiet"]
        line(f"stall_{name}", stall, "ms", quiet, "without_a_snapshot")
        pause, quiet = found["pause_snapshot"], found["pause_quiet"]
        line(f"pause_{name}", pause, "ms", quiet, "without_a_snapshot")
        print(
            f"# {name}: {blocks:.0f} blocks, {found['bytes'] / 1e6:.0f} MB, the first made in "
            f"{first['took']:.0f} s, checked and the log truncated in {found['truncating']:.0f} s, "
            f"restart in {found['restart']:.1f} s",
            flush=True,
        )


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--registrations", type=int, default=5_000)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--etcd-entries", type=int, default=100_000)
    parser.add_argument("--quiet", type=float, default=5.0, help="seconds without, at least")
    parser.add_argument(
        "--here",
        action="store_true",
        help="all but snapshots in this process, and an etcd of one member: quick, and not fair",
    )
    parser.add_argument("--measure", choices=MEASURES, help=argparse.SUPPRESS)
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--endpoints", default="", help=argparse.SUPPRESS)
    return parser


def main() -> None:
    options = parser().parse_args()
    if options.measure:
        place = Place(options.directory, options.endpoints)
        print(json.dumps(asyncio.run(MEASURES[options.measure](place, options))))
        return
    load = synthetic.load_now()
    with tempfile.TemporaryDirectory(prefix="maar-bench-") as name:
        directory = Path(name)
        members = 1 if options.here else 3
        with running(directory, members=members, quota_bytes=QUOTA_BYTES) as etcd:
            endpoints = ",".join(etcd.endpoints)
            registrations(directory, endpoints, options)
            replays(directory, endpoints, options)
            snapshots(directory, endpoints, options)
    synthetic.tell_of_neighbours(load)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
