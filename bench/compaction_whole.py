"""CPU of compaction in a whole `maar serve`, per MB of gzip that was pushed, and of a revision.

    python bench/compaction_whole.py [--corpus FILE] [--profiles 2000] [--against SRC] [--rounds 1]
                                     [--ages 8,45,5] [--connections 200] [--idle 10] [--behind]

All is pushed as fast as it goes to a server that is warm; then its segments are compacted until all
that is left is of the top level. Counted is the CPU time of each kind of process from the first
push on, children that have ended included:

    tasks      Python processes of Spark's tasks
    jvm        Spark's JVM
    worker     the driver: polls, submits, reports
    metastore  of it also what pushes cost it
    front      HTTP and the segment writer; not part of the sum

`whole` is the first four, and `outside` those without the tasks. `bytes_left` is what all blocks
have in the end, of the gzip that was pushed. `idle_…` is what each takes in a second once all is
done. A corpus is a file of (u32 size, JSON, u32 size, body of a push), again and again; without
one, profiles are made up. `--ages` are those at which batches of each level close: the second
should be longer than pushing takes, so that a level is merged when all of it is there.
With `--behind` the worker is stopped until all is pushed, and finds a backlog.
`--against` names the `src` of another checkout; the revisions take turns, and the ratio is to its
median. Without it the ratio is to `whole`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import struct
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import NamedTuple

import synthetic
from maar.api.protocol.wire import PushRequest
from maar.pprof import gzip
from memory import OURS, Server, part_of, processes_of

TICKS = os.sysconf("SC_CLK_TCK")
TASKS, OUTSIDE = "tasks", ("jvm", "worker", "metastore")
TRIES = 20
MB = 1e6
TEMPLATES = 16
DRAIN_S = 900.0
LOOK_S = 2.0


class Push(NamedTuple):
    """A request, and how much gzip it carries."""

    body: bytes
    gzip_bytes: int


def from_corpus(path: Path) -> Iterator[Push]:
    with path.open("rb") as file:
        while size := file.read(4):
            file.seek(struct.unpack("<I", size)[0], os.SEEK_CUR)
            body = file.read(struct.unpack("<I", file.read(4))[0])
            request = PushRequest.FromString(body)
            packed = sum(
                len(sample.raw_profile) for one in request.series for sample in one.samples
            )
            yield Push(body, packed)


def synthetic_pushes(count: int) -> Iterator[Push]:
    random, now_ns = Random(1), time.time_ns()
    some = [synthetic.profile(random, number) for number in range(TEMPLATES)]
    for number in range(count):
        one = some[number % TEMPLATES]
        request = PushRequest()
        series = request.series.add()
        for name, value in one.labels:
            series.labels.add(name=name, value=f"a-{number % 10}" if name == "pod" else value)
        # Each has a time of its own, as the last field of its pprof, which is the one that counts.
        field = b"\x48" + _varint(now_ns - (count - number) * 1_000_000)
        packed = gzip.compress(gzip.gunzip(one.payload, limit=one.raw_size) + field)
        series.samples.add(raw_profile=packed)
        yield Push(request.SerializeToString(), len(packed))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


async def push_all(port: int, bodies: Iterable[bytes], connections: int) -> None:
    """Send requests as fast as they are answered; a body is asked for when it is sent."""
    waiting = iter(bodies)

    async def one_after_another() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for body in waiting:
            for _ in range(TRIES):
                if await _push_one(reader, writer, body):
                    break
                await asyncio.sleep(0.5)
            else:
                sys.exit("a push was refused again and again")
        writer.close()

    await asyncio.gather(*(one_after_another() for _ in range(connections)))


async def _push_one(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes
) -> bool:
    head = (
        "POST /push.v1.PusherService/Push HTTP/1.1\r\nhost: localhost\r\n"
        f"content-type: application/proto\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    answer = (await reader.readuntil(b"\r\n\r\n")).lower()
    size = int(answer.partition(b"content-length:")[2].split()[0])
    await reader.readexactly(size)
    return answer.startswith(b"http/1.1 200")


def cpu_of(pid: int) -> float:
    """Seconds of a process and of its children that have ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, words[11:15])) / TICKS


def cpu(server: Server) -> dict[str, float]:
    """Seconds by kind of process; a child's are counted once, since it is alive or has ended."""
    parts: dict[str, float] = defaultdict(float)
    for pid in processes_of(server.process.pid):
        parts[part_of(pid)] += cpu_of(pid)
    return parts


def blocks_below(server: Server, top: int) -> bool:
    """Whether blocks of lower levels are there; those of target size would stay, and none is."""
    counts = [
        line
        for line in server.get("/metrics").splitlines()
        if line.startswith("maar_metastore_blocks{")
    ]
    low = [line for line in counts if f'level="{top}"' not in line]
    return not counts or any(float(line.rpartition(" ")[2]) for line in low)


