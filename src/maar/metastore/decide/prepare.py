"""Turns requests into entries: it only reads the state, and entries say what they presume (S6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from maar.metastore.decide import execution, schedule, verdict
from maar.metastore.decide.jobs import JobBook, Moment
from maar.metastore.decide.workers import WorkerRegistry
from maar.metastore.fold.deleting import deletion, retirement
from maar.metastore.fold.plans import attempts, lease, parking
from maar.metastore.records.entries import (
    BlocksAdded,
    BlocksAdopted,
    Entry,
    LeasesRenewed,
    PinsDropped,
    PinsTaken,
    PlanCompleted,
    PlanFailed,
    PlansArchived,
    PlansStarted,
    PlansUnparked,
    RegistrationFloor,
    Start,
    Tick,
    encode_entry,
)
from maar.metastore.state.state import NO_FLOOR, MetaState
from maar.model.block import BlockMeta
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.metastore.log import ENTRY_BYTES_MAX
from maar.ports.plans.board import PollRequest, Report

ADDED_BYTES_MAX = ENTRY_BYTES_MAX // 4  # so that an entry is folded in a few milliseconds
ARCHIVED_AT_ONCE_MAX = 1_000
TICK_NS = 60 * SECOND_NS  # while something waits for time, the log knows it to the minute
IDLE_TICK_NS = 3600 * SECOND_NS  # else to the hour, so that restarts do not keep old data for ever


def registrations(blocks: Iterable[BlockMeta]) -> Iterator[BlocksAdded]:
    return map(BlocksAdded, _in_entries(blocks))


def adoptions(blocks: Iterable[BlockMeta]) -> Iterator[BlocksAdopted]:
    return map(BlocksAdopted, _in_entries(blocks))


def _in_entries(blocks: Iterable[BlockMeta]) -> Iterator[tuple[BlockMeta, ...]]:
    """As few entries as hold the blocks; one block that is too large makes an entry of its own."""
    batch: list[BlockMeta] = []
    size = 0
    for meta in blocks:
        length = len(encode_entry(BlocksAdded((meta,))))
        if batch and size + length > ADDED_BYTES_MAX:
            yield tuple(batch)
            batch, size = [], 0
        batch.append(meta)
        size += length
    if batch:
        yield tuple(batch)


def poll_entries(state: MetaState, polls: Sequence[PollRequest], *, now: LeaseTime) -> list[Entry]:
    """Reports first, so that what they free or finish is known to the rest."""
    entries: list[Entry] = [
        _report_entry(state, report, now=now) for poll in polls for report in poll.reports
    ]
    renewals = [renewal for poll in polls for renewal in poll.renewals]
    if renewals:
        extensions = (lease.extension(state, r.plan, r.token, now=now) for r in renewals)
        entries.append(LeasesRenewed(tuple(extensions)))
    starts = tuple(Start(r.plan, r.token) for r in renewals if r.started)
    if starts:
        entries.append(PlansStarted(starts))
    return entries


def _report_entry(state: MetaState, report: Report, *, now: LeaseTime) -> Entry:
    if report.result is not None:
        return PlanCompleted(report.plan, report.token, report.result)
    cause = report.failure[: attempts.CAUSE_MAX] or "the worker gave no cause"
    plan = state.plans.get(report.plan)
    if plan is None:  # the fold refuses it, and says why
        return PlanFailed(report.plan, report.token, cause, now)
    counts_as_failure = verdict.failure_counts(
        plan, policy=state.policy, plan_at_fault=report.plan_at_fault
    )
    failed = plan.failures + plan.excused + 1
    rest = min(state.policy.retry_ns * failed, state.policy.probe_ns)
    if plan.job is not None and plan.job.backoff_ns and not plan.job.on_demand:
        rest = plan.job.backoff_ns  # who asked for it now waits no longer than for other plans
    return PlanFailed(report.plan, report.token, cause, LeaseTime(now + rest), counts_as_failure)


def assignments(
    state: MetaState,
    polls: Sequence[PollRequest],
    *,
    now: LeaseTime,
    worker_registry: WorkerRegistry,
    book: JobBook | None = None,
    at: Moment | None = None,
) -> list[Entry]:
    """No plan is handed out while adopting: which inputs still exist is not known yet (S5)."""
    if state.adopting:
        return []
    wishes = [
        schedule.Wish(poll.worker, poll.capacity, poll.kinds)
        for poll in polls
        if poll.execute is None
    ]
    return schedule.assign(
        state, wishes, now=now, worker_registry=worker_registry, book=book, at=at
    )


def executions(
    state: MetaState,
    polls: Sequence[PollRequest],
    *,
    now: LeaseTime,
    hearing_since: LeaseTime,
    at: Moment | None = None,
) -> list[Entry]:
    """Grants of plans that were asked for by their id; of two askers the fold chooses the first."""
    return [
        entry
        for poll in polls
        if poll.execute is not None and poll.capacity > 0
        for entry in execution.entries(
            state,
            poll.execute,
            poll.worker,
            now=now,
            kinds=poll.kinds,
            hearing_since=hearing_since,
            at=at,
            ignore_windows=poll.ignore_windows,
        )
    ]


def pins(state: MetaState, readers: Iterable[str], *, now: LeaseTime) -> list[Entry]:
    """A pin with half its time left still covers what is live now: an older index holds more."""
    due = tuple(
        reader
        for reader in dict.fromkeys(readers)
        if (pin := state.pins.get(reader)) is None
        or 2 * (pin.expires_at - now) < state.policy.pin_ns
    )
    return [PinsTaken(due, LeaseTime(now + state.policy.pin_ns))] if due else []


def housekeeping(
    state: MetaState,
    *,
    now: LeaseTime,
    hearing_since: LeaseTime = verdict.ALWAYS,
    floor_max: LeaseTime = NO_FLOOR,
) -> list[Entry]:
    """Entries that are due by time alone: they trim a collection, or record that time has passed.

    `floor_max` is how far dead letters were searched: the registration floor never passes one (S4).
    """
    policy = state.policy
    entries: list[Entry] = schedule.set_aside(state, now, hearing_since=hearing_since)
    returning = parking.returning(state)
    if returning and not entries:  # plans that are being split need the room more
        entries.append(PlansUnparked(returning))
    expired = retirement.expired_pins(state, now)
    if expired:
        entries.append(PinsDropped(expired))
    old = tuple(
        plan.id
        for plan in state.finished.values()
        if plan.completed_at is not None and now - plan.completed_at > policy.finished_ns
    )[:ARCHIVED_AT_ONCE_MAX]
    if old:
        entries.append(PlansArchived(old))
    registration_floor = LeaseTime(min(now - policy.registration_floor_lag_ns, floor_max))
    wanted = bool(state.remembered or old) or deletion.awaits_floor(state)
    wanted = wanted and not state.adopting
    if (
        wanted
        and registration_floor - max(state.registration_floor, 0)
        > policy.registration_floor_lag_ns // 12
    ):
        entries.append(RegistrationFloor(registration_floor))
    if not entries and tick_due(state, now=now):
        entries.append(Tick())
    return entries


def tick_due(state: MetaState, *, now: LeaseTime) -> bool:
    """Whether a lane has closed by age, or something has waited for a tick long enough."""
    closes_at = state.queue.due_at(state.policy)
    closed = closes_at is not None and state.lease_time <= closes_at < now
    passed = now - state.lease_time
    return closed or passed > IDLE_TICK_NS or (waits(state) and passed > TICK_NS)


def waits(state: MetaState) -> bool:
    """Whether something other than retention will become due by time alone."""
    ended = state.finished or state.retired or state.leftovers
    return bool(state.queue.queued or state.plans or state.parked or ended)
