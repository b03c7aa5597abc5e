"""What a rollback is to the fold, which schedules it itself (metastore/fold/plans/rollback.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from maar.model.block import BlockOutline
from maar.model.ids import BlockId, TenantId
from maar.model.plan import ROLLBACK, Plan, PlanResult, PlanSpec, QueueKey
from maar.model.refusal import Refusal
from maar.model.time import LeaseTime
from maar.services.rules import Board, KindRules, PlanScope


class RollingBack(KindRules):
    """It owns nothing and writes nothing; its target and the attempts are named in the plan."""

    kind = ROLLBACK
    writes = False
    on_engine = False

    def due(self, _board: Board, _line: int, *, now: LeaseTime) -> Iterator[PlanSpec]:  # noqa: ARG002
        return iter(())

    def on_request(self, _board: Board, _scope: PlanScope, *, now: LeaseTime) -> PlanSpec | str:  # noqa: ARG002
        return "a rollback is asked for by the plan that it undoes: `maar plans rollback ID`"

    def misfit(self, _board: Board, _spec: PlanSpec) -> Refusal | None:
        return Refusal.NOT_DEAD  # only the fold makes one, from attempts that have ended

    def refusal(
        self,
        _plan: Plan,
        _inputs: Mapping[BlockId, BlockOutline],
        result: PlanResult,
        _deletable: Mapping[TenantId, int],
    ) -> Refusal | None:
        return Refusal.OUTPUT if result.outputs else None

    def scope(self, _key: QueueKey) -> str:
        return "of a plan"


ROLLING_BACK = RollingBack()
