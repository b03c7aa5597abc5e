"""A log with something in it, what restores it, and replicas over it."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from prometheus_client import CollectorRegistry

from maar.metastore.recovery import restoring
from maar.metastore.service import MetastoreService
from maar.model.ids import Incarnation
from maar.model.time import WallTime
from maar.ports.metastore.log import Candidate
from support.clock.fake_clock import FakeClock
from support.clock.virtual_time import run_virtually
from support.metastore.fold import SMALL
from support.metastore.logged import Logged
from support.metastore.memory_log import MemoryLog, SharedLog
from support.stores.memory_store import MemoryStore

NEW = Incarnation("00000002")
WALL = WallTime(1_800_000_000_000_000_000)


def run(test: Coroutine[Any, Any, None]) -> None:
    run_virtually(test)


async def new_log(*, entries: int = 3) -> Logged:
    found = Logged()
    await found.begin()
    await found.add(entries)
    return found


async def restore_into_new(ours: Logged, **how: Any) -> tuple[MemoryLog, restoring.Restored]:
    origin = how.pop("origin", None) or await restoring.newest(ours.store)
    log = how.pop("log", None) or MemoryLog(SharedLog())
    done = await restoring.restore(
        log, ours.store, origin, **{"incarnation": NEW, "wall": WALL, **how}
    )
    return log, done


def replica(store: MemoryStore, **how: Any) -> MetastoreService:
    async def take() -> int:
        return 0

    return MetastoreService(
        MemoryLog(SharedLog()),
        store,
        FakeClock(),
        SMALL,
        entropy=lambda count: b"\7" * count,
        candidate=Candidate("one"),
        take_snapshot=take,
        registry=CollectorRegistry(),
        **how,
    )
