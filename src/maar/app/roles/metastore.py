"""One replica of the metastore in this process: its log, its fold, its service, its health.

Its health can be asked before it has read its log, and also after it has stopped serving.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from maar.adapters.rpc import Channel, serve_metastore
from maar.adapters.system_clock import SystemClock
from maar.app.health.disks import disks_of
from maar.app.processes.long_lived import long_lived
from maar.app.roles.cleaner import cleaner
from maar.app.roles.health_http import serve_health
from maar.app.roles.marker import check_not_ended
from maar.app.roles.replica import replica_place
from maar.app.roles.wiring import (
    RoleStatus,
    build_first_store,
    build_stores,
    new_registry,
    open_log,
)
from maar.app.settings.config import Settings
from maar.app.settings.log_url import url_of
from maar.app.settings.tenants import Tenants
from maar.background import Loop, cancel, run_until_first_ends
from maar.metastore.service import MetastoreService
from maar.model.errors import InvalidInput, MaarError, Retryable, StoreFull, Unavailable
from maar.model.ids import Incarnation
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.probe import probe

log = logging.getLogger("maar.metastore")

SNAPSHOT_TIMEOUT_S = 600
CHECK_EVERY_S = 5.0
PROBE_EVERY_S = 1.0
UNKNOWN_LEADER_EVERY_S = 10.0


@asynccontextmanager
async def run(
    settings: Settings, stop: asyncio.Event, listener: socket.socket | None
) -> AsyncIterator[asyncio.Task[None]]:
    """Gives the task that ends when the metastore cannot go on; it answers by then, or `stop` is
    set.

    With a listener it serves health and metrics by HTTP there.
    """
    place = replica_place(settings)
    registry = new_registry("metastore")
    store = build_first_store(settings)
    tenants = Tenants(settings)
    lines = Lines()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(lines.close)
        service = MetastoreService(
            await open_log(settings, registry),
            store,
            SystemClock(),
            settings.policy(),
            entropy=secrets.token_bytes,
            candidate=place.candidate,
            take_snapshot=snapshot_in_another_process(settings),
            registry=registry,
            dead_after_ms=settings.ring.dead_after_ms,
            placement=settings.placement,
            limits=tenants.placement,
            others=place.others,
            connect=lines.to,
            log_url=url_of(settings.log_place),
            begin_anew=settings.metastore.begin_anew,
            stores=build_stores(settings),
            given_stores=tenants.stores,
            loading=long_lived,
        )
        stack.push_async_callback(service.stop)
        beginning = Beginning()
        no_room = _no_room
        if listener is not None:  # else the front of this host tells of its disks
            no_room = disks_of(settings, SystemClock()).register_in(registry).no_room_to_read
        told = RoleStatus(registry, lambda: beginning.trouble or service.ready() or no_room())
        server = await serve_metastore(place.listen, service, told)
        stack.push_async_callback(server.stop)
        await stack.enter_async_context(serve_health(told, registry, listener))
        known = {place.candidate.address, *place.others}
        life = asyncio.create_task(_live(service, store, tenants, beginning, known))
        stack.push_async_callback(cancel, life)
        await _any(beginning.over.wait(), stop.wait(), life)
        if life.done():
            life.result()
        yield life


def _no_room() -> str:
    return ""


class Lines:
    """Connections to the other replicas, closed with this one."""

    def __init__(self) -> None:
        self._clients: dict[str, Channel] = {}

    def to(self, address: str) -> Channel:
        if address not in self._clients:
            self._clients[address] = Channel(address)
        return self._clients[address]

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()


class Beginning:
    """What the start is waiting for, until the replica answers."""

    def __init__(self) -> None:
        self.trouble = ""
        self.over = asyncio.Event()


async def _live(
    service: MetastoreService,
    store: ObjectStore,
    tenants: Tenants,
    beginning: Beginning,
    known: set[str],
) -> None:
    await _probe_store(store, beginning)
    try:
        await service.start()
    except InvalidInput:
        raise  # neither a restart nor waiting would help
    except MaarError:
        pass  # it has logged why, and keeps answering health checks
    await _check_not_ended(service, store)
    beginning.over.set()
    await run_until_first_ends(
        service.wait_defect,
        tenants.follow,
        lambda: _keep_checking(service, store),
        lambda: _warn_of_unknown_leader(service, known),
        cleaner(service, store).run,
    )


async def _probe_store(store: ObjectStore, beginning: Beginning) -> None:
    """Return when the store is known to honour conditional writes; InvalidInput if it does not."""
    while True:
        try:
            await asyncio.to_thread(probe, store)
        except StoreFull as error:
            # Queries need no room, and conditional writes worked before.
            log.warning("store not probed for conditional writes cause=%s", error)
        except Retryable as error:
            log.warning("store does not answer yet cause=%s", error)
            beginning.trouble = f"the object store does not answer: {error}"
            await asyncio.sleep(PROBE_EVERY_S)
            continue
        beginning.trouble = ""
        return


async def _keep_checking(service: MetastoreService, store: ObjectStore) -> None:
    """The log may be restored elsewhere while we run.

    Not a `background.Loop`: what is raised here has to end this process.
    """
    while True:
        await asyncio.sleep(CHECK_EVERY_S)
        await _check_not_ended(service, store)


async def _warn_of_unknown_leader(service: MetastoreService, known: set[str]) -> None:
    """Replicas that do not know each other would count votes and versions wrongly."""
    warned = ""

    async def look() -> None:
        nonlocal warned
        leader = (await service.replica()).leader
        if leader and leader not in known and leader != warned:
            warned = leader
            log.warning(
                "the leader is not one of the replicas in roles.metastore; list all of them "
                "there, at every replica leader=%s",
                leader,
            )

    await Loop(
        look, failed="address of the leader not checked", log=log, every_s=UNKNOWN_LEADER_EVERY_S
    ).run()


async def _check_not_ended(service: MetastoreService, store: ObjectStore) -> None:
    if incarnation := Incarnation((await service.replica()).incarnation):
        await asyncio.to_thread(check_not_ended, store, incarnation)


async def _any(*waits: Awaitable[object]) -> None:
    """Wait for the first of them; tasks created for this are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, wait in zip(tasks, waits, strict=True):
            if task is not wait:
                task.cancel()


def snapshot_in_another_process(
    settings: Settings, *, timeout_s: float = SNAPSHOT_TIMEOUT_S
) -> Callable[[], Awaitable[int]]:
    """Make a snapshot in another process, since replaying the log would stall the metastore (S13,
    S15).

    It is not started through the event loop: uvloop forks and runs Python in a copy of a process
    with gRPC's threads, which sometimes crashes. `subprocess` runs no Python between fork and exec.
    """

    async def take() -> int:
        process = subprocess.Popen(  # in this thread: the process dies with the one that made it
            [sys.executable, "-m", "maar.app.roles.snapshotter", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        told = msgspec.json.encode(settings)
        ended = asyncio.ensure_future(asyncio.to_thread(process.communicate, told))
        try:
            async with asyncio.timeout(timeout_s):
                shown, _ = await asyncio.shield(ended)
        except TimeoutError:
            raise Unavailable(f"the snapshot took over {timeout_s:g} s") from None
        finally:
            process.kill()
            await ended
        if process.returncode != 0 or not shown.strip().isdigit():
            raise Unavailable(f"the snapshot process ended with code {process.returncode}")
        return int(shown)

    return take
