"""What people ask of the metastore to have profiles deleted (S8)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, ClassVar, Protocol

import msgspec

from maar.model.predicate import Mask
from maar.ports.calls import Call
from maar.ports.metastore.call import MetastoreCall


class Deletion(msgspec.Struct, frozen=True):
    """What a deletion takes, by what the index knew when it was asked for."""

    predicate: int | None  # its id; None: only looked at
    profiles: int
    blocks: int  # that hold some of them
    at_most: bool = False  # the index knows of some blocks only that they may hold such profiles


class PendingDeletion(msgspec.Struct, frozen=True):
    """A deletion that not every block has been rewritten for; what it names is hidden already."""

    predicate: int
    mask: Mask
    waits: str  # for what, in a sentence


class Deleter(Protocol):
    async def delete_profiles(
        self, mask: Mask, *, dry_run: bool, request_id: str = ""
    ) -> Deletion: ...

    async def deletions(self) -> tuple[PendingDeletion, ...]: ...


class DeleteProfiles(MetastoreCall[Deleter, Deletion], frozen=True):
    """Delete what was pushed so far of a service or tenant; dry, only count it."""

    mask: Mask
    dry_run: bool = False
    request_id: str = ""  # the same again gets the same answer, and deletes nothing more

    def answer(self, port: Deleter) -> Awaitable[Deletion]:
        return port.delete_profiles(self.mask, dry_run=self.dry_run, request_id=self.request_id)


class ListDeletions(MetastoreCall[Deleter, tuple[PendingDeletion, ...]], frozen=True):
    """Those that are not carried out everywhere yet, oldest first."""

    rows: ClassVar[str | None] = ""

    def answer(self, port: Deleter) -> Awaitable[tuple[PendingDeletion, ...]]:
        return port.deletions()


CALLS: tuple[type[Call[Deleter, Any]], ...] = (DeleteProfiles, ListDeletions)
