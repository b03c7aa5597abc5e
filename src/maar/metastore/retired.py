"""Replaced blocks, readable until their objects are deleted: in packs, like live ones."""

from __future__ import annotations

import msgspec

from maar.metastore.marks import Marked
from maar.metastore.packs import Bytes, Packed, alone, sealed
from maar.model.ids import BlockId
from maar.model.time import LeaseTime

LOOSE_MAX = 64  # blocks that are not in a pack


class Retired(msgspec.Struct, frozen=True, gc=False):
    entry: int  # the index of the one that replaced it
    at: LeaseTime
    outputs: tuple[BlockId, ...]  # what replaced it
    packed: Bytes


class RetiredBlocks(Marked[BlockId, Retired]):
    """Oldest first. Blocks that went together share a pack, and mostly go together again.

    Those that came out of a pack of the index stay in it: the live ones leave a pack when half of
    it is dead, so it holds little else.
    """

    __slots__ = ("_loose",)

    def __init__(self) -> None:
        super().__init__()
        self._loose: list[BlockId] = []

    def parts(self, key: BlockId, value: Retired) -> object:
        return key, value.entry, value.at, value.outputs

    def __setitem__(self, key: BlockId, value: Retired) -> None:
        super().__setitem__(key, value)
        if isinstance(value.packed, bytes):
            self._loose.append(key)
        if len(self._loose) > LOOSE_MAX:
            self._pack()

    def _pack(self) -> None:
        """What a block is kept as does not change its hash."""
        found = {block: self[block] for block in self._loose if block in self}
        pack = sealed([alone(retired.packed) for retired in found.values()])
        for row, (block, retired) in enumerate(found.items()):
            kept = msgspec.structs.replace(retired, packed=Packed(pack, row))
            dict.__setitem__(self, block, kept)
        self._loose.clear()
