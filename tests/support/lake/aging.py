"""A lake whose blocks have an age, and the cleaner that lets them expire."""

from __future__ import annotations

from typing import Any

import msgspec

from maar.metastore.fold.deleting import retention, trust
from maar.metastore.leader.deleting.cleaner import BOUNDS, CleanerBounds
from maar.model.block import BlockMeta
from maar.model.ids import BlockId
from maar.model.time import DAY_NS, WallTime
from maar.ports.operator.retention import RetentionStatus
from support.clock.virtual_time import run_virtually
from support.lake.fold_and_store import Lake, with_time
from support.metastore.fold import SMALL, segment

KEPT_DAYS = 90
POLICY = msgspec.structs.replace(SMALL, retention_ns=KEPT_DAYS * DAY_NS)
YEAR_NS = 365 * DAY_NS


def lake(bounds: CleanerBounds = BOUNDS, **policy: Any) -> Lake:
    return Lake(msgspec.structs.replace(POLICY, **policy), bounds=bounds)


def add_old(world: Lake, number: int, days: float, **how: Any) -> BlockMeta:
    """A segment whose profiles are so many days old by the lake's clock."""
    time_ns = world.clock.wall - int(days * DAY_NS)
    meta = with_time(segment(number, at=world.fold.now, **how), time_ns)
    world.register(meta)
    return meta


def run(world: Lake) -> int:
    return run_virtually(world.cleaner.expire())


def release(world: Lake) -> None:
    for entry in trust.release_entries():
        world.fold.put(entry)


def live_blocks(world: Lake) -> set[BlockId]:
    return world.fold.live()


def status(world: Lake) -> RetentionStatus:
    return retention.status(world.state, now=world.now(), wall=WallTime(world.clock.wall))


def undone(world: Lake, tenant: str = "") -> tuple[int, int]:
    made = run_virtually(world.cleaner.undo(tenant=tenant, why="it was a mistake"))
    return made.blocks, made.profiles


def pause_reason(world: Lake) -> str:
    return status(world).paused
