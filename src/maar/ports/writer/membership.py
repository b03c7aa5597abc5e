"""Who is in a zone's ring: writers send heartbeats, distributors read the rings."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

import msgspec

from maar.model.ids import NodeId, Zone
from maar.model.ring import Ring, Writer
from maar.ports.calls import Call
from maar.ports.metastore.call import MetastoreCall


class BeatReply(msgspec.Struct, frozen=True):
    changed_at: int  # of the ring of its zone
    refusal: str = ""  # another process has registered as this node since: stop taking pushes


class RingView(msgspec.Struct, frozen=True):
    """A zone's ring, and which of its writers are dead."""

    ring: Ring
    dead: tuple[NodeId, ...]
    complete: bool  # False: a new leader has not yet listened long enough to know the dead
    silent_ms: tuple[int, ...] = ()  # how long ago each writer was heard; -1: not by this leader


class BeatListener(Protocol):
    """The leader tracks heartbeats in memory; they are not replicated."""

    async def beat(self, beat: Beat) -> BeatReply:
        """Register a segment writer, note that it is alive, or remove it."""
        ...


class RingReader(Protocol):
    """Answered by the leader, which knows which writers are dead."""

    async def rings(self) -> tuple[RingView, ...]:
        """The rings of all zones, by name."""
        ...


class Beat(MetastoreCall[BeatListener, BeatReply], frozen=True):
    """A segment writer's heartbeat: who it is and what it does now. The first one registers it."""

    zone: Zone
    writer: Writer
    leaves: bool = False  # it leaves the ring permanently, and its shards go to others

    def answer(self, port: BeatListener) -> Awaitable[BeatReply]:
        return port.beat(self)


class ListRings(MetastoreCall[RingReader, tuple[RingView, ...]], frozen=True):
    """The rings of all zones, by name."""

    def answer(self, port: RingReader) -> Awaitable[tuple[RingView, ...]]:
        return port.rings()


BEATS: tuple[type[Call[BeatListener, Any]], ...] = (Beat,)
RINGS: tuple[type[Call[RingReader, Any]], ...] = (ListRings,)
