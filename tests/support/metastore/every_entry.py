"""A log in which every kind of entry occurs and does something, and the state that it gives."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from maar.metastore.records import entries as e
from maar.metastore.records.effects import Refused
from maar.metastore.state.digest import digest
from maar.model.block import BlockMeta, Kind
from maar.model.ids import (
    HOME,
    MAIN_STORE,
    NO_TENANT,
    FencingToken,
    Incarnation,
    NodeId,
    PlanId,
    TenantId,
    WorkerId,
    Zone,
)
from maar.model.plan import ROLLBACK, Account, JobId, PlanJob, PlanKind, PlanResult, PlanSpec
from maar.model.policy import HOUR_NS, KindTerms
from maar.model.predicate import EVER_NS, DeletionRequest, Mask, Predicate
from maar.model.repair import LostBlock, RangeResult, RepairOrder, RepairType
from maar.model.ring import Writer, WriterState
from maar.model.schedule import (
    EVERY_JOB,
    Alarm,
    AlarmLevel,
    LockLevel,
    RunPolicy,
    ScheduleRule,
)
from maar.model.stores import CopyBad, CopyMade
from maar.model.time import SECOND_NS, LeaseTime, WallTime
from maar.services.clean.rules import CLEAN, WHOLE_LAKE
from maar.services.compact.rules import COMPACT
from maar.services.repair.ranges import vnode
from maar.services.repair.rules import REPAIR
from support.metastore.copies import EU, US, Repairing, stores
from support.metastore.fold import DAY_START_NS, INCARNATION, SMALL, TENANT, Fold, output, segment

TERMS = (KindTerms("clean", 5 * SECOND_NS, 60 * SECOND_NS, removable=True),)
FIRST_LIFE, OTHER_LIFE = Incarnation("01dcafe0"), Incarnation("01dcafe1")
FOUND = Predicate(2, FIRST_LIFE, LeaseTime(0), Mask(TENANT, "gone", 0, EVER_NS))  # in the store


def every_kind_of_entry() -> Fold:
    """All but `Stored`; a golden log is made of it, so it changes only with the version."""
    fold = Fold(
        policy=msgspec.structs.replace(
            SMALL, plans_max=4, kinds=TERMS, schedules=(ScheduleRule(EVERY_JOB),)
        ),
        incarnation=FIRST_LIFE,
    )
    fold.put(e.VersionActivated(e.VERSION))
    add_restore(fold)
    s, w = SECOND_NS, WorkerId("w1")
    segments = tuple(segment(n, at=n, profiles=10 + n) for n in range(7))
    fold.put(e.BlocksAdded(segments))
    key = fold.state.queue.places[segments[0].id].key
    ids = [meta.id for meta in segments]

    def put(entry: e.Entry) -> None:
        assert not any(isinstance(effect, Refused) for effect in fold.put(entry)), entry

    def spec(*numbers: int) -> PlanSpec:
        return PlanSpec(COMPACT, False, key, tuple(ids[n] for n in numbers), 2)

    def grant(*plans: PlanId, counts: bool = True) -> FencingToken:
        until = LeaseTime(fold.now + 15 * s)
        put(e.PlansLeased(tuple(e.Grant(plan, w, until, None, counts) for plan in plans)))
        return FencingToken(INCARNATION, fold.state.index)

    put(e.PlansScheduled((spec(0, 1), spec(2, 3), spec(4), spec(5))))
    plans = [PlanId(fold.state.index, n) for n in range(4)]
    put(e.PinsTaken(("query-1", "query-2"), LeaseTime(50 * s)))
    put(
        e.PredicateAdded(
            Mask(TENANT, "checkout", DAY_START_NS, DAY_START_NS + 1_000),
            DeletionRequest("ticket-17", profiles=1, blocks=1, at_most=False),
        )
    )
    held = grant(*plans)
    put(e.PlansStarted((e.Start(plans[0], held), e.Start(plans[1], held))))
    put(e.LeasesRenewed((e.Extension(plans[0], held, LeaseTime(30 * s)),)))
    inputs = segments[:2]
    good = output(plans[0], held, inputs, profiles=18)
    bad = output(plans[0], held, inputs, profiles=1, ordinal=1, kind=Kind.QUARANTINE)
    made = PlanResult(COMPACT, (good, bad), Account(18, 1, 1, 1), collisions=2, cpu_ms=7, wall_ms=9)
    put(e.PlanCompleted(plans[0], held, made))
    put(e.AttemptFenced(plans[3], held, "fenced by hand"))
    put(
        e.PlanFailed(plans[2], held, "the JVM went away", LeaseTime(1 * s), counts_as_failure=False)
    )
    fold.now = 2 * s
    again = grant(plans[2])
    put(e.PlanFailed(plans[2], again, "the disk was full", LeaseTime(20 * s)))
    fold.now = 31 * s
    put(e.Tick())
    put(e.PlanBisected(plans[1], held, 1, counts_as_failure=False))
    halves = [PlanId(fold.state.index, n) for n in range(2)]
    put(e.PlanExcluded(plans[2], None, LeaseTime(90 * s)))
    put(e.PlansParked((plans[2],)))
    put(e.PlansUnparked((plans[2],)))
    put(e.PlansParked((plans[2],)))
    put(e.PlanRequeued(plans[2]))
    put(e.PlanExcluded(plans[2], None, LeaseTime(1 << 62), note="it is in the way"))
    put(e.PlansParked((plans[2],)))
    put(e.LimitRaised(9, LeaseTime(600 * s)))
    put(e.RetentionSet(TENANT, 30 * 86_400 * s))
    put(e.RetentionSet(TenantId("globex"), 0))
    put(e.RetentionSet(TenantId("initech"), 3_600 * s))
    put(e.RetentionSet(TenantId("initech"), None))
    grant(halves[0])
    put(e.BlocksExpired(DAY_START_NS + 2 * s, (ids[2],)))
    put(e.RetentionHeld(True, "somebody has to look"))
    put(e.RetentionUndone((ids[2],)))
    put(e.RetentionHeld(False, "the clock is right"))
    put(e.RetentionHeld(False, "somebody has looked", confirmed=True))
    put(e.BlocksExpired(DAY_START_NS + 2 * s, (ids[2],)))
    put(e.BlocksLost((ids[6],), "its object is gone"))
    put(e.RetentionHeld(True, "somebody has to look once more"))
    put(e.BlocksAdded((msgspec.structs.replace(segment(8, at=8), zone=Zone("east")),)))
    put(e.LeftoversSwept((e.AttemptKey(plans[0], held),)))
    rings(put, fold)
    dead = e.RollbackWish(plans[1], (held,), None, "its attempt ended without a result")
    rollbacks(put, fold, dead)
    put(e.PlansArchived((plans[1],)))
    put(e.BlocksForgotten((ids[1],)))
    copies(put, fold, good, bad)
    fold.now = 60 * s
    put(e.PinsDropped(("query-2",)))
    schedules(put, fold)
    put(e.RegistrationFloor(LeaseTime(0)))
    put(e.PredicatesDropped((FOUND.id,)))
    hashed, at = digest(fold.state), fold.state.index
    put(e.StateHashed(at, hashed))
    put(e.TermStarted(2, "two"))
    put(e.StateHashed(at, hashed, "two"))
    return fold


def rollbacks(put: Callable[[e.Entry], None], fold: Fold, dead: e.RollbackWish) -> None:
    """A removable plan starts and is abandoned; a cleaning undoes it, and a dead attempt."""
    live = fold.metas(tuple(sorted(fold.live())))
    (east,) = [meta for meta in live if meta.zone == Zone("east")]
    key = fold.state.queue.places[east.id].key

    def grant(plan: PlanId) -> FencingToken:
        until = LeaseTime(fold.now + 5 * SECOND_NS)
        put(e.PlansLeased((e.Grant(plan, WorkerId("w2"), until, by_hand=True),)))
        return FencingToken(INCARNATION, fold.state.index)

    def complete(plan: PlanId, kind: PlanKind, removed: int) -> None:
        result = PlanResult(kind, (), Account(0, 0, 0), removed=removed)
        put(e.PlanCompleted(plan, grant(plan), result))

    put(e.RollbacksScheduled((dead,)))
    complete(PlanId(fold.state.index, 0), ROLLBACK, 3)
    put(e.PlansScheduled((PlanSpec(COMPACT, True, key, (east.id,), 2, request_id="once"),)))
    removable = PlanId(fold.state.index, 0)
    put(e.PlanAsked(removable, "another", urgent=True))
    token = grant(removable)
    put(e.PlansStarted((e.Start(removable, token),)))
    fold.now += 6 * SECOND_NS
    rest = LeaseTime(fold.now + 60 * SECOND_NS)
    abandoned = e.RollbackWish(removable, (token,), token, "nobody finished it", rest)
    job = PlanJob(JobId(NO_TENANT, CLEAN, "whole"), 500, 60 * SECOND_NS, on_demand=True)
    put(e.PlansScheduled((PlanSpec(CLEAN, False, WHOLE_LAKE, (), 2, job=job),)))
    complete(PlanId(fold.state.index, 0), CLEAN, 0)
    taker = PlanSpec(COMPACT, False, key, (east.id,), 2)
    put(e.RollbacksScheduled((abandoned,), (taker,)))


def copies(put: Callable[[e.Entry], None], fold: Fold, good: BlockMeta, bad: BlockMeta) -> None:
    """Two blocks are copied to other stores. One copy is bad, one was in a store that leaves, and
    one store drops out of the settings.
    """
    put(e.PolicySet(msgspec.structs.replace(fold.state.policy, plans_max=9)))
    put(e.StoresSet(stores(EU, globex=(US,))))
    repair = Repairing(fold)
    put(repair.entry((good.id, EU), (bad.id, EU), lost=(good.id,)))
    put(repair.entry((good.id, EU), ended=((good.id, EU),), attempt="r2"))
    put(e.StoreLeaves(US))
    put(e.StoreLeaves(EU))
    put(e.CopiesEnded(EU, (bad.id,), gone=False, why="the store leaves"))
    put(e.StoreLeaves(EU, leaves=False))
    (key,) = (each.key for each in fold.state.tombstones.of_store(EU) if "quarantine" in each.key)
    put(e.TombstonesEnded(EU, (key,)))
    put(repair.entry(lost=(good.id,), what=("both copies differ",)))
    result = PlanResult(REPAIR, (), Account(0, 0, 0))
    put(e.PlanCompleted(repair.plan, repair.token, result))
    ranges(put, fold)
    assert fold.state.tombstones
    assert fold.state.blocks.copies.lacking


def schedules(put: Callable[[e.Entry], None], fold: Fold) -> None:
    """Rules and run policies that stay and that go, a job that is new, and alarms."""
    s, old, new = SECOND_NS, JobId(TENANT, CLEAN, "x"), JobId(TENANT, CLEAN, "y")
    rule = ScheduleRule(
        EVERY_JOB, 9 * s, 1 * s, 10 * s, 11 * s, 12 * s, 500, LockLevel.REGION, 7, 2
    )
    put(e.ScheduleSet(rule))
    put(e.ScheduleSet(ScheduleRule(old)))
    put(e.ScheduleRemoved(old))
    put(e.RunPolicyAdded(RunPolicy(0, EVERY_JOB, 60, 120, "Europe/Berlin", "backups")))
    put(e.RunPolicyAdded(RunPolicy(0, old)))
    put(e.RunPolicyRemoved(fold.state.index))
    put(e.JobsAssumed((e.AssumedSuccess(old, LeaseTime(-5)), e.AssumedSuccess(new, LeaseTime(3)))))
    for level in AlarmLevel:
        alarm = Alarm(old, level, LeaseTime(7), WallTime(8), "it was not done for long")
        put(e.AlarmsChanged((alarm, msgspec.structs.replace(alarm, id=new))))
    put(e.AlarmsChanged((), (new,)))
    put(e.RunsEnded((JobId(NO_TENANT, CLEAN, "whole"),)))
    put(e.JobsForgotten((new,)))


def ranges(put: Callable[[e.Entry], None], fold: Fold) -> None:
    """Some ranges are repaired, two of them for somebody who waits; another one is called off."""
    for type_ in ("vnode", "incremental"):
        put(e.RepairAsked(JobId(TENANT, REPAIR, type_)))
    put(e.RepairAsked(JobId(TENANT, REPAIR, "incremental"), wanted=False))
    whole, other = vnode(3), vnode(255)
    at = fold.state.stores.wanted_stores(TENANT, MAIN_STORE)
    session = Repairing(fold, RepairOrder(RepairType.VNODE, at, (whole, other)))
    some = (whole.part(5, 900).start, whole.part(5, 900).end)
    for part in ((whole.start, whole.end), some):
        fold.now += HOUR_NS
        empty = ((other.start, other.end),)
        put(session.entry(subrange=part, looked_at=at, checked=4, empty=empty, work_ns=50))
    name = min(fold.live())
    made, bad = CopyMade(name, EU, (("samples", "key"),)), CopyBad(name, EU, "is missing")
    lost = (LostBlock(name, "in eu: is missing"),)
    told = RangeResult(whole, (made,), (bad,), lost, 1, 2, (US,), 3, 2)
    done = PlanResult(REPAIR, (), Account(0, 0, 0), repaired=told)
    put(e.PlanCompleted(session.plan, session.token, done))
    put(Repairing(fold, tenant=TenantId("globex")).entry())
    assert fold.state.repairs.history
    assert fold.state.repairs.copied


def add_restore(fold: Fold) -> None:
    """A log that was lost behind a snapshot: two blocks are found in the store, one is missed."""
    lost, kept, found = (segment(n, at=0, life=FIRST_LIFE) for n in (80, 81, 82))
    fold.put(e.BlocksAdded((lost, kept)))
    plan, token = PlanId(3, 0), FencingToken(FIRST_LIFE, 4)
    merged = output(plan, token, (lost,), profiles=9)
    entries: tuple[e.Entry, ...] = (
        e.Reincarnated(INCARNATION, (OTHER_LIFE,), (FOUND,)),
        e.BlocksAdopted((found, merged)),
        e.BlocksMissed((lost.id,)),
        e.AdoptionEnded(),
    )
    for entry in entries:
        assert not any(isinstance(effect, Refused) for effect in fold.put(entry)), entry
    assert fold.live() == {kept.id, found.id, merged.id}


def rings(put: Callable[[e.Entry], None], fold: Fold) -> None:
    """Two zones with writers in every state; a third comes and goes."""

    def writer(name: str, state: WriterState, session: str = "1f") -> Writer:
        return Writer(NodeId(name), f"{name}.example:4044", session, 2, state)

    joining, active, leaving = WriterState
    a, b = writer("a", active), writer("b", joining)
    put(e.RingChanged(HOME, 0, (a,), (0, 0)))
    put(e.RingChanged(HOME, fold.state.rings[HOME].changed_at, (a, b), (0, 0)))
    b = writer("b", active)
    put(e.RingChanged(HOME, fold.state.rings[HOME].changed_at, (a, b), (1, 0, 0, 1)))
    a = writer("a", leaving)
    put(e.RingChanged(HOME, fold.state.rings[HOME].changed_at, (a, b), (1, 0, 0, 1)))
    east, west = Zone("east"), Zone("west")
    put(e.RingChanged(east, 0, (writer("c", joining, "2e"),), ()))
    put(e.RingChanged(west, 0, (writer("d", active),), (0, 0)))
    put(e.RingChanged(west, fold.state.rings[west].changed_at, (), ()))
