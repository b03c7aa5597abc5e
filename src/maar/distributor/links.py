"""Connections to the segment writers of the rings: one each, closed when its writer has left."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

from maar.distributor import breaker
from maar.distributor.breaker import Breaker, BreakerState
from maar.model.errors import MaarError
from maar.model.ids import NodeId, Zone
from maar.model.ring import Ring, Writer
from maar.ports.calls import Caller
from maar.ports.writer.segment_writer import SegmentWriter

log = logging.getLogger("maar.distributor")


class WriterConnection(Caller[SegmentWriter], Protocol):
    async def close(self) -> None: ...


Connect = Callable[[str], WriterConnection]  # by address
Name = tuple[Zone, NodeId]  # a node is known by its name within its zone


class Link:
    """The connection to one run of one writer, and whether it answers."""

    def __init__(
        self, registered: Writer, writer: Caller[SegmentWriter], connection: WriterConnection | None
    ) -> None:
        self.node = registered.node
        self.session = registered.session
        self.address = registered.address
        self.writer = writer
        self.breaker: Breaker = breaker.CLOSED
        self.late = False  # when it last fell silent, it was only slow, as far as we know
        self.under_way = 0
        self._connection = connection  # None: it is in this process

    @property
    def local(self) -> bool:
        return self._connection is None

    def begin(self) -> bool:
        """A push is on its way; whether it is the probe of a half-open breaker."""
        self.under_way += 1
        self.breaker = breaker.on_begin(self.breaker)
        return self.breaker.probing

    def on_answer(self) -> None:
        self.breaker = breaker.CLOSED
        self.late = False

    def silent(self, *, now_ns: int, late: bool) -> None:
        """It did not answer in time, or cannot be reached at all."""
        if self.local:  # it is in this process, so it cannot be unreachable
            return
        self.late = late
        before = breaker.state_of(self.breaker, now_ns=now_ns)
        self.breaker = breaker.silent(self.breaker, now_ns=now_ns)
        after = breaker.state_of(self.breaker, now_ns=now_ns)
        if before is BreakerState.CLOSED and after is BreakerState.OPEN:
            log.warning(
                "writer skipped for a moment, it did not answer %d times node=%s address=%s",
                breaker.FAILURES_MAX,
                self.node,
                self.address,
            )

    def rest(self, *, now_ns: int) -> None:
        """It answered that it accepts nothing: skip it until the ring says the same."""
        if not self.local:
            self.late = False
            self.breaker = Breaker(breaker.FAILURES_MAX, now_ns)

    async def close(self) -> None:
        if self._connection is not None:
            with suppress(MaarError):
                await self._connection.close()


class Links:
    """Bounded by the rings: as many as they have writers, and those that still owe an answer."""

    def __init__(
        self, connect: Connect, home: Zone, local: tuple[NodeId, Caller[SegmentWriter]] | None
    ) -> None:
        self._connect = connect
        self._local = ((home, local[0]), local[1]) if local is not None else None
        self._registered: dict[Name, Writer] = {}
        self._links: dict[Name, Link] = {}
        self._leaving: set[Link] = set()
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._links) + len(self._leaving)

    def know(self, rings: Iterable[Ring]) -> None:
        """Use these rings; close connections to writers that left, moved or restarted."""
        self._registered = {(ring.zone, one.node): one for ring in rings for one in ring.writers}
        for name, link in list(self._links.items()):
            now = self._registered.get(name)
            if now is None or (now.session, now.address) != (link.session, link.address):
                del self._links[name]
                self._retire(link)

    def to(self, zone: Zone, node: NodeId) -> Link | None:
        """The connection to a writer, made when first needed; None when it has left the rings."""
        link = self._links.get((zone, node))
        if link is None and (writer := self._registered.get((zone, node))) is not None:
            link = self._links[zone, node] = self._make(zone, writer)
        return link

    def existing(self, zone: Zone, node: NodeId) -> Link | None:
        """The same, if somebody has needed it already."""
        return self._links.get((zone, node))

    def end(self, link: Link, *, probe: bool) -> None:
        """A push has ended, in whatever way; a cancelled probe leaves room for another."""
        link.under_way -= 1
        if probe:
            link.breaker = breaker.on_cancel(link.breaker)
        if link in self._leaving and not link.under_way:
            self._leaving.discard(link)
            self._close(link)

    def states(self, *, now_ns: int) -> Counter[BreakerState]:
        links = self._links.values()
        return Counter(breaker.state_of(link.breaker, now_ns=now_ns) for link in links)

    async def close(self) -> None:
        links = [*self._links.values(), *self._leaving]
        self._links, self._leaving = {}, set()
        await asyncio.gather(*(link.close() for link in links), *self._closing)

    def _make(self, zone: Zone, writer: Writer) -> Link:
        if self._local is not None and self._local[0] == (zone, writer.node):
            return Link(writer, self._local[1], None)
        connection = self._connect(writer.address)
        return Link(writer, connection, connection)

    def _retire(self, link: Link) -> None:
        """Requests in flight may still be answered; they end by their deadline."""
        if link.under_way:
            self._leaving.add(link)
        else:
            self._close(link)

    def _close(self, link: Link) -> None:
        if link.local:
            return
        task = asyncio.create_task(link.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
