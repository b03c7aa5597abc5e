"""Plans brought to where a test of the metastore wants them, by entries of the log."""

from __future__ import annotations

from maar.metastore.records.entries import (
    BlocksAdded,
    Grant,
    PlanCompleted,
    PlanFailed,
    PlansLeased,
    PlansScheduled,
)
from maar.model.block import BlockMeta
from maar.model.ids import FencingToken, PlanId, WorkerId
from maar.model.plan import PlanSpec
from maar.model.time import SECOND_NS, LeaseTime
from maar.services.compact.rules import COMPACT
from support.metastore.fold import Fold, result

WORKER = WorkerId("worker-7")
LEASE_NS = 15 * SECOND_NS


def add_plan(fold: Fold, *metas: BlockMeta) -> PlanId:
    """A plan over blocks, which are registered if they are not yet."""
    new = tuple(meta for meta in metas if meta.id not in fold.state.blocks)
    if new:
        fold.put(BlocksAdded(new))
    key = fold.state.queue.places[metas[0].id].key
    inputs = tuple(meta.id for meta in metas)
    fold.put(PlansScheduled((PlanSpec(COMPACT, False, key, inputs, 2),)))
    return fold.state.owners[metas[0].id]


def lease_plan(fold: Fold, plan: PlanId, *, counts: bool = True) -> FencingToken:
    """The worker gets it; a lease that has expired before this counts as a failure, or not."""
    held = fold.state.plans[plan].lease
    until = LeaseTime(fold.now + LEASE_NS)
    fold.put(PlansLeased((Grant(plan, WORKER, until, held.token if held else None, counts),)))
    lease = fold.state.plans[plan].lease
    assert lease is not None
    assert lease.expires_at == until
    return lease.token


def fail_plan(fold: Fold, plan: PlanId, cause: str = "no memory", *, rest_s: int = 0) -> None:
    """One more attempt that reports a failure."""
    eligible_at = LeaseTime(fold.now + rest_s * SECOND_NS)
    fold.put(PlanFailed(plan, lease_plan(fold, plan), cause, eligible_at))


def complete_plan(fold: Fold, plan: PlanId) -> PlanCompleted:
    """The entry that did it; its result lists what the inputs have become."""
    token = lease_plan(fold, plan)
    inputs = fold.metas(fold.state.plans[plan].inputs)
    entry = PlanCompleted(plan, token, result(plan, token, inputs))
    fold.put(entry)
    return entry
