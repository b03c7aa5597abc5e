"""Compaction: a batch of blocks becomes blocks of the next level; every profile is accounted for.

Level 0 is decoded and split by tenant and UTC day; higher levels are merged day by day. Memory is
bounded whatever the input: decoded profiles are gathered with each symbol kept once, wait in
scratch files when that becomes much, and merging holds a little of each sorted run.
"""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from maar.block.decode import to_tables
from maar.block.decode.interning import SeenIds
from maar.block.format.hashing import ALL_BITS
from maar.block.format.hidden import without_hidden
from maar.block.format.segment import open_segment, profiles_of_rows, read_pieces
from maar.block.merge.duplicates import id_words
from maar.block.merge.run import Run
from maar.block.read.fetch import fetch, run_of_block
from maar.model.block import SEGMENT_TABLE, BlockMeta
from maar.model.errors import Corrupt
from maar.model.ids import TenantId
from maar.model.plan import Account, LeasedPlan, PlanResult
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores
from maar.services.compact.rules import COMPACT, adoptable, adoption_result
from maar.services.decoding import SIZES as DECODING
from maar.services.decoding import DecodeSizes, ProfilePool
from maar.services.merging import FAN_IN, Merger, drop_repeated
from maar.services.publish import Publisher, always


class CompactSizes(NamedTuple):
    """How much is in memory at a time; the result is the same for any."""

    gathered_bytes: int = DECODING.gathered_bytes
    fan_in: int = FAN_IN  # runs that are merged at once

    @property
    def decoding(self) -> DecodeSizes:
        return DecodeSizes(self.gathered_bytes)


SIZES = CompactSizes()


def run(
    plan: LeasedPlan,
    *,
    store: ObjectStore | Stores,
    attempt: str,
    scratch: Path,
    wall_ns: int,
    guard: Callable[[], None] = always,
    id_mask: int = ALL_BITS,
    sizes: CompactSizes = SIZES,
) -> PlanResult:
    """Carry a leased plan out; nothing that it writes shows before the result is accepted (S3).

    Corrupt names the input block that cannot be read. Scratch is empty again afterwards. `guard`
    is asked before every write, and raises once the attempt may write no more.
    `id_mask` weakens the ids, so that tests can meet collisions.
    """
    if adoptable(plan):
        return adoption_result(plan)
    began_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
    work = scratch / f"{plan.id}-{plan.token}-{attempt}"
    work.mkdir(parents=True)
    try:
        publisher = Publisher(
            plan,
            level=plan.key.level + 1,
            store=store,
            attempt=attempt,
            wall_ns=wall_ns,
            guard=guard,
        )
        merger = Merger(plan=plan, work=work, publisher=publisher, fan_in=sizes.fan_in)
        job = _Compaction(
            plan=plan, store=store, merger=merger, seed=attempt, id_mask=id_mask, sizes=sizes
        )
        account = job.from_segments() if plan.key.level == 0 else job.from_blocks()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    came = sum(block.profiles for block in plan.inputs)
    if account.total() != came:
        raise Corrupt(
            f"Plan {plan.id} read {came} profiles and can account for {account.total()}: "
            f"{account.kept} kept, {account.duplicates} duplicates, {account.quarantined} "
            f"quarantined, {account.deleted} deleted. Its output is not used; this is a bug in "
            "maar, please report it."
        )
    return PlanResult(
        kind=COMPACT,
        outputs=tuple(publisher.outputs),
        account=account,
        collisions=merger.collisions,
        cpu_ms=(time.process_time_ns() - cpu_ns) // 1_000_000,
        wall_ms=(time.perf_counter_ns() - began_ns) // 1_000_000,
    )


def load() -> None:
    """Compile what the first plan would have to wait for."""
    to_tables.warm()


@dataclass(slots=True, kw_only=True)
class _Compaction:
    """One attempt at one plan."""

    plan: LeasedPlan
    store: ObjectStore | Stores
    merger: Merger
    seed: str
    id_mask: int
    sizes: CompactSizes

    def from_segments(self) -> Account:
        """Level 0: tenant by tenant, so that one tenant's data is in memory at a time."""
        segments = [self._segment(meta) for meta in self.plan.inputs]
        tenants = sorted({each.tenant for meta in self.plan.inputs for each in meta.datasets})
        accounts = (self._tenant_of_segments(tenant, segments) for tenant in tenants)
        return sum(accounts, Account(0, 0, 0))

    def _tenant_of_segments(self, tenant: TenantId, segments: list[pq.ParquetFile]) -> Account:
        pool = ProfilePool(
            self.merger, tenant, seed=self.seed, sizes=self.sizes.decoding, id_mask=self.id_mask
        )
        seen = SeenIds(seed=self.seed)
        duplicates = deleted = 0
        for at, (meta, segment) in enumerate(zip(self.plan.inputs, segments, strict=True)):
            masks = [mask for mask in self.plan.masks_of(at) if mask.tenant == tenant]
            for rows in read_pieces(segment, _groups_of(meta, tenant)):
                # A copy that is deleted must not stand for one that stays.
                left = without_hidden(rows, masks) if masks else rows
                fresh = seen.add(id_words(left["profile_id"]))
                deleted += rows.num_rows - left.num_rows
                duplicates += int((~fresh).sum())
                for profile, is_fresh in zip(profiles_of_rows(left), fresh.tolist(), strict=True):
                    if is_fresh:
                        pool.add(profile)
        kept = pool.publish()
        return Account(kept, duplicates, pool.quarantined, deleted)

    def from_blocks(self) -> Account:
        """Level 1 and up: day by day, since a block belongs to one day."""
        days: dict[int, list[int]] = defaultdict(list)
        for at, meta in enumerate(self.plan.inputs):
            days[meta.day].append(at)
        kept = duplicates = deleted = 0
        for day in sorted(days):
            metas = [self.plan.inputs[at] for at in days[day]]
            runs = [run_of_block(self.store, meta, self.merger.work) for meta in metas]
            masks = [self.plan.masks_of(at) for at in days[day]]
            repeats = drop_repeated(runs, masks=masks)
            duplicates += repeats.duplicates
            deleted += repeats.deleted
            if repeats.kept:
                size = sum(meta.size for meta in metas)
                kept += self.publish(runs, tenant=self.plan.key.tenant, day=day, size=size)
        return Account(kept, duplicates, 0, deleted)

    def publish(self, runs: list[Run], *, tenant: TenantId, day: int, size: int) -> int:
        return self.merger.publish(runs, tenant=tenant, day=day, size=size)

    def _segment(self, meta: BlockMeta) -> pq.ParquetFile:
        path = fetch(self.store, meta, meta.file(SEGMENT_TABLE), self.merger.work)
        try:
            parquet = open_segment(path, pre_buffer=False)
        except Corrupt as error:
            raise Corrupt(f"Block {meta.id}: {error}") from error
        named = sum(each.profiles for each in meta.datasets)
        if not parquet.metadata.num_rows == meta.profiles == named:
            raise Corrupt(
                f"Block {meta.id} has {parquet.metadata.num_rows} profiles, {named} by its "
                f"datasets, and the index says {meta.profiles}. Restore the object from a copy."
            )
        return parquet


def _groups_of(meta: BlockMeta, tenant: TenantId) -> list[int]:
    """Row groups of a segment that hold a tenant's datasets."""
    return [
        group
        for dataset in meta.datasets
        if dataset.tenant == tenant
        for group in range(
            dataset.row_group_first, dataset.row_group_first + dataset.row_group_count
        )
    ]
