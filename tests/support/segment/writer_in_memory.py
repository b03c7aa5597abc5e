"""A segment writer with everything around it in memory, and profiles to push to it."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from random import Random

import pyarrow as pa
from prometheus_client import CollectorRegistry

from maar.model.ids import ProfileId, Shard, TenantId
from maar.model.profile import RawProfile
from maar.ports.clock import Clock
from maar.segment.service import SHARDS_REMEMBERED, SegmentService
from maar.segment.settings import SegmentSettings
from support.clock.virtual_time import Gate, LoopClock, run_virtually, until
from support.http.memory_metastore import MemoryMetastore
from support.http.pushed import CPU, NOW_NS, FailingStore, gz, pprof
from support.lake.segments import read_segment

ONE = Shard(1)
QUICK = SegmentSettings(flush_interval_ms=5, flush_interval_max_ms=5, ack_deadline_ms=2_000)

_PPROF = gz(pprof())


def raw_profile(
    number: int = 0, *, tenant: str = "acme", service: str = "shop", size: int = 0
) -> RawProfile:
    return RawProfile(
        id=ProfileId(number.to_bytes(16, "big")),
        tenant=TenantId(tenant),
        service=service,
        labels=(("service_name", service),),
        types=(CPU,),
        time_ns=NOW_NS + number,
        duration_ns=0,
        samples=1,
        payload=_PPROF + bytes(size),
        raw_size=100,
    )


class World:
    def __init__(
        self,
        settings: SegmentSettings = QUICK,
        store: FailingStore | None = None,
        metastore: MemoryMetastore | None = None,
        clock: Clock | None = None,
        letter_after_ms: int | None = None,
        shards_remembered: int = SHARDS_REMEMBERED,
    ) -> None:
        self.store = store or FailingStore()
        self.metastore = metastore or MemoryMetastore()
        self.registry = CollectorRegistry()
        self.service = SegmentService(
            settings,
            self.store,
            self.metastore,
            clock or LoopClock(),
            Random(4711),
            self.registry,
            "here",
            dead_letter_after_ms=letter_after_ms,
            shards_remembered=shards_remembered,
        )

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"maar_segment_{name}", labels) or 0.0

    def stored_profiles(self) -> list[RawProfile]:
        """What queries would find by the index."""
        return [
            one
            for block in self.metastore.index.values()
            for one in read_segment(
                pa.BufferReader(self.store.objects[block.files[0].locations[0].key])
            )
        ]


def in_world(
    story: Callable[[World], Awaitable[None]],
    settings: SegmentSettings = QUICK,
    store: FailingStore | None = None,
    metastore: MemoryMetastore | None = None,
    clock: Clock | None = None,
    letter_after_ms: int | None = None,
    shards_remembered: int = SHARDS_REMEMBERED,
) -> World:
    """Tell a story, then stop; whatever happened, no memory may be left behind."""

    async def run_story() -> World:
        world = World(settings, store, metastore, clock, letter_after_ms, shards_remembered)
        await world.service.start()
        await story(world)
        await world.service.stop()
        assert world.value("in_flight") == 0
        for name in ("buffered_bytes", "buffered_profiles", "tenants_held"):
            await until(lambda: world.value(name) == 0)  # noqa: B023  # asked before the next turn
        return world

    return run_virtually(run_story())


class SlowStore(FailingStore):
    """The creates for which `slow` is true (by their number, from 1) wait until they are let go."""

    def __init__(self, slow: Callable[[int], bool]) -> None:
        super().__init__()
        self.gate = Gate()
        self.entered = 0
        self._slow = slow
        self._lock = threading.Lock()

    def create(self, key: str, body: bytes) -> None:
        with self._lock:
            self.entered += 1
            slow = self._slow(self.entered)
        if slow:
            self.gate.wait()
        super().create(key, body)
