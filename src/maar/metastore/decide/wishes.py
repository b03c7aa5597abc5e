"""Plans that somebody asks for: scheduled, not executed; the same wish finds the same plan."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from maar.metastore.fold.plans.plan import all_plans, find
from maar.metastore.records.effects import Effect, Refused, Scheduled
from maar.metastore.records.entries import Entry, PlanAsked, PlansScheduled
from maar.metastore.state.state import MetaState
from maar.model.errors import InvalidInput, Overloaded
from maar.model.ids import Shard, TenantId
from maar.model.plan import Plan, PlanJob, PlanState
from maar.model.refusal import Refusal
from maar.model.time import LeaseTime
from maar.ports.plans.board import ScheduledPlan, SchedulePlan
from maar.services.rules import PlanScope

REQUEST_ID_MAX = 200  # characters


def scope_of(request: SchedulePlan) -> PlanScope:
    return PlanScope(TenantId(request.tenant), Shard(request.shard), request.level, request.day)


def check(state: MetaState, request: SchedulePlan) -> None:
    """InvalidInput when nobody could ever carry it out."""
    if request.kind not in state.kinds:
        known = ", ".join(state.kinds)
        raise InvalidInput(f"{request.kind[:60]!r} is not a kind of plan; there are {known}")
    if len(request.request_id) > REQUEST_ID_MAX:
        raise InvalidInput(f"a request id has at most {REQUEST_ID_MAX} characters")


def find_same(state: MetaState, request: SchedulePlan) -> Plan | None:
    """A plan that the same request made, or a pending one of the same kind and scope. One that is
    excluded does not answer for its scope: a bad block must not keep the others from being asked
    for.
    """
    rules, scope = state.kinds[request.kind], scope_of(request)
    if request.request_id:
        asked = all_plans(state) if rules.answers_again else state.plans.values()
        for plan in asked:
            if plan.kind == request.kind and plan.answers(request.request_id):
                return plan
    pending = (
        plan
        for plan in state.plans.values()
        if plan.kind == request.kind and plan.state is not PlanState.EXCLUDED
    )
    return min(
        (plan for plan in pending if rules.is_about(plan.key, scope)),
        key=lambda plan: plan.id,
        default=None,
    )


def entries(state: MetaState, request: SchedulePlan, *, now: LeaseTime) -> list[Entry]:
    """What schedules it. A request that finds a plan of its scope is noted with that plan: repeated
    when the plan is completed, it must not make another one.
    """
    check(state, request)
    same = find_same(state, request)
    if same is not None:
        known = not request.request_id or same.answers(request.request_id)
        return [] if known else [PlanAsked(same.id, request_id=request.request_id)]
    made = state.kinds[request.kind].on_request(state, scope_of(request), now=now)
    if isinstance(made, str):
        return []
    rules = state.kinds[request.kind]
    if rules.scheduled and made.job is None:
        job = PlanJob(rules.job_of(made.key), on_demand=True)
        made = msgspec.structs.replace(made, job=job)
    return [PlansScheduled((msgspec.structs.replace(made, request_id=request.request_id),))]


def answer(
    effects: Sequence[Effect], state: MetaState, request: SchedulePlan, *, now: LeaseTime
) -> ScheduledPlan:
    for effect in effects:
        match effect:
            case Scheduled():
                found = find(state, effect.plan)
                assert found is not None
                return _reply(found, created=True)
            case Refused(why=Refusal.TOO_MANY):
                raise Overloaded("the schedule is full; ask again later")
            case _:
                pass
    same = find_same(state, request)
    if same is not None:
        return _reply(same, created=False)
    made = state.kinds[request.kind].on_request(state, scope_of(request), now=now)
    why = made if isinstance(made, str) else "the blocks have changed meanwhile; ask again"
    return ScheduledPlan(None, request.kind, why=why)


def _reply(plan: Plan, *, created: bool) -> ScheduledPlan:
    return ScheduledPlan(plan.id, plan.kind, plan.state.name.lower(), created)
