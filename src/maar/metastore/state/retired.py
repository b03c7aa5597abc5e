"""Blocks that left the index, readable until their objects are deleted."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

from maar.metastore.records.packs import Bytes, Packed, alone, seal
from maar.metastore.state.marks import Marked, bulk_mark
from maar.model.ids import BlockId
from maar.model.time import LeaseTime

LOOSE_MAX = 64  # blocks that are not in a pack


class Cause(IntEnum):
    """Why a block left the index. Only what was replaced needs a successor before it goes (S1)."""

    REPLACED = 1
    EXPIRED = 2
    LOST = 3  # an operator gave it up
    DELETED = 4  # predicates hid all of it
    COPY = 5  # only a copy left: its block lives on in other stores


class Retired(msgspec.Struct, frozen=True, gc=False):
    entry: int  # the index of the one that took it
    at: LeaseTime
    outputs: tuple[BlockId, ...]  # what replaced it
    packed: Bytes
    cause: Cause


class RetiredBlocks(Marked[BlockId, Retired]):
    """Oldest first. Blocks that went together share a pack, and mostly go together again.

    Those that came out of a pack of the index stay in it: the live ones leave a pack when half of
    it is dead, so it holds little else.
    """

    __slots__ = ("_loose", "expired", "others")

    def __init__(self) -> None:
        super().__init__()
        # Both oldest first. Two lists, since expired blocks are kept for longer and must not delay
        # the others.
        self.expired: dict[BlockId, None] = {}
        self.others: dict[BlockId, None] = {}
        self._loose: list[BlockId] = []

    def mark_of(self, key: BlockId, value: Retired) -> int:
        """Hash a retired block; packed or loose, it has the same hash."""
        kept = alone(value.packed)
        return bulk_mark((key, value.entry, value.at, value.outputs, kept, value.cause))

    def __setitem__(self, key: BlockId, value: Retired) -> None:
        super().__setitem__(key, value)
        if value.cause is Cause.EXPIRED:
            self.others.pop(key, None)
            self.expired[key] = None
        else:
            self.expired.pop(key, None)
            self.others[key] = None
        if isinstance(value.packed, bytes):
            self._loose.append(key)
        if len(self._loose) > LOOSE_MAX:
            self._pack()

    def __delitem__(self, key: BlockId) -> None:
        super().__delitem__(key)
        self._unlist(key)

    def pop(self, key: BlockId, *default: Any) -> Any:
        self._unlist(key)
        return super().pop(key, *default)

    def _unlist(self, key: BlockId) -> None:
        self.expired.pop(key, None)
        self.others.pop(key, None)

    def _pack(self) -> None:
        """Pack the loose blocks; their hashes do not depend on how they are stored."""
        found = {block: self[block] for block in self._loose if block in self}
        pack = seal([alone(retired.packed) for retired in found.values()])
        for row, (block, retired) in enumerate(found.items()):
            kept = msgspec.structs.replace(retired, packed=Packed(pack, row))
            dict.__setitem__(self, block, kept)
        self._loose.clear()
