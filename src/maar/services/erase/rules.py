"""One block is written again without the profiles that were deleted of it (S8).

The leader finds the blocks (metastore/leader/deleting/eraser.py), as it walks the index for every
deletion that is not carried out everywhere yet. Segments are left to compaction, which takes them
anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from maar.model.block import BlockMeta, BlockOutline, Kind
from maar.model.ids import NO_ZONE, BlockId, TenantId
from maar.model.plan import Account, Plan, PlanKind, PlanResult, PlanSpec, QueueKey
from maar.model.policy import Policy
from maar.model.refusal import Refusal
from maar.model.time import LeaseTime
from maar.services.rules import Board, KindRules, PlanScope

ERASE = PlanKind("erase")


class Erasing(KindRules):
    """What is left is a block of the same level, and waits where its input waited."""

    kind = ERASE
    keeps_place = True

    def due(self, _board: Board, _line: int, *, now: LeaseTime) -> Iterator[PlanSpec]:  # noqa: ARG002
        """None by itself: the leader schedules them."""
        return iter(())

    def on_request(self, _board: Board, _scope: PlanScope, *, now: LeaseTime) -> PlanSpec | str:  # noqa: ARG002
        return "blocks are rewritten for deletions without being asked: `maar delete`"

    def misfit(self, _board: Board, spec: PlanSpec) -> Refusal | None:
        return None if len(spec.inputs) == 1 and spec.key.tenant else Refusal.INPUT_KEY

    def refusal(
        self,
        _plan: Plan,
        inputs: Mapping[BlockId, BlockOutline],
        result: PlanResult,
        _deletable: Mapping[TenantId, int],
    ) -> Refusal | None:
        """At most one block like the input, and every profile is in it or deleted."""
        (before,) = inputs.values()
        if len(result.outputs) > 1 or not all(_like(meta, before) for meta in result.outputs):
            return Refusal.OUTPUT
        kept = sum(meta.profiles for meta in result.outputs)
        empty = not kept and bool(result.outputs)
        account = Account(kept, 0, 0, before.profiles - kept)
        return Refusal.ACCOUNT if empty or result.account != account else None

    def level(self, key: QueueKey) -> str:
        return str(key.level)


ERASING = Erasing()


def spec_of(meta: BlockMeta, policy: Policy) -> PlanSpec:
    key = QueueKey(meta.store, meta.tenant, meta.shard, meta.level, meta.zone, meta.day)
    return PlanSpec(ERASE, False, key, (meta.id,), policy.failure_limit)


def can_erase(meta: BlockOutline) -> bool:
    return meta.kind is not Kind.SEGMENT


def _like(meta: BlockMeta, before: BlockOutline) -> bool:
    same = (meta.kind, meta.level, meta.tenant, meta.shard, meta.store, meta.day) == (
        before.kind,
        before.level,
        before.tenant,
        before.shard,
        before.store,
        before.day,
    )
    return same and meta.zone in (NO_ZONE, before.zone)