def plans_done(server: Server) -> float:
    for line in server.get("/metrics").splitlines():
        if line.startswith("maar_worker_completed_total"):
            return float(line.rpartition(" ")[2])
    return 0.0


def bytes_left(server: Server) -> float:
    levels: list[dict[str, float]] = json.loads(server.get("/api/v1/status"))["levels"]
    return sum(level["bytes"] for level in levels)


class Cost(NamedTuple):
    """CPU seconds per MB by kind of process, seconds of it per second of rest, and how it went."""

    per_mb: dict[str, float]
    idle: dict[str, float]
    plans: float
    left: float  # bytes of all blocks, for each byte that was pushed
    pushed_s: float
    drained_s: float


def measure(src: Path, pushes: list[Push], options: argparse.Namespace) -> Cost:
    server = Server(src, "--set", f"compaction.level_ages_s={options.ages}")
    try:
        server.wait_until_warm()
        before, began = cpu(server), time.monotonic()
        if options.behind:
            _signal(server, "worker", signal.SIGSTOP)
        bodies = (push.body for push in pushes)
        asyncio.run(push_all(server.port, bodies, options.connections))
        pushed = time.monotonic()
        if options.behind:
            _signal(server, "worker", signal.SIGCONT)
        top = len(options.ages.split(","))
        # Seldom: what is asked is counted too.
        server.wait_until(lambda: not blocks_below(server, top), DRAIN_S, every_s=LOOK_S)
        drained, after = time.monotonic(), cpu(server)
        plans, left = plans_done(server), bytes_left(server)
        time.sleep(options.idle)
        rested = cpu(server)
    finally:
        server.stop()
    size_mb = sum(push.gzip_bytes for push in pushes) / MB
    per_mb = {name: (after[name] - before[name]) / size_mb for name in after}
    per_mb["outside"] = sum(per_mb[name] for name in OUTSIDE)
    per_mb["whole"] = per_mb["outside"] + per_mb[TASKS]
    idle = {name: (rested[name] - after[name]) / (options.idle or 1) for name in OUTSIDE}
    return Cost(per_mb, idle, plans, left / MB / size_mb, pushed - began, drained - pushed)


def _signal(server: Server, part: str, what: signal.Signals) -> None:
    for pid in processes_of(server.process.pid):
        if part_of(pid) == part:
            os.kill(pid, what)


def _say(src: Path, cost: Cost) -> Cost:
    """Said at once, for who waits."""
    parts = " ".join(f"{name}={value:.4f}" for name, value in sorted(cost.per_mb.items()))
    went = f"plans={cost.plans:.0f} pushed={cost.pushed_s:.0f}s drained={cost.drained_s:.0f}s"
    print(f"# {src}: {parts} {went}", flush=True)
    return cost


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--profiles", type=int, default=2000, help="of a corpus at most so many")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--ages", default="8,45,5")
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--idle", type=float, default=10.0)
    parser.add_argument("--behind", action="store_true")
    options = parser.parse_args()
    pushes = (
        list(islice(from_corpus(options.corpus), options.profiles))
        if options.corpus
        else list(synthetic_pushes(options.profiles))
    )
    revisions = [OURS] if options.against is None else [options.against.resolve(), OURS]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # with its server
    rounds = [
        [_say(src, measure(src, pushes, options)) for src in revisions]
        for _ in range(options.rounds)
    ]

    def median(name: str, revision: int, *, idle: bool = False) -> float:
        costs = [one[revision] for one in rounds]
        return statistics.median((cost.idle if idle else cost.per_mb)[name] for cost in costs)

    whole = median("whole", -1)
    for name in ("whole", TASKS, "outside", *OUTSIDE, "front"):
        ours, other = median(name, -1), whole if options.against is None else median(name, 0)
        of = "whole" if options.against is None else "other_revision"
        print(f"compaction_cpu_{name} {ours:.4f} s/MB {ours / (other or 1):.3f} {of}_{other:.4f}")
    lefts = [statistics.median(one[at].left for one in rounds) for at in (0, -1)]
    of = "what_was_pushed" if options.against is None else "other_revision"
    ratio = lefts[-1] / (1 if options.against is None else lefts[0])
    print(f"bytes_left {100 * lefts[-1]:.2f} % {ratio:.3f} {of}")
    for name in OUTSIDE:
        ours = median(name, -1, idle=True)
        other = ours if options.against is None else median(name, 0, idle=True)
        of = "itself" if options.against is None else "other_revision"
        print(f"idle_cpu_{name} {ours:.4f} s/s {ours / (other or 1):.3f} {of}_{other:.4f}")


if __name__ == "__main__":
    main()
