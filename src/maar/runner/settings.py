"""Where and how plans are run by Spark."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

_MASTER = r"^(local(\[(\*|[1-9]\d*)(,\s*\d+)?\])?|(spark|k8s)://.+|yarn)$"


class SparkSettings(Struct, frozen=True, kw_only=True):
    """Where and how plans are run."""

    master: Annotated[str, Meta(pattern=_MASTER)] = "local[*]"
    slots: Annotated[int, Meta(ge=0, le=10_000)] = 0  # plans at once; 0: as many as cores
    driver_memory: Annotated[str, Meta(pattern=r"^\d+[mg]$")] = "1g"
    ui: bool = False
    ui_port: Annotated[int, Meta(ge=0, le=65_535)] = 4050
    lifeline_port: Annotated[int, Meta(ge=0, le=65_535)] = 0  # where tasks reach us; 0: a free one
    log_level: Literal["off", "error", "warn", "info", "debug"] = "warn"
    python: str = ""  # what runs the tasks; this interpreter when empty
    java_options: str = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # the JVM only schedules
    conf: tuple[str, ...] = ()  # more of Spark's own settings, as name=value
