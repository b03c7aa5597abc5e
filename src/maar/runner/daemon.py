"""PySpark's daemon, from which the processes of tasks are forked, with all that tasks need loaded.

What is loaded before the fork is in memory once, however many tasks run at once, and the first task
of a process does not wait for it. A fork copies one thread only, so nothing that is loaded here may
start another: libraries that would are told not to. Should one do so all the same, or not load at
all, the daemon is PySpark's own, and every process loads what it needs.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

# Before the libraries that read them are imported.
ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",  # NumPy's; tasks do no linear algebra
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
# Arrow's own allocator keeps most of what a task has freed, also when it is asked to give it back,
# and none of it serves NumPy, which needs as much before and after.
ONE_ALLOCATOR = {"ARROW_DEFAULT_MEMORY_POOL": "system"}
_ARENAS_MAX = -8  # glibc's M_ARENA_MAX


def main() -> None:
    os.environ.update({**ONE_THREAD, **ONE_ALLOCATOR, **os.environ})  # noqa: TID251  # libraries read it
    leave_archives_out()
    from pyspark import daemon

    if not _loads_without_threads():
        os.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]])
    have_one_arena()
    gc.collect()
    gc.freeze()  # a collection in a task would write to, and so copy, all that is shared
    daemon.manager()


def leave_archives_out() -> None:
    """Import PySpark as it is installed, not from the archives of it that Spark names first.

    Python reads an archive's table of contents anew for each package in it before each task, since
    files may have come with the task: a tenth of a second, and 15 MB in every process.
    """
    for archive in archives_of_installed(sys.path):
        sys.path.remove(archive)
        sys.path_importer_cache.pop(archive, None)


def archives_of_installed(places: Sequence[str]) -> list[str]:
    """Which archives among them are a part of the PySpark that is found without them."""
    files = [place for place in places if Path(place).is_file()]
    folders = [place for place in places if place not in files]
    spark, bridge = (PathFinder.find_spec(name, folders) for name in ("pyspark", "py4j"))
    if spark is None or spark.origin is None or bridge is None:
        return []
    home = Path(spark.origin).parent
    return [place for place in files if Path(place).is_relative_to(home)]


def _loads_without_threads() -> bool:
    said = os.dup(1)  # Spark reads the daemon's port from there, and nothing else may be written
    os.dup2(2, 1)
    try:
        from pyspark import worker  # noqa: F401  # which every process would import

        from maar.runner import task
        from maar.services import runs

        task.load_once(runs.load)
    except Exception as error:  # noqa: BLE001  # whatever it is, the task that needs it says so
        sys.stderr.write(f"not loaded before tasks are forked: {error}\n")
        return False
    finally:
        sys.stdout.flush()
        os.dup2(said, 1)
        os.close(said)
    threads = threads_of_this_process()
    if threads > 1:
        sys.stderr.write(f"nothing is loaded before tasks are forked: {threads} threads run\n")
    return threads == 1


def have_one_arena() -> None:
    """Else each thread of a task keeps what it has freed for itself; tasks inherit it."""
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).mallopt(_ARENAS_MAX, 1)


def threads_of_this_process() -> int:
    """All of them, not only Python's."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else 2  # who knows: load nothing


if __name__ == "__main__":
    main()
