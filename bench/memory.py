"""Memory (PSS) of a whole `maar serve`, all roles and Spark's JVM, and of another revision's.

    python bench/memory.py [--against SRC] [--ten 60] [--seconds 40] [--rounds 1]
                           [--connections 400] [--drain 120] [--files P...]

PSS is from /proc/*/smaps_rollup: private pages and a share of those that processes have in common,
so that the sum over processes is what they take. It begins when Spark is warm and the first
snapshot is made, for which a server that is ready may still wait. Three phases, the peak of each,
in MB:

    ten         10 pushes a second for --ten seconds, with compaction at its pace: each shard's
                first batch closes within 36 s
    ingest      as many connections in a closed loop as --connections says, for --seconds
    compaction  from then on, until no segment waits or --drain seconds are over

`--against` names the `src` of another checkout; the revisions take turns, after each has run once,
since one that never ran would compile its code in the first round. The ratio is to its median.
Without it the ratio is to the phase `ten`. The lines `part_…` say what each process takes
at the peak of a phase in the last round. Each line: name value unit ratio baseline; one that begins
with `#` says at once what a server came to.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
OURS = HERE.parent / "src"
PHASES = ("ten", "ingest", "compaction")
READY_S = 180.0
SNAPSHOT_S = 30.0
MARGIN_S = 1.0
CLI = "import sys; from maar.cli.main import main; sys.argv[0] = 'maar'; main()"


def processes_of(root: int) -> list[int]:
    """The process and all that it started, at one moment."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            children[int(stat.rpartition(")")[2].split()[1])].append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        found.append(waiting.pop())
        waiting += children[found[-1]]
    return found


def pss_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


def part_of(pid: int) -> str:
    """Which part of maar a process is."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return "gone"
    if words[0].endswith("java"):
        return "jvm"
    for before, word in itertools.pairwise(words):
        if before.endswith((".processes.child", ".app.child")):
            return word
        if word.endswith(".daemon"):
            return "tasks"
    return "supervisor" if "serve" in words else "others"


class Server:
    """`maar serve` of a checkout, in an empty directory."""

    def __init__(self, src: Path, *settings: str) -> None:
        self.env = {**os.environ, "PYTHONPATH": str(src)}
        self.directory = Path(tempfile.mkdtemp(prefix="maar-memory-"))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        place = ("--data", str(self.directory / "data"), "--listen", f"127.0.0.1:{self.port}")
        self.log = open(self.directory / "log", "wb")  # noqa: SIM115  # as long as it serves
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLI, "serve", *place, *settings],
            env=self.env,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )
        self.peaks: dict[str, tuple[float, dict[str, float]]] = {}

    def watch(self, phase: str, goes_on: Callable[[], bool]) -> None:
        """Remember the largest sum that is seen, and its parts."""
        while goes_on():
            parts: dict[str, float] = defaultdict(float)
            for pid in processes_of(self.process.pid):
                parts[part_of(pid)] += pss_mb(pid)
            total = sum(parts.values())
            if total > self.peaks.get(phase, (0.0, {}))[0]:
                self.peaks[phase] = total, dict(parts)
            time.sleep(MARGIN_S / 4)

    def get(self, path: str) -> str:
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, OSError):
            return ""

    def wait_until(
        self, condition: Callable[[], bool], within_s: float, *, every_s: float = MARGIN_S / 2
    ) -> None:
        ends = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > ends or self.process.poll() is not None:
                sys.exit(f"it did not come to that; see {self.directory}/log")
            time.sleep(every_s)

    def metric(self, name: str) -> float:
        """A metric without labels; 0 for a revision that does not have it."""
        lines = self.get("/metrics").splitlines()
        return next((float(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0.0)

    def wait_until_warm(self) -> None:
        """Spark has its processes, and a new log its first snapshot, which another process makes;
        revisions without that go on.
        """
        self.wait_until(lambda: bool(self.get("/ready")), READY_S)
        self.wait_until(lambda: self.metric("maar_worker_capacity") > 0, READY_S)
        ends = time.monotonic() + SNAPSHOT_S
        while not self.metric("maar_metastore_snapshot_index") and time.monotonic() < ends:
            time.sleep(MARGIN_S)

    def has_backlog(self) -> bool:
        """Segments wait, or are being compacted."""
        blocks = [
            float(line.rpartition(" ")[2])
            for line in self.get("/metrics").splitlines()
            if line.startswith("maar_metastore_blocks{") and 'level="0"' in line
        ]
        return not blocks or any(blocks)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.log.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def measure(src: Path, options: argparse.Namespace) -> Server:
    server = Server(src)
    try:
        server.wait_until_warm()
        ten = ("load", "--rate", "10", "--services", "20", "--pods", "10", "--server", server.url)
        files = [str(path) for path in options.files]
        named = [word for path in files for word in ("--file", path)]
        for_so_long = ("--seconds", str(options.ten))
        _push(server, "ten", ["-c", CLI, *ten, *for_so_long, *named], env=server.env)
        crowd = [str(HERE / "push.py"), "--send", "push", str(server.port)]
        crowd += ["--seconds", str(options.seconds)]
        crowd += ["--connections", str(options.connections)]
        crowd += ["--files", *files] if files else []
        _push(server, "ingest", crowd, env={**os.environ, "PYTHONPATH": str(OURS)})
        ends = time.monotonic() + options.drain
        server.watch("compaction", lambda: server.has_backlog() and time.monotonic() < ends)
    finally:
        server.stop()
    said = " ".join(f"{phase}={total:.0f}" for phase, (total, _) in server.peaks.items())
    print(f"# {src}: {said}", flush=True)
    return server


def compile_all(src: Path) -> None:
    """A server that has become warm has compiled all it needs, and the next finds it on disk."""
    server = Server(src)
    try:
        server.wait_until_warm()
    finally:
        server.stop()


def _push(server: Server, phase: str, command: list[str], *, env: dict[str, str]) -> None:
    pushing = subprocess.Popen([sys.executable, *command], env=env, stdout=subprocess.DEVNULL)
    server.watch(phase, lambda: pushing.poll() is None)
    if pushing.returncode:
        sys.exit(f"pushes failed; see {server.directory}/log")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--against", type=Path)
    parser.add_argument("--ten", type=float, default=60.0)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--connections", type=int, default=400)
    parser.add_argument("--drain", type=float, default=120.0)
    parser.add_argument("--files", type=Path, nargs="*", default=[])
    options = parser.parse_args()
    revisions = [OURS] if options.against is None else [options.against.resolve(), OURS]
    if options.against is not None:
        for src in revisions:
            compile_all(src)
    rounds = [[measure(src, options) for src in revisions] for _ in range(options.rounds)]

    def median_of(phase: str, revision: int) -> float:
        return statistics.median(servers[revision].peaks[phase][0] for servers in rounds)

    for phase in PHASES:
        ours = median_of(phase, -1)
        other = median_of("ten", -1) if options.against is None else median_of(phase, 0)
        name = "phase_ten" if options.against is None else "other_revision"
        print(f"memory_{phase} {ours:.0f} MB {ours / other:.3f} {name}_{other:.0f}")
    for phase, revision in itertools.product(PHASES, range(len(revisions))):
        total, parts = rounds[-1][revision].peaks[phase]
        whose = "" if revision == len(revisions) - 1 else "_other"
        for part, value in sorted(parts.items()):
            name = f"part_{phase}_{part}{whose}"
            print(f"{name} {value:.0f} MB {value / total:.3f} all_{total:.0f}")


if __name__ == "__main__":
    main()
