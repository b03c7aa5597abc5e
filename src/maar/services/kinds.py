"""The kinds of plans: one closed union, in order of priority.

A new kind is a folder `maar.services.<kind>` with `rules.py` and `run.py`, and two lines here: its
import and its place in the union. Only rules are imported: who decides needs no task.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from maar.model.block import BlockOutline
from maar.model.errors import Corrupt
from maar.model.plan import Plan, PlanKind, PlanSpec, QueueKey
from maar.model.policy import Policy
from maar.model.time import LeaseTime
from maar.services.clean.rules import CLEANING
from maar.services.cluster.rules import CLUSTERING
from maar.services.compact.rules import COMPACTION
from maar.services.erase.rules import ERASING
from maar.services.ingest.rules import INGESTION
from maar.services.logcompact.rules import LOGCOMPACTION
from maar.services.repair.rules import REPAIRING
from maar.services.rollback.rules import ROLLING_BACK
from maar.services.rules import Board, KindRules, QueueRules


class PlanLine(NamedTuple):
    """Plans that wait together; sorts by whose turn comes first."""

    rank: int  # of the kind in the union
    number: int  # the kind's own


class Kinds:
    """Rules by the name of their kind. Tests make other unions; a program has one."""

    def __init__(self, *rules: KindRules) -> None:
        self._rules = {each.kind: each for each in rules}
        self._ranked = rules
        self._ranks = {each.kind: rank for rank, each in enumerate(rules)}
        assert len(self._rules) == len(rules), "two kinds have one name"
        (self.queue,) = [each for each in rules if isinstance(each, QueueRules)]

    def __getitem__(self, kind: PlanKind) -> KindRules:
        rules = self._rules.get(kind)
        if rules is None:
            known = ", ".join(self._rules)
            raise Corrupt(
                f"the log has a plan of the kind {kind[:60]!r}, and this program knows {known} "
                "only; run a newer one"
            )
        return rules

    def __contains__(self, kind: object) -> bool:
        return kind in self._rules

    def __iter__(self) -> Iterator[PlanKind]:
        return iter(self._rules)

    def on_engine(self) -> tuple[PlanKind, ...]:
        """Those that need Spark, and that any worker can carry out."""
        return tuple(each.kind for each in self._ranked if each.on_engine and each.open_to_all)

    def line(self, kind: PlanKind, key: QueueKey) -> PlanLine:
        rules = self[kind]
        return PlanLine(self._ranks[kind], rules.line(key))

    def lines(self, policy: Policy) -> Iterator[PlanLine]:
        """Every line that may have something due."""
        for rank, rules in enumerate(self._ranked):
            for number in rules.lines(policy):
                yield PlanLine(rank, number)

    def due(self, board: Board, line: PlanLine, *, now: LeaseTime) -> Iterator[PlanSpec]:
        return self.of_line(line).due(board, line.number, now=now)

    def of_line(self, line: PlanLine) -> KindRules:
        return self._ranked[line.rank]

    def prospects(self, board: Board, meta: BlockOutline, *, now: LeaseTime) -> Iterator[str]:
        """What may still be done with a finished block, in sentences of all kinds."""
        for rules in self._ranked:
            yield from rules.prospects(board, meta, now=now)

    def title(self, plan: Plan) -> str:
        """A plan in a few words, for logs and engines."""
        whose, scope = plan.key.tenant or "all tenants", self[plan.kind].scope(plan.key)
        return f"{plan.kind} {plan.id} {scope} shard {plan.key.shard} {whose}"


KINDS = Kinds(
    COMPACTION,
    ERASING,
    LOGCOMPACTION,
    CLUSTERING,
    REPAIRING,
    INGESTION,
    ROLLING_BACK,
    CLEANING,
)
