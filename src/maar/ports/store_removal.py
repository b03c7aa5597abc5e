"""What people ask of the metastore when a store is to go (S14)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

import msgspec

from maar.model.ids import BlockId, StoreName
from maar.ports.calls import Call
from maar.ports.metastore_call import MetastoreCall


class RemovedStore(msgspec.Struct, frozen=True):
    """What became of the wish; a store that is drained goes on being drained by itself."""

    store: StoreName
    done: bool  # False: something would be lost, and nobody has confirmed it
    copies: int  # in it, of blocks that other stores hold too
    only_here: int  # blocks
    profiles: int  # in them
    named: tuple[BlockId, ...]  # the first of them


class StoreRemover(Protocol):
    async def remove_store(
        self, store: StoreName, *, lost: bool, confirmed: bool, keep: bool
    ) -> RemovedStore: ...


class RemoveStore(MetastoreCall[StoreRemover, RemovedStore], frozen=True):
    """Drain a store; or give up one that cannot be drained, and what only it had if that is
    confirmed; or keep one that is being drained.
    """

    store: StoreName
    lost: bool = False
    confirmed: bool = False
    keep: bool = False

    def answer(self, port: StoreRemover) -> Awaitable[RemovedStore]:
        return port.remove_store(
            self.store, lost=self.lost, confirmed=self.confirmed, keep=self.keep
        )


CALLS: tuple[type[Call[StoreRemover, Any]], ...] = (RemoveStore,)
