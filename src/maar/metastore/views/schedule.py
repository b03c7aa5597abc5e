"""Jobs as people see them: how each stands, and why one runs and another does not."""

from __future__ import annotations

from collections.abc import Iterator

from maar.metastore.decide import jobs
from maar.metastore.decide.jobs import JobBook, KnownJob, Moment
from maar.metastore.state.state import MetaState
from maar.model.errors import InvalidInput, NotFound
from maar.model.plan import JobId, Plan
from maar.model.schedule import ALL, RunPolicy, ScheduleRule, check_rule, check_run_policy
from maar.model.time import LeaseTime, WallTime
from maar.model.words import count_text, span_text
from maar.ports.operator.schedule import JobView
from maar.scheduling import status
from maar.scheduling.resources import busy
from maar.scheduling.status import JobStatus

MORE_URGENT_NAMED = 3


def view(state: MetaState, known: KnownJob, at: Moment) -> JobView:
    now = at.now
    urgency = known.urgency(now, state.policy.granularity_ns)
    age_ns = known.age_ns(state, at)
    due, running = known.is_due(now), _running(state, known.id, now)
    why = "" if running else why_not(state, known, at)
    waits = known.schedule.interval_ns > 0 or known.found.on_demand
    success = known.found.succeeded_at
    return JobView(
        job=known.id,
        state=status.status(
            age_ns=age_ns,
            due=due,
            blocked=due and bool(why),
            schedule=known.schedule,
            done=known.is_done,
        ),
        priority=urgency.priority,
        last_success=None if success is None else wall_of(state, success, at),
        next=wall_of(state, known.due_at, at) if waits and not known.found.nothing else None,
        why=why,
        running=running.lease.worker if running and running.lease else "",
        age_s=age_ns / 1e9,
        done=known.found.done,
        parts=known.found.parts,
        schedule=known.schedule,
    )


def why_not(state: MetaState, known: KnownJob, at: Moment) -> str:
    """Why a job does not run now; '' when only a worker is missing."""
    if known.found.nothing:
        return known.found.nothing
    if not known.schedule.interval_ns and not known.found.on_demand:
        return "it runs only when somebody asks"
    if not known.is_due(at.now):
        return f"it is due in {span_text(known.due_at - at.now)}"
    held = jobs.hindrance(state, known, at)
    if held is not None:
        return held.why
    occupied = state.plans.slots_in_use(at.now)
    taken = busy(known.found.resources, occupied, slots=state.policy.resource_slots)
    return f"it waits for {taken}, which {_holder(state, taken, at.now)} occupies" if taken else ""


def _running(state: MetaState, job: JobId, now: LeaseTime) -> Plan | None:
    for plan_id in state.plans.of_job.get(job, ()):
        plan = state.plans[plan_id]
        if plan.lease is not None and not plan.lease.is_expired(now):
            return plan
    return None


def _holder(state: MetaState, resource: str, now: LeaseTime) -> str:
    for plan_id in state.plans.occupied.get(resource, ()):
        plan = state.plans[plan_id]
        if plan.lease is not None and not plan.lease.is_expired(now):
            return f"{plan.job.id} (plan {plan.id})" if plan.job else f"plan {plan.id}"
    return "another session"


def wall_of(state: MetaState, time: LeaseTime, at: Moment) -> WallTime:
    """What the wall clock showed then, or will show if it goes on as it does."""
    known = status.wall_of(time, state.offsets) if time <= at.now else None
    return known if known is not None else WallTime(at.wall + (time - at.now))


def matching_jobs(book: JobBook, *, tenant: str, kind: str) -> Iterator[KnownJob]:
    for known in list(book.known.values()):
        if tenant in ("", ALL, known.id.tenant) and kind in ("", ALL, known.id.kind):
            yield known


# ── why X and not Y ────────────────────────────────────────────────────────────────────────────


def explain(state: MetaState, book: JobBook, job: JobId, at: Moment) -> tuple[str, ...]:
    check_kind(state, job.kind)
    known = book.look_at(state, job, at)
    if known is None:
        raise NotFound(f"there is no job {job}; `maar schedule` lists them")
    return tuple(_sentences(state, book, known, at))


