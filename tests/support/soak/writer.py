"""Pushes known profiles at a steady pace through the real segment writer, until each is taken."""

from __future__ import annotations

import asyncio
import gzip
import threading
import time
from random import Random
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from maar.adapters.rpc import MetastoreClient
from maar.adapters.system_clock import SystemClock
from maar.model.errors import Retryable
from maar.model.ids import ANONYMOUS, ProfileId, Shard, TenantId
from maar.model.labels import labels_of
from maar.model.profile import RawProfile, profile_id
from maar.ports.stores.object_store import ObjectStore
from maar.segment.service import SegmentService
from maar.segment.settings import SegmentSettings
from support.load.crowd import CPU, profile

TENANTS = (ANONYMOUS, TenantId("acme"))
SHARDS = (Shard(1), Shard(2))
SERVICE = "soak"
WAITING_MAX = 200  # pushes without an answer; then the pace has to wait
SETTINGS = SegmentSettings(flush_interval_ms=250, ack_deadline_ms=60_000)


class Pushed(NamedTuple):
    """What a reader must find of a profile: one function that counts one."""

    tenant: TenantId
    function: str
    time_ns: int


def make_profile(pushed: Pushed) -> RawProfile:
    tenant, function, time_ns = pushed
    body = profile(function=function, value=1, time_ns=time_ns)
    labels = labels_of([("__name__", "process_cpu"), ("service_name", SERVICE)])
    return RawProfile(
        id=profile_id(tenant=tenant, labels=labels, time_ns=time_ns, client_id="", body=body),
        tenant=tenant,
        service=SERVICE,
        labels=labels,
        types=(CPU,),
        time_ns=time_ns,
        duration_ns=1_000_000_000,
        samples=2,
        payload=gzip.compress(body, 1),
        raw_size=len(body),
    )


class Writer:
    """Runs in a thread with a loop of its own."""

    def __init__(self, metastore: str, store: ObjectStore, *, pace_s: float, seed: int) -> None:
        self.acknowledged: dict[ProfileId, Pushed] = {}
        self.repeated: set[ProfileId] = set()  # refused once: there may be an object of it
        self._metastore = metastore
        self._store = store
        self._pace_s = pace_s
        self._seed = seed
        self._enough = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="soak-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def enough(self) -> None:
        """Push nothing new, only what is not acknowledged yet."""
        self._enough.set()

    def is_finished(self) -> bool:
        """Everything is acknowledged."""
        if self._failure is not None:
            raise self._failure
        return not self._thread.is_alive()

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # noqa: BLE001  # told by finished()
            self._failure = error

    async def _run(self) -> None:
        metastore = MetastoreClient(self._metastore)
        service = SegmentService(
            SETTINGS,
            self._store,
            metastore,
            SystemClock(),
            Random(self._seed),
            CollectorRegistry(),
            "soak",
        )
        room = asyncio.Semaphore(WAITING_MAX)
        number = 0
        async with asyncio.TaskGroup() as pushes:
            while not self._enough.is_set():
                await room.acquire()
                number += 1
                one = Pushed(TENANTS[number % len(TENANTS)], f"lane_{number}", time.time_ns())
                shard = SHARDS[number // len(TENANTS) % len(SHARDS)]
                pushes.create_task(self._push(service, shard, one, room))
                await asyncio.sleep(self._pace_s)
        await service.stop()
        await metastore.close()

    async def _push(
        self, service: SegmentService, shard: Shard, one: Pushed, room: asyncio.Semaphore
    ) -> None:
        """As an agent would: the same again until it is taken."""
        raw = make_profile(one)
        while True:
            try:
                await service.push(shard, (raw,))
            except Retryable:
                self.repeated.add(raw.id)
                await asyncio.sleep(self._pace_s)
            else:
                self.acknowledged[raw.id] = one
                room.release()
                return
