"""How repairs are getting on, as people and scripts are told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from maar.metastore.decide import jobs
from maar.metastore.decide.jobs import Moment
from maar.metastore.records.effects import Effect, RepairEnded
from maar.metastore.records.packs import outline
from maar.metastore.state.index import Chunk
from maar.metastore.state.repairs import AskedRepair
from maar.metastore.state.state import MetaState
from maar.metastore.views.schedule import wall_of
from maar.model.ids import StoreName, TenantId
from maar.model.plan import JobId, Plan
from maar.model.repair import RepairType
from maar.model.stores import StoreSet, is_copied
from maar.model.time import SECOND_NS, LeaseTime
from maar.model.words import span_text
from maar.ports.operator.repairs import LostBlockTold, RepairJob, RepairsStatus, RepairTold
from maar.scheduling.status import JobStatus
from maar.scheduling.status import status as status_word
from maar.services.repair import rules
from maar.services.repair.ranges import token_of, vnodes
from maar.services.repair.rules import REPAIR, REPAIRING
from maar.services.repair.subranges import ExactSizes, subranges
from maar.services.rules import JobState

LOST_TOLD_MAX = 100


def status(state: MetaState, *, tenant: str, at: Moment) -> RepairsStatus:
    lost = [
        LostBlockTold(block, each.tenant, each.what)
        for block, each in state.repairs.lost.items()
        if block in state.blocks and tenant in ("", each.tenant)
    ]
    return RepairsStatus(tuple(told_jobs(state, at, tenant=tenant)), tuple(lost[:LOST_TOLD_MAX]))


def told_jobs(state: MetaState, at: Moment, *, tenant: str = "") -> Iterator[RepairJob]:
    """One after the other, as far as they are asked for."""
    for each in sorted(state.tenants_with_blocks()):
        if tenant in ("", each):
            yield from status_of(state, each, at)


def status_of(state: MetaState, tenant: TenantId, at: Moment) -> Iterator[RepairJob]:
    """The jobs of a tenant that are of the schedule, and those that can be asked for."""
    several = any(len(each) > 1 for each in rules.store_sets(state, tenant))
    for type_ in RepairType:
        if several or type_ is RepairType.VNODE:
            yield _job_status(state, JobId(tenant, REPAIR, type_), at)


def percent_copied(state: MetaState, tenant: TenantId) -> float:
    """Of a tenant's bytes, those that are at all the stores that should hold them."""
    whole = state.blocks.copies.whole_of(tenant)
    return 100.0 * whole.bytes / whole.all_bytes if whole.all_bytes else 100.0


def _job_status(state: MetaState, job: JobId, at: Moment) -> RepairJob:
    now = at.now
    known = jobs.look(state, job, jobs.JobRules(), now, down=at.down)
    found = known.found if known is not None else JobState(job, now, nothing="it has no blocks")
    percent, since, done, ranges = percent_copied(state, job.tenant), found.succeeded_at, 0, 0
    if job.type == RepairType.VNODE:
        done, ranges = found.done, found.parts
        percent = 100.0 * done / ranges if ranges else 100.0
    else:
        since = state.all_copied_at(job.tenant)
    running = state.plans.pending_of(job)
    works = running is not None and running.lease is not None
    return RepairJob(
        tenant=job.tenant,
        type=job.type,
        state=_word(state, known, at, works=works),
        percent_repaired=round(percent, 3),
        max_repaired_at=None if since is None else wall_of(state, since, at),
        age_s=None if since is None else (now - since) / SECOND_NS,
        remaining_s=round(found.expected_ns * (100.0 - percent) / 100.0 / SECOND_NS, 3),
        why=_why(state, known, running, at) if known is not None else found.nothing,
        running=running.id if running is not None and works else None,
        ranges=ranges,
        repaired=done,
        asked=job in state.repairs.asked,
    )


def _word(state: MetaState, known: jobs.KnownJob | None, at: Moment, *, works: bool) -> JobStatus:
    if known is None or known.found.nothing:
        return JobStatus.COMPLETED
    if not _is_scheduled(state, known.id):
        whole = known.found.parts == known.found.done
        return JobStatus.COMPLETED if whole else JobStatus.ON_TIME
    return status_word(
        age_ns=known.age_ns(state, at),
        due=known.is_due(at.now),
        blocked=not works and jobs.hindrance(state, known, at) is not None,
        schedule=known.schedule,
        done=known.is_done,
    )


