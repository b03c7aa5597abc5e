"""The schedule in the log: what was set, which windows there are, runs of jobs, and alarms.

When a job is due is the leader's to decide. The fold keeps what the next leader has to know: since
when a run lasts and how much work it was, until when a job rests, and which alarms rang already.
"""

from __future__ import annotations

import msgspec

from maar.metastore.records.effects import (
    AlarmCeased,
    AlarmRaised,
    Effect,
    Effects,
    Refused,
    ScheduleChanged,
)
from maar.metastore.records.entries import (
    AlarmsChanged,
    JobsAssumed,
    JobsForgotten,
    RunPolicyAdded,
    RunPolicyRemoved,
    RunsEnded,
    ScheduleRemoved,
    ScheduleSet,
)
from maar.metastore.state.state import MetaState
from maar.model.plan import JobId, Plan
from maar.model.refusal import Refusal
from maar.model.schedule import Alarm, ClockOffset, JobRecord
from maar.model.time import SECOND_NS, LeaseTime
from maar.scheduling import pace

OFFSETS_MAX = 64
DRIFT_NS = SECOND_NS  # of two clocks that count as one

# ── what was set ───────────────────────────────────────────────────────────────────────────────


def set_schedule(state: MetaState, entry: ScheduleSet) -> Effects:
    jobs = entry.rule.jobs
    if jobs not in state.schedules and len(state.schedules) >= state.policy.schedules_max:
        return (Refused(Refusal.TOO_MANY),)
    state.schedules[jobs] = entry.rule
    return (ScheduleChanged(jobs),)


def remove_schedule(state: MetaState, entry: ScheduleRemoved) -> Effects:
    if state.schedules.pop(entry.jobs, None) is None:
        return (Refused(Refusal.UNKNOWN_RULE),)
    return (ScheduleChanged(entry.jobs),)


def add_policy(state: MetaState, entry: RunPolicyAdded) -> Effects:
    if len(state.run_policies) >= state.policy.run_policies_max:
        return (Refused(Refusal.TOO_MANY),)
    added = msgspec.structs.replace(entry.policy, id=state.index)
    state.run_policies[added.id] = added
    return (ScheduleChanged(added.jobs, added.id),)


def remove_policy(state: MetaState, entry: RunPolicyRemoved) -> Effects:
    gone = state.run_policies.pop(entry.policy, None)
    if gone is None:
        return (Refused(Refusal.UNKNOWN_RULE),)
    return (ScheduleChanged(gone.jobs, gone.id),)


# ── runs of jobs, and their sessions ───────────────────────────────────────────────────────────


def assume(state: MetaState, entry: JobsAssumed) -> Effects:
    effects: list[Effect] = []
    for item in entry.jobs:
        record = _record(state, item.job)
        if record is None:
            effects.append(Refused(Refusal.TOO_MANY))
        elif record.assumed is None or record.assumed < item.at:
            state.jobs[item.job] = msgspec.structs.replace(record, assumed=item.at)
    return tuple(effects)


def begin_session(state: MetaState, plan: Plan) -> None:
    """The first session since a job was last done begins its next run."""
    record = _record(state, plan.job.id) if plan.job else None
    if record is not None and record.run_started is None:
        started = msgspec.structs.replace(record, run_started=state.lease_time)
        state.jobs[record.id] = started


def end_session(state: MetaState, plan: Plan, *, completed: bool) -> None:
    """What it worked counts towards the run; after a success the job rests in proportion."""
    record = _record(state, plan.job.id) if plan.job else None
    if record is None or plan.job is None:
        return
    last = plan.attempts[-1]
    begun = last.started_at if last.started_at is not None else last.granted_at
    work_ns = max(0, state.lease_time - begun)
    rest_ns = pace.rest_ns(work_ns, plan.job.unwind_permille) if completed else 0
    after = msgspec.structs.replace(
        record,
        work_ns=record.work_ns + work_ns,
        eligible_at=LeaseTime(max(record.eligible_at, state.lease_time + rest_ns)),
    )
    one_session = completed and not state.kinds[plan.kind].by_interval
    state.jobs[record.id] = _end_run(after) if one_session else after


def end_runs(state: MetaState, entry: RunsEnded) -> Effects:
    for job in entry.jobs:
        record = state.jobs.get(job)
        if record is not None and record.run_started is not None:
            state.jobs[job] = _end_run(record)
    return ()


def _end_run(record: JobRecord) -> JobRecord:
    return msgspec.structs.replace(record, run_started=None, work_ns=0, last_work_ns=record.work_ns)


def forget(state: MetaState, entry: JobsForgotten) -> Effects:
    """A job that somebody works on is not forgotten: its session ends first."""
    for job in entry.jobs:
        if job not in state.plans.of_job:
            state.jobs.pop(job, None)
    ceased = (state.alarms.pop(job, None) for job in entry.jobs)
    return tuple(AlarmCeased(alarm) for alarm in ceased if alarm is not None)


def _record(state: MetaState, job: JobId) -> JobRecord | None:
    """None when the log knows as many jobs as it may."""
    found = state.jobs.get(job)
    if found is None and len(state.jobs) < state.policy.jobs_max:
        found = JobRecord(job)
    return found


# ── alarms ─────────────────────────────────────────────────────────────────────────────────────


def change_alarms(state: MetaState, entry: AlarmsChanged) -> Effects:
    effects = [effect for alarm in entry.raised for effect in _raise(state, alarm)]
    for job in entry.ceased:
        alarm = state.alarms.pop(job, None)
        if alarm is not None:
            effects.append(AlarmCeased(alarm))
    return tuple(effects)


def _raise(state: MetaState, alarm: Alarm) -> Effects:
    """One that escalates keeps the time since when it has been an alarm; the same one again is
    none.
    """
    before = state.alarms.get(alarm.id)
    if before is None and len(state.alarms) >= state.policy.jobs_max:
        return (Refused(Refusal.TOO_MANY),)
    if before is not None:
        alarm = msgspec.structs.replace(alarm, since=before.since, since_wall=before.since_wall)
    if alarm == before:
        return ()
    state.alarms[alarm.id] = alarm
    if before is not None and before.level == alarm.level:
        return ()
    return (AlarmRaised(alarm, before.level if before else 0),)


def mark_clock(state: MetaState) -> None:
    """Lease time stood still before a term began: how far it fell behind the wall clock is kept,
    so that an age can be told by both.
    """
    mark = ClockOffset(state.lease_time, state.wall_time - state.lease_time)
    last = state.offsets[-1] if state.offsets else None
    if last is not None and abs(last.offset_ns - mark.offset_ns) < DRIFT_NS:
        return
    kept = state.offsets
    if len(kept) >= OFFSETS_MAX:  # the first stays: it is true of everything older, about
        kept = (kept[0], *kept[2:])
    state.offsets = (*kept, mark)
