"""Whether a series keeps its shard, or its profiles go to any of the dataset's shards by chance.

By fingerprint, until the shards prove too uneven. By chance they are even whatever the series are,
so nothing that is observed then tells whether the series still are uneven. There are two ways back
(docs/decisions/0014-back-to-fingerprint.md): the whole dataset has long been too small to make any
shard hot; or a trial, after a hold that doubles whenever a trial did not last.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import NamedTuple

from maar.model.time import SECOND_NS
from maar.placement.rules import Balancing, TenantLimits

HOT = 2  # units on one shard: less is no trouble, however uneven
QUIET = 1  # units of the whole dataset, below which no shard of it can become hot soon
SHARDS_MIN = 2
OFF_BY = 2  # a dataset seen on fewer than half, or more than twice, its shards is not judged
UNEVEN = 2  # deviation times this reaches the mean
FAILED_MAX = 4  # trials that still double the hold


class SpreadState(NamedTuple):
    """How a dataset is balanced now, and what that is to be judged by."""

    balancing: Balancing = Balancing.FINGERPRINT
    since_ns: int | None = None  # None: it was never anything else
    quiet_ns: int | None = None  # since when the whole dataset has been small
    failed: int = 0  # trials in a row that did not last


class DatasetLoad(NamedTuple):
    """What a dataset's shards took, in the zone where it is largest."""

    usage: int  # bytes a second, of all
    usages: Sequence[int]  # of each shard, the largest first
    deviation: int  # of them, over the last builds
    deviation_now: int
    shards: int  # that it may use


def deviation(usages: Sequence[int]) -> int:
    """The standard deviation, in whole numbers."""
    if not usages:
        return 0
    mean = sum(usages) // len(usages)
    return isqrt(sum((usage - mean) ** 2 for usage in usages) // len(usages))


def uneven(usages: Sequence[int], *, deviation: int, shards: int, unit_bytes: int) -> bool:
    """Some shard is hot, because the series are too unlike each other or too few."""
    seen = len(usages)
    if seen < SHARDS_MIN or seen * OFF_BY < shards or seen > shards * OFF_BY:
        return False
    if max(usages) < HOT * unit_bytes:
        return False
    return deviation * UNEVEN * seen >= sum(usages)


def judge(before: SpreadState, load: DatasetLoad, limits: TenantLimits, now_ns: int) -> SpreadState:
    """How the dataset is balanced from now on."""
    if limits.balancing != "dynamic":
        return _as_set(before, limits, now_ns)
    if before.balancing is Balancing.ROUND_ROBIN:
        return _by_chance(before, load.usage, limits, now_ns)
    return _by_fingerprint(before, load, limits, now_ns)


def hold_ns(standing: SpreadState, limits: TenantLimits) -> int:
    """How long it stays by chance before fingerprints are tried again."""
    return int(limits.decay_window_s * SECOND_NS) << standing.failed


def _as_set(before: SpreadState, limits: TenantLimits, now_ns: int) -> SpreadState:
    wanted = Balancing.ROUND_ROBIN if limits.balancing == "round-robin" else Balancing.FINGERPRINT
    return before if before.balancing is wanted else SpreadState(wanted, now_ns)


def _by_fingerprint(
    before: SpreadState, load: DatasetLoad, limits: TenantLimits, now_ns: int
) -> SpreadState:
    lasted = before.since_ns is None or now_ns - before.since_ns >= hold_ns(before, limits)
    # A trial that goes wrong loads one shard with all: it ends without waiting for the average.
    spread = load.deviation if lasted else max(load.deviation, load.deviation_now)
    if not uneven(load.usages, deviation=spread, shards=load.shards, unit_bytes=limits.unit_bytes):
        return before
    failed = 0 if lasted else min(FAILED_MAX, before.failed + 1)
    return SpreadState(Balancing.ROUND_ROBIN, now_ns, None, failed)


def _by_chance(before: SpreadState, usage: int, limits: TenantLimits, now_ns: int) -> SpreadState:
    quiet_ns = before.quiet_ns
    if usage >= QUIET * limits.unit_bytes:
        quiet_ns = None
    elif quiet_ns is None:
        quiet_ns = now_ns
    quiet = quiet_ns is not None and now_ns - quiet_ns >= limits.decay_window_s * SECOND_NS
    tried = before.since_ns is None or now_ns - before.since_ns >= hold_ns(before, limits)
    if quiet or tried:
        return SpreadState(Balancing.FINGERPRINT, now_ns, None, before.failed)
    return before._replace(quiet_ns=quiet_ns)
