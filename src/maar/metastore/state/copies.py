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

import msgspec

from maar.metastore.state.rows import Ids
from maar.model.block import BlockOutline
from maar.model.ids import BlockId, StoreName, TenantId
from maar.model.stores import NO_STORES, StoreSet, is_copied, stores_of


class Held(msgspec.Struct, frozen=True, order=True, gc=False):
    """Whose blocks, written where, and all the stores that hold them, sorted."""

    tenant: TenantId
    home: StoreName
    stores: tuple[StoreName, ...]


class CopySum(msgspec.Struct, gc=False):
    blocks: int = 0
    bytes: int = 0

    def add(self, other: CopySum, sign: int = 1) -> None:
        self.blocks += sign * other.blocks
        self.bytes += sign * other.bytes


class StoreCopies(msgspec.Struct):
    """What a store holds of live blocks, and what it should hold and does not."""

    held: CopySum = msgspec.field(default_factory=CopySum)
    missing: CopySum = msgspec.field(default_factory=CopySum)

    def add(self, other: StoreCopies) -> None:
        self.held.add(other.held)
        self.missing.add(other.missing)


class Whole(NamedTuple):
    """Of all live blocks, those that are at every store that should hold them."""

    blocks: int
    bytes: int
    all_blocks: int
    all_bytes: int


@dataclass(slots=True)
class Copies:
    """There may be very many tenants, so what is asked of one, or of the stores, never goes through
    the sums of all.
    """

    stores: StoreSet = NO_STORES
    sums: dict[Held, CopySum] = field(default_factory=dict)
    of_tenant: dict[TenantId, dict[Held, CopySum]] = field(default_factory=dict)  # the same sums
    of_store: dict[StoreName, StoreCopies] = field(default_factory=dict)  # added up
    # Blocks that are not yet at all their stores, by the stores that lack them: while one of those
    # is away, what the others lack is found without going through what only it lacks.
    lacking: dict[TenantId, dict[tuple[StoreName, ...], Ids]] = field(default_factory=dict)

    def count(self, meta: BlockOutline, sign: int) -> None:
        """A block comes or goes."""
        if not is_copied(meta):
            return
        held, one = Held(meta.tenant, meta.store, stores_of(meta)), CopySum(1, meta.size)
        total = self.sums.get(held)
        if total is None:
            total = CopySum()
            self._put(held, total)
        total.add(one, sign)
        if not total.blocks:
            self._drop(held)
        missing = self.missing(held)
        self._count_in_stores(held, missing, one, sign)
        self._list(held.tenant, missing, meta.id, sign)

    def _put(self, held: Held, total: CopySum) -> None:
        self.sums[held] = total
        self.of_tenant.setdefault(held.tenant, {})[held] = total

    def _drop(self, held: Held) -> None:
        del self.sums[held]
        of_tenant = self.of_tenant[held.tenant]
        del of_tenant[held]
        if not of_tenant:
            del self.of_tenant[held.tenant]

    def _count_in_stores(
        self, held: Held, missing: tuple[StoreName, ...], by: CopySum, sign: int = 1
    ) -> None:
        for name in held.stores:
            self._of_store(name).held.add(by, sign)
        for name in missing:
            self._of_store(name).missing.add(by, sign)
        for name in (*held.stores, *missing):
            found = self.of_store.get(name)
            if found is not None and not found.held.blocks and not found.missing.blocks:
                del self.of_store[name]

    def _of_store(self, name: StoreName) -> StoreCopies:
        found = self.of_store.get(name)
        if found is None:
            found = self.of_store[name] = StoreCopies()
        return found

    def load_sum(self, held: Held, total: CopySum) -> None:
        """From a snapshot; `add_up` follows when all of it is there."""
        self._put(held, total)

    def add_up(self) -> None:
        """What the stores hold and lack, anew."""
        self.of_store = {}
        for held, total in self.sums.items():
            self._count_in_stores(held, self.missing(held), total)

    def homes(self, tenant: TenantId) -> set[StoreName]:
        """Where the tenant's blocks were written."""
        return {held.home for held in self.of_tenant.get(tenant, ())}

    def blocks_wanted_in(self, tenant: TenantId, stores: tuple[StoreName, ...]) -> int:
        """How many of the tenant's blocks exactly these stores should hold."""
        return sum(
            total.blocks
            for held, total in self.of_tenant.get(tenant, {}).items()
            if self.stores.wanted_stores(tenant, held.home) == stores
        )

    def is_all_copied(self, tenant: TenantId) -> bool:
        return tenant not in self.lacking

    def missing(self, held: Held) -> tuple[StoreName, ...]:
        """The stores that should hold these blocks and do not, sorted."""
        if held.stores == (held.home,) and not self.stores.stores:
            return ()  # there are no others: the usual case costs nothing
        wanted = self.stores.wanted_stores(held.tenant, held.home)
        return tuple(name for name in wanted if name not in held.stores)

    def surplus(self, held: Held) -> tuple[StoreName, ...]:
        """The stores that hold these blocks and should not, if all those do that should."""
        if held.stores == (held.home,) and not self.stores.stores:
            return ()
        wanted = self.stores.wanted_stores(held.tenant, held.home)
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

    def tenants_lacking(self, store: StoreName) -> frozenset[TenantId]:
        """The tenants with a block that a store should hold and does not."""
        return frozenset(
            tenant
            for tenant, lists in self.lacking.items()
            if any(store in missing for missing in lists)
        )

    def holders(self) -> set[StoreName]:
        """The stores that hold a block, whether the settings have them or not."""
        return {name for name, found in self.of_store.items() if found.held.blocks}

    def of_stores(self, tenants: Iterable[TenantId] | None = None) -> dict[StoreName, StoreCopies]:
        """What every store holds and lacks, of all tenants or of some."""
        found = {name: StoreCopies() for name in sorted({*self.stores.names(), *self.of_store})}
        if tenants is None:
            for name, total in self.of_store.items():
                found[name].add(total)
            return found
        asked = (self.of_tenant.get(tenant, {}) for tenant in set(tenants))
        for held, some in (item for sums in asked for item in sums.items()):
            for name in held.stores:
                found[name].held.add(some)
            for name in self.missing(held):
                found[name].missing.add(some)
        return found

    def whole_of(self, tenant: TenantId) -> Whole:
        """How much of a tenant's blocks has all its copies."""
        every, whole = CopySum(), CopySum()
        for held, total in self.of_tenant.get(tenant, {}).items():
            every.add(total)
            if not self.missing(held):
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
        self.add_up()
        return changed

    def look_again(self, metas: Iterable[BlockOutline]) -> None:
        """All blocks of tenants for which `set_stores` asked."""
        for meta in metas:
            if is_copied(meta):
                missing = self.missing(Held(meta.tenant, meta.store, stores_of(meta)))
                self._list(meta.tenant, missing, meta.id, +1)

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

    def _list(
        self, tenant: TenantId, missing: tuple[StoreName, ...], block: BlockId, sign: int
    ) -> None:
        if not missing:
            return
        if sign > 0:
            self.lacking.setdefault(tenant, {}).setdefault(missing, Ids()).add(block)
            return
        lists = self.lacking.get(tenant, {})
        if missing in lists:
            lists[missing].discard(block)
            if not len(lists[missing]):
                del lists[missing]
            if not lists:
                del self.lacking[tenant]
