"""Erasing: a block is read, and written again without what was deleted of it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from maar.block.format.segment import CAUSE, open_segment, read_groups, read_rows
from maar.block.read.fetch import fetch, run_of_block
from maar.model.block import SEGMENT_TABLE, BlockMeta, Kind
from maar.model.errors import Corrupt
from maar.model.plan import Account, LeasedPlan, PlanResult
from maar.model.predicate import Mask
from maar.model.profile import RawProfile
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores
from maar.services.erase.rules import ERASE
from maar.services.merging import Merger, drop_repeated
from maar.services.publish import Publisher, always

ONE_BLOCK = 1 << 62  # bytes: what is left of a block is never cut


def run(
    plan: LeasedPlan,
    *,
    store: ObjectStore | Stores,
    attempt: str,
    scratch: Path,
    wall_ns: int,
    guard: Callable[[], None] = always,
) -> PlanResult:
    """Carry a leased plan out; as compaction, it leaves no scratch, and Corrupt names the input."""
    began_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
    (meta,) = plan.inputs
    work = scratch / f"{plan.id}-{plan.token}-{attempt}"
    work.mkdir(parents=True)
    try:
        publisher = Publisher(
            plan, level=meta.level, store=store, attempt=attempt, wall_ns=wall_ns, guard=guard
        )
        collisions = 0
        if meta.kind is Kind.QUARANTINE:
            _rewrite_raw(meta, plan.masks_of(0), store, work, publisher)
        else:
            collisions = _rewrite(plan, store, work, publisher)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    kept = sum(each.profiles for each in publisher.outputs)
    return PlanResult(
        kind=ERASE,
        outputs=tuple(publisher.outputs),
        account=Account(kept, 0, 0, meta.profiles - kept),
        collisions=collisions,
        cpu_ms=(time.process_time_ns() - cpu_ns) // 1_000_000,
        wall_ms=(time.perf_counter_ns() - began_ns) // 1_000_000,
    )


def load() -> None:
    """Nothing has to be compiled: profiles are decoded already."""


def _rewrite(
    plan: LeasedPlan, store: ObjectStore | Stores, work: Path, publisher: Publisher
) -> int:
    (meta,) = plan.inputs
    whole = msgspec.structs.replace(plan, target_block_bytes=ONE_BLOCK)
    merger = Merger(plan=whole, work=work, publisher=publisher)
    runs = [run_of_block(store, meta, work)]
    found = drop_repeated(runs, masks=[plan.masks_of(0)])
    kept = 0
    if found.kept:
        kept = merger.publish(runs, tenant=meta.tenant, day=meta.day, size=meta.size)
    if found.profiles != meta.profiles or kept != found.kept:
        raise Corrupt(
            f"Block {meta.id} has {found.profiles} profiles, and the index says {meta.profiles}; "
            f"{found.deleted} are to be deleted, and {kept} were kept. Restore its objects from a "
            "copy."
        )
    return merger.collisions


def _rewrite_raw(
    meta: BlockMeta,
    masks: tuple[Mask, ...],
    store: ObjectStore | Stores,
    work: Path,
    publisher: Publisher,
) -> None:
    held = list(_quarantined_profiles(meta, store, work))
    if len(held) != meta.profiles:
        raise Corrupt(
            f"Block {meta.id} has {len(held)} profiles, and the index says {meta.profiles}. "
            "Restore the object from a copy."
        )
    left = [
        (profile, cause)
        for profile, cause in held
        if not any(mask.hides(profile.service, profile.time_ns) for mask in masks)
    ]
    if left:
        publisher.quarantine(left, tenant=meta.tenant)


def _quarantined_profiles(
    meta: BlockMeta, store: ObjectStore | Stores, work: Path
) -> Iterator[tuple[RawProfile, str]]:
    """What is in a quarantine block, each profile with the cause."""
    parquet = open_segment(fetch(store, meta, meta.file(SEGMENT_TABLE), work))
    for group in range(parquet.num_row_groups):
        causes = read_rows(parquet, [group], [CAUSE.name])[CAUSE.name].to_pylist()
        yield from zip(read_groups(parquet, [group]), causes, strict=True)
