"""When a stamp is due, what it takes, and what must come of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from maar.model.block import BlockOutline
from maar.model.ids import BlockId, TenantId
from maar.model.plan import Plan, PlanKind, PlanResult, PlanSpec, QueueKey
from maar.model.policy import Policy
from maar.model.refusal import Refusal
from maar.model.time import SECOND_NS, LeaseTime
from maar.services.rules import Board, KindRules

STAMP = PlanKind("stamp")
AGE_NS = 5 * SECOND_NS  # sooner than compaction closes a batch by age in the tests' policy


class Stamping(KindRules):
    """The oldest segment of each lane, once it has waited a little."""

    kind = STAMP

    def due(self, board: Board, _line: int, *, now: LeaseTime) -> Iterator[PlanSpec]:
        for front in board.queue.oldest_first(0):
            if now - front.added_at > AGE_NS:
                oldest = next(board.queue.items(front.key))
                yield PlanSpec(STAMP, False, front.key, (oldest.block,), failure_limit=2)

    def misfit(self, _board: Board, spec: PlanSpec) -> Refusal | None:
        return None if len(spec.inputs) == 1 else Refusal.INPUT_REPEATED

    def lease_ns(self, _policy: Policy) -> int:
        return 60 * SECOND_NS

    def refusal(
        self,
        _plan: Plan,
        inputs: Mapping[BlockId, BlockOutline],
        result: PlanResult,
        _deletable: Mapping[TenantId, int],
    ) -> Refusal | None:
        came = sum(each.profiles for each in inputs.values())
        return None if sum(m.profiles for m in result.outputs) == came else Refusal.ACCOUNT

    def scope(self, _key: QueueKey) -> str:
        return "one segment"


STAMPING = Stamping()
