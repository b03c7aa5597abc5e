"""A benchmark in small: it runs in a process of its own, and its lines are read."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import NamedTuple

BENCH = Path(__file__).parents[3] / "bench"
MARK = "MAAR_BENCH_RUN"


class Line(NamedTuple):
    """What a benchmark says of one number."""

    name: str
    value: float
    unit: str
    ratio: str
    baseline: str


def run(name: str, *arguments: str, temporary: Path) -> tuple[list[Line], str]:
    """The lines of a benchmark and all that it said; nothing of it is left on the machine."""
    mark = uuid.uuid4().hex
    done = subprocess.run(
        [sys.executable, str(BENCH / name), *arguments],
        env={**os.environ, MARK: mark, "TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    wait_until_gone(mark)
    assert not list(temporary.glob("maar-*")), "its directory was left behind"
    said = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert all(len(words) == 5 for words in said), done.stdout
    lines = [Line(name, float(value), *rest) for name, value, *rest in said]
    return lines, done.stdout


def wait_until_gone(mark: str) -> None:
    """Servers, JVMs and their children carry the mark of the run in their environment."""
    deadline = time.monotonic() + 60
    while left := lines_with(mark):
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.1)


def lines_with(mark: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


def by_name(lines: list[Line]) -> dict[str, Line]:
    return {line.name: line for line in lines}
