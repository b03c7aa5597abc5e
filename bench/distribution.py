"""Distributor and segment writer as separate processes: what the hop costs, how long a push takes.

    python bench/distribution.py [--seconds 6] [--rounds 5] [--latency-seconds 20] [--warm 2]

Two small fleets of real processes on local disk with fsync, each with a metastore of its own:

    together   distributor and segment writer in one process, which calls itself
    apart      each in a process of its own, with gRPC between them

`maar load` pushes profiles of 17 KiB, first as fast as they are taken (400 under way at once), to
the fleets by turns. Counted is the CPU of all servers of a fleet, the metastore included, from
/proc: MB of gzip per core and second. Then it pushes at a steady 30 % and 90 % of what each fleet
took, whether or not earlier pushes were answered, and latency is from the moment a push was due.
The flush interval is the default: 500 ms for a shard that is busy. The generator runs on the same
machine and takes about a tenth of what the servers do. Prints: name value unit ratio baseline.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import synthetic
from support.network.ports import free_port

TICKS = os.sysconf("SC_CLK_TCK")
READY_S = 120.0
UNDER_WAY = 400
FLUSH_S = 0.5
MEDIAN_MAX_S = 0.5
SHARES = (30, 90)  # percent of what the fleet takes at most
MANY = "1000000"  # a second: more than any fleet takes


class Fleet(NamedTuple):
    url: str
    processes: dict[str, subprocess.Popen[bytes]]

    def cpu_s(self) -> dict[str, float]:
        """User and system time of all threads, by process."""
        return {name: cpu_seconds(one.pid) for name, one in self.processes.items()}


# ── fleets ─────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def fleet(directory: Path, *processes: str) -> Iterator[Fleet]:
    """A metastore and these processes, each named by its roles; the last one takes the pushes."""
    directory.mkdir()
    metastore, writer = (f"127.0.0.1:{free_port()}" for _ in range(2))
    shared = [
        *("--set", f"roles.metastore={metastore}", "--store", (directory / "store").as_uri()),
        *("--set", f"roles.segment_writer={writer}", "--set", "ring.node=bench"),
    ]
    with ExitStack() as stack:
        started = {
            roles: stack.enter_context(process(directory / str(number), roles, shared))
            for number, roles in enumerate(("metastore", *processes))
        }
        log = directory / str(len(processes)) / "server.log"
        url = synthetic.url_when_ready(started[processes[-1]], log, patience_s=READY_S)
        yield Fleet(url, started)


@contextmanager
def process(directory: Path, roles: str, shared: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    directory.mkdir()
    command = [sys.executable, "-m", "maar.cli.main", "serve", "--roles", roles]
    command += ["--listen", "127.0.0.1:0", "--data", str(directory), *shared]
    with (directory / "server.log").open("wb") as output:
        started = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(60)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


# ── measurement ────────────────────────────────────────────────────────────────────────────────


class Round(NamedTuple):
    """What a fleet took as fast as it could, and what it cost."""

    pushes_per_s: float
    mb: float
    cpu_s: dict[str, float]

    @property
    def mb_per_core(self) -> float:
        return self.mb / sum(self.cpu_s.values())


def load(one: Fleet, *options: str) -> Any:
    command = [sys.executable, "-m", "maar.cli.main", "load", "--server", one.url, "--json"]
    command += ["--services", "16", "--pods", "8", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def flat_out(one: Fleet, *, seconds: float) -> Round:
    before = one.cpu_s()
    found = load(one, "--rate", MANY, "--seconds", str(seconds), "--under-way", str(UNDER_WAY))
    after = one.cpu_s()
    spent = {name: after[name] - before[name] for name in after}
    return Round(found["rate_reached"], found["bytes"] / 1e6, spent)


def measure(fleets: dict[str, Fleet], options: argparse.Namespace) -> None:
    for one in fleets.values() if options.warm else ():
        flat_out(one, seconds=options.warm)
    rounds: dict[str, list[Round]] = {name: [] for name in fleets}
    for number in range(options.rounds):  # who goes first changes, so that a drift hits both
        for name in sorted(fleets, reverse=number % 2 == 1):
            rounds[name].append(flat_out(fleets[name], seconds=options.seconds))
    report_costs(rounds)
    for name, one in fleets.items():
        most = statistics.median(taken.pushes_per_s for taken in rounds[name])
        for share in SHARES:
            rate = most * share / 100
            found = load(one, "--rate", f"{rate:.1f}", "--seconds", str(options.latency_seconds))
            report_latency(name, share, found)


def report_costs(rounds: dict[str, list[Round]]) -> None:
    base = statistics.median(one.mb_per_core for one in rounds["together"])
    ratios = " ".join(
        f"{apart.mb_per_core / together.mb_per_core:.2f}"
        for together, apart in zip(rounds["together"], rounds["apart"], strict=True)
    )
    print(f"# apart to together, round by round: {ratios}")
    for name, taken in rounds.items():
        shares: dict[str, float] = {}
        for one in taken:
            for roles, cpu_s in one.cpu_s.items():
                shares[roles] = shares.get(roles, 0.0) + cpu_s
        whole = sum(shares.values())
        told = ", ".join(f"{roles} {100 * cpu_s / whole:.0f} %" for roles, cpu_s in shares.items())
        print(f"# {name}: of the CPU, {told}")
        value = statistics.median(one.mb_per_core for one in taken)
        print(f"push_{name} {value:.2f} MB/s_per_core {value / base:.2f} together")
        most = statistics.median(one.pushes_per_s for one in taken)
        print(f"push_{name}_most {most:.0f} profiles/s {most / most:.2f} itself", flush=True)


def report_latency(name: str, share: int, found: dict[str, Any]) -> None:
    waits = found["latency_s"]
    print(
        f"# {name} at {share} %, {found['rate_asked']:.0f} a second: {found['acknowledged']} of "
        f"{found['planned']} acknowledged, {found['retries']} retries, the generator late by "
        f"{found['late_s'] * 1e3:.0f} ms at worst"
    )
    for quantile in ("p50", "p99"):
        value = waits[quantile]
        print(f"latency_{name}_{share}_{quantile} {value:.3f} s {value / FLUSH_S:.2f} flush_0.5_s")
    if waits["p50"] >= MEDIAN_MAX_S:
        print(f"# MISSES a median below {MEDIAN_MAX_S} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0, help="of one round, flat out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--latency-seconds", type=float, default=20.0, help="of each steady rate")
    parser.add_argument("--warm", type=float, default=2.0, help="seconds flat out before that")
    options = parser.parse_args()
    neighbours = synthetic.load_now()
    with tempfile.TemporaryDirectory(prefix="maar-bench-") as name, ExitStack() as stack:
        directory = Path(name)
        fleets = {
            "together": stack.enter_context(
                fleet(directory / "together", "segment-writer,distributor")
            ),
            "apart": stack.enter_context(
                fleet(directory / "apart", "segment-writer", "distributor")
            ),
        }
        measure(fleets, options)
    synthetic.tell_of_neighbours(neighbours)


if __name__ == "__main__":
    main()
