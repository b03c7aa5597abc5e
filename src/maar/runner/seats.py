"""How many plans Spark can carry out at once, from what it says of its executors.

Executors come and go, so this is asked again and again. Where Spark scales them by itself, it does
so for tasks that wait: one plan more than there are seats is how it is asked to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SeenExecutors:
    """Spark's executors at one moment."""

    seats: int  # tasks that all executors together run at once
    executors: int
    running: int  # tasks that they run now


@dataclass(frozen=True, slots=True)
class Scaling:
    """Whether Spark adds executors when tasks wait, and up to how many."""

    most: int = 0  # 0: it does not


def scaling(conf: Mapping[str, str]) -> Scaling:
    """From Spark's own settings."""
    if conf.get("spark.dynamicAllocation.enabled", "false").lower() != "true":
        return Scaling()
    most = conf.get("spark.dynamicAllocation.maxExecutors", "")
    return Scaling(most=int(most) if most.isdigit() else 2**31 - 1)


def slots(seen: SeenExecutors, scaling: Scaling, *, strangers: int = 0, limit: int = 0) -> int:
    """Seats that strangers' tasks leave us, and one more while Spark can grow; 0 = no limit."""
    free = max(0, seen.seats - strangers)
    if seen.executors < scaling.most:
        free += 1
    return min(free, limit) if limit else free
