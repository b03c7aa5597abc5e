"""Merges sorted runs into blocks of about the target's size, and publishes them.

Memory is bounded whatever the input: merging holds a little of each run, and runs beyond those that
can be merged at once are merged into scratch files first.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from maar.block.decode.gather import Gather
from maar.block.format.hidden import hidden_rows
from maar.block.format.writer import SCRATCH
from maar.block.merge.build import SIZES, BuiltBlock, MergeSizes, build, write_tables
from maar.block.merge.duplicates import id_words, later_ones
from maar.block.merge.run import CutPoint, Run, RunShare
from maar.block.merge.sorted_runs import BUDGET
from maar.block.merge.split import places
from maar.model.ids import TenantId
from maar.model.plan import LeasedPlan
from maar.model.predicate import Mask
from maar.services.publish import Publisher

log = logging.getLogger("maar.compact")

_NO_IDS = pa.array([], pa.binary(16))
FAN_IN = 10  # runs that are merged at once
EVERYTHING = RunShare()


@dataclass(slots=True, kw_only=True)
class Merger:
    """What one attempt at a plan merges; files that it made are in `work`."""

    plan: LeasedPlan
    work: Path
    publisher: Publisher
    fan_in: int = FAN_IN
    sizes: MergeSizes = SIZES
    collisions: int = 0
    _numbers: Iterator[int] = field(default_factory=count)

    def publish(
        self,
        runs: list[Run],
        *,
        tenant: TenantId,
        day: int,
        size: int,  # about as many bytes at rest
        share: RunShare = EVERYTHING,
    ) -> int:
        """Merge what the runs have of a share into blocks; how many profiles they hold."""
        runs = self._reduce(runs, tenant=tenant, share=share)
        target = self.plan.target_block_bytes
        cuts = places(runs, size=size, target=target, share=share)
        kept = 0
        for first, end in zip([share.first, *cuts], [*cuts, share.end], strict=True):
            directory = self._directory()
            built = build(runs, directory, tenant=tenant, first=first, end=end, sizes=self.sizes)
            self.collisions += built.collisions
            kept += self._publish_built(built, tenant=tenant, day=day)
            shutil.rmtree(directory)
        return kept

    def publish_gathered(self, gathered: Gather, *, tenant: TenantId, day: int) -> int:
        """Write what was gathered as blocks; how many profiles they hold. Mostly it is one block,
        and then every row is written once.
        """
        size = gathered.size
        if size >= 2 * self.plan.target_block_bytes:
            run = self.spill_gathered(gathered, tenant=tenant)
            return self.publish([run], tenant=tenant, day=day, size=size)
        directory = self._directory()
        built = self._write(gathered, directory, tenant=tenant, compression="zstd")
        kept = self._publish_built(built, tenant=tenant, day=day)
        shutil.rmtree(directory)
        return kept

    def spill_gathered(self, gathered: Gather, *, tenant: TenantId) -> Run:
        """What was gathered as a run of scratch files."""
        built = self._write(gathered, self._directory(), tenant=tenant, compression=SCRATCH)
        return Run(name=f"Scratch of plan {self.plan.id}", tables=dict(built.paths))

    def _write(
        self, gathered: Gather, directory: Path, *, tenant: TenantId, compression: str
    ) -> BuiltBlock:
        tables = gathered.tables()
        self.collisions += tables.collisions
        run = Run(name=f"Profiles of {tenant}", tables=dict(tables.tables))

        def pieces(table: str) -> Iterator[pa.Table]:
            if table == "samples":
                return tables.samples()
            return run.read(table, budget=self.sizes.budget)

        return write_tables(
            pieces, directory, tenant=tenant, compression=compression, group=self.sizes.group
        )

    def _publish_built(self, built: BuiltBlock, *, tenant: TenantId, day: int) -> int:
        if not built.rows["profiles"]:
            return 0
        meta = self.publisher.block(built, tenant=tenant, day=day)
        log.info(
            "block written block=%s tenant=%s day=%d profiles=%d samples=%d bytes=%d",
            meta.id, tenant, day, meta.profiles, meta.samples, meta.size,
        )  # fmt: skip
        return meta.profiles

    def spill(
        self, runs: Sequence[Run], *, tenant: TenantId, first: CutPoint | None, end: CutPoint | None
    ) -> Run:
        """Merge runs into one of scratch files; their own scratch files go."""
        directory = self._directory()
        built = build(
            runs,
            directory,
            tenant=tenant,
            first=first,
            end=end,
            compression=SCRATCH,
            sizes=self.sizes,
        )
        self.collisions += built.collisions
        for run in runs:
            for table in run.tables.values():
                if isinstance(table, Path) and table.is_relative_to(self.work):
                    table.unlink()
        return Run(name=f"Scratch of plan {self.plan.id}", tables=dict(built.paths))

    def _reduce(self, runs: list[Run], *, tenant: TenantId, share: RunShare) -> list[Run]:
        """No more runs than can be merged at once; the surplus is merged into scratch first."""
        while len(runs) > self.fan_in:
            some = runs[: self.fan_in]
            one = self.spill(some, tenant=tenant, first=share.first, end=share.end)
            runs = [*runs[self.fan_in :], one]
        return runs

    def _directory(self) -> Path:
        return self.work / f"out-{next(self._numbers)}"


class Repeats(NamedTuple):
    """How many profiles runs hold, how many of those an earlier run has too, and how many are to be
    deleted.
    """

    profiles: int
    duplicates: int
    deleted: int

    @property
    def kept(self) -> int:
        return self.profiles - self.duplicates - self.deleted


def drop_repeated(
    runs: Sequence[Run],
    share: RunShare = EVERYTHING,
    masks: Sequence[tuple[Mask, ...]] = (),  # of each run
) -> Repeats:
    """Mark the profiles that are to be deleted, and of the others those that an earlier run has
    too: a copy that is deleted must not stand for one that stays.
    """
    deleted = 0
    columns: list[pa.Array] = []
    for number, run in enumerate(runs):
        if masks and masks[number]:
            hidden, ids = _hidden_and_others(run, share, masks[number])
            deleted += len(hidden)
            run.dropped = hidden if len(hidden) else None
            run.thinned = len(hidden) > 0
        else:
            ids = _profile_ids(run, share)
        columns.append(ids)
    duplicates = 0
    flagged = later_ones([id_words(ids) for ids in columns])
    for run, ids, flags in zip(runs, columns, flagged, strict=True):
        if flags.any():
            repeated = ids.filter(pa.array(flags))
            duplicates += len(repeated)
            before = [run.dropped] if run.dropped is not None else []
            run.dropped = pa.concat_arrays([*before, repeated])
    return Repeats(sum(map(len, columns)) + deleted, duplicates, deleted)


def _hidden_and_others(
    run: Run, share: RunShare, masks: tuple[Mask, ...]
) -> tuple[pa.Array, pa.Array]:
    """The ids of its profiles that are to be deleted, and those of the others."""
    columns = ("service", "time", "profile_id", "time_nanos")
    hidden: list[pa.Array] = [_NO_IDS]
    others: list[pa.Array] = [_NO_IDS]
    for piece in run.originals("profiles", budget=BUDGET, share=share, columns=columns):
        flags = hidden_rows(piece, masks)
        hidden += piece["profile_id"].filter(flags).chunks
        others += piece["profile_id"].filter(pc.invert(flags)).chunks
    return pa.concat_arrays(hidden), pa.concat_arrays(others)


def _profile_ids(run: Run, share: RunShare) -> pa.Array:
    columns: tuple[str, ...] = ("profile_id",)
    if not share.whole:
        columns = ("service", "time", "profile_id")  # those tell what is in the share
    pieces = run.originals("profiles", budget=BUDGET, share=share, columns=columns)
    chunks = [chunk for piece in pieces for chunk in piece["profile_id"].chunks]
    return pa.concat_arrays(chunks) if chunks else _NO_IDS
