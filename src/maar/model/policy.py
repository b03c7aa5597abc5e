"""The numbers that rule compaction, leases and bounds; they reach the fold as an entry (S13)."""

from __future__ import annotations

import msgspec

from maar.model.errors import InvalidInput
from maar.model.time import SECOND_NS

MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 60 * MINUTE_NS


class Level(msgspec.Struct, frozen=True, array_like=True):
    """When a batch of blocks of one level closes: by count, by bytes or by age."""

    count: int
    bytes: int
    age_ns: int


class Policy(msgspec.Struct, frozen=True, array_like=True):
    """Append-only, like every record: new fields go last and have defaults."""

    levels: tuple[Level, ...] = (
        Level(count=20, bytes=256 << 20, age_ns=36 * SECOND_NS),
        Level(count=10, bytes=512 << 20, age_ns=12 * MINUTE_NS),
        Level(count=10, bytes=1 << 30, age_ns=3 * HOUR_NS),
    )
    target_block_bytes: int = 256 << 20  # a block of this size is not merged further
    span_ns: int = 3 * HOUR_NS  # how far apart the ages of one plan's inputs may be
    lease_ns: int = 15 * SECOND_NS
    stall_ns: int = 5 * SECOND_NS  # lease time counts no more than this for a pause of the leader
    failure_limit: int = 3
    retry_ns: int = 2 * SECOND_NS  # a plan that reported a failure waits this long, times failures
    probe_ns: int = 60 * SECOND_NS  # an excluded plan is tried again after this; it doubles
    probe_max_ns: int = 6 * HOUR_NS
    retire_delay_ns: int = 15 * MINUTE_NS  # replaced blocks stay readable this long, at least
    floor_lag_ns: int = HOUR_NS  # a segment registered later than this is refused (S4)
    pin_ns: int = 2 * MINUTE_NS
    finished_ns: int = HOUR_NS  # a repeated report gets the same answer this long
    blocks_max: int = 5_000_000  # live, retired and remembered together
    plans_max: int = 10_000
    finished_max: int = 1_000
    attempts_max: int = 16  # the latest attempts of one plan
    pins_max: int = 10_000
    snapshot_entries: int = 10_000  # a snapshot is due after this many entries
    snapshot_bytes: int = 64 << 20  # or this many bytes of them
    spared_max: int = 8  # after so many failures in a row that were not its own, they count
    least_share: int = 8  # of so many plans handed out, one is of each higher level that waits
    parked_max: int = 10_000
    litter_ns: int = 45 * MINUTE_NS  # an ended attempt is looked at this long: no task lives longer
    litter_max: int = 500_000  # ended attempts that may have left objects
    retention_ns: int = 90 * 24 * HOUR_NS  # how long profiles are kept; 0: for ever
    retention_run_max: int = 1_000  # blocks that retention takes in one run
    tenants_max: int = 100_000  # with a retention of their own
    zones_max: int = 64  # with a ring
    writers_max: int = 1_000  # in one ring
    shards_max: int = 16_384  # of one ring
    expired_delay_ns: int = 24 * HOUR_NS  # what retention took can be brought back this long

    def level(self, level: int) -> Level | None:
        """The rule for merging blocks of a level; None when they are never merged."""
        return self.levels[level] if 0 <= level < len(self.levels) else None


def checked(policy: Policy) -> Policy:
    """Refuse numbers with which nothing could ever run."""
    for number, level in enumerate(policy.levels):
        if level.count < 1 or level.bytes < 1 or level.age_ns < 0:
            raise InvalidInput(
                f"compaction level {number} needs a count and bytes of at least 1 and an age "
                f"of at least 0, not {level.count}, {level.bytes} and {level.age_ns}"
            )
    for name in ("target_block_bytes", "lease_ns", "stall_ns", "failure_limit", "probe_ns"):
        if getattr(policy, name) < 1:
            raise InvalidInput(f"{name} must be at least 1, not {getattr(policy, name)}")
    bounds = ("blocks_max", "plans_max", "finished_max", "attempts_max", "pins_max", "litter_max")
    for name in (*bounds, "zones_max", "writers_max", "shards_max"):
        if getattr(policy, name) < 1:
            raise InvalidInput(f"{name} bounds the state and must be at least 1")
    for name in ("litter_ns", "retention_ns", "expired_delay_ns"):
        if getattr(policy, name) < 0:
            raise InvalidInput(f"{name} is a time to keep something and cannot be negative")
    return policy
