"""What each store holds, lacks and has damaged, from the state and from what readers reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from maar.metastore.state.copies import StoreCopies
from maar.metastore.state.state import MetaState
from maar.model.ids import StoreName, TenantId
from maar.model.stores import StoreSet, StoreSpec
from maar.ports.operator.copies import StoreStatus

NO_STORES = StoreSet()
Reported = Iterable[tuple[StoreName, TenantId]]  # a bad copy: where, and whose


def statuses(
    state: MetaState,
    reported: Reported,
    *,
    here: Iterable[str],
    given: StoreSet = NO_STORES,
    tenant: str = "",
) -> tuple[StoreStatus, ...]:
    """`here`: the stores in the settings of this process, of which `given` says more. The log does
    not know one that is alone, or that was never there.
    """
    asked = [TenantId(tenant)] if tenant else None
    copies = state.blocks.copies.of_stores(asked)
    damaged = Counter(store for store, whose in reported if tenant in ("", whose))
    known = list(dict.fromkeys([*state.stores.names(), *map(StoreName, here)]))
    names = [*known, *sorted(copies.keys() - set(known))]
    counted = (copies, damaged, frozenset(here))
    return tuple(
        _status(state, state.stores.get(name) or given.get(name) or StoreSpec(name), *counted)
        for name in names
    )


def _status(
    state: MetaState,
    spec: StoreSpec,
    copies: Mapping[StoreName, StoreCopies],
    damaged: Mapping[StoreName, int],
    here: frozenset[str],
) -> StoreStatus:
    name, found = spec.name, copies.get(spec.name) or StoreCopies()
    return StoreStatus(
        name=name,
        region=spec.region,
        zones=spec.zones,
        leaving=name in state.stores.leaving,
        known=name in here,
        blocks=found.held.blocks,
        bytes=found.held.bytes,
        missing=found.missing.blocks,
        missing_bytes=found.missing.bytes,
        damaged=damaged.get(name, 0),
        tombstones=len(state.tombstones.of_store(name)),
    )
