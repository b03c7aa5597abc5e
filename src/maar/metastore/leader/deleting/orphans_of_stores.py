"""Orphans of every store: each is searched and swept by itself, and one that is away stops none.

What a store holds that the index does not list there is an orphan, also if the block is known.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

from maar.background import run_until_first_ends
from maar.metastore.leader.background import Deleting
from maar.metastore.leader.deleting.orphans import Orphans
from maar.metastore.leader.letters.letters_of_stores import LaterStore
from maar.metastore.replica.metrics import MetastoreMetrics
from maar.model.errors import NotLeading, Retryable
from maar.model.ids import StoreName
from maar.ports.clock import Clock
from maar.ports.operator.operator import FoundOrphans
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores


class OrphansOfStores:
    """As `Orphans`, for several stores."""

    def __init__(
        self, leader: Deleting, stores: Stores, clock: Clock, metrics: MetastoreMetrics
    ) -> None:
        names = stores.names()
        several = len(names) > 1
        self._metrics = metrics
        self._all: dict[StoreName, Orphans] = {
            name: Orphans(
                leader,
                cast(ObjectStore, LaterStore(stores, name)),
                clock,
                metrics,
                name=name if several else None,
            )
            for name in names
        }

    @property
    def blocked(self) -> tuple[str, ...]:
        return tuple(sentence for each in self._all.values() for sentence in each.blocked)

    async def forever(self) -> None:
        await run_until_first_ends(*(each.forever for each in self._all.values()))

    async def sweep_now(self, *, limit: int) -> FoundOrphans:
        return await self._together(lambda each: each.sweep_now(limit=limit), limit)

    async def find(self, *, limit: int) -> FoundOrphans:
        return await self._together(lambda each: each.find(limit=limit), limit)

    async def _together(
        self, ask: Callable[[Orphans], Awaitable[FoundOrphans]], limit: int
    ) -> FoundOrphans:
        found: list[FoundOrphans] = []
        for name, each in self._all.items():
            try:
                found.append(await ask(each))
            except NotLeading:
                raise
            except Retryable as error:
                if len(self._all) == 1:
                    raise
                away = f"store {name} was not searched: {error}"
                found.append(FoundOrphans(0, 0, (), False, (away,)))
        return FoundOrphans(
            sum(each.objects for each in found),
            sum(each.bytes for each in found),
            tuple(orphan for each in found for orphan in each.first)[:limit],
            all(each.complete for each in found),
            tuple(sentence for each in found for sentence in each.kept),
        )
