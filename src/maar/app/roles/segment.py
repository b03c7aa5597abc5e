"""The segment writer in this process: its service, its place in the ring, its address."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

from maar.adapters.rpc import Channel, MetastoreClient, serve_writer
from maar.adapters.system_clock import SystemClock
from maar.app.health.disks import disks_of
from maar.app.health.front_pages import FrontPages
from maar.app.roles.health_http import serve_health
from maar.app.roles.wiring import (
    OWN_WRITER,
    Fronts,
    Here,
    LocalWriter,
    RoleStatus,
    build_store,
    new_registry,
    private_address,
    run_directory,
    writer_node,
)
from maar.app.settings.config import ANY_HOST, Settings, host_and_port
from maar.background import cancel
from maar.distributor.shared_rates import KeptRates
from maar.model.errors import InvalidInput, MaarError
from maar.model.ids import Zone
from maar.model.ring import Writer, WriterState
from maar.segment.membership import Membership
from maar.segment.service import SegmentService

GONE_FRONTS = "gone-fronts"  # beside the sockets: what fronts had counted that died
PAGE_S = 1.0  # for the metrics of a front; whoever scrapes waits for the slowest
HEARD_WITHIN = 1.5  # ring refreshes until all distributors know that we drain


@asynccontextmanager
async def run(
    settings: Settings, here: Here, listener: socket.socket | None
) -> AsyncIterator[asyncio.Task[None]]:
    """Gives the task that ends when the writer may take no more pushes.

    With a listener it serves health and metrics by HTTP there.
    """
    told_address = public_address(settings)
    registry, clock, node = new_registry("segment_writer"), SystemClock(), writer_node(settings)
    metastore, letters = MetastoreClient(settings.roles.metastore), settings.dead_letters
    disks = disks_of(settings, clock).register_in(registry)
    service = SegmentService(
        settings.segment,
        build_store(settings),
        metastore,
        clock,
        Random(secrets.randbits(64)),
        registry,
        node,
        zone=Zone(settings.ring.zone),
        dead_letter_after_ms=letters.after_ms if letters.enabled else None,
        registration_floor_lag_ms=int(settings.compaction.registration_floor_lag_s * 1000),
        no_room=disks.no_room,
    )
    here.disks = disks
    await service.start()
    ring = settings.ring
    address = settings.roles.segment_writer
    member = Membership(
        metastore,
        Zone(ring.zone),
        Writer(node, told_address, secrets.token_hex(8), ring.shards, WriterState.JOINING),
        every_s=ring.beat_ms / 1000,
        leaves=ring.leave_on_stop,
        random=Random(secrets.randbits(64)),
        registry=registry,
    )
    told = RoleStatus(registry, lambda: member.ready() or disks.no_room())
    server = await serve_writer(address, service, told)
    here.writer = LocalWriter(node, service)
    here.registries.append(registry)
    life = asyncio.create_task(_live(member, service))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serve_health(told, registry, listener))
        if here.fronts.several:
            await stack.enter_async_context(_serve_fronts(settings, here.fronts, service, told))
        try:
            yield life
        finally:
            heard = await member.drain()
            if heard and not address.startswith("unix:"):  # where only our own process pushes
                await asyncio.sleep(HEARD_WITHIN * ring.refresh_ms / 1000)
            # A distributor that does not know yet is refused and tries another.
            await service.stop()
            await cancel(life)
            await member.leave()
            await server.stop()
            await metastore.close()


@asynccontextmanager
async def _serve_fronts(
    settings: Settings, fronts: Fronts, service: SegmentService, told: RoleStatus
) -> AsyncIterator[None]:
    """What several fronts of this host have in common: the shards, and with them the memory for
    profiles; the rates of tenants; and one page of metrics.
    """
    addresses = {name: private_address(settings, name) for name in fronts.all_names()}
    pages = {name: Channel(each, deadline_s=PAGE_S) for name, each in addresses.items()}
    async with AsyncExitStack() as stack:
        for channel in pages.values():
            stack.push_async_callback(channel.close)
        sums = FrontPages(pages, run_directory(settings) / GONE_FRONTS)
        whole = told.with_page(sums.text)
        following = asyncio.create_task(sums.follow())
        stack.push_async_callback(cancel, following)
        server = await serve_writer(
            private_address(settings, OWN_WRITER), service, whole, rates=KeptRates(SystemClock())
        )
        stack.push_async_callback(server.stop)
        yield


def public_address(settings: Settings) -> str:
    """Where distributors reach the writer; InvalidInput when that would be each one's own host."""
    address = settings.roles.segment_writer
    if settings.ring.advertise or address.startswith("unix:"):
        return settings.ring.advertise or address
    if host_and_port("roles.segment_writer", address)[0] in ANY_HOST:
        raise InvalidInput(
            f"roles.segment_writer = {address!r} does not say by which name other machines reach "
            "this one, and distributors would push to themselves; set ring.advertise to host:port",
            reason="settings",
        )
    return address


async def _live(member: Membership, service: SegmentService) -> None:
    """Send heartbeats for ever. A writer that the ring refuses accepts nothing from then on."""
    try:
        await member.live()
    except MaarError as error:
        service.refuse(str(error))
        raise
