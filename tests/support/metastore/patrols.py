"""A leader with patrols on its schedule, in virtual time."""

from __future__ import annotations

import msgspec

from maar.metastore.decide.schedule import Wish
from maar.metastore.records.effects import Effect, Leased
from maar.metastore.records.entries import PlansStarted, Start
from maar.metastore.state.state import MetaState
from maar.model.ids import WorkerId
from maar.model.plan import Account, JobId, PlanResult
from maar.model.schedule import Schedule
from maar.model.time import LeaseTime
from maar.ports.plans.board import Report
from maar.services.compact.rules import COMPACTION
from maar.services.kinds import Kinds
from support.kinds.patrol.rules import PATROL, WEEKLY, Beat, Patrolling
from support.metastore.fold import SMALL, Fold
from support.metastore.leader_term import W1, LeaderDecisions


class Patrols(LeaderDecisions):
    def __init__(self, beats: dict[JobId, Beat], schedule: Schedule = WEEKLY, **policy: object):
        self.rules = Patrolling(beats, schedule)
        state = MetaState(kinds=Kinds(COMPACTION, self.rules))
        small = msgspec.structs.replace(SMALL, **policy)
        super().__init__(Fold(policy=small, state=state))

    @property
    def state(self) -> MetaState:
        return self.fold.state

    def ask(self, worker: WorkerId = W1, capacity: int = 1) -> list[Leased]:
        """Sessions that a worker gets; their work begins at once."""
        leases = self.hand_out(Wish(worker, capacity, (PATROL,)))
        if leases:
            self.put([PlansStarted(tuple(Start(one.plan, one.token) for one in leases))])
        return leases

    def job(self, lease: Leased) -> JobId:
        found = self.plan(lease.plan).job
        assert found is not None
        return found.id

    def jobs(self, leases: list[Leased]) -> list[JobId]:
        return [self.job(lease) for lease in leases]

    def finish(self, lease: Leased) -> list[Effect]:
        """The session's part is done."""
        self.rules.complete(self.job(lease), self.now)
        done = PlanResult(PATROL, (), Account(0, 0, 0))
        return self.report(lease, Report(lease.plan, lease.token, done))

    def until(self, time_ns: int) -> None:
        assert time_ns >= self.now
        self.fold.now = LeaseTime(time_ns)
