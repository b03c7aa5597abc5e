"""A process gives back what it has freed once it is idle, and not while it works."""

from __future__ import annotations

import subprocess
import sys

from maar.app.processes.idle import Idleness

BUSY_S, IDLE_S = 1.0, 0.05  # of CPU, within two seconds


def begins(*used_s: float) -> list[bool]:
    """What the looks say, two seconds apart, between which so much CPU was used."""
    cpu_s, now_s = 10.0, 100.0
    idleness = Idleness(cpu_s=cpu_s, now_s=now_s)
    said = []
    for used in used_s:
        cpu_s, now_s = cpu_s + used, now_s + 2.0
        said.append(idleness.has_begun(cpu_s=cpu_s, now_s=now_s))
    return said


def test_memory_is_given_back_once_after_each_burst() -> None:
    assert begins(BUSY_S, BUSY_S, IDLE_S, IDLE_S, BUSY_S, IDLE_S, IDLE_S) == [
        *(False, False, True, False),
        *(False, True, False),
    ]


def test_memory_that_the_start_took_is_given_back() -> None:
    assert begins(IDLE_S, IDLE_S) == [True, False]


def test_what_a_burst_took_goes_back_to_the_system() -> None:
    """Small pieces between which something stays: the allocator alone gives nothing back."""
    script = """
import gc
from pathlib import Path
from maar.runner.give_back import give_back_freed

def mb():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) // 1024

pieces = [bytes(30_000) for _ in range(5_000)]
del pieces[:-1]
held = mb()
give_back_freed()
print(held, mb())
"""
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    held, left = map(int, said)
    assert held > 100
    assert left < 50
