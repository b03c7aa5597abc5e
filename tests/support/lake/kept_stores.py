"""Several stores and the leader's keeper of them, with real checksums, so that a drain can read
copies again.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from maar.block.format import checksum
from maar.metastore.leader.stores.store_keeper import StoreKeeper
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import NotFound
from maar.model.ids import FencingToken, PlanId, StoreName
from maar.model.stores import StoreSet
from support.clock.virtual_time import run_virtually
from support.lake.several_stores import SeveralStores
from support.metastore.copies import EU, stores
from support.metastore.fold import INCARNATION
from support.stores.memory_store import MemoryStore

MARKER = keys.marker(INCARNATION)


class Kept(SeveralStores):
    def __init__(self) -> None:
        super().__init__()
        self.given = stores(EU)
        self.keeper = self.new_keeper(lambda: self.given)

    def new_keeper(self, given: Callable[[], StoreSet]) -> StoreKeeper:
        return StoreKeeper(self, self.stores, self.append, given)

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            run_virtually(self.keeper.step())

    def make_output(self, plan: PlanId, token: FencingToken, attempt: str = "a1") -> BlockMeta:
        made = super().make_output(plan, token, attempt)
        files = tuple(
            msgspec.structs.replace(
                file, size=made.files[0].size, checksum=checksum.of_bytes(b"x" * made.files[0].size)
            )
            for file in made.files
        )
        return msgspec.structs.replace(made, files=files)

    def replicate(self, first: int = 1) -> BlockMeta:
        self.step()
        made = self.block(first)
        self.copy(made.id, EU)
        return self.now_of(made.id)

    def marker_in(self, store: StoreName) -> str | None:
        try:
            return MemoryStore.read(self.named[store], MARKER).decode()
        except NotFound:
            return None
