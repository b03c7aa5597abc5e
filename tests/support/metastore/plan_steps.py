"""Plans that are executed by name, rolled back and cleaned: the leader's decisions, one by one."""

from __future__ import annotations

from maar.metastore.decide import execution, rollbacks
from maar.metastore.decide.rollbacks import Survey
from maar.metastore.records.effects import Effect, Leased, RollbackScheduled
from maar.metastore.records.entries import PlanCompleted, PlansScheduled
from maar.model.ids import FencingToken, PlanId, WorkerId
from maar.model.plan import ROLLBACK, Account, Plan, PlanResult, PlanSpec
from maar.ports.plans.board import Execution
from maar.services.compact.rules import COMPACT
from support.metastore.leader_term import W1, LeaderDecisions

NOTHING = PlanResult(ROLLBACK, (), Account(0, 0, 0))


def schedule_plan(leader: LeaderDecisions, *numbers: int, removable: bool) -> PlanId:
    """A plan over new segments; compaction stands for every kind."""
    blocks = leader.add(*numbers)
    key = leader.fold.state.queue.places[blocks[0]].key
    leader.put([PlansScheduled((PlanSpec(COMPACT, removable, key, tuple(blocks), 2),))])
    return leader.fold.state.owners[blocks[0]]


def execute(leader: LeaderDecisions, plan: PlanId, worker: WorkerId = W1) -> Execution:
    """What a wish to execute a plan is answered."""
    since = leader.worker_registry.hearing_since
    entries = execution.entries(
        leader.fold.state, plan, worker, now=leader.now, hearing_since=since
    )
    leader.put(entries)
    return execution.answer(leader.fold.state, plan, worker, now=leader.now)


def lease_held(leader: LeaderDecisions, plan: PlanId) -> Leased:
    """The lease of a plan that somebody holds."""
    lease = leader.fold.state.plans[plan].lease
    assert lease is not None
    return Leased(plan, lease.token, lease.worker)


def begin(leader: LeaderDecisions, plan: PlanId, worker: WorkerId = W1) -> FencingToken:
    """Granted and started."""
    assert execute(leader, plan, worker).answer == "granted"
    lease = lease_held(leader, plan)
    leader.renew(lease, started=True)
    return lease.token


def survey(leader: LeaderDecisions) -> Survey:
    """What a cleaning would do, and does to the log."""
    since = leader.worker_registry.hearing_since
    found = rollbacks.survey(leader.fold.state, now=leader.now, hearing_since=since)
    leader.put(found.entries())
    return found


def why_skipped(leader: LeaderDecisions, plan: PlanId) -> str:
    """'' when the next cleaning would roll it back."""
    found = rollbacks.survey(leader.fold.state, now=leader.now)
    return {each.plan: each.why for each in found.skipped}.get(plan, "")


def rollback_of(leader: LeaderDecisions, target: PlanId) -> Plan:
    found = leader.fold.state.plans.rollback_of(target)
    assert found is not None
    return found


def undone(leader: LeaderDecisions, target: PlanId, worker: WorkerId = W1) -> list[Effect]:
    """Its pending rollback is executed to the end, as far as the log knows."""
    rollback = rollback_of(leader, target)
    if rollback.lease is None or rollback.lease.is_expired(leader.now):
        assert execute(leader, rollback.id, worker).answer == "granted"
    token = lease_held(leader, rollback.id).token
    return leader.put([PlanCompleted(rollback.id, token, NOTHING)])


def rollbacks_in(effects: list[Effect]) -> list[RollbackScheduled]:
    return [effect for effect in effects if isinstance(effect, RollbackScheduled)]
