"""Copies of blocks in several stores, as a repair would make them."""

from __future__ import annotations

from typing import Any

from maar.metastore.records.effects import Effects
from maar.metastore.records.entries import (
    Grant,
    PlansLeased,
    PlansScheduled,
    StoresSet,
    SubrangeRepaired,
)
from maar.model import keys
from maar.model.block import BlockMeta, Kind
from maar.model.ids import BlockId, FencingToken, PlanId, StoreName, TenantId, WorkerId, Zone
from maar.model.repair import RepairOrder, RepairType
from maar.model.stores import CopyBad, CopyMade, StoreSet, StoreSpec, TenantStores
from maar.model.time import SECOND_NS, LeaseTime
from maar.services.repair.rules import spec
from support.metastore.fold import Fold

TENANT = TenantId("acme")
MAIN, EU, US = map(StoreName, ("main", "eu", "us"))
SPECS = (StoreSpec(MAIN, "us", (Zone("home"),)), StoreSpec(EU, "eu"), StoreSpec(US, "us"))


def stores(*default: StoreName, **tenants: tuple[StoreName, ...]) -> StoreSet:
    """Three stores, and who wants copies where."""
    differing = tuple(TenantStores(TenantId(name), tenants[name]) for name in sorted(tenants))
    return StoreSet(SPECS, default, differing)


def want(fold: Fold, *default: StoreName, **tenants: tuple[StoreName, ...]) -> None:
    fold.put(StoresSet(stores(*default, **tenants)))


def copy_of(
    meta: BlockMeta, store: StoreName, plan: PlanId, token: FencingToken, attempt: str = "r1"
) -> CopyMade:
    stem = keys.stem(block=meta.id, plan=plan, token=token, attempt=attempt)
    if meta.kind is Kind.QUARANTINE:
        return CopyMade(
            meta.id, store, (("segment", keys.quarantine(tenant=meta.tenant, stem=stem)),)
        )
    files = (
        (f.table, keys.table(name=f.table, tenant=meta.tenant, day=meta.day, stem=stem))
        for f in meta.files
    )
    return CopyMade(meta.id, store, tuple(files))


class Repairing:
    """A plan that owns nothing, under a lease: what a repair reports its partial results by."""

    def __init__(
        self,
        fold: Fold,
        order: RepairOrder = RepairOrder(RepairType.INCREMENTAL),  # noqa: B008  (it is frozen)
        tenant: TenantId = TENANT,
    ) -> None:
        self._fold = fold
        fold.put(PlansScheduled((spec(fold.state.policy, tenant, order),)))
        self.plan = PlanId(fold.state.index, 0)
        until = LeaseTime(fold.now + 600 * SECOND_NS)
        fold.put(PlansLeased((Grant(self.plan, WorkerId("w"), until),)))
        self.token = FencingToken(fold.state.incarnation, fold.state.index)

    def entry(
        self,
        *copies: tuple[BlockId, StoreName],
        ended: tuple[tuple[BlockId, StoreName], ...] = (),
        lost: tuple[BlockId, ...] = (),
        attempt: str = "r1",
        looked_at: tuple[StoreName, ...] | None = None,
        **rest: Any,
    ) -> SubrangeRepaired:
        state = self._fold.state
        made = tuple(
            copy_of(state.blocks.get(block), store, self.plan, self.token, attempt)
            for block, store in copies
        )
        bad = tuple(CopyBad(block, store, "is missing") for block, store in ended)
        if looked_at is None:
            looked_at = tuple(sorted({store for _, store in (*copies, *ended)}))
        subrange, at = rest.pop("subrange", None), LeaseTime(self._fold.now)
        return SubrangeRepaired(
            self.plan, self.token, subrange, at, looked_at, made, bad, lost, **rest
        )

    def copy(self, block: BlockId, *to: StoreName, attempt: str = "r1") -> Effects:
        return self._fold.put(self.entry(*((block, store) for store in to), attempt=attempt))

    def find_bad(self, block: BlockId, *at: StoreName) -> Effects:
        return self._fold.put(self.entry(ended=tuple((block, store) for store in at)))
