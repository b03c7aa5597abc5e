"""Where and how plans are run by Spark."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

_MASTER = r"^(local(\[(\*|[1-9]\d*)(,\s*\d+)?\])?|(spark|k8s)://.+|yarn)$"


class SparkSettings(Struct, frozen=True, kw_only=True):
    """Where and how plans are run."""

    master: Annotated[str, Meta(pattern=_MASTER)] = "local[*]"
    """Where compaction runs. Flag `--spark-master`."""
    slots: Annotated[int, Meta(ge=0, le=10_000)] = 0
    """Plans at once; 0 means as many as cores."""
    driver_memory: Annotated[str, Meta(pattern=r"^\d+[mg]$")] = "1g"
    """The JVM's heap. It only schedules; the work is done in Python tasks."""
    ui: bool = False
    """Spark's own pages, which have no password. With a local master they listen on 127.0.0.1;
    under a cluster's master Spark listens on every interface and has no setting for it. The
    variable `SPARK_LOCAL_IP` says another address in both cases (under a cluster it is also by
    which executors reach the driver).
    """
    ui_port: Annotated[int, Meta(ge=0, le=65_535)] = 4050
    """Their port."""
    lifeline_port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    """Where tasks reach this worker, to hold on to it; 0 takes a free port. [spark.md](spark.md)
    says more.
    """
    log_level: Literal["off", "error", "warn", "info", "debug"] = "warn"
    """`off`, `error`, `warn`, `info` or `debug`."""
    python: str = ""
    """The interpreter of the tasks; empty: this one."""
    java_options: str = (
        "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xms32m -Xmn16m "
        "-XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=30 -Xss512k -XX:-UsePerfData"
    )
    """Options of the JVM. The heap begins small and gives back what it does not need. Counters for
    `jstat` are off: they are sampled twenty times a second, also by a JVM that has nothing to do.
    """
    conf: tuple[str, ...] = ()
    """More of Spark's own settings, each `spark.name=value`."""
