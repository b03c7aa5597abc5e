"""Sessions of repairs, step by step: asked for, granted, carried out part by part."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import xxhash

from maar.metastore.decide import repairs
from maar.metastore.decide.jobs import JobBook, Moment, moment
from maar.metastore.records.effects import Effect, Refused
from maar.metastore.records.entries import (
    Grant,
    PlanCompleted,
    PlansLeased,
    PlansScheduled,
)
from maar.metastore.views import reads
from maar.metastore.views import repairs as views
from maar.model.block import BlockMeta
from maar.model.ids import BlockId, StoreName, WorkerId
from maar.model.plan import Account, JobId, LeasedPlan, PlanJob, PlanResult, PlanSpec
from maar.model.repair import RangeResult, RepairPart, RepairType
from maar.model.time import SECOND_NS, LeaseTime
from maar.model.token_range import TokenRange
from maar.ports.operator.repairs import RepairJob
from maar.ports.plans.board import CommitPart, PartCommitted
from maar.services.repair import rules
from maar.services.repair.ranges import vnode
from maar.services.repair.rules import REPAIR, REPAIRING
from maar.services.rules import JobState
from support.lake.fold_and_store import Lake
from support.metastore.fold import TENANT

VNODE_JOB = JobId(TENANT, REPAIR, RepairType.VNODE)
INCREMENTAL_JOB = JobId(TENANT, REPAIR, RepairType.INCREMENTAL)


def number_of(block: BlockId) -> int:
    """The range that a block is in, counted from 0: tokens 1 to 2**56 are the first."""
    return ((xxhash.xxh3_64_intdigest(block.encode()) - 1) % 2**64) >> 56


def block(lake: Lake, first: int = 1) -> BlockMeta:
    return lake.merge(lake.add(first, first + 1, first + 2))


def now_of(lake: Lake, *down: StoreName) -> Moment:
    return moment(lake.state, LeaseTime(lake.fold.now))._replace(down=frozenset(down))


def move_to(lake: Lake, meta: BlockMeta, home: StoreName) -> BlockMeta:
    """The same block, as if another store were its home."""
    files = tuple(
        msgspec.structs.replace(
            file,
            locations=tuple(msgspec.structs.replace(at, store=home) for at in file.locations),
        )
        for file in meta.files
    )
    there = msgspec.structs.replace(meta, store=home, files=files)
    lake.state.blocks.remove(meta.id)
    lake.state.blocks.add(there)
    return there


def job_status(lake: Lake, type_: str) -> RepairJob:
    jobs = views.status(lake.state, tenant="", at=now_of(lake)).jobs
    (told,) = [job for job in jobs if job.type == type_]
    return told


def look(lake: Lake, book: JobBook) -> None:
    """A round of the leader's: all jobs are looked at, and the log is told."""
    book.turn(lake.state, now_of(lake))
    for entry in book.entries(lake.state, now_of(lake)):
        lake.fold.put(entry)


def due(lake: Lake, *down: StoreName, repairing: rules.Repairing = REPAIRING) -> list[PlanSpec]:
    """Sessions of all jobs that have something to do, and no plan: those that were asked for, and
    those that copy.
    """
    state, now, found = lake.state, LeaseTime(lake.fold.now), []
    tenants = REPAIRING.job_tenants(state)
    for job in (job for tenant in tenants for job in REPAIRING.job_ids(state, tenant)):
        schedule = REPAIRING.default_schedule(state.policy, job)
        known = repairing.job(state, job, schedule, now=now, down=down)
        wanted = job == INCREMENTAL_JOB or job in state.repairs.asked
        busy = any(REPAIRING.job_of(plan.key) == job for plan in state.plans.of_kind(REPAIR))
        if known is None or known.nothing or not wanted or busy:
            continue
        made = repairing.session(state, known, schedule, now=now, down=down)
        found += [made] if made is not None else []
    return found


def ask(lake: Lake, job: JobId = VNODE_JOB, *, wanted: bool = True) -> tuple[Effect, ...]:
    entries = repairs.ask_entries(lake.state, job, wanted=wanted)
    return tuple(effect for entry in entries for effect in lake.fold.put(entry))


def begin(lake: Lake, spec: PlanSpec) -> LeasedPlan:
    named = msgspec.structs.replace(spec, job=PlanJob(REPAIRING.job_of(spec.key)))
    lake.fold.put(PlansScheduled((named,)))
    return grant(lake, max(lake.state.plans))


def grant(lake: Lake, plan: object) -> LeasedPlan:
    until = LeaseTime(lake.fold.now + 600 * SECOND_NS)
    seen = lake.state.plans[plan].lease  # type: ignore[index]
    lake.fold.put(
        PlansLeased((Grant(plan, WorkerId("w"), until, seen.token if seen else None),))  # type: ignore[arg-type]
    )
    return reads.leased_plan(lake.state, plan)  # type: ignore[arg-type]


def commit(
    lake: Lake, plan: LeasedPlan, result: RangeResult, empty: tuple[TokenRange, ...] = ()
) -> PartCommitted:
    request = CommitPart(plan.id, plan.token, result, empty)
    now = LeaseTime(lake.fold.now)
    effects = [
        effect
        for entry in repairs.commit_entries(lake.state, request, now=now)
        for effect in lake.fold.put(entry)
    ]
    return repairs.commit_reply(effects, lake.state, request)


def parts(plan: LeasedPlan) -> tuple[RepairPart, ...]:
    assert plan.repair is not None
    return plan.repair.parts


def carry_out(lake: Lake, plan: LeasedPlan, **told: object) -> None:
    """Every part as a worker that finds nothing wrong would commit it."""
    for part in parts(plan):
        count = part.end - part.first
        result = RangeResult(tokens=part.tokens, checked=count, **told)  # type: ignore[arg-type]
        assert commit(lake, plan, result, part.empty).accepted


def finish(lake: Lake, plan: LeasedPlan) -> None:
    result = PlanResult(REPAIR, (), Account(0, 0, 0))
    effects = lake.fold.put(PlanCompleted(plan.id, plan.token, result))
    assert not any(isinstance(effect, Refused) for effect in effects)


def repair_times(lake: Lake, *stores: StoreName) -> Iterator[tuple[int, int]]:
    """When each range was last repaired whole, as (number, time)."""
    for number, history in sorted(lake.state.repairs.of(TENANT, stores).items()):
        for piece in history.pieces:
            if piece.tokens == vnode(number):
                yield number, piece.started_at


def job_of(lake: Lake, job: JobId, *down: StoreName) -> JobState:
    now = LeaseTime(lake.fold.now)
    schedule = REPAIRING.default_schedule(lake.state.policy, job)
    found = REPAIRING.job(lake.state, job, schedule, now=now, down=down)
    assert found is not None
    return found
