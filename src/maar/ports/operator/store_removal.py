"""What people ask of the metastore when a store is to go (S14)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

import msgspec

from maar.model.ids import BlockId, StoreName
from maar.ports.calls import Call
from maar.ports.metastore.call import MetastoreCall


class RemovedStore(msgspec.Struct, frozen=True):
    """What became of the wish; a store that is drained goes on being drained by itself."""

    store: StoreName
    done: bool  # False: nobody has seen what would be lost with it
    copies: int  # in it, of blocks that other stores hold too
    only_here: int  # blocks
    profiles: int  # in them
    named: tuple[BlockId, ...]  # the first of them
    list_id: str = ""  # by which all of them are recognised: who has seen them says so with it


class StoreRemover(Protocol):
    async def remove_store(
        self, store: StoreName, *, lost: bool, seen: str, keep: bool
    ) -> RemovedStore: ...


class RemoveStore(MetastoreCall[StoreRemover, RemovedStore], frozen=True):
    """Drain a store; or give up one that cannot be drained, and what only it had if that was seen;
    or keep one that is being drained.
    """

    store: StoreName
    lost: bool = False
    seen: str = ""  # the list that was
    keep: bool = False

    def answer(self, port: StoreRemover) -> Awaitable[RemovedStore]:
        return port.remove_store(self.store, lost=self.lost, seen=self.seen, keep=self.keep)


CALLS: tuple[type[Call[StoreRemover, Any]], ...] = (RemoveStore,)
