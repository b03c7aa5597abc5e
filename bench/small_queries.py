"""Small queries from HTTP to answer, each against the same query of another revision.

    python bench/small_queries.py [--base DIR] [--profiles 3000] [--rounds 25] [--tenfold] [--url U]
                                 [--age 36]

Whole servers (`maar serve`) get the same made-up profiles, compact them, and are asked in turns.
`--base` is a worktree of another revision: then a ratio is to its time for the same query, else to
that of an empty query of the same server, the least that any query costs. `--tenfold` pushes ten
times as many and asks again: then a ratio is to the time before. `--url` asks a server that runs
already, whatever it holds. `--age` is how many seconds old the last segments get before they are
merged. Wall time is the median; CPU is of all processes of a server but its JVM, by query. Each
line: name value unit ratio baseline.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import gzip
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import httpx

import synthetic
from maar.api.protocol.wire import PushRequest
from maar.model.policy import CompactionSettings
from maar.pprof.schema import Profile

SERVICES, PODS, BODIES = 20, 10, 40
SPAN_S = 3000
AGES_S = CompactionSettings().level_ages_s
CPU = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"
SERVICE = "service-3"
EMPTY = "empty"
HERE = Path(__file__).parents[1]
PUSHERS = 32


class Server(NamedTuple):
    url: str
    pid: int  # 0: not ours


class Cost(NamedTuple):
    wall_ms: float
    cpu_ms: float


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--base", type=Path)
    parser.add_argument("--profiles", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--tenfold", action="store_true")
    parser.add_argument("--url")
    parser.add_argument("--age", type=int, default=int(AGES_S[0]))
    options = parser.parse_args()
    load = synthetic.load_now()
    until_ms = int(time.time() * 1000)
    with ExitStack() as stack:
        trees = [HERE, *([options.base.resolve()] if options.base else [])]
        servers = [Server(options.url, 0)] if options.url else []
        for tree in [] if options.url else trees:
            servers.append(stack.enter_context(served(tree, options.age)))
            fill(servers[-1], options.profiles, until_ms, first=0)
        costs = measure(servers, until_ms, options.rounds)
        tell(costs, with_base=len(servers) > 1)
        if options.tenfold:
            fill(servers[0], 10 * options.profiles, until_ms, first=options.profiles)
            (after,) = measure(servers[:1], until_ms, options.rounds)
            for name, cost in after.items():
                ratio = cost.wall_ms / costs[0][name].wall_ms
                print(f"{name}_tenfold {cost.wall_ms:.2f} ms {ratio:.2f} a-tenth-of-the-profiles")
    synthetic.tell_of_neighbours(load)


def tell(costs: list[dict[str, Cost]], *, with_base: bool) -> None:
    for name, cost in costs[0].items():
        other, baseline = (costs[1][name], "the-base") if with_base else (costs[0][EMPTY], EMPTY)
        print(f"{name} {cost.wall_ms:.2f} ms {cost.wall_ms / other.wall_ms:.3f} {baseline}")
        if cost.cpu_ms:
            ratio = cost.cpu_ms / max(other.cpu_ms, 0.01)
            print(f"{name}_cpu {cost.cpu_ms:.2f} ms {ratio:.3f} {baseline}")


# ------------------------------------------------------------------ servers and their profiles


@contextmanager
def served(tree: Path, age_s: int) -> Iterator[Server]:
    """A whole server of one revision, in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="maar-") as directory:
        log = Path(directory) / "log"
        start = "from maar.cli.main import main; main()"
        arguments = ["serve", "--data", f"{directory}/data", "--listen", "127.0.0.1:0"]
        ages = ",".join(str(age) for age in (age_s, *AGES_S[1:]))
        arguments += ["--set", f"compaction.level_ages_s={ages}"]
        with log.open("wb") as said:
            server = subprocess.Popen(
                [sys.executable, "-c", start, *arguments],
                env={**os.environ, "PYTHONPATH": str(tree / "src")},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
        try:
            yield Server(synthetic.url_when_ready(server, log, patience_s=300), server.pid)
        finally:
            server.terminate()
            server.wait(60)


def fill(server: Server, number: int, until_ms: int, *, first: int) -> None:
    """Push profiles from the first to a number, and wait until they are compacted."""
    random = Random(7)
    times = [until_ms * 1_000_000 - SPAN_S * 10**9 * n // number for n in range(number)]
    bodies = [synthetic.pprof(random, time_ns=0, locations=600) for _ in range(BODIES)]

    def push(n: int) -> None:
        labels = {
            "__name__": "process_cpu",
            "service_name": f"service-{n % SERVICES}",
            "pod": f"pod-{n % (SERVICES * PODS)}",
            "region": "eu" if n % 3 else "us",
        }
        request = PushRequest()
        series = request.series.add()
        for name, value in labels.items():
            series.labels.add(name=name, value=value)
        # The same stacks at another time: of a field that is there twice, the last one counts.
        dated = bodies[n % BODIES] + Profile(time_nanos=times[n]).SerializeToString()
        series.samples.add(raw_profile=gzip.compress(dated, 1))
        answer = client.post(
            "/push.v1.PusherService/Push",
            content=request.SerializeToString(),
            headers={"content-type": "application/proto"},
        )
        answer.raise_for_status()

    with (
        httpx.Client(base_url=server.url, timeout=120, trust_env=False) as client,
        concurrent.futures.ThreadPoolExecutor(PUSHERS) as threads,
    ):
        list(threads.map(push, range(first, number)))
        while any(level["level"] == 0 for level in _levels(client)):
            time.sleep(0.5)


def _levels(client: httpx.Client) -> list[dict[str, Any]]:
    levels: list[dict[str, Any]] = client.get("/api/v1/status").json()["levels"]
    return levels


# ------------------------------------------------------------------ queries


def questions(until_ms: int) -> dict[str, tuple[str, dict[str, Any]]]:
    whole = {"start": str(until_ms - 2 * SPAN_S * 1000), "end": str(until_ms + 60_000)}
    five = {"start": str(until_ms - 300_000), "end": str(until_ms)}
    mine = f'{{service_name="{SERVICE}"}}'
    pod = f'{{service_name="{SERVICE}", pod="pod-3"}}'
    by = {**whole, "profile_typeID": CPU, "step": 60}
    draw = "SelectMergeStacktraces"
    return {
        EMPTY: ("LabelNames", {"start": "1000", "end": "2000"}),
        "flamegraph_pod": (draw, {**whole, "profile_typeID": CPU, "label_selector": pod}),
        "flamegraph_5min": (draw, {**five, "profile_typeID": CPU, "label_selector": mine}),
        "flamegraph_service": (draw, {**whole, "profile_typeID": CPU, "label_selector": mine}),
        "flamegraph_fleet": (draw, {**whole, "profile_typeID": CPU, "label_selector": "{}"}),
        "series_service_by_pod": (
            "SelectSeries",
            {**by, "label_selector": mine, "group_by": ["pod"]},
        ),
        "series_by_service": (
            "SelectSeries",
            {**by, "label_selector": "{}", "group_by": ["service_name"]},
        ),
        "series_by_pod": ("SelectSeries", {**by, "label_selector": "{}", "group_by": ["pod"]}),
        "label_names": ("LabelNames", whole),
        "label_values": ("LabelValues", {**whole, "name": "pod", "matchers": [mine]}),
        "series_of_service": ("Series", {**whole, "matchers": [mine]}),
        "types": ("ProfileTypes", whole),
    }


def measure(servers: list[Server], until_ms: int, rounds: int) -> list[dict[str, Cost]]:
    """What each query costs each server; they take turns, so that neighbours slow down both."""
    found: list[dict[str, Cost]] = [{} for _ in servers]
    with ExitStack() as stack:
        clients = [
            stack.enter_context(httpx.Client(base_url=s.url, timeout=120, trust_env=False))
            for s in servers
        ]
        for name, (method, body) in questions(until_ms).items():
            walls: list[list[float]] = [[] for _ in servers]
            cpus = [0.0 for _ in servers]
            for number in range(-2, rounds):  # two to get warm
                for place, (server, client) in enumerate(zip(servers, clients, strict=True)):
                    before, start = cpu_s(server.pid), time.perf_counter()
                    client.post(
                        f"/querier.v1.QuerierService/{method}", json=body
                    ).raise_for_status()
                    if number >= 0:
                        walls[place].append((time.perf_counter() - start) * 1000)
                        cpus[place] += cpu_s(server.pid) - before
            for place in range(len(servers)):
                cost = Cost(statistics.median(walls[place]), cpus[place] / rounds * 1000)
                found[place][name] = cost
    return found


def cpu_s(pid: int) -> float:
    """CPU time of a process and all below it, without Java; in nanoseconds as the scheduler has it,
    since a query takes less than one of the kernel's ticks.
    """
    if not pid:
        return 0.0
    stats: dict[int, tuple[int, str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
            stats[int(path.parent.name)] = (int(rest.split()[1]), name)
    wanted = {pid}
    for _ in range(4):  # a supervisor, its children, and theirs
        wanted |= {child for child, (parent, _) in stats.items() if parent in wanted}
    used_ns = 0
    for each in wanted & stats.keys():
        for thread in Path(f"/proc/{each}/task").glob("*/schedstat"):
            with suppress(OSError):
                used_ns += int(thread.read_text().split()[0]) if stats[each][1] != "java" else 0
    return used_ns / 1e9


if __name__ == "__main__":
    main()
