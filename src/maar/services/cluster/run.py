"""Clustering: one range of a tenant's day, of all its finished blocks, becomes blocks in one order.

The rows of samples end up by service, type, series and time; of profiles that several shards have,
one copy stays; symbols are shared by all. Memory is bounded: see `services.merging`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from maar.block.merge.build import MergeSizes
from maar.block.merge.run import CutPoint, RunShare
from maar.block.merge.sorted_runs import BUDGET
from maar.block.read.fetch import run_of_block
from maar.model.block import CLUSTERED
from maar.model.errors import Corrupt
from maar.model.plan import Account, LeasedPlan, PlanPart, PlanResult, ProfilePlace
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores
from maar.services.cluster.parts import MEMORY_BYTES, touches
from maar.services.cluster.rules import CLUSTER
from maar.services.merging import Merger, drop_repeated
from maar.services.publish import Publisher, always

FAN_IN = 64  # runs that are merged at once: few have rows at the same place of the order
ORDINALS = 1_000_000  # of the outputs of one part
BUDGET_PER_MEMORY = BUDGET / MEMORY_BYTES


def run(
    plan: LeasedPlan,
    *,
    store: ObjectStore | Stores,
    attempt: str,
    scratch: Path,
    wall_ns: int,
    guard: Callable[[], None] = always,
    fan_in: int = FAN_IN,
) -> PlanResult:
    """Carry out a part of a leased plan, or all of it; as compaction, it leaves no scratch."""
    began_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
    size = sum(meta.size for meta in plan.inputs)
    part = plan.part or PlanPart(0, None, None, size)
    work = scratch / f"{plan.id}-{plan.token}-{attempt}"
    work.mkdir(parents=True)
    try:
        publisher = Publisher(
            plan,
            level=CLUSTERED,
            store=store,
            attempt=attempt,
            wall_ns=wall_ns,
            guard=guard,
            first_ordinal=part.number * ORDINALS,
        )
        merger = Merger(
            plan=plan, work=work, publisher=publisher, fan_in=fan_in, sizes=_sizes(plan)
        )
        account = _merge(plan, part, store, merger)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return PlanResult(
        kind=CLUSTER,
        outputs=tuple(publisher.outputs),
        account=account,
        collisions=merger.collisions,
        cpu_ms=(time.process_time_ns() - cpu_ns) // 1_000_000,
        wall_ms=(time.perf_counter_ns() - began_ns) // 1_000_000,
    )


def load() -> None:
    """Nothing has to be compiled: profiles are decoded already."""


def _merge(
    plan: LeasedPlan, part: PlanPart, store: ObjectStore | Stores, merger: Merger
) -> Account:
    share = RunShare(first=_cut_point(part.first), end=_cut_point(part.end))
    touched = [at for at, meta in enumerate(plan.inputs) if touches(meta, part)]
    runs = [run_of_block(store, plan.inputs[at], merger.work) for at in touched]
    repeats = drop_repeated(runs, share, [plan.masks_of(at) for at in touched])
    kept = 0
    if repeats.kept:
        kept = merger.publish(
            runs, tenant=plan.key.tenant, day=plan.key.day, size=part.size, share=share
        )
    if kept != repeats.kept:
        raise Corrupt(
            f"Part {part.number} of plan {plan.id} read {repeats.profiles} profiles and can "
            f"account for {kept} kept, {repeats.duplicates} duplicates and {repeats.deleted} "
            "deleted. Its output is not used; this is a bug in maar, please report it."
        )
    return Account(kept, repeats.duplicates, 0, repeats.deleted)


def _cut_point(place: ProfilePlace | None) -> CutPoint | None:
    return None if place is None else CutPoint(place.service, place.time_us)


def _sizes(plan: LeasedPlan) -> MergeSizes:
    """What merging holds at a time, by the memory that the plan gives a task."""
    return MergeSizes(budget=int((plan.memory_bytes or MEMORY_BYTES) * BUDGET_PER_MEMORY))
