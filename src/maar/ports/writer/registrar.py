"""What a segment writer asks of the metastore: put its segments into the index."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

import msgspec

from maar.model.block import BlockMeta
from maar.model.time import LeaseTime
from maar.ports.calls import Call
from maar.ports.metastore.call import MetastoreCall
from maar.ports.metastore.log_time import LogTime


class AddReply(msgspec.Struct, frozen=True):
    """One answer per block: '' when it is in the index (also since earlier), else why not."""

    refusals: tuple[str, ...]
    lease_time: LeaseTime


class BlockRegistrar(LogTime, Protocol):
    """Answered by the leader; a block that is added again is there once."""

    async def add_blocks(self, blocks: tuple[BlockMeta, ...]) -> AddReply: ...


class AddBlocks(MetastoreCall[BlockRegistrar, AddReply], frozen=True):
    """Put blocks into the index."""

    blocks: tuple[BlockMeta, ...]

    def answer(self, port: BlockRegistrar) -> Awaitable[AddReply]:
        return port.add_blocks(self.blocks)


CALLS: tuple[type[Call[BlockRegistrar, Any]], ...] = (AddBlocks,)
