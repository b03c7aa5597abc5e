"""The fold: the only code that changes the state; the same log gives the same state everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, assert_never

import msgspec

from maar.metastore.fold import jobs, registration, reincarnation, ring, upgrade
from maar.metastore.fold.deleting import deletion, losing, retention, retirement, trust, undo
from maar.metastore.fold.plans import completion, lease, leftovers, parking, plan, rollback
from maar.metastore.fold.stores import copies, repair
from maar.metastore.records.effects import Compared, Effects, LimitSet, Refused, Voted
from maar.metastore.records.entries import (
    AdoptionEnded,
    AlarmsChanged,
    AttemptFenced,
    BlocksAdded,
    BlocksAdopted,
    BlocksExpired,
    BlocksForgotten,
    BlocksLost,
    BlocksMissed,
    BlocksOutlined,
    CopiesEnded,
    Entry,
    Envelope,
    Genesis,
    JobsAssumed,
    JobsForgotten,
    LeasesRenewed,
    LeftoversSwept,
    LimitRaised,
    PinsDropped,
    PinsTaken,
    PlanAsked,
    PlanBisected,
    PlanCompleted,
    PlanExcluded,
    PlanFailed,
    PlanRequeued,
    PlansArchived,
    PlansLeased,
    PlansParked,
    PlansScheduled,
    PlansStarted,
    PlansUnparked,
    PolicySet,
    PredicateAdded,
    PredicatesDropped,
    RegistrationFloor,
    Reincarnated,
    RepairAsked,
    RetentionHeld,
    RetentionSet,
    RetentionUndone,
    RingChanged,
    RollbacksScheduled,
    RunPolicyAdded,
    RunPolicyRemoved,
    RunsEnded,
    ScheduleRemoved,
    ScheduleSet,
    StateHashed,
    Stored,
    StoreLeaves,
    StoresSet,
    SubrangeRepaired,
    TermStarted,
    Tick,
    TombstonesEnded,
    VersionActivated,
)
from maar.metastore.records.packs import pack
from maar.metastore.state.digest import digest
from maar.metastore.state.index import blocks_in
from maar.metastore.state.state import MetaState, RaisedLimit
from maar.model.errors import Corrupt
from maar.model.lane import Item
from maar.model.refusal import Refusal
from maar.model.time import LeaseTime


class Indexed(msgspec.Struct, frozen=True, gc=False):
    """An envelope at its place in the log."""

    index: int
    envelope: Envelope


def fold_entry(state: MetaState, entry: Entry | BlocksOutlined) -> Effects:
    """What an entry does, by its kind."""
    match entry:
        case Genesis():
            return _genesis(state, entry)
        case TermStarted():
            return _term(state, entry)
        case PolicySet():
            return _policy(state, entry)
        case BlocksAdded():
            return registration.add(state, ((meta, pack(meta)) for meta in entry.blocks))
        case BlocksOutlined():
            return registration.add(state, entry.blocks)
        case PlansScheduled():
            return plan.schedule(state, entry)
        case PlanAsked():
            return plan.ask(state, entry)
        case PlansLeased():
            return lease.grant(state, entry)
        case LeasesRenewed():
            return lease.renew(state, entry)
        case PlansStarted():
            return lease.start(state, entry)
        case PlanCompleted():
            return completion.complete(state, entry)
        case PlanFailed():
            return lease.fail(state, entry)
        case PlanBisected():
            return lease.bisect(state, entry)
        case PlanExcluded():
            return lease.exclude(state, entry)
        case AttemptFenced():
            return lease.fence(state, entry)
        case RollbacksScheduled():
            return rollback.schedule(state, entry)
        case PredicateAdded():
            return deletion.add(state, entry)
        case PredicatesDropped():
            return deletion.drop(state, entry)
        case RegistrationFloor():
            return registration.raise_floor(state, entry)
        case Tick():
            return ()
        case PlansArchived():
            return plan.archive(state, entry)
        case BlocksForgotten():
            return retirement.forget(state, entry)
        case PinsTaken():
            return retirement.pin(state, entry)
        case PinsDropped():
            return retirement.unpin(state, entry)
        case StateHashed():
            return _compare(state, entry)
        case VersionActivated():
            return upgrade.activate(state, entry)
        case PlanRequeued():
            return parking.requeue(state, entry)
        case PlansParked():
            return parking.park(state, entry)
        case PlansUnparked():
            return parking.unpark(state, entry)
        case LimitRaised():
            state.raised = RaisedLimit(entry.failure_limit, entry.until)
            return (LimitSet(entry.failure_limit, entry.until),)
        case RetentionSet():
            return retention.set_period(state, entry)
        case BlocksExpired():
            return retention.expire(state, entry)
        case BlocksLost():
            return losing.lose(state, entry)
        case RetentionUndone():
            return undo.bring_back(state, entry)
        case RetentionHeld():
            return trust.hold(state, entry)
        case LeftoversSwept():
            return leftovers.sweep(state, entry)
        case RingChanged():
            return ring.change(state, entry)
        case Reincarnated():
            return reincarnation.reincarnate(state, entry)
        case BlocksAdopted():
            return reincarnation.adopt(state, entry)
        case BlocksMissed():
            return reincarnation.miss(state, entry)
        case AdoptionEnded():
            return reincarnation.end(state)
        case StoresSet():
            return copies.set_stores(state, entry)
        case StoreLeaves():
            return copies.leave(state, entry)
        case SubrangeRepaired():
            return repair.note(state, entry)
        case RepairAsked():
            return repair.ask(state, entry)
        case CopiesEnded():
            return copies.end(state, entry)
        case TombstonesEnded():
            return copies.end_tombstones(state, entry)
        case ScheduleSet():
            return jobs.set_schedule(state, entry)
        case ScheduleRemoved():
            return jobs.remove_schedule(state, entry)
        case RunPolicyAdded():
            return jobs.add_policy(state, entry)
        case RunPolicyRemoved():
            return jobs.remove_policy(state, entry)
        case JobsAssumed():
            return jobs.assume(state, entry)
        case RunsEnded():
            return jobs.end_runs(state, entry)
        case JobsForgotten():
            return jobs.forget(state, entry)
        case AlarmsChanged():
            return jobs.change_alarms(state, entry)
        case Stored():
            raise Corrupt(
                f"entry {state.index} is kept as the object {entry.key}, which was not read before "
                "applying it; this is a bug in maar, please report it."
            )
        case _:
            assert_never(entry)


FoldEntry: TypeAlias = Callable[[MetaState, Entry | BlocksOutlined], Effects]


def apply(state: MetaState, item: Indexed, fold: FoldEntry = fold_entry) -> Effects:
    """Fold one entry. Folding it again does nothing; a gap is never folded over."""
    if item.index <= state.index:
        return ()
    if item.index != state.index + 1:
        raise Corrupt(f"entry {item.index} follows {state.index}: the log has a gap.")
    envelope = item.envelope
    state.index = item.index
    state.lease_time = LeaseTime(max(state.lease_time, envelope.lease_time))  # never back (S2)
    state.wall_time = envelope.wall_time
    if not state.incarnation and not isinstance(envelope.entry, Genesis):
        return (Refused(Refusal.NO_GENESIS),)
    if envelope.version > state.version:
        return (Refused(Refusal.VERSION),)
    return fold(state, envelope.entry)


def _genesis(state: MetaState, entry: Genesis) -> Effects:
    if state.incarnation:
        return (Refused(Refusal.SECOND_GENESIS),)
    state.incarnation = entry.incarnation
    trust.begin(state)
    return ()


def _term(state: MetaState, entry: TermStarted) -> Effects:
    if entry.term < state.term:
        return (Refused(Refusal.OLD_TERM),)
    state.term, state.leader = entry.term, entry.leader
    lease.begin_anew(state)
    jobs.mark_clock(state)
    return ()


def _policy(state: MetaState, entry: PolicySet) -> Effects:
    """Blocks that the new policy wants merged, and the old one did not, enter the queue."""
    before, state.policy = state.policy, entry.policy
    trust.follow_default(state)
    state.queue.reorder(state.policy)
    if state.queue.rules.takes_alike(before, state.policy):
        return ()  # nothing new can be wanted, and the index may be large
    ordinal = 0
    for partition in state.blocks.partitions():
        for meta in blocks_in(partition.chunks):
            waits = meta.id in state.queue.places or meta.id in state.owners
            if not waits and state.queue.rules.takes(meta, state.policy):
                key = state.queue.rules.lane(meta)
                place = Item(state.index, ordinal, state.lease_time, meta.id, meta.size, key)
                state.queue.enter(place, state.policy)
                ordinal += 1
    return ()


def _compare(state: MetaState, entry: StateHashed) -> Effects:
    """Nothing changes: what follows from votes is judged beside the fold (`integrity`)."""
    if entry.replica and entry.at < state.index:
        return (Voted(entry.at, entry.replica, entry.digest),)
    if entry.at != state.index - 1:
        return (Refused(Refusal.OUTDATED),)
    return (Compared(entry.at, state.leader, entry.digest, digest(state)),)
