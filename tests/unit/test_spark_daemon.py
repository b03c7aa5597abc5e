"""Tasks are forked from a process that has loaded what they need, and has one thread."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

LOADED = """
import ctypes, json, sys, threading
from pyspark import daemon as theirs
from maar.runner import daemon

def fork_nothing():
    print(json.dumps([daemon.threads_of_this_process(), "pyarrow" in sys.modules,
                      "numba" in sys.modules, "maar.services.compact.run" in sys.modules,
                      sys.modules["pyarrow"].default_memory_pool().backend_name]))

def count_arenas():
    c = ctypes.CDLL(None)
    c.fdopen.restype = ctypes.c_void_p
    allocated, counted = threading.Barrier(5), threading.Event()
    def allocate():
        held = bytearray(50_000)
        allocated.wait()
        counted.wait()
    several = [threading.Thread(target=allocate) for _ in range(4)]
    for each in several:
        each.start()
    allocated.wait()
    out = ctypes.c_void_p(c.fdopen(1, b"w"))
    c.malloc_info(0, out)
    c.fflush(out)
    counted.set()

theirs.manager = fork_nothing
{before}
daemon.main()
"""


def daemon_says(before: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LOADED.format(before=before)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
        env=dict(os.environ),
    )


def test_all_that_tasks_need_is_loaded_by_one_thread_with_one_allocator() -> None:
    said = daemon_says()
    assert said.stdout == '[1, true, true, true, "system"]\n', said.stderr


def test_threads_of_tasks_share_one_arena() -> None:
    """Each would keep what it has freed to itself: a tenth of what a plan takes at its peak."""
    said = daemon_says("theirs.manager = count_arenas")
    assert said.stdout.count("<heap ") == 1, said.stderr


@pytest.mark.parametrize(
    "before",
    [
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "from maar.services import runs; runs.load = lambda: 1 / 0",
    ],
)
def test_else_the_daemon_is_sparks_own(before: str) -> None:
    replaced = (
        "import os; os.execv = lambda *given: (print(given[1][1:3], flush=True), os._exit(0))"
    )
    said = daemon_says(f"{before}\n{replaced}")
    assert "loaded before tasks are forked" in said.stderr
    assert "pyspark.daemon" in said.stdout
