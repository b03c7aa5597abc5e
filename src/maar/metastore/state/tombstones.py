"""Copies that are to be deleted in one store, when that store allows it (S14).

A block is forgotten when its objects are gone wherever they can be deleted now. What waits for a
single store, because it is away or still lacks what replaced the block, is remembered here: it
counts neither as a block nor against other stores.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from maar.metastore.records.packs import Bytes, alone
from maar.metastore.state.marks import Marked, bulk_mark
from maar.metastore.state.retired import Cause
from maar.model.ids import BlockId, StoreName
from maar.model.time import LeaseTime

NO_BLOCK = b""  # of a copy whose block lives on


class CopyKey(NamedTuple):
    """A copy, by its store and the key of its first file."""

    store: StoreName
    key: str


class Tombstone(msgspec.Struct, frozen=True, gc=False):
    block: BlockId
    entry: int  # the index of the one that took the copy, or its block
    at: LeaseTime
    outputs: tuple[BlockId, ...]  # what replaced the block: must be in this store first
    packed: Bytes  # the block as it was; NO_BLOCK when only this copy has ended
    cause: Cause


class Tombstones(Marked[CopyKey, Tombstone]):
    """Oldest first, and by store, by block, and by the blocks that they wait for."""

    __slots__ = ("_awaited", "_blocks", "_stores")

    def __init__(self) -> None:
        super().__init__()
        self._stores: dict[StoreName, dict[CopyKey, None]] = {}
        self._blocks: dict[BlockId, dict[CopyKey, None]] = {}
        self._awaited: dict[BlockId, dict[CopyKey, None]] = {}

    def mark_of(self, key: CopyKey, value: Tombstone) -> int:
        kept = alone(value.packed)
        parts = (value.block, value.entry, value.at, value.outputs, kept, value.cause)
        return bulk_mark((key, parts))

    def __setitem__(self, key: CopyKey, value: Tombstone) -> None:
        """One that is there already keeps its place among those of its store, as it does in a
        snapshot: which is the oldest must not depend on how a replica began.
        """
        if key in self:
            self._unlink(key)
        super().__setitem__(key, value)
        self._stores.setdefault(key.store, {})[key] = None
        self._blocks.setdefault(value.block, {})[key] = None
        for output in value.outputs:
            self._awaited.setdefault(output, {})[key] = None

    def __delitem__(self, key: CopyKey) -> None:
        self._unlist(key)
        super().__delitem__(key)

    def pop(self, key: CopyKey, *default: Any) -> Any:
        if key in self:
            self._unlist(key)
        return super().pop(key, *default)

    def _unlist(self, key: CopyKey) -> None:
        _drop(self._stores, key.store, key)
        self._unlink(key)

    def _unlink(self, key: CopyKey) -> None:
        value = self[key]
        _drop(self._blocks, value.block, key)
        for output in value.outputs:
            _drop(self._awaited, output, key)

    def stores(self) -> list[StoreName]:
        return sorted(self._stores)

    def of_store(self, store: StoreName) -> dict[CopyKey, None]:
        """Oldest first; not to be changed."""
        return self._stores.get(store, {})

    def of_block(self, block: BlockId) -> list[CopyKey]:
        return list(self._blocks.get(block, ()))

    def waiting_for(self, block: BlockId) -> list[CopyKey]:
        """Those of blocks that this one replaced."""
        return list(self._awaited.get(block, ()))

    def derived_views(self) -> Iterator[object]:
        """For audits: what is kept beside the records, in an order that does not matter."""
        for lists in (self._stores, self._blocks, self._awaited):
            yield {key: set(some) for key, some in lists.items()}


def _drop(lists: dict[Any, dict[CopyKey, None]], of: object, key: CopyKey) -> None:
    some = lists.get(of)
    if some is not None:
        some.pop(key, None)
        if not some:
            del lists[of]
