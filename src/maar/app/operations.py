"""Operator tasks on a metastore, through its replicas or directly on its log and store."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import msgspec

from maar.adapters.rpc import Channel
from maar.app.roles.wiring import build_first_store, build_stores, open_log, open_log_reader
from maar.app.settings.config import METASTORE_ADDRESS, Settings
from maar.metastore.recovery import backup, copying, restoring, traces
from maar.metastore.recovery.copying import CopyLog, Moved
from maar.metastore.recovery.restoring import Origin, Restored
from maar.metastore.recovery.verify import Findings, compare_replicas, verify
from maar.model.addresses import addresses_in
from maar.model.errors import MaarError, NotFound, NotLeading, Rejected, Unavailable
from maar.model.ids import Incarnation
from maar.model.time import WallTime
from maar.ports.metastore.log import Log
from maar.ports.metastore.replica import GetReplica, RebuildReplica, ReplicaStatus, TakeSnapshot

SOUND = ("leader", "follower")


def addresses(settings: Settings) -> tuple[str, ...]:
    """Where the replicas are: as the settings say, or where a whole server of this data directory
    has its own, or where one listens by default.
    """
    return known_addresses(settings) or (METASTORE_ADDRESS,)


def known_addresses(settings: Settings) -> tuple[str, ...]:
    """As the settings say, or where a whole server of this data directory has its own."""
    if named := settings.metastore_addresses:
        return addresses_in(named)
    link = settings.data_dir / "run"
    socket = link.readlink() / "metastore.sock" if link.is_symlink() else None
    return (f"unix:{socket}",) if socket and socket.exists() else ()


# ── through the replicas ───────────────────────────────────────────────────────────────────────


async def replicas(settings: Settings) -> list[ReplicaStatus]:
    """The status of each replica, also when nobody leads; silent ones are included."""
    return list(await asyncio.gather(*map(_status_at, addresses(settings))))


async def _status_at(address: str) -> ReplicaStatus:
    try:
        async with open_replica(address) as replica:
            return await replica.call(GetReplica())
    except MaarError as error:
        return ReplicaStatus(name="", address=address, standing="unreachable", fault=str(error))


async def snapshot(settings: Settings) -> int:
    """Have the leader make a snapshot; its index."""
    trouble: MaarError = Unavailable("no replica is named")
    waiting = list(addresses(settings))
    asked: set[str] = set()
    while waiting:
        address = waiting.pop(0)
        asked.add(address)
        try:
            async with open_replica(address) as replica:
                return await replica.call(TakeSnapshot())
        except NotLeading as error:
            trouble = error
            if error.leader and error.leader not in asked:
                waiting.insert(0, error.leader)
        except Unavailable as error:
            trouble = error
    raise trouble


async def rebuild(settings: Settings, names: tuple[str, ...]) -> list[ReplicaStatus]:
    """Have replicas reload their state: those named, or all that have stopped."""
    found = await replicas(settings)
    silent = ", ".join(each.address for each in found if each.standing == "unreachable")
    if unknown := [name for name in names if not any(_is(each, name) for each in found)]:
        if silent:
            raise Unavailable(f"no replica that answers is {unknown[0]!r}; no answer from {silent}")
        known = ", ".join(each.name or each.address for each in found)
        raise NotFound(f"there is no replica {unknown[0]!r}; there are {known}")
    chosen = [
        each
        for each in found
        if (any(_is(each, name) for name in names) if names else each.standing == "stopped")
    ]
    if silent and not chosen:
        raise Unavailable(f"whether a replica has stopped is not known: no answer from {silent}")
    return list(await asyncio.gather(*(_rebuilt(each.address) for each in chosen)))


def _is(replica: ReplicaStatus, name: str) -> bool:
    return name in (replica.name, replica.address)


async def _rebuilt(address: str) -> ReplicaStatus:
    async with open_replica(address) as replica:
        return await replica.call(RebuildReplica())


@asynccontextmanager
async def open_replica(address: str) -> AsyncIterator[Channel]:
    client = Channel(address)
    try:
        yield client
    finally:
        await client.close()


# ── directly on log and store ──────────────────────────────────────────────────────────────────


async def verify_log(settings: Settings, *, objects: bool) -> Findings:
    async with _reading(settings) as log:
        found = await verify(log, build_stores(settings), objects=objects)
    compare_replicas(found, [each for each in await replicas(settings) if each.hashed_at])
    return found


async def write_backup(settings: Settings, path: Path) -> backup.Content:
    async with _reading(settings) as log:
        return await backup.write(log, build_first_store(settings), path, wall_ns=time.time_ns())


async def origin(
    settings: Settings,
    *,
    file: Path | None,
    snapshot: str,
    without_snapshot: bool = False,
    adopts: tuple[Incarnation, ...] = (),
) -> Origin:
    """What to restore from: a backup, a snapshot by its key, the newest in the store, or, when
    there is none, the store's objects.
    """
    if file is not None:
        content = await backup.read(file)
        return Origin(content.state, content.head, str(file))
    store = build_first_store(settings)
    if not without_snapshot:
        try:
            return await restoring.newest(store, snapshot)
        except NotFound:
            if snapshot:
                raise
    return await asyncio.to_thread(traces.origin, store, adopts)


async def restore_log(
    settings: Settings, saved: Origin, *, adopts: tuple[Incarnation, ...]
) -> Restored:
    incarnations = {saved.state.incarnation, *saved.state.adopting, *adopts}
    for each in await replicas(settings):
        if each.standing != "unreachable" and each.incarnation in incarnations:
            raise Rejected(
                f"the replica {each.name} at {each.address} still serves the log that is to be "
                "restored; two logs would delete each other's objects. Stop all its replicas first"
            )
    async with _leading(settings) as log:
        return await restoring.restore(
            log,
            build_first_store(settings),
            saved,
            incarnation=Incarnation(secrets.token_hex(4)),
            adopts=adopts,
            wall=WallTime(time.time_ns()),
        )


async def migrate_log(settings: Settings, to: str) -> Moved:
    elsewhere = with_log_at(settings, to)
    if elsewhere.log_place == settings.log_place:
        raise Rejected(f"the log is at {to} already")
    async with _leading(settings) as source, _leading(elsewhere) as target:
        store = build_first_store(settings)
        return await copying.migrate(source, target, store, note=f"the log was moved to {to}")


def with_log_at(settings: Settings, to: str) -> Settings:
    """The same, with the log at another place."""
    log = msgspec.structs.replace(settings.log, url=to, dir="")
    return msgspec.structs.replace(settings, log=log)


@asynccontextmanager
async def _leading(settings: Settings) -> AsyncIterator[CopyLog]:
    log = await open_log(settings)
    try:
        yield cast(CopyLog, log)  # each adapter is both
    finally:
        await log.close()


@asynccontextmanager
async def _reading(settings: Settings) -> AsyncIterator[Log]:
    log = await open_log_reader(settings)
    try:
        yield log
    finally:
        await log.close()
