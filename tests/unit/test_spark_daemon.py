"""Tasks are forked from a process that has loaded what they need, and has one thread."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from maar.runner.daemon import archives_of_installed

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


def test_what_is_loaded_before_the_fork_is_not_loaded_again_after_it() -> None:
    """The warm-up of each process would copy what it shares with the others."""
    again = """
from maar.runner.task import load_once
from maar.services import runs
loads = []
runs.load = lambda: loads.append("loaded")
theirs.manager = lambda: (load_once(runs.load), print(loads))
"""
    said = daemon_says(again)
    assert said.stdout == "['loaded']\n", said.stderr


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


def installed(site: Path, *names: str) -> Path:
    """A folder with these packages, and an archive of Spark's own in its package."""
    for name in names:
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").touch()
    archive = site / "pyspark" / "python" / "lib" / "pyspark.zip"
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.touch()
    return archive


def test_archives_of_the_pyspark_that_is_installed_are_left_out(tmp_path: Path) -> None:
    site = tmp_path / "site"
    archive = installed(site, "pyspark", "py4j")
    (theirs := tmp_path / "users.zip").touch()
    places = ["", str(archive), str(theirs), str(tmp_path / "missing.zip"), str(site)]
    assert archives_of_installed(places) == [str(archive)]


@pytest.mark.parametrize("names", [(), ("pyspark",), ("py4j",)])
def test_archives_stay_where_something_is_found_in_them_only(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    archive = installed(tmp_path / "site", *names)
    assert archives_of_installed([str(archive), str(tmp_path / "site")]) == []


def test_archives_of_another_spark_stay(tmp_path: Path) -> None:
    """As with SPARK_HOME: tasks have the PySpark of that Spark."""
    installed(tmp_path / "site", "pyspark", "py4j")
    other = installed(tmp_path / "home", "pyspark", "py4j")
    assert archives_of_installed([str(other), str(tmp_path / "site")]) == []
