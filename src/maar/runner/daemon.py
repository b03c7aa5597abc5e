"""The parent of the processes in which tasks run: it loads once what plans need, then they fork.

Spark starts it as `python -m maar.runner.daemon`, in place of its own `pyspark.daemon`. A process
of a slot, also one that follows a killed one, then begins with everything loaded, and shares that
memory with the others.
"""

from __future__ import annotations

import gc
import logging

from pyspark.daemon import manager

from maar.services import runs

log = logging.getLogger("maar.spark")


def main() -> None:
    try:
        runs.load()
    except Exception as error:  # noqa: BLE001  # the task that warms up meets it too, and can answer
        log.warning("plans are loaded in every process of Spark, not once cause=%s", error)
    gc.freeze()  # else the first collection of a child copies these pages
    manager()


if __name__ == "__main__":
    main()
