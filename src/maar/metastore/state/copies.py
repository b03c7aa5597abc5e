"""How many blocks each store holds, in sums, and which blocks lack a copy (S14).

The sums are kept as blocks come and go, by the set of stores that hold a block: whatever is asked
of copies (held, missing, whole) follows from few of them, also when other stores are wanted than
before. Segments stay at home and are not counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from typing import NamedTuple

from maar.metastore.state.rows import Ids
from maar.model.block import BlockOutline
from maar.model.ids import BlockId, StoreName, TenantId
from maar.model.stores import NO_STORES, StoreSet, is_copied, stores_of


class Held(NamedTuple):
    """Whose blocks, written where, and all the stores that hold them, sorted."""

    tenant: TenantId
    home: StoreName
    stores: tuple[StoreName, ...]


@dataclass(slots=True)
class CopySum:
    blocks: int = 0
    bytes: int = 0

    def add(self, other: CopySum) -> None:
        self.blocks += other.blocks
        self.bytes += other.bytes


@dataclass(slots=True)
class StoreCopies:
    """What a store holds of live blocks, and what it should hold and does not."""

    held: CopySum = field(default_factory=CopySum)
    missing: CopySum = field(default_factory=CopySum)


class Whole(NamedTuple):
    """Of all live blocks, those that are at every store that should hold them."""

    blocks: int
    bytes: int
    all_blocks: int
    all_bytes: int


@dataclass(slots=True)
class Copies:
    stores: StoreSet = NO_STORES
    sums: dict[Held, CopySum] = field(default_factory=dict)
    # Blocks that are not yet at all their stores, by the stores that lack them: while one of those
    # is away, what the others lack is found without going through what only it lacks.
    lacking: dict[TenantId, dict[tuple[StoreName, ...], Ids]] = field(default_factory=dict)
    homes: dict[TenantId, dict[StoreName, int]] = field(default_factory=dict)  # in how many sums

    def count(self, meta: BlockOutline, sign: int) -> None:
        """A block comes or goes."""
        if not is_copied(meta):
            return
        held = Held(meta.tenant, meta.store, stores_of(meta))
        total = self.sums.get(held)
        if total is None:
            total = self.sums[held] = CopySum()
            self.homes.setdefault(held.tenant, {})
            self.homes[held.tenant][held.home] = self.homes[held.tenant].get(held.home, 0) + 1
        total.blocks += sign
        total.bytes += sign * meta.size
        if not total.blocks:
            del self.sums[held]
            self._leave_home(held)
        self._list(held, meta.id, sign)

    def _leave_home(self, held: Held) -> None:
        homes = self.homes[held.tenant]
        homes[held.home] -= 1
        if not homes[held.home]:
            del homes[held.home]
        if not homes:
            del self.homes[held.tenant]

    def load_sum(self, held: Held, total: CopySum) -> None:
        """From a snapshot."""
        self.sums[held] = total
        homes = self.homes.setdefault(held.tenant, {})
        homes[held.home] = homes.get(held.home, 0) + 1

    def is_all_copied(self, tenant: TenantId) -> bool:
        return tenant not in self.lacking

    def is_whole(self, held: Held) -> bool:
        """Whether blocks that these stores hold are at all the stores that should hold them."""
        return not self.missing(held)

    def missing(self, held: Held) -> tuple[StoreName, ...]:
        """The stores that should hold these blocks and do not, sorted."""
        if held.stores == (held.home,) and not self.stores.stores:
            return ()  # there are no others: the usual case costs nothing
        wanted = self.stores.wanted(held.tenant, held.home)
        return tuple(name for name in wanted if name not in held.stores)

    def surplus(self, held: Held) -> tuple[StoreName, ...]:
        """The stores that hold these blocks and should not, if all those do that should."""
        if held.stores == (held.home,) and not self.stores.stores:
            return ()
        wanted = self.stores.wanted(held.tenant, held.home)
        if not set(wanted) <= set(held.stores):
            return ()
        return tuple(name for name in held.stores if name not in wanted)

    def lacking_of(
        self, tenant: TenantId, *, down: Collection[StoreName] = ()
    ) -> Iterator[BlockId]:
        """The tenant's live blocks that some store lacks, and not only such as are down; oldest
        first.
        """
        lists = self.lacking.get(tenant, {})
        return merge(*(ids for missing, ids in lists.items() if not set(missing) <= set(down)))

    def lacked_by(self, store: StoreName) -> frozenset[TenantId]:
        """The tenants with a block that a store should hold and does not."""
        return frozenset(
            held.tenant
            for held in self.sums
            if held.tenant in self.lacking
            and store not in held.stores
            and store in self.stores.wanted(held.tenant, held.home)
        )

    def tenants(self) -> list[TenantId]:
        """Those that have blocks, sorted."""
        return sorted({held.tenant for held in self.sums})

    def known(self) -> set[StoreName]:
        """The stores that hold a block, whether the settings have them or not."""
        return {name for held in self.sums for name in held.stores}

    def of_stores(self, tenants: Iterable[TenantId] | None = None) -> dict[StoreName, StoreCopies]:
        """What every store holds and lacks, of all tenants or of some."""
        asked = None if tenants is None else set(tenants)
        found = {name: StoreCopies() for name in sorted({*self.stores.names(), *self.known()})}
        for held, total in self.sums.items():
            if asked is not None and held.tenant not in asked:
                continue
            for name in held.stores:
                found[name].held.add(total)
            for name in self.stores.wanted(held.tenant, held.home):
                if name not in held.stores:
                    found.setdefault(name, StoreCopies()).missing.add(total)
        return found

    def whole_of(self, tenant: TenantId | None = None) -> Whole:
        """How much of a tenant's blocks, or of everybody's, has all its copies."""
        every, whole = CopySum(), CopySum()
        for held, total in self.sums.items():
            if tenant is not None and held.tenant != tenant:
                continue
            every.add(total)
            if self.is_whole(held):
                whole.add(total)
        return Whole(whole.blocks, whole.bytes, every.blocks, every.bytes)

    def set_stores(self, stores: StoreSet) -> set[TenantId]:
        """Other stores are wanted now; the tenants whose blocks have to be looked at again, since
        other stores lack them now.
        """
        was = {held: self.missing(held) for held in self.sums}
        self.stores = stores
        changed = {held.tenant for held in self.sums if self.missing(held) != was[held]}
        for tenant in changed:
            self.lacking.pop(tenant, None)
        return changed

    def look_again(self, metas: Iterable[BlockOutline]) -> None:
        """All blocks of tenants for which `set_stores` asked."""
        for meta in metas:
            if is_copied(meta):
                self._list(Held(meta.tenant, meta.store, stores_of(meta)), meta.id, +1)

    def is_consistent(self) -> bool:
        """Whether as many blocks are listed as the sums say."""
        said: dict[tuple[TenantId, tuple[StoreName, ...]], int] = {}
        for held, total in self.sums.items():
            if missing := self.missing(held):
                said[held.tenant, missing] = said.get((held.tenant, missing), 0) + total.blocks
        return said == {
            (tenant, missing): len(ids)
            for tenant, lists in self.lacking.items()
            for missing, ids in lists.items()
        }

    def _list(self, held: Held, block: BlockId, sign: int) -> None:
        missing = self.missing(held)
        if not missing:
            return
        if sign > 0:
            self.lacking.setdefault(held.tenant, {}).setdefault(missing, Ids()).add(block)
            return
        lists = self.lacking.get(held.tenant, {})
        if missing in lists:
            lists[missing].discard(block)
            if not len(lists[missing]):
                del lists[missing]
            if not lists:
                del self.lacking[held.tenant]
