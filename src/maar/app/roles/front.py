"""The front in this process: HTTP and gRPC for pushes and queries."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from random import Random

from prometheus_client import CollectorRegistry

from maar.adapters.rpc import Channel, MetastoreClient, serve_role
from maar.adapters.system_clock import SystemClock
from maar.api.admin.admin import no_disks
from maar.api.admin.placement import placement_reader
from maar.api.admin.quarantine import causes_in
from maar.api.app import QueryDeps, build_app
from maar.api.guard import RequestGuard
from maar.api.hosts import hosts_of
from maar.app.health.disks import disks_of
from maar.app.health.readiness import WRITER, MetastoreRole, Readiness
from maar.app.health.troubles import Troubles
from maar.app.http.gate import Gate
from maar.app.http.server import HttpServer
from maar.app.http.turns import ConnectionCounts
from maar.app.processes import status_file
from maar.app.processes.status_file import ProcessState
from maar.app.roles.segment import public_address
from maar.app.roles.shares import retries_of, share_of
from maar.app.roles.wiring import (
    OWN_WRITER,
    Fronts,
    Here,
    RoleStatus,
    build_stores,
    new_registry,
    private_address,
    run_directory,
    wait_first_end,
)
from maar.app.settings.config import Settings
from maar.app.settings.tenants import Tenants
from maar.background import cancel
from maar.distributor.agent import PlacementAgent
from maar.distributor.periods import RetentionPeriods
from maar.distributor.rings import FollowedRings
from maar.distributor.service import Distributor, Router
from maar.distributor.shared_rates import LeasedRates, PushRates
from maar.model.errors import MaarError, Unavailable
from maar.model.ids import Zone
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores
from maar.pprof.compile_once import doing

log = logging.getLogger("maar.front")

REFUSAL_S = 1.0  # for the querier's own refusal of a query that took too long to arrive
SIBLING_S = 0.5  # for another front to say that it is there; a health check waits for it


@asynccontextmanager
async def run(
    settings: Settings, here: Here, listener: socket.socket, *, pushes: bool, asks: bool
) -> AsyncIterator[asyncio.Task[None]]:
    """Gives the task that ends when the HTTP server does, or something that it follows."""
    registry, clock, fronts = new_registry("front"), SystemClock(), here.fronts
    here.registries.append(registry)
    limits = share_of(settings.api, fronts.of)
    troubles = Troubles()
    stores = build_stores(settings, told=troubles.note)
    store, metastore = stores.home, MetastoreClient(settings.roles.metastore)
    rules = _rules_store(stores)
    own = settings.metastore.advertise or settings.metastore.listen
    others: dict[str, MetastoreRole | Channel] = {
        "metastore": MetastoreRole(settings.roles.metastore, own=own)
    }
    if fronts.several:  # the segment writer, which else measures them, is elsewhere
        here.disks = disks_of(settings, clock)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(metastore.close)
        distributor, asked, whether_placed = None, None, always
        following: list[asyncio.Task[None]] = []
        if pushes:
            distributor, whether_placed, following = await stack.enter_async_context(
                _distributing(settings, here, rules, metastore, clock, registry)
            )
        if asks:
            engine = query_channel(settings)
            stack.push_async_callback(engine.close)
            others |= {
                "query": Channel(settings.roles.query),
                "worker": Channel(settings.roles.worker),
            }
            asked = QueryDeps(
                engine,
                metastore,
                causes_in(stores),
                clock,
                settings.limits.future_ns,
                placement_reader(rules),
                lambda: status_file.plain(sibling_processes(settings)),
                here.disks.plain if here.disks else no_disks,
                settings.store_places(),
                settings.metastore_addresses,
            )
            following.append(asyncio.create_task(troubles.tell(metastore)))
            stack.push_async_callback(cancel, following[-1])
        siblings: dict[str, Channel] = {}
        if fronts.several:
            others[WRITER] = Channel(private_address(settings, OWN_WRITER))
            siblings = {name: _sibling(settings, name) for name in fronts.others()}
        for other in (*others.values(), *siblings.values()):
            stack.push_async_callback(other.close)
        readiness = Readiness(
            others,
            store if here.writer is not None or fronts.several else None,
            clock,
            pushes=pushes,
            asks=asks,
            placed=whether_placed,
            disks=here.disks,
            front=fronts.name() if fronts.several else "",
            siblings=siblings,
        )
        guard, gate = RequestGuard(limits, registry), Gate(limits, registry)
        counts = None
        if fronts.several:
            told = RoleStatus(registry, whether_placed)
            served = await serve_role(private_address(settings, fronts.name()), told)
            stack.push_async_callback(served.stop)
            counts = ConnectionCounts(
                run_directory(settings) / "connections", fronts=fronts.of, number=fronts.number
            )
            stack.callback(counts.close)
        app = build_app(
            limits,
            here.registries,
            readiness,
            partial(_metrics, readiness, settings),
            distributor=distributor,
            asked=asked,
            guard=guard,
            hosts=hosts_of(
                settings.listen_address()[0],
                settings.server.allowed_hosts,
                own_name=socket.gethostname(),
            ),
            degraded=readiness.degradation,
            shows_own=not fronts.several,  # the segment writer has the sum of all
        )
        server = HttpServer(app, drain_s=settings.server.drain_s, gate=gate, counts=counts)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        life = asyncio.create_task(wait_first_end(serving, *following))
        stack.push_async_callback(_wait_all, serving, life)  # before what they need is closed
        try:
            yield life
        finally:
            server.should_exit = True  # no new connections; who waits gets an answer


def _rules_store(stores: Stores) -> ObjectStore:
    """Placement rules are in the first store; who cannot reach it places by the defaults."""
    try:
        return stores.open(stores.names()[0])
    except Unavailable as error:
        log.warning("placement rules not read, the default ones are used cause=%s", error)
        return stores.home


@asynccontextmanager
async def _distributing(
    settings: Settings,
    here: Here,
    store: ObjectStore,
    metastore: MetastoreClient,
    clock: SystemClock,
    registry: CollectorRegistry,
) -> AsyncIterator[tuple[Distributor, Callable[[], str], list[asyncio.Task[None]]]]:
    """The distributor, whether it knows where to send profiles, and what it follows."""
    ring, fronts = settings.ring, here.fronts
    tenants = Tenants(settings)
    rates: PushRates | None = None
    keeper: Channel | None = None
    if fronts.several:
        keeper = Channel(private_address(settings, OWN_WRITER))
        rates = LeasedRates(keeper, sharers=fronts.of)
    periods = RetentionPeriods(settings.retention.default_ns)
    rings = FollowedRings(Zone(ring.zone))
    agent = PlacementAgent(store, metastore, registry)
    router = Router(
        retries_of(settings.routing, fronts.of),
        rings,
        lambda: agent.rules,
        tenants.placement,
        partial(_writer_channel, settings, fronts),
        clock,
        Random(secrets.randbits(64)),
        registry,
        local=here.writer,
    )
    distributor = Distributor(
        settings.limits, router, clock, registry, periods, rate_of=tenants.rate, rates=rates
    )
    following = [
        asyncio.create_task(work)
        for work in (
            _start(distributor),
            periods.follow(metastore),
            rings.follow(metastore, every_s=ring.refresh_ms / 1000),
            agent.follow(every_s=settings.placement.reload_s),
            tenants.follow(),
        )
    ]
    try:
        yield distributor, lambda: doing() or router.ready(), following
    finally:
        await cancel(*following)
        distributor.close()
        await router.close()
        if keeper is not None:
            await keeper.close()


def _writer_channel(settings: Settings, fronts: Fronts, address: str) -> Channel:
    """To a segment writer of the ring; that of this host is nearer by its private socket."""
    if fronts.several and address == public_address(settings):
        address = private_address(settings, OWN_WRITER)
    return Channel(address, deadline_s=settings.routing.deadline_ms / 1000)


def query_channel(settings: Settings) -> Channel:
    """A query may wait as long as it may then take, and the last word on both is the querier's."""
    patience_s = 2 * settings.query.timeout_s + REFUSAL_S
    return Channel(settings.roles.query, deadline_s=patience_s)


def _sibling(settings: Settings, name: str) -> Channel:
    return Channel(private_address(settings, name), deadline_s=SIBLING_S)


async def _metrics(readiness: Readiness, settings: Settings) -> list[str]:
    return [*await readiness.metrics(), status_file.metrics_page(sibling_processes(settings))]


def sibling_processes(settings: Settings) -> Sequence[ProcessState]:
    """The processes beside this one, as the supervisor of all of them knows them."""
    try:
        return status_file.read(settings.data_dir, supervisor=os.getppid())
    except MaarError as error:
        log.warning("status file of the processes not readable cause=%s", error)
        return ()


async def _start(distributor: Distributor) -> None:
    """Warm up in the background, so that health checks are answered; pushes wait for it."""
    await distributor.start()
    await asyncio.Event().wait()


async def _wait_all(*tasks: asyncio.Task[None]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


def always() -> str:
    return ""
