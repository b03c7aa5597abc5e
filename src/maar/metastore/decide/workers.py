"""What the leader tracks of its workers: in memory only, and from scratch in each term."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from maar.metastore.decide.verdict import ALWAYS
from maar.model.ids import WorkerId
from maar.model.plan import PlanKind
from maar.model.time import SECOND_NS, LeaseTime
from maar.services.kinds import PlanLine

PRESENT_NS = 30 * SECOND_NS  # a worker that was heard within this time is present


class WorkerHeard(NamedTuple):
    at: LeaseTime
    wants: bool  # it asked for work
    kinds: frozenset[PlanKind]  # that it can carry out


@dataclass(slots=True)
class WorkerRegistry:
    hearing_since: LeaseTime = ALWAYS  # listening since then, without a pause that missed renewals
    listened_at: LeaseTime = ALWAYS
    heard: dict[WorkerId, WorkerHeard] = field(default_factory=dict)
    drained: WorkerId | None = None  # it gets nothing until it is free for a plan that runs alone
    turns: dict[PlanLine, int] = field(default_factory=dict)  # of the lines
    failing_turns: dict[PlanLine, int] = field(
        default_factory=dict
    )  # of lines of plans that run alone

    def listen(self, now: LeaseTime, *, pause_ns: int) -> None:
        """Note that the leader's loop runs; a long gap since the last time was a pause."""
        if self.listened_at != ALWAYS and now - self.listened_at >= pause_ns:
            self.hearing_since = now
        self.listened_at = now

    def hear(
        self, worker: WorkerId, *, wants: bool, kinds: frozenset[PlanKind], now: LeaseTime
    ) -> None:
        self.heard[worker] = WorkerHeard(now, wants, kinds)

    def forget_absent(self, now: LeaseTime) -> None:
        for worker in [w for w, heard in self.heard.items() if now - heard.at > PRESENT_NS]:
            del self.heard[worker]
        if self.drained not in self.heard:
            self.drained = None

    def able(self, kind: PlanKind, now: LeaseTime) -> int:
        """How many workers are present that support this kind of plan."""
        return sum(
            kind in heard.kinds and now - heard.at <= PRESENT_NS for heard in self.heard.values()
        )

    def others(self, worker: WorkerId, kind: PlanKind) -> bool:
        """Whether another worker is present that supports this kind of plan."""
        return any(kind in heard.kinds for other, heard in self.heard.items() if other != worker)
