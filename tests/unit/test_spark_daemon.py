"""Tasks are forked from a process that has loaded what they need, and has one thread."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

LOADED = """
import json, sys
from pyspark import daemon as theirs
from maar.runner import daemon

def fork_nothing():
    print(json.dumps([daemon.threads_of_this_process(), "pyarrow" in sys.modules,
                      "numba" in sys.modules, "maar.services.compact.run" in sys.modules,
                      sys.modules["pyarrow"].default_memory_pool().backend_name]))

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
