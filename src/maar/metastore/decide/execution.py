"""Who may execute a plan that is named by its id: the check and the grant are one append."""

from __future__ import annotations

from collections.abc import Collection

from maar.metastore.decide import verdict
from maar.metastore.decide.jobs import Moment, moment, pause_reason, window_refusal
from maar.metastore.fold.plans import lease as leases
from maar.metastore.fold.plans import plan as plans
from maar.metastore.fold.plans import rollback
from maar.metastore.records.entries import Entry, Grant, LeasesRenewed, PlanAsked, PlansLeased
from maar.metastore.state.state import MetaState
from maar.model.ids import PlanId, WorkerId
from maar.model.plan import Lease, Plan, PlanKind, PlanState
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.plans.board import Answer, Execution, not_open
from maar.scheduling import resources

ADOPTING = "the metastore is adopting what the store holds; ask again when that is over"


def entries(
    state: MetaState,
    plan_id: PlanId,
    worker: WorkerId,
    *,
    now: LeaseTime,
    kinds: Collection[PlanKind] = (),
    hearing_since: LeaseTime = verdict.ALWAYS,
    at: Moment | None = None,
    ignore_windows: bool = False,
) -> list[Entry]:
    """What grants the plan, if it can be granted: `answer` says what came of it."""
    plan = state.plans.get(plan_id)
    if plan is None or state.adopting or _unable(plan, kinds):
        return []
    if _waits_for(plan, worker, now):  # the answer to its first wish was lost
        assert plan.lease is not None
        return [LeasesRenewed((leases.extension(state, plan.id, plan.lease.token, now=now),))]
    if _why_not(state, plan, now, at=at, ignore_windows=ignore_windows) is not None:
        return []
    until = LeaseTime(now + state.kinds[plan.kind].lease_ns(state.policy))
    seen = plan.lease.token if plan.lease else None
    counts = verdict.expiry_counts(state, plan, hearing_since=hearing_since)
    guarded = state.policy.execution_guard
    grant = Grant(
        plan.id,
        worker,
        until,
        seen,
        counts,
        by_hand=True,
        guarded=guarded,
        ignores_windows=ignore_windows,
    )
    return [PlansLeased((grant,))]


def _unable(plan: Plan | None, kinds: Collection[PlanKind]) -> Execution | None:
    """Whoever says which kinds of plans it can carry out is given no others."""
    if plan is None or not kinds or plan.kind in kinds:
        return None
    able = ", ".join(sorted(kinds))
    return Execution(
        plan.id,
        Answer.WRONG_KIND,
        f"plan {plan.id} is of the kind {plan.kind}, and whoever asks for it carries out {able} "
        "only",
    )


def _waits_for(plan: Plan, worker: WorkerId, now: LeaseTime) -> bool:
    """Whether it was granted to a worker that may not know of it. One that has started does; if two
    of the same name ask, the second must not get the token of the first.
    """
    lease = plan.lease
    held = lease is not None and lease.worker == worker and not lease.is_expired(now)
    return held and plan.attempts[-1].started_at is None


def answer(
    state: MetaState,
    plan_id: PlanId,
    worker: WorkerId,
    *,
    now: LeaseTime,
    kinds: Collection[PlanKind] = (),
    at: Moment | None = None,
    ignore_windows: bool = False,
) -> Execution:
    """After the entries were folded: a plan is granted if its asker holds it now."""
    plan = state.plans.get(plan_id)
    if unable := _unable(plan, kinds):
        return unable
    if plan is not None and _waits_for(plan, worker, now):
        return Execution(plan_id, Answer.GRANTED)
    found = preview(state, plan_id, now=now, at=at, ignore_windows=ignore_windows)
    if found.answer is not Answer.GRANTED:
        return found
    return Execution(plan_id, Answer.BUSY, "the plan changed meanwhile; ask again")


def preview(
    state: MetaState,
    plan_id: PlanId,
    *,
    now: LeaseTime,
    at: Moment | None = None,
    ignore_windows: bool = False,
) -> Execution:
    """What somebody new who wants to execute the plan would be told now; nothing is granted."""
    plan = state.plans.get(plan_id)
    if plan is None:
        return _answer_ended(state, plan_id)
    if state.adopting:
        return Execution(plan_id, Answer.BUSY, ADOPTING)
    why_not = _why_not(state, plan, now, at=at, ignore_windows=ignore_windows)
    return why_not or Execution(plan_id, Answer.GRANTED)


# ── by the next worker that asks for work ──────────────────────────────────────────────────────


def may_run_now(state: MetaState, plan: Plan, now: LeaseTime) -> bool:
    """Whether a worker that polls may be given the plan, rested or not. It takes over nothing, also
    when the guard is off: nobody there knows of the holder.
    """
    return _why_not(state, plan, now, guarded=True) is None


def run_now_entries(state: MetaState, plan_id: PlanId, *, now: LeaseTime) -> list[Entry]:
    plan = state.plans.get(plan_id)
    if plan is None or state.adopting or plan.urgent or not may_run_now(state, plan, now):
        return []
    return [PlanAsked(plan_id, urgent=True)] if state.kinds[plan.kind].open_to_all else []


