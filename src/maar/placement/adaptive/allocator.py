"""How many shards a dataset gets: scales out as fast as its load grows, in after a decay window.

What is observed lags what happens by tens of seconds. So growth that repeats within the burst
window is answered with more than was observed, at most twice as much; and what is given back is
only what was not needed in this decay window nor in the one before. Growth is what goes beyond the
allotment: a load that trembles about a multiple of the unit is none.
"""

from __future__ import annotations

from typing import NamedTuple

from maar.model.time import SECOND_NS
from maar.placement.rules import TenantLimits

MULTIPLIER_MAX = 16
NEVER = 0  # as a time


class Allotment(NamedTuple):
    """A dataset's shards, and what the next decision needs of the ones before."""

    shards: int = 0
    burst_ns: int = NEVER  # when it last grew
    multiplier: int = 1
    decay_ns: int = NEVER  # when the present decay window began
    least: int = 0  # needed in it so far
    least_before: int = 0  # and in the whole of the one before


def resume(shards: int, now_ns: int) -> Allotment:
    """As another left it, or a default: nothing is given back for a decay window."""
    return Allotment(shards=shards, decay_ns=now_ns, least=shards)


def observe(before: Allotment, usage: int, limits: TenantLimits, now_ns: int) -> Allotment:
    """The allotment after a load of `usage` bytes a second was seen."""
    target = usage // limits.unit_bytes + 1
    burst_ns, multiplier = before.burst_ns, before.multiplier
    growth = target - max(before.least, before.least_before)
    if growth > 0:
        if _over(before.burst_ns, limits.burst_window_s, now_ns):
            multiplier = 1
        else:
            multiplier = min(MULTIPLIER_MAX, multiplier * 2)
            target = min(2 * target, target + growth * multiplier)
        burst_ns = now_ns
    decay_ns, least, least_before = before.decay_ns, before.least, before.least_before
    if _over(decay_ns, limits.decay_window_s, now_ns):
        decay_ns, least, least_before = now_ns, target, least
    least = max(least, target)
    shards = max(limits.dataset_shards_min, least_before, least)
    return Allotment(
        shards=min(limits.dataset_shards_max, shards),
        burst_ns=burst_ns,
        multiplier=multiplier,
        decay_ns=decay_ns,
        least=least,
        least_before=least_before,
    )


def _over(began_ns: int, window_s: float, now_ns: int) -> bool:
    return began_ns == NEVER or now_ns - began_ns >= window_s * SECOND_NS
