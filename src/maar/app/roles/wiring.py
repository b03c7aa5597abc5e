"""What every role is built from: its store, its metrics registry, its name, its health."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from maar.adapters.etcd.settings import EtcdAccess, EtcdSettings
from maar.adapters.stores.open import open_store
from maar.app.health.disks import Disks
from maar.app.settings.config import Settings
from maar.app.settings.log_url import EtcdPlace, FilePlace
from maar.model.ids import NodeId
from maar.model.trouble import Trouble
from maar.ports.calls import Caller
from maar.ports.metastore.log import Log
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores, ignore
from maar.ports.writer.segment_writer import SegmentWriter

RUN = "run"  # in the data directory: a link to where the sockets are
OWN_WRITER = "own-writer"  # where the fronts of this host reach their segment writer
SEEN_STORES = "seen-stores"  # a file for each, in the data directory


def new_registry(role: str) -> CollectorRegistry:
    """Metrics of one role; the process's own are named by role, since one page shows them all."""
    registry = CollectorRegistry()
    ProcessCollector(namespace=f"maar_{role}", registry=registry)
    return registry


def node_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


def writer_node(settings: Settings) -> NodeId:
    """A segment writer's name, the same after every restart, so that it keeps its shards."""
    address = settings.roles.segment_writer
    port = "" if address.startswith("unix:") else f":{address.rpartition(':')[2]}"
    return NodeId(settings.ring.node or f"{socket.gethostname()}{port}")


def private_address(settings: Settings, name: str) -> str:
    """Where processes of one `maar serve` meet."""
    return f"unix:{run_directory(settings)}/{name}.sock"


def run_directory(settings: Settings) -> Path:
    """What the supervisor made for them."""
    return (settings.data_dir / RUN).readlink()


def build_store(settings: Settings) -> ObjectStore:
    """The home store of this process."""
    return build_stores(settings).home


def build_first_store(settings: Settings) -> ObjectStore:
    """The first store of the settings: what is not of a single store (snapshots, the claim, commits
    and deletions) is there, for the processes of every zone.
    """
    stores = build_stores(settings)
    return stores.open(stores.names()[0])


def build_stores(settings: Settings, *, told: Callable[[Trouble], None] = ignore) -> Stores:
    return Stores(settings.store_places(), open_store, told=told)


def make_new_stores(settings: Settings) -> None:
    """Make the directories of stores that this host has not seen before.

    One that it has seen, and that is gone, is a disk that is not mounted: an empty directory in its
    place would pass for a store that lost everything.
    """
    seen = settings.data_dir / SEEN_STORES
    places = settings.store_places().places
    for place in places if len(places) > 1 else ():
        url = urlsplit(place.settings.url)
        if url.scheme == "file" and not (seen / place.name).exists():
            Path(unquote(url.path)).mkdir(parents=True, exist_ok=True)
            seen.mkdir(parents=True, exist_ok=True)
            (seen / place.name).touch()


async def open_log(settings: Settings, registry: CollectorRegistry | None = None) -> Log:
    """The log for a replica: to read, and to lead in."""
    match settings.log_place:
        case FilePlace(directory):
            from maar.adapters.sqlite.log import SqliteLog

            allowed = settings.log.allow_network_fs
            return SqliteLog.open(directory, allow_network_fs=allowed)
        case EtcdPlace() as place:
            from maar.adapters.etcd.log import EtcdLog

            return await EtcdLog.open(etcd_settings(settings, place), registry=registry)


async def open_log_reader(settings: Settings) -> Log:
    """The log for a process beside the replicas, which reads only."""
    match settings.log_place:
        case FilePlace(directory):
            from maar.adapters.sqlite.log import SqliteLog

            return SqliteLog.open_reader(directory)
        case EtcdPlace() as place:
            from maar.adapters.etcd.log import EtcdLog

            return await EtcdLog.open_reader(etcd_settings(settings, place))


def etcd_settings(settings: Settings, place: EtcdPlace) -> EtcdSettings:
    access = {name: getattr(settings.log, name) for name in EtcdAccess.__struct_fields__}
    return EtcdSettings(endpoints=place.endpoints, prefix=place.prefix, **access)


class Fronts(NamedTuple):
    """The fronts of one `maar serve`, and which of them this process is."""

    of: int = 1
    number: int = 0  # from 1; 0: it is none, or the only one

    @property
    def several(self) -> bool:
        return self.of > 1

    def name(self) -> str:
        return front_name(self.number)

    def all_names(self) -> list[str]:
        return [front_name(number) for number in range(1, self.of + 1)]

    def others(self) -> list[str]:
        return [name for name in self.all_names() if name != self.name()]


ALONE = Fronts()


def front_name(number: int) -> str:
    return f"front-{number}"


@dataclass(slots=True)
class Here:
    """What roles of one process give each other directly."""

    fronts: Fronts = ALONE
    writer: LocalWriter | None = None
    disks: Disks | None = None  # that pushes to this process need
    registries: list[CollectorRegistry] = field(default_factory=list)  # shown beside the front's


class LocalWriter(NamedTuple):
    """The segment writer of this process: pushes to its node need no network."""

    node: NodeId
    service: Caller[SegmentWriter]


class RoleStatus:
    """A role's health and metrics over RPC."""

    def __init__(
        self,
        registry: CollectorRegistry,
        ready: Callable[[], str],
        *,
        page: Callable[[], Awaitable[str]] | None = None,  # that is shown beside the metrics
    ) -> None:
        self._registry = registry
        self._ready = ready
        self._page = page

    def with_page(self, page: Callable[[], Awaitable[str]]) -> RoleStatus:
        return RoleStatus(self._registry, self._ready, page=page)

    async def metrics(self) -> str:
        more = await self._page() if self._page is not None else ""
        return more + generate_latest(self._registry).decode()

    async def ready(self) -> str:
        return self._ready()


async def wait_first_end(*tasks: asyncio.Task[None]) -> None:
    """Return when one of the tasks ends, or raise its error: none may end unnoticed."""
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
