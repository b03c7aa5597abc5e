"""Deletion by predicate: which profiles are to go, and which blocks it applies to (S8).

A predicate applies to what was pushed before it, never to what comes after. A block is from before
it if the entry is that registered it (a segment) or granted the plan that wrote it (any other). A
copy that a repair makes is as old as its block. A restored log numbers its entries far above those
of the lost one, so they are compared across restores. The segments that it finds in the store have
entries of its own: they count by the lease time in their ids, which is never earlier than the true
one.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from maar.model import keys
from maar.model.block import BlockOutline, Dataset
from maar.model.ids import Incarnation, TenantId, block_time_ns
from maar.model.time import LeaseTime

EVER_NS = (1 << 63) - 1  # later than every profile
AskedBy: TypeAlias = tuple[TenantId, str]  # the names of requests are a tenant's own
STEP_NS = 1_000  # bounds are whole microseconds: tables say times in them


class Mask(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Profiles of a tenant that nobody is to see any more."""

    tenant: TenantId
    service: str  # '': all of them
    from_ns: int  # included
    until_ns: int  # excluded

    def names(self, tenant: TenantId, service: str) -> bool:
        return self.tenant == tenant and self.service in ("", service)

    def hides(self, service: str, time_ns: int) -> bool:
        """A profile of its tenant."""
        return self.service in ("", service) and self.from_ns <= time_ns < self.until_ns

    def touches(self, dataset: Dataset) -> bool:
        """Whether it may hide something of a dataset."""
        return (
            self.names(dataset.tenant, dataset.service)
            and dataset.min_time_ns < self.until_ns
            and dataset.max_time_ns >= self.from_ns
        )

    def covers(self, dataset: Dataset) -> bool:
        """Whether it hides a whole dataset."""
        return (
            self.names(dataset.tenant, dataset.service)
            and self.from_ns <= dataset.min_time_ns
            and dataset.max_time_ns < self.until_ns
        )


class DeletionRequest(msgspec.Struct, frozen=True, array_like=True):
    """By what name somebody asked for a deletion, and what the answer was, so that the same request
    again gets the same one.
    """

    name: str
    profiles: int
    blocks: int
    at_most: bool


class Predicate(msgspec.Struct, frozen=True, array_like=True):
    """A deletion that not every block has been rewritten for yet."""

    id: int  # the index of its entry
    incarnation: Incarnation  # of the log then
    at: LeaseTime
    mask: Mask
    # Incarnations that the log had since, whose lease times may repeat those of before it.
    later: tuple[Incarnation, ...] = ()
    request: DeletionRequest | None = None

    def request_key(self) -> AskedBy | None:
        return (self.mask.tenant, self.request.name) if self.request else None

    def is_after(self, meta: BlockOutline, *, entry: int | None) -> bool:
        """Whether it came after a block, which is then from before it.

        `entry` is the one that brought a segment into the index; None when it is not there, or not
        known any more.
        """
        written = since(meta)
        if written:
            return written <= self.id
        if entry is not None and entry <= self.id:
            return True
        segment = keys.segment_name(_key_of(meta))
        if segment is not None and segment.incarnation in self.later:
            return False
        return block_time_ns(meta.id) < self.at


def since(meta: BlockOutline) -> int:
    """The entry that gave leave to write a block; 0 of a writer's segment."""
    return meta.since or keys.since(_key_of(meta))


def _key_of(meta: BlockOutline) -> str:
    """The key of one of its objects, at its home."""
    return meta.files[0].locations[0].key
