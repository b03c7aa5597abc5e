"""CPU of a plan that has hardly anything to do, in a whole `maar serve`, and in a revision.

    python bench/plan_cost.py [--against SRC] [--pushes 80] [--rounds 1] [--idle 10]

Each segment is a plan of its own here, of one profile of few samples, pushed alone. Counted
is the CPU time of each kind of process, less what it takes in the same time while nobody pushes:

    tasks      the Python process of the task: its profile, five small files
    jvm        a Spark job of one task
    worker     the driver: a poll, a job, renewals, a report
    metastore  a registration, a plan, a grant, a start, a completion
    whole      all of them

`--against` names the `src` of another checkout; the revisions take turns, and the ratio is to its
median. Without it the ratio is to `whole`. Each line: name value unit ratio baseline.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import statistics
import sys
import time
from pathlib import Path
from random import Random

import synthetic
from compaction_whole import OUTSIDE, TASKS, blocks_below, cpu, plans_done, push_all
from maar.api.protocol.wire import PushRequest
from memory import OURS, Server

ALONE = ("--set", "compaction.level_counts=1,1000,1000")
DRAIN_S = 60.0
SAMPLES, LOCATIONS = 4, 16


def small_pushes(count: int) -> list[bytes]:
    random, now_ns = Random(1), time.time_ns()
    made = []
    for number in range(count):
        request = PushRequest()
        series = request.series.add()
        series.labels.add(name="service_name", value=f"service-{number % 4}")
        series.labels.add(name="__name__", value="process_cpu")
        time_ns = now_ns - (count - number) * 1_000_000
        raw = synthetic.pprof(random, time_ns=time_ns, samples=SAMPLES, locations=LOCATIONS)
        series.samples.add(raw_profile=raw)
        made.append(request.SerializeToString())
    return made


def measure(src: Path, options: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of CPU for a plan, by kind of process."""
    server = Server(src, *ALONE)
    try:
        server.wait_until_warm()
        asyncio.run(push_all(server.port, small_pushes(4), 1))  # the first of a kind costs more
        server.wait_until(lambda: not blocks_below(server, 1), DRAIN_S)
        rested, began = cpu(server), time.monotonic()
        time.sleep(options.idle)
        before, begun, plans = cpu(server), time.monotonic(), plans_done(server)
        asyncio.run(push_all(server.port, small_pushes(options.pushes), 1))
        server.wait_until(lambda: not blocks_below(server, 1), DRAIN_S)
        after, ended = cpu(server), time.monotonic()
        plans = plans_done(server) - plans
    finally:
        server.stop()
    share = (ended - begun) / (begun - began)
    names = (TASKS, *OUTSIDE)
    spent = {
        name: after[name] - before[name] - share * (before[name] - rested[name]) for name in names
    }
    cost = {name: 1e3 * seconds / plans for name, seconds in spent.items()}
    cost["whole"] = sum(cost.values())
    print(f"# {src}: " + " ".join(f"{name}={ms:.1f}" for name, ms in cost.items()), flush=True)
    return cost


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--against", type=Path)
    parser.add_argument("--pushes", type=int, default=80)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--idle", type=float, default=10.0)
    options = parser.parse_args()
    revisions = [OURS] if options.against is None else [options.against.resolve(), OURS]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # with its server
    rounds = [[measure(src, options) for src in revisions] for _ in range(options.rounds)]

    def median(name: str, revision: int) -> float:
        return statistics.median(one[revision][name] for one in rounds)

    for name in ("whole", TASKS, *OUTSIDE):
        ours = median(name, -1)
        other = median("whole", -1) if options.against is None else median(name, 0)
        of = "whole" if options.against is None else "other_revision"
        print(f"plan_cpu_{name} {ours:.1f} ms {ours / (other or 1):.3f} {of}_{other:.1f}")


if __name__ == "__main__":
    main()
