"""Which stores there are, and which of them should hold copies of a tenant's blocks (S14).

A store is a named bucket that holds blocks; it belongs to one region, and is the home of some
zones. Blocks are written to their home store, and repair copies them to the others. The settings
say which stores there are; the log records it, so that every replica gives the same answers.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TypeVar

import msgspec

from maar.model.block import BlockOutline, Kind
from maar.model.ids import BlockId, StoreName, TenantId, Zone

STORES_MAX = 64

Meta = TypeVar("Meta", bound=BlockOutline)


class StoreSpec(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A store as the settings name it; where it is and how to open it is not of the log."""

    name: StoreName
    region: str = ""
    zones: tuple[Zone, ...] = ()  # whose home it is


class TenantStores(msgspec.Struct, frozen=True, array_like=True, gc=False, order=True):
    """The stores that hold copies of one tenant's blocks, beside the home of each block."""

    tenant: TenantId
    stores: tuple[StoreName, ...]


class StoreSet(msgspec.Struct, frozen=True, array_like=True):
    """All stores, in the order of the settings. `tenants` are sorted, and are those that differ
    from the default.
    """

    stores: tuple[StoreSpec, ...] = ()
    default: tuple[StoreName, ...] = ()  # none: home only
    tenants: tuple[TenantStores, ...] = ()
    leaving: tuple[StoreName, ...] = ()  # being drained: nothing is copied to them any more

    def names(self) -> tuple[StoreName, ...]:
        return tuple(spec.name for spec in self.stores)

    def get(self, store: StoreName) -> StoreSpec | None:
        return next((spec for spec in self.stores if spec.name == store), None)

    def wanted_stores(self, tenant: TenantId, home: StoreName) -> tuple[StoreName, ...]:
        """The stores that should hold a block of this tenant and home, sorted: its home, and those
        of the tenant. A store that leaves is not among them; should none be left, the first of the
        settings that stays takes its place.
        """
        found = {home, *self.of_tenant(tenant)}.difference(self.leaving)
        if not found:
            staying = (name for name in self.names() if name not in self.leaving)
            found = {next(staying, home)}
        return tuple(sorted(found))

    def of_tenant(self, tenant: TenantId) -> tuple[StoreName, ...]:
        """What the settings say of a tenant, or else of everybody."""
        at = bisect_left(self.tenants, tenant, key=_tenant)
        if at < len(self.tenants) and self.tenants[at].tenant == tenant:
            return self.tenants[at].stores
        return self.default

    def region(self, store: StoreName) -> str:
        """'' of one that names none, or that is not known."""
        spec = self.get(store)
        return spec.region if spec is not None else ""

    def home_of(self, zone: Zone) -> StoreName | None:
        """The store that a zone writes to: the one that names it, or else the first."""
        named = (spec.name for spec in self.stores if zone in spec.zones)
        return next(named, self.stores[0].name if self.stores else None)

    def problem(self) -> str:
        """What is wrong with it, in a sentence; '' when nothing is."""
        names = self.names()
        if len(names) > STORES_MAX:
            return f"there are {len(names)} stores, and there can be {STORES_MAX}"
        if len(set(names)) != len(names) or "" in names:
            return "two stores have the same name, or one has none"
        homes = [zone for spec in self.stores for zone in spec.zones]
        if len(set(homes)) != len(homes):
            return "a zone has two home stores"
        tenants = [each.tenant for each in self.tenants]
        if tenants != sorted(set(tenants)):
            return "the tenants are not sorted, or one occurs twice"
        named = {*self.default, *(name for each in self.tenants for name in each.stores)}
        if unknown := sorted(named.difference(names)):
            return f"copies are wanted in the store {unknown[0]!r}, which is not among the stores"
        return ""


def _tenant(each: TenantStores) -> TenantId:
    return each.tenant


NO_STORES = StoreSet()


def stores_of(meta: BlockOutline) -> tuple[StoreName, ...]:
    """The stores that hold a block, sorted. The files of a block are copied together and go
    together, so the first of them tells.
    """
    locations = meta.files[0].locations if meta.files else ()
    if len(locations) == 1:
        return (locations[0].store,)
    return tuple(sorted(at.store for at in locations))


def is_copied(meta: BlockOutline) -> bool:
    """Whether blocks of this kind have copies: segments mix tenants, and stay at home."""
    return meta.kind is not Kind.SEGMENT


def lacking(meta: BlockOutline, stores: StoreSet) -> tuple[StoreName, ...]:
    """The stores that should hold a block and do not, sorted."""
    if not is_copied(meta):
        return ()
    had = stores_of(meta)
    return tuple(name for name in stores.wanted_stores(meta.tenant, meta.store) if name not in had)


def keys_at(meta: BlockOutline, store: StoreName) -> tuple[str, ...]:
    """The files of a block in one store, in the order of its tables; () when it is not there."""
    return tuple(at.key for file in meta.files for at in file.locations if at.store == store)


def only_in(meta: Meta, store: StoreName) -> Meta:
    """The block with its copy in one store alone."""
    files = tuple(
        msgspec.structs.replace(
            file, locations=tuple(at for at in file.locations if at.store == store)
        )
        for file in meta.files
    )
    return msgspec.structs.replace(meta, files=files)


class CopyMade(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A copy of a block that was written to a store, read back, and found equal."""

    block: BlockId
    store: StoreName
    files: tuple[tuple[str, str], ...]  # table and key of each


class CopyBad(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A copy that was found missing or damaged."""

    block: BlockId
    store: StoreName
    what: str  # in words that follow the key
