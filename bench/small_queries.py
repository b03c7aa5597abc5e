"""Small queries from HTTP to answer, each against the same query of another revision; and growth.

    python bench/small_queries.py [--base DIR] [--profiles 3000] [--rounds 25] [--tenfold]
                                 [--services 20] [--days 0] [--usual] [--corpus FILE] [--fresh 0]
                                 [--url U [--url V]] [--age 36] [--top]

Whole servers (`maar serve`) get the same profiles, compact them, and are asked in turns. `--base`
is a worktree of another revision: then a ratio is to its time for the same query, else to that of
an empty query of the same server, the least that any query costs. `--url` asks a server that runs
already, whatever it holds; of two, the second one is the base.

Profiles are made up, of `--services` and over `--days` (0: 50 minutes), or those of `--corpus`: a
sequence of (u32 length, JSON, u32 length, push.v1.PushRequest), whose JSON has service, pod and
time_ns. `--age` is how many seconds old the last segments get before they are merged; `--top` waits
until all are at the top level, with short ages. `--fresh` pushes so many more, and asks again while
they are segments. `--tenfold` pushes ten times as many and asks again: then a ratio is to before.
With `--usual`, the base is a server of this revision with as many profiles of 20 services over 50
minutes: what more services or days cost.

Wall time is the median; CPU is of all processes of a server but its JVM, by query. What pushing and
merging took is the CPU of all, by profile. Each line: name value unit ratio baseline.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import http.client
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx

import synthetic
from compaction_whole import push_all
from maar.api.protocol.wire import PushRequest
from maar.model.policy import CompactionSettings
from maar.pprof.schema import Profile

SERVICES, PODS, BODIES = 20, 10, 40
SPAN_S = 3000
DAY_S = 86_400
AGES_S = CompactionSettings().level_ages_s
SHORT_AGES_S = (5, 8, 10)
TOP = len(AGES_S)
CPU = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"
EMPTY = "empty"
HERE = Path(__file__).parents[1]
PUSHERS = 200
_LENGTH = struct.Struct("<I")


class Server(NamedTuple):
    url: str
    pid: int  # 0: not ours


class Cost(NamedTuple):
    wall_ms: float
    cpu_ms: float


class About(NamedTuple):
    """What is asked about: times in milliseconds, and one service with one of its pods."""

    start_ms: int
    end_ms: int
    service: str
    pod: str


class Growth(NamedTuple):
    """What a server has taken for all its profiles."""

    cpu_ms: float  # for each profile, pushed and merged
    index_bytes: float  # of the listing, for each block
    memory_mb: float


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--base", type=Path)
    parser.add_argument("--profiles", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--tenfold", action="store_true")
    parser.add_argument("--services", type=int, default=SERVICES)
    parser.add_argument("--days", type=int, default=0)
    parser.add_argument("--usual", action="store_true")
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--fresh", type=int, default=0)
    parser.add_argument("--url", action="append", default=[])
    parser.add_argument("--age", type=int, default=int(AGES_S[0]))
    parser.add_argument("--top", action="store_true")
    options = parser.parse_args()
    load = synthetic.load_now()
    work = _work(options)
    lakes = [(HERE, work), *([(options.base.resolve(), work)] if options.base else [])]
    if options.usual:
        lakes.append((HERE, _make_up(options.profiles, SERVICES, days=0)))
    with ExitStack() as stack:
        servers = [Server(url, 0) for url in options.url]
        ages = SHORT_AGES_S if options.top else (options.age, *AGES_S[1:])
        grown = []
        for tree, held in [] if options.url else lakes:
            servers.append(stack.enter_context(serve(tree, ages)))
            grown.append(fill(servers[-1], held, 0, options.profiles, top=options.top))
        abouts = [work.about for _ in servers]
        if options.usual:
            abouts[-1] = lakes[-1][1].about
        costs = measure(servers, abouts, options.rounds)
        tell(costs, with_base=len(servers) > 1)
        tell_growth(grown)
        pushed = options.profiles
        if options.fresh:
            for server in servers:
                push(server, work, pushed, pushed + options.fresh)
            pushed += options.fresh
            fresh = measure(servers, abouts, options.rounds)
            tell(fresh, with_base=len(servers) > 1, suffix="_fresh")
        if options.tenfold:
            ten = fill(servers[0], work, pushed, 10 * options.profiles, top=options.top)
            (after,) = measure(servers[:1], abouts[:1], options.rounds)
            tell_tenfold(costs[0], after)
            tell_growth([ten, *grown[:1]], suffix="_tenfold", baseline="a-tenth-of-the-profiles")
    synthetic.tell_of_neighbours(load)


def tell_tenfold(before: dict[str, Cost], after: dict[str, Cost]) -> None:
    for name, cost in after.items():
        ratio = cost.wall_ms / before[name].wall_ms
        print(f"{name}_tenfold {cost.wall_ms:.2f} ms {ratio:.2f} a-tenth-of-the-profiles")


def tell_growth(grown: list[Growth], suffix: str = "", baseline: str = "the-base") -> None:
    """Of the first, against the second if there is one."""
    for name, unit, place in (
        ("push_and_merge_cpu", "ms/profile", 0),
        ("index", "bytes/block", 1),
        ("memory", "MB", 2),
    ):
        if grown:
            mine, other = grown[0][place], grown[-1][place]
            said = f"{mine / other:.3f} {baseline}" if len(grown) > 1 else "- -"
            print(f"{name}{suffix} {mine:.2f} {unit} {said}")


def tell(costs: list[dict[str, Cost]], *, with_base: bool, suffix: str = "") -> None:
    for name, cost in costs[0].items():
        other, baseline = (costs[1][name], "the-base") if with_base else (costs[0][EMPTY], EMPTY)
        ratio = cost.wall_ms / other.wall_ms
        print(f"{name}{suffix} {cost.wall_ms:.2f} ms {ratio:.3f} {baseline}")
        if cost.cpu_ms:
            ratio = cost.cpu_ms / max(other.cpu_ms, 0.01)
            print(f"{name}{suffix}_cpu {cost.cpu_ms:.2f} ms {ratio:.3f} {baseline}")


# ------------------------------------------------------------------ servers and their profiles


@contextmanager
def serve(tree: Path, ages_s: Sequence[float]) -> Iterator[Server]:
    """A whole server of one revision, in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="maar-") as directory:
        log = Path(directory) / "log"
        start = "from maar.cli.main import main; main()"
        arguments = ["serve", "--data", f"{directory}/data", "--listen", "127.0.0.1:0"]
        ages = ",".join(map(str, ages_s))
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


