# mypy: disallow-untyped-decorators=False
"""Which runs of a part a query is about. Pure, and compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from maar.pprof.kernel import allocating_kernel
from maar.query.decide.totals import Flags, Int, Totals, hidden_runs

_NONE: Flags = np.zeros(0, np.bool_)


def choose_runs(
    totals: Totals,
    groups: Flags,
    *,
    start_us: int,
    end_us: int,
    masks: Sequence[tuple[str, int, int]] = (),
) -> tuple[Int, Flags]:
    """The runs of some groups, in a range of time, that were not deleted; and whose they are."""
    hidden = hidden_runs(totals, masks) if masks else _NONE
    found: tuple[Int, Flags] = _choose(totals.group, totals.time, groups, hidden, start_us, end_us)
    return found


def warm() -> None:
    """Load the compiled code, or have it compiled."""
    _choose(np.zeros(1, np.int32), np.zeros(1, np.int64), np.ones(1, np.bool_), _NONE, 0, 1)


@allocating_kernel
def _choose(group: Any, time: Any, wanted: Any, hidden: Any, start: int, end: int) -> Any:
    runs = np.empty(group.size, np.int64)
    groups = np.zeros(wanted.size, np.bool_)
    count = 0
    for run in range(group.size):
        if not wanted[group[run]] or time[run] < start or time[run] >= end:
            continue
        if hidden.size and hidden[run]:
            continue
        runs[count] = run
        count += 1
        groups[group[run]] = True
    return runs[:count], groups