def run_now_answer(state: MetaState, plan_id: PlanId, *, now: LeaseTime, workers: int) -> Execution:
    """After the entries: the plan is urgent, or why it is not. `workers` were heard of lately that
    can carry it out.
    """
    plan = state.plans.get(plan_id)
    if plan is None or state.adopting:
        return preview(state, plan_id, now=now)
    refused = _why_not(state, plan, now, guarded=True)
    if refused is not None:
        return refused
    if not state.kinds[plan.kind].open_to_all:
        return not_open(plan_id, plan.kind)
    if not plan.urgent:
        return Execution(plan_id, Answer.BUSY, "the plan changed meanwhile; ask again")
    sentence = (
        f"the next worker with room that carries out {plan.kind} gets plan {plan_id}"
        if workers
        else f"plan {plan_id} waits for a worker that carries out {plan.kind}: none was heard of "
        "lately"
    )
    return Execution(plan_id, Answer.ASKED, sentence, workers=workers)


def _why_not(
    state: MetaState,
    plan: Plan,
    now: LeaseTime,
    *,
    guarded: bool | None = None,
    at: Moment | None = None,
    ignore_windows: bool = False,
) -> Execution | None:
    """In the order of the fold, at a time that may be later than the last entry's. The guard is as
    it is set, unless the caller says otherwise.
    """
    lease = plan.lease
    guarded = state.policy.execution_guard if guarded is None else guarded
    if guarded and lease is not None and not lease.is_expired(now):
        return _lease_live(plan, lease, now, doing="executes")
    if plan.removable and plan.state is PlanState.INFLIGHT:
        return Execution(
            plan.id,
            Answer.MUST_BE_ROLLED_BACK,
            f"plan {plan.id} has started and is removable: it cannot be executed again. Roll it "
            f"back (`maar plans rollback {plan.id}`), or leave that to the next cleaning",
        )
    undoing = rollback.live_holder(state, plan.id, now)
    if guarded and undoing is not None:
        return _lease_live(plan, undoing, now, doing="rolls back")
    if plan.state is PlanState.EXCLUDED and not leases.eligible(state, plan, now):
        return _exclusion(plan)
    held_back = _held_back(state, plan, at or moment(state, now), ignore_windows=ignore_windows)
    if held_back:
        return Execution(plan.id, Answer.BUSY, held_back)
    if leases.attempts_left(state) < 1:
        return Execution(
            plan.id, Answer.BUSY, "too many ended attempts wait to be cleaned up; ask again later"
        )
    return None


def _held_back(state: MetaState, plan: Plan, at: Moment, *, ignore_windows: bool) -> str:
    """Why the schedule does not let it run, also when somebody names it: a pause, a window, or a
    resource that another session occupies.
    """
    rules = state.kinds[plan.kind]
    if not rules.scheduled:
        return ""
    job = plan.job.id if plan.job else rules.job_of(plan.key)
    if why := pause_reason(state, job, at):
        return f"{why}; it is executed when that is removed (`maar schedule resume`)"
    refused = window_refusal(state, job, at)
    if refused is not None and not ignore_windows:
        return f"{refused.why}; --ignore-windows executes it all the same"
    occupied = state.plans.slots_in_use(at.now, but=plan.id)
    taken = resources.busy(plan.resources, occupied, slots=state.policy.resource_slots)
    return f"{taken} is occupied by another session; ask again when that has ended" if taken else ""


def _lease_live(plan: Plan, lease: Lease, now: LeaseTime, *, doing: str) -> Execution:
    left_s = max(0, lease.expires_at - now) / SECOND_NS
    return Execution(
        plan.id,
        Answer.LEASE_LIVE,
        f"{lease.worker} {doing} plan {plan.id}; if nothing is heard of it, its lease ends in "
        f"{left_s:.0f} s",
        holder=lease.worker,
        seconds_left=left_s,
    )


def _exclusion(plan: Plan) -> Execution:
    why = f" ({plan.note})" if plan.note else ""
    return Execution(
        plan.id,
        Answer.EXCLUDED,
        f"plan {plan.id} is {plan.state.name.lower()}{why}; `maar plans requeue {plan.id}` frees "
        "it",
    )


def _answer_ended(state: MetaState, plan_id: PlanId) -> Execution:
    pending = state.plans.rollback_of(plan_id)
    plan = plans.find(state, plan_id)
    if plan is None:
        return Execution(
            plan_id,
            Answer.NOT_FOUND,
            f"there is no plan {plan_id}; finished plans are archived after a while",
        )
    if plan.state is PlanState.PARKED:
        return _exclusion(plan)
    if plan.state is PlanState.COMPLETED:
        return Execution(plan_id, Answer.ALREADY_COMPLETED, result=plan.result)
    if plan.state is PlanState.ROLLED_BACK and pending is not None:
        return Execution(
            plan_id,
            Answer.MUST_BE_ROLLED_BACK,
            f"plan {plan_id} is being rolled back by plan {pending.id}: it is not executed again",
        )
    if plan.state is PlanState.ROLLED_BACK:
        return Execution(
            plan_id, Answer.ROLLED_BACK, f"plan {plan_id} was rolled back: {plan.note}"
        )
    children = tuple(each.id for each in plans.all_plans(state) if each.parent == plan_id)
    return Execution(
        plan_id,
        Answer.CANCELLED,
        f"plan {plan_id} was cancelled{': ' + plan.note if plan.note else ''}",
        children=children,
    )