def _is_scheduled(state: MetaState, job: JobId) -> bool:
    return job in REPAIRING.job_ids(state, job.tenant)


def _why(state: MetaState, known: jobs.KnownJob, running: Plan | None, at: Moment) -> str:
    """It never contradicts the state: what was done, what was not, and when that is due."""
    found = known.found
    if found.nothing:
        return found.nothing
    if running is not None and running.lease is None and running.attempts:
        return f"it rests after a failure: {running.attempts[-1].cause}"
    scheduled = _is_scheduled(state, known.id)
    held = jobs.hindrance(state, known, at) if scheduled else None
    if held is not None:
        return held.why
    told = _how_far(found, at.now)
    if not scheduled:
        return f"{told}; it is not on the schedule, since its blocks lie in one store"
    due_in = known.due_at - at.now
    return f"{told}; it is due in {span_text(due_in)}" if not known.is_due(at.now) else told


def _how_far(found: JobState, now: LeaseTime) -> str:
    if found.unfinished:
        return "not all its blocks are at all their stores yet"
    if found.succeeded_at is None:
        return "it was never repaired as a whole"
    return f"its oldest part was repaired {span_text(now - found.succeeded_at)} ago"


# ── one that somebody asked for ────────────────────────────────────────────────────────────────


class ToRead(NamedTuple):
    """What the ranges of a repair are counted from, in a thread: there may be a million blocks."""

    chunks: list[Chunk]  # immutable
    tenant: TenantId
    stores: StoreSet
    sets: tuple[tuple[StoreName, ...], ...]
    target: int  # bytes of a range

    def ranges(self) -> int:
        """How many parts a full repair has."""
        found: dict[tuple[StoreName, ...], list[tuple[int, int]]] = {each: [] for each in self.sets}
        for chunk in self.chunks:
            for meta in map(outline, chunk.packed):
                wanted = self.stores.wanted_stores(self.tenant, meta.store)
                if is_copied(meta) and wanted in found:
                    found[wanted].append((token_of(meta.id), meta.size))
        return sum(
            sum(1 for _ in subranges(whole, target=self.target, size_of=sizes))
            for sizes in map(ExactSizes, found.values())
            for whole in vnodes()
        )


def to_read(state: MetaState, job: JobId) -> ToRead:
    shelves = state.blocks.tenants.get(job.tenant, {}).values()
    return ToRead(
        [chunk for shelf in shelves for chunk in shelf.chunks],
        job.tenant,
        state.stores,
        tuple(rules.store_sets(state, job.tenant)),
        jobs.JobRules().in_force(state, job)[0].size_target,
    )


def dry_run(state: MetaState, job: JobId, ranges: int = 0) -> RepairTold:
    """What a repair would read now, without reading it; from sums."""
    copies, blocks, size = state.blocks.copies, 0, 0
    for held, total in copies.of_tenant.get(job.tenant, {}).items():
        if job.type == RepairType.VNODE:
            blocks += total.blocks
            size += total.bytes * len(state.stores.wanted_stores(held.tenant, held.home))
        elif copies.missing(held):
            blocks += total.blocks
            size += total.bytes
    outcome = "would_run" if blocks else "nothing_to_do"
    return RepairTold(job, outcome, ranges=ranges if blocks else 0, blocks=blocks, bytes=size)


def last_asked(state: MetaState, job: JobId) -> RepairTold:
    """The one that goes on, or the last that ended."""
    running, ended = state.repairs.asked.get(job), state.repairs.answered.get(job)
    if running is not None:
        return _counts(job, running, "running")
    if ended is not None:
        return _counts(job, ended, ended.outcome)
    return RepairTold(job, "nothing_to_do", why="nobody asked for it")


def after(effects: Sequence[Effect], state: MetaState, job: JobId) -> RepairTold:
    """The answer to whoever asked for one, or does not want it any more."""
    if job in state.repairs.asked or any(isinstance(each, RepairEnded) for each in effects):
        return last_asked(state, job)
    return RepairTold(job, "nothing_to_do", why="there is nothing to repair")


def _counts(job: JobId, asked_: AskedRepair, outcome: str) -> RepairTold:
    return RepairTold(
        job,
        outcome,
        asked_.ranges,
        asked_.checked,
        asked_.copied,
        asked_.damaged,
        asked_.lost,
    )