def _sentences(state: MetaState, book: JobBook, known: KnownJob, at: Moment) -> Iterator[str]:
    told = view(state, known, at)
    yield f"{known.id} is {told.state}."
    yield from _schedule(known)
    yield from _priority(state, known, at)
    if told.running:
        yield f"{told.running} works on it."
    elif told.why:
        yield f"It does not run now: {told.why}."
    else:
        yield "Nothing holds it back: it runs when a worker that can do it asks for work."
    if told.priority >= 0:
        yield from _others(state, book, known, at)


def _schedule(known: KnownJob) -> Iterator[str]:
    schedule = known.schedule
    if not schedule.interval_ns:
        yield "It has no interval: it runs only when somebody asks."
        return
    by = ", ".join(_pattern(jobs_) for jobs_ in known.by) or "the default of its kind"
    text = f"Its interval is {span_text(schedule.interval_ns)}, by {by}"
    if schedule.warning_ns:
        text += f"; a warning after {span_text(schedule.warning_ns)}"
    if schedule.error_ns:
        text += f", an error after {span_text(schedule.error_ns)}"
    yield f"{text}."


def _pattern(jobs_: JobId) -> str:
    return f"the rule for {jobs_.tenant or 'the lake'}/{jobs_.kind}/{jobs_.type or '-'}"


def _priority(state: MetaState, known: KnownJob, at: Moment) -> Iterator[str]:
    found = known.urgency(at.now, state.policy.granularity_ns)
    success, now = known.found.succeeded_at, at.now
    if known.found.nothing:
        return
    if success is None:
        ago = span_text(max(0, now - known.last_success))
        yield f"It has not succeeded yet, and is treated as if it had {ago} ago."
    else:
        yield f"Its last success was {span_text(max(0, now - success))} ago."
    if found.priority >= 0:
        unit = span_text(state.policy.granularity_ns)
        units = count_text(found.units, "begun unit")
        yield (
            f"It has been due for {span_text(found.late_ns)}: {units} of {unit} times a weight of "
            f"{found.weight} is a priority of {found.priority:,}."
        )


def _others(state: MetaState, book: JobBook, known: KnownJob, at: Moment) -> Iterator[str]:
    granularity_ns = state.policy.granularity_ns
    mine = known.urgency(at.now, granularity_ns)
    ahead = sorted(
        (
            (-other.urgency(at.now, granularity_ns).priority, other.due_at, other.id)
            for other in book.known.values()
            if other.id != known.id and other.is_due(at.now)
        ),
    )
    before = [each for each in ahead if (each[0], each[1]) < (-mine.priority, known.due_at)]
    if not before:
        yield "No other job that is due is more urgent."
        return
    named = ", ".join(f"{job} ({-negative:,})" for negative, _, job in before[:MORE_URGENT_NAMED])
    more = len(before) - MORE_URGENT_NAMED
    yield f"More urgent: {named}{f' and {more:,} more' if more > 0 else ''}."


# ── what may be set ────────────────────────────────────────────────────────────────────────────


def check_kind(state: MetaState, kind: str) -> None:
    scheduled = [each for each in state.kinds if state.kinds[each].scheduled]
    if kind != ALL and kind not in scheduled:
        raise InvalidInput(
            f"{kind[:60]!r} is not on the schedule; there are {', '.join(sorted(scheduled))}"
        )


def checked_rule(state: MetaState, rule: ScheduleRule) -> ScheduleRule:
    check_kind(state, rule.jobs.kind)
    return check_rule(rule)


def checked_policy(state: MetaState, policy: RunPolicy, at: Moment) -> RunPolicy:
    """A time zone that this leader does not know is refused at once, and not one day in a night."""
    check_kind(state, policy.jobs.kind)
    if at.offset_of(policy.zone, at.wall) is None:
        raise InvalidInput(f"the time zone {policy.zone[:60]!r} is not known here")
    return check_run_policy(policy)


BLOCKED = JobStatus.BLOCKED
