"""The ring of a zone: its segment writers, and which of them owns each shard."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from maar.model.ids import NodeId, Zone

DEAD = "dead"  # a writer without heartbeats, whatever state it reported last


class WriterState(StrEnum):
    """The state that a writer reports; that it is dead follows from missing heartbeats (S16)."""

    JOINING = "joining"  # registered, and not yet taking pushes
    ACTIVE = "active"
    LEAVING = "leaving"  # flushing; it takes nothing new and keeps its shards, which fail over


class Writer(msgspec.Struct, frozen=True, array_like=True):
    """A segment writer as it registered."""

    node: NodeId
    address: str  # where distributors reach it
    session: str  # one run of its process; an older one is refused
    shards: int  # how many it takes
    state: WriterState


class Ring(msgspec.Struct, frozen=True, array_like=True):
    """The writers of one zone and their shards, as one value that an entry replaces whole."""

    zone: Zone
    changed_at: int  # the index of the entry that made it; 0: there is none yet
    writers: tuple[Writer, ...]  # sorted by node
    owners: tuple[int, ...]  # owners[k]: the place in `writers` of who takes shard k + 1

    def nodes(self) -> tuple[NodeId, ...]:
        """Who takes each shard, from shard 1."""
        return tuple(self.writers[owner].node for owner in self.owners)
