"""What a push waits for its answer on a real server where few come, against the flush interval.

    python bench/lone_push.py [--rate 10] [--seconds 60] [--warm 15] [--files P...]

The server is a whole `maar serve` with its defaults, in an empty directory; `maar load` pushes
evenly, from 20 services of 10 pods. The wait is until the profile is durable and in the index, so
it has the upload and the registration in it; bench/puts.py has the wait for the cut alone, in
virtual time. PUTs are those that it took, against the cuts of a fixed flush interval.
Each line: name value unit ratio baseline.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from maar.segment.settings import SegmentSettings
from memory import CLI, READY_S, Server
from synthetic import load_now, tell_of_neighbours

_WAITED = re.compile(r"p50 ([\d.]+) ms, p90 ([\d.]+) ms, p99 ([\d.]+) ms")


def push(server: Server, options: argparse.Namespace, seconds: float) -> str:
    """What `maar load` says when all is answered."""
    command = ["load", "--rate", str(options.rate), "--services", "20", "--pods", "10"]
    command += ["--seconds", str(seconds), "--server", server.url]
    command += [word for path in options.files for word in ("--file", str(path))]
    return subprocess.run(
        [sys.executable, "-c", CLI, *command],
        env=server.env,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


def metric(server: Server, name: str) -> float:
    lines = server.get("/metrics").splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm", type=float, default=15.0)
    parser.add_argument("--files", type=Path, nargs="*", default=[])
    options = parser.parse_args()
    load_before = load_now()
    interval_ms = SegmentSettings().flush_interval_ms
    server = Server(Path(__file__).resolve().parents[1] / "src")
    try:
        server.wait_until(lambda: bool(server.get("/ready")), READY_S)
        push(server, options, options.warm)
        names = ("maar_segment_puts_total", "maar_segment_fixed_cuts_total")
        before = [metric(server, name) for name in names]
        said = push(server, options, options.seconds)
        puts, cuts = (metric(server, name) - was for name, was in zip(names, before, strict=True))
    finally:
        server.stop()
    waited = _WAITED.search(said)
    if waited is None:
        sys.exit(f"no push was answered: {said}")
    for name, text in zip(("p50", "p90", "p99"), waited.groups(), strict=True):
        value = float(text)
        print(
            f"lone_push_{name} {value:.0f} ms {value / interval_ms:.3f} flush_of_{interval_ms}_ms"
        )
    print(f"lone_push_puts {puts:.0f} PUTs {puts / max(cuts, 1):.3f} fixed_flush_{cuts:.0f}")
    tell_of_neighbours(load_before)


if __name__ == "__main__":
    main()
