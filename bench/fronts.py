"""Pushes that one front and two fronts take, each capped at a part of a core.

    python bench/fronts.py [--seconds 8] [--rounds 2] [--cap 0.4] [--connections 1000] [--fronts 2]

The server is what `maar serve` runs for pushes: a supervisor, the metastore, one front (which has
the segment writer) or several (which share one in a process of its own), a local directory as the
store. A front that has used its part of a core is stopped until time has brought more, so that its
own ceiling is what is measured and not the machine's; nobody else is capped. As many connections as
given push the profiles of bench/push.py, each when its last one was answered: so many that it is
not their wait for a flush that bounds them. Fronts that had time left are told, and no ratio of
such a run says anything.

Each line: name value unit ratio baseline. `taken` is acknowledged pushes a second; `cpu` is the CPU
of all processes of the server for a push, and `front_cpu` that of the fronts alone; `puts` is
segments written a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import httpx

from maar.app.processes import supervisor
from maar.app.roles.run import ProcessName, children_of
from maar.app.settings.config import load
from push import Sender, cpu_seconds, requests_for, sample_profiles

TICK_S = 0.002
SAVED_S = 0.02  # CPU time that a front may save up while it is idle
READY_S = 60.0
BUSY_PART = 0.85  # of their caps, which fronts that are the bottleneck use
PUSH_PATH = (ProcessName.METASTORE, ProcessName.SEGMENT_WRITER, ProcessName.FRONT)


class Taken(NamedTuple):
    per_s: float
    cpu_ms: float
    front_cpu_ms: float
    puts_per_s: float
    failures: int


# ------------------------------------------------------------------ the server


def serve(directory: Path, fronts: int) -> int:
    environ = {
        "MAAR_SERVER__LISTEN": "127.0.0.1:0",
        "MAAR_SERVER__DATA_DIR": str(directory),
        "MAAR_SERVER__FRONTS": str(fronts),
        "MAAR_SERVER__LOG_LEVEL": "error",
    }
    settings = load(file=None, environ=environ)
    directory.mkdir()
    run_dir = supervisor.fresh_run_dir(directory)
    listener = supervisor.listen(settings)
    roles = tuple(child for child in children_of(fronts) if child.process in PUSH_PATH)
    keeper = supervisor.Supervisor(
        supervisor.with_sockets(settings, run_dir), listener, roles=roles
    )
    print(supervisor.url_of(listener), flush=True)
    try:
        return asyncio.run(keeper.run())
    finally:
        shutil.rmtree(run_dir)


def processes_of(parent: int) -> dict[str, int]:
    """The processes of a server by their names."""
    found = {}
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        if "maar.app.processes.child" in words:
            found[words[words.index("maar.app.processes.child") + 1]] = int(pid)
    return found


# ------------------------------------------------------------------ the cap


def cpu_clock_s(pid: int) -> float:
    """CPU time of a process, to the nanosecond (clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2)


class Cap:
    """Keeps processes at a part of a core each, by stopping them."""

    def __init__(self, pids: list[int], part: float) -> None:
        self._pids = pids
        self._part = part
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Cap:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        for pid in self._pids:
            os.kill(pid, signal.SIGCONT)

    def _run(self) -> None:
        last = time.monotonic()
        used = {pid: cpu_clock_s(pid) for pid in self._pids}
        left = dict.fromkeys(self._pids, 0.0)
        stopped: set[int] = set()
        while not self._end.wait(TICK_S):
            now = time.monotonic()
            for pid in self._pids:
                cpu = cpu_clock_s(pid)
                left[pid] += (now - last) * self._part - (cpu - used[pid])
                left[pid] = min(left[pid], SAVED_S)
                used[pid] = cpu
                if left[pid] < 0 and pid not in stopped:
                    os.kill(pid, signal.SIGSTOP)
                    stopped.add(pid)
                elif left[pid] >= 0 and pid in stopped:
                    os.kill(pid, signal.SIGCONT)
                    stopped.discard(pid)
            last = now


# ------------------------------------------------------------------ the load


async def send(port: int, seconds: float, warm: float, connections: int) -> None:
    """Push for a while; says what was acknowledged after the first moments."""
    requests = requests_for("push", sample_profiles())
    loop = asyncio.get_running_loop()
    senders = [
        (
            await loop.create_connection(
                lambda first=number: Sender(requests, first),  # type: ignore[misc]
                "127.0.0.1",
                port,
            )
        )[1]
        for number in range(connections)
    ]
    await asyncio.sleep(warm)
    print("began", flush=True)
    before = sum(sender.answers for sender in senders)
    await asyncio.sleep(seconds)
    answers = sum(sender.answers for sender in senders) - before
    failures = sum(sender.failures for sender in senders)
    print(json.dumps({"answers": answers, "failures": failures}), flush=True)
    for sender in senders:
        sender.stopping = True
    await asyncio.wait([sender.done for sender in senders], timeout=10)