class Work(NamedTuple):
    """The profiles to push, by number, and what to ask about them."""

    body: Callable[[int], bytes]
    about: About


def _work(options: argparse.Namespace) -> Work:
    if options.corpus:
        return _of_corpus(list(_read_corpus(options.corpus)))
    return _make_up(options.profiles, options.services, options.days)


def _read_corpus(path: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    with path.open("rb") as file:
        while head := file.read(_LENGTH.size):
            about = json.loads(file.read(_LENGTH.unpack(head)[0]))
            yield about, file.read(_LENGTH.unpack(file.read(_LENGTH.size))[0])


def _of_corpus(pushes: list[tuple[dict[str, Any], bytes]]) -> Work:
    times_ms = [about["time_ns"] // 1_000_000 for about, _ in pushes]
    first = pushes[0][0]
    about = About(min(times_ms), max(times_ms) + 1, first["service"], first["pod"])
    return Work(lambda number: pushes[number][1], about)


def _make_up(profiles: int, services: int, days: int) -> Work:
    """Every so many seconds one, backwards: those of a tenfold number lie between the others."""
    random = Random(7)
    bodies = [synthetic.pprof(random, time_ns=0, locations=600) for _ in range(BODIES)]
    span_s = days * DAY_S or SPAN_S
    end_ms = int(time.time() * 1000)

    def body(number: int) -> bytes:
        labels = {
            "__name__": "process_cpu",
            "service_name": f"service-{number % services}",
            "pod": f"pod-{number % services}-{number // services % PODS}",
            "region": "eu" if number % 3 else "us",
        }
        request = PushRequest()
        series = request.series.add()
        for name, value in labels.items():
            series.labels.add(name=name, value=value)
        # The same stacks at another time: of a field that is there twice, the last one counts.
        ago_ns = span_s * 10**9 * (number % profiles) // profiles + number // profiles * 1_000_000
        dated = Profile(time_nanos=end_ms * 1_000_000 - ago_ns).SerializeToString()
        series.samples.add(raw_profile=gzip.compress(bodies[number % BODIES] + dated, 1))
        return bytes(request.SerializeToString())

    return Work(body, About(end_ms - span_s * 1000, end_ms, "service-3", "pod-3-0"))


def push(server: Server, work: Work, first: int, end: int) -> None:
    bodies = map(work.body, range(first, end))
    asyncio.run(push_all(urlsplit(server.url).port or 80, bodies, PUSHERS))


def fill(server: Server, work: Work, first: int, end: int, *, top: bool) -> Growth:
    """Push some profiles, and wait until they are compacted, or all at the top level."""
    before = cpu_s(server.pid, java=True)
    push(server, work, first, end)
    with httpx.Client(base_url=server.url, timeout=120, trust_env=False) as client:
        while any(level["level"] < (TOP if top else 1) for level in _levels(client)):
            time.sleep(0.5)
        blocks = client.get("/api/v1/blocks", params={"limit": 10_000})
    used_ms = (cpu_s(server.pid, java=True) - before) * 1000
    count = len(blocks.json()["blocks"])
    return Growth(used_ms / (end - first), len(blocks.content) / count, memory_mb(server.pid))


def _levels(client: httpx.Client) -> list[dict[str, Any]]:
    levels: list[dict[str, Any]] = client.get("/api/v1/status").json()["levels"]
    return levels


# ------------------------------------------------------------------ queries


def questions(about: About) -> dict[str, tuple[str, dict[str, Any]]]:
    whole = {"start": str(about.start_ms - 60_000), "end": str(about.end_ms + 60_000)}
    five = {"start": str(about.end_ms - 300_000), "end": str(about.end_ms)}
    mine = f'{{service_name="{about.service}"}}'
    pod = f'{{service_name="{about.service}", pod="{about.pod}"}}'
    step = max(60, (about.end_ms - about.start_ms) // 10_000_000)
    by = {**whole, "profile_typeID": CPU, "step": step}
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


def measure(servers: list[Server], abouts: list[About], rounds: int) -> list[dict[str, Cost]]:
    """What each query costs each server; they take turns, so that neighbours slow down both. The
    client is the plainest there is: its own time would be most of a small query.
    """
    found: list[dict[str, Cost]] = [{} for _ in servers]
    clients = [http.client.HTTPConnection(urlsplit(s.url).netloc, timeout=120) for s in servers]
    asked = [questions(about) for about in abouts]
    for name in asked[0]:
        walls: list[list[float]] = [[] for _ in servers]
        cpus = [0.0 for _ in servers]
        for number in range(-2, rounds):  # two to get warm
            for place, (server, client) in enumerate(zip(servers, clients, strict=True)):
                before, start = cpu_s(server.pid), time.perf_counter()
                ask(client, *asked[place][name])
                if number >= 0:
                    walls[place].append((time.perf_counter() - start) * 1000)
                    cpus[place] += cpu_s(server.pid) - before
        for place in range(len(servers)):
            cost = Cost(statistics.median(walls[place]), cpus[place] / rounds * 1000)
            found[place][name] = cost
    for client in clients:
        client.close()
    return found


def ask(client: http.client.HTTPConnection, method: str, body: dict[str, Any]) -> bytes:
    headers = {"content-type": "application/json"}
    path = f"/querier.v1.QuerierService/{method}"
    client.request("POST", path, json.dumps(body).encode(), headers)
    with client.getresponse() as response:
        content = response.read()
        if response.status != 200:
            raise SystemExit(f"{method} was answered with {response.status}: {content[:300]!r}")
        return content


def cpu_s(pid: int, *, java: bool = False) -> float:
    """CPU time of a process and all below it, with Java or without; in nanoseconds as the scheduler
    has it, since a query takes less than one of the kernel's ticks.
    """
    if not pid:
        return 0.0
    used_ns = 0
    for each, name in family(pid).items():
        if name == "java" and not java:
            continue
        for thread in Path(f"/proc/{each}/task").glob("*/schedstat"):
            with suppress(OSError):
                used_ns += int(thread.read_text().split()[0])
    return used_ns / 1e9


def family(pid: int) -> dict[int, str]:
    """The names of a process and of all below it."""
    stats: dict[int, tuple[int, str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
            stats[int(path.parent.name)] = (int(rest.split()[1]), name)
    wanted = {pid}
    for _ in range(4):  # a supervisor, its children, and theirs
        wanted |= {child for child, (parent, _) in stats.items() if parent in wanted}
    return {each: stats[each][1] for each in wanted & stats.keys()}


def memory_mb(pid: int) -> float:
    """Of a process and all below it; what they share counts once."""
    kb = 0
    for each in family(pid):
        with suppress(OSError):
            for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines():
                kb += int(line.split()[1]) if line.startswith("Pss:") else 0
    return kb / 1024


if __name__ == "__main__":
    main()