def measure(arguments: argparse.Namespace, fronts: int, *, cap: float) -> Taken:
    """One server of its own, one load."""
    with tempfile.TemporaryDirectory(prefix="maar-fronts-") as made:
        server = subprocess.Popen(
            [sys.executable, __file__, "--serve", made + "/data", "--fronts", str(fronts)],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            wait_until_ready(url, fronts)
            return load_server(arguments, server.pid, url, Path(made) / "data", cap)
        finally:
            server.terminate()
            server.wait(60)


def load_server(
    arguments: argparse.Namespace, server: int, url: str, directory: Path, cap: float
) -> Taken:
    processes = processes_of(server)
    fronts = [pid for name, pid in processes.items() if name.startswith("front")]
    port = str(url.rpartition(":")[2])
    times = [str(arguments.seconds), str(arguments.warm), str(arguments.connections)]
    with Cap(fronts, cap):
        sender = subprocess.Popen(
            [sys.executable, __file__, "--send", port, *times], stdout=subprocess.PIPE, text=True
        )
        assert sender.stdout is not None
        sender.stdout.readline()
        before = {pid: cpu_seconds(pid) for pid in processes.values()}
        puts, began = puts_of(directory), time.monotonic()
        said = json.loads(sender.stdout.readline())
        passed_s, after_puts = time.monotonic() - began, puts_of(directory)
        spent = {pid: cpu_seconds(pid) - cpu_s for pid, cpu_s in before.items()}
        sender.wait(30)
    answers = max(1, said["answers"])
    return Taken(
        said["answers"] / arguments.seconds,
        1000 * sum(spent.values()) / answers,
        1000 * sum(spent[pid] for pid in fronts) / answers,
        (after_puts - puts) / passed_s,
        said["failures"],
    )


def wait_until_ready(url: str, fronts: int) -> None:
    deadline, answer = time.monotonic() + READY_S, ""
    while time.monotonic() < deadline:
        try:
            answer = ask(url, "/ready?for=push")
        except httpx.HTTPError:
            answer = ""
        if answer == "ready\n":
            return
        time.sleep(0.1)
    raise SystemExit(f"a server with {fronts} fronts is not ready: {answer}")


def puts_of(directory: Path) -> int:
    """Segments in the store."""
    return sum(path.is_file() for path in (directory / "store" / "segments").rglob("*"))


def ask(url: str, path: str) -> str:
    return httpx.get(url + path, trust_env=False, verify=False, timeout=30).text


# ------------------------------------------------------------------ the table


def show(name: str, values: list[float], unit: str, against: list[float], baseline: str) -> None:
    value, base = statistics.median(values), statistics.median(against)
    print(name, f"{value:.2f}", unit, f"{value / base:.2f}" if base else "-", baseline, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--warm", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cap", type=float, default=0.4)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--fronts", type=int, default=2)
    parser.add_argument("--serve", type=Path)
    parser.add_argument("--send", nargs=4, type=float)
    arguments = parser.parse_args()
    if arguments.serve:
        raise SystemExit(serve(arguments.serve, arguments.fronts))
    if arguments.send:
        port, seconds, warm, connections = arguments.send
        asyncio.run(send(int(port), seconds, warm, int(connections)))
        return
    several = arguments.fronts
    runs: dict[int, list[Taken]] = {1: [], several: []}
    for _ in range(arguments.rounds):
        for fronts, found in runs.items():
            found.append(measure(arguments, fronts, cap=arguments.cap))
    failures = sum(run.failures for found in runs.values() for run in found)
    if failures:
        print(f"# {failures} pushes were refused: do not quote this")
    for fronts, found in runs.items():
        used = statistics.median(run.per_s * run.front_cpu_ms / 1000 for run in found)
        if used < BUSY_PART * arguments.cap * fronts:
            print(
                f"# {fronts} of {several} fronts used {used:.2f} cores, less than they may: "
                "do not quote this, and try more --connections"
            )
    for field, unit in (
        ("per_s", "pushes/s"),
        ("cpu_ms", "ms/push"),
        ("front_cpu_ms", "ms/push"),
        ("puts_per_s", "PUT/s"),
    ):
        name = {"per_s": "taken", "cpu_ms": "cpu", "front_cpu_ms": "front_cpu"}.get(field, "puts")
        one = [getattr(run, field) for run in runs[1]]
        for fronts, found in runs.items():
            mine = [getattr(run, field) for run in found]
            show(f"{name}_{fronts}", mine, unit, one, "one-front")


if __name__ == "__main__":
    main()
