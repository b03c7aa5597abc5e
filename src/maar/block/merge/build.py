"""Merges runs into the local files of one block, cut at services, with unique ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from maar.block.format.hashing import FreeIds, Int
from maar.block.format.tables import DIMENSIONS, LAYOUTS
from maar.block.format.writer import GROUP_BOUNDS, Group, GroupBounds, TableWriter, by_service
from maar.block.merge.run import CutPoint, Run, RunShare
from maar.block.merge.sorted_runs import BUDGET, merge_runs
from maar.block.merge.streams import MOVED_ROWS
from maar.model.block import TABLES, Dataset
from maar.model.ids import TenantId

ORDER = (*DIMENSIONS, "profiles", "samples")  # what is referred to comes first
_IDS_AT_ONCE = 2 << 20  # when ids are compared with each other


class MergeSizes(NamedTuple):
    """How much is in memory at a time; the result is the same for any."""

    budget: int = BUDGET  # bytes of all runs together
    moved_rows: int = MOVED_ROWS  # samples of re-keyed series
    group: GroupBounds = GROUP_BOUNDS


SIZES = MergeSizes()


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltBlock:
    """The files of a block, not yet in the store."""

    paths: dict[str, Path]
    rows: dict[str, int]
    datasets: tuple[Dataset, ...]
    collisions: int
    min_time_ns: int
    max_time_ns: int


def build(
    runs: Sequence[Run],
    directory: Path,
    *,
    tenant: TenantId,
    first: CutPoint | None = None,
    end: CutPoint | None = None,
    compression: str = "zstd",
    sizes: MergeSizes = SIZES,
) -> BuiltBlock:
    """Merge what the runs hold between two places into `directory`."""
    directory.mkdir(parents=True)
    shares = None
    if first is not None or end is not None or any(run.thinned for run in runs):
        shares = [_share(run, first, end) for run in runs]
    facts = _Facts()
    paths: dict[str, Path] = {}
    groups: dict[str, list[Group]] = {}
    collisions = 0
    for table in ORDER:
        paths[table] = directory / f"{table}.parquet"

        def write(table: str = table) -> None:
            with TableWriter(
                paths[table], table, compression=compression, bounds=sizes.group
            ) as writer:
                for piece in merge_runs(
                    table, runs, shares, budget=sizes.budget, moved_rows=sizes.moved_rows
                ):
                    writer.add(piece)
                    facts.note(table, piece)
            groups[table] = writer.groups

        write()
        if len(runs) > 1 and table in DIMENSIONS:
            clashing = _repeated_ids(paths[table], LAYOUTS[table].unique)
            if clashing.size:
                collisions += _rekey(table, runs, clashing)
                paths[table].unlink()
                write()
        for share in shares or ():
            share.used.pop(table, None)  # the largest sets of ids go first
    return _block_of(tenant, facts, paths, groups, collisions=collisions)


def write_tables(
    pieces: Callable[[str], Iterator[pa.Table]],
    directory: Path,
    *,
    tenant: TenantId,
    compression: str = "zstd",
    group: GroupBounds = GROUP_BOUNDS,
) -> BuiltBlock:
    """Write tables that are in order and whose ids are unique; `pieces` gives those of each."""
    directory.mkdir(parents=True)
    facts = _Facts()
    paths: dict[str, Path] = {}
    groups: dict[str, list[Group]] = {}
    for table in ORDER:
        paths[table] = directory / f"{table}.parquet"
        with TableWriter(paths[table], table, compression=compression, bounds=group) as writer:
            for piece in pieces(table):
                writer.add(piece)
                facts.note(table, piece)
        groups[table] = writer.groups
    return _block_of(tenant, facts, paths, groups)


def _block_of(
    tenant: TenantId,
    facts: _Facts,
    paths: dict[str, Path],
    groups: dict[str, list[Group]],
    *,
    collisions: int = 0,
) -> BuiltBlock:
    return BuiltBlock(
        paths=paths,
        rows={table: sum(group.rows for group in groups[table]) for table in TABLES},
        datasets=_datasets(tenant, facts, paths, groups),
        collisions=collisions,
        min_time_ns=min((least for _, least, _ in facts.times.values()), default=0),
        max_time_ns=max((greatest for _, _, greatest in facts.times.values()), default=0),
    )


class _Facts:
    """What the index has to know, noted while pieces go by."""

    def __init__(self) -> None:
        self.types: dict[str, set[str]] = {}
        self.times: dict[str, tuple[int, int, int]] = {}  # profiles, least and greatest time

    def note(self, table: str, piece: pa.Table) -> None:
        if table == "samples":
            for service, part in by_service(piece):
                types = part["profile_type"].combine_chunks()
                used = np.flatnonzero(np.bincount(types.indices.to_numpy()))
                names = types.dictionary.take(pa.array(used)).to_pylist()
                self.types.setdefault(service, set()).update(names)
        elif table == "profiles":
            for service, part in by_service(piece):
                bounds = pc.min_max(part["time_nanos"]).as_py()
                count, least, greatest = self.times.get(service, (0, bounds["min"], bounds["max"]))
                self.times[service] = (
                    count + part.num_rows,
                    min(least, bounds["min"]),
                    max(greatest, bounds["max"]),
                )


def _share(run: Run, first: CutPoint | None, end: CutPoint | None) -> RunShare:
    """What of a run goes between two places, and the ids that this part refers to."""
    part = RunShare(first=first, end=end)
    stacks, series, locations = _Ids(), _Ids(), _Ids()
    columns: tuple[str, ...] = ("service", "time", "profile_id", "stack_id", "series_id")
    for piece in run.originals("samples", budget=BUDGET, share=part, columns=columns):
        stacks.add(piece["stack_id"].to_numpy())
        series.add(piece["series_id"].to_numpy())
    columns = ("service", "time", "profile_id", "series_id")
    for piece in run.originals("profiles", budget=BUDGET, share=part, columns=columns):
        series.add(piece["series_id"].to_numpy())
    used = {"stacks": stacks.sorted_ids(), "series": series.sorted_ids()}
    narrow = RunShare(first=first, end=end, used=used)
    columns = ("service", "stack_id", "location_ids")
    for piece in run.originals("stacks", budget=BUDGET, share=narrow, columns=columns):
        locations.add(pc.list_flatten(piece["location_ids"]).to_numpy())
    used["locations"] = locations.sorted_ids()
    return narrow


class _Ids:
    """A growing set of ids, as sorted arrays."""

    def __init__(self) -> None:
        self._known = np.empty(0, np.int64)
        self._fresh: list[Int] = []
        self._waiting = 0

    def add(self, ids: Int) -> None:
        fresh = np.unique(ids)
        self._fresh.append(fresh)
        self._waiting += fresh.size
        if self._waiting > max(1 << 20, self._known.size):
            self.sorted_ids()

    def sorted_ids(self) -> Int:
        self._known = np.unique(np.concatenate([self._known, *self._fresh]))
        self._fresh, self._waiting = [], 0
        return self._known


def _repeated_ids(path: Path, column: str) -> Int:
    """Ids that more than one row of a file has; a part of all ids is in memory at a time."""
    parquet = pq.ParquetFile(path, pre_buffer=False)
    parts = 1 + parquet.metadata.num_rows // _IDS_AT_ONCE
    repeated: list[Int] = []
    for part in range(parts):
        found = [
            ids if parts == 1 else ids[ids.view(np.uint64) % np.uint64(parts) == np.uint64(part)]
            for ids in _id_pieces(parquet, column)
        ]
        ids = np.concatenate([np.empty(0, np.int64), *found])
        ids.sort()
        repeated.append(np.unique(ids[1:][ids[1:] == ids[:-1]]))
    return np.unique(np.concatenate(repeated))


def _id_pieces(parquet: pq.ParquetFile, column: str) -> Iterator[Int]:
    for batch in parquet.iter_batches(1 << 18, columns=[column], use_threads=False):
        yield batch.column(0).to_numpy()


def _rekey(table: str, runs: Sequence[Run], clashing: Int) -> int:
    """Give content of later runs another id where an earlier one has it; how many (S17)."""
    unique = LAYOUTS[table].unique
    kept: dict[int, str] = {}
    losers: list[tuple[int, int]] = []  # a run's place, and the id
    wanted = pa.array(clashing)
    for place, run in enumerate(runs):
        for piece in run.read(table, budget=BUDGET):
            for row in piece.filter(pc.is_in(piece[unique], wanted)).to_pylist():
                identity = row.pop(unique)
                if kept.setdefault(identity, repr(row)) != repr(row):
                    losers.append((place, identity))
    fresh = _free_ids([identity for _, identity in losers], table, runs)
    came_with = [{now: old for old, now in run.rekeyed.get(table, {}).items()} for run in runs]
    for (place, identity), new in zip(losers, fresh, strict=True):
        names = runs[place].rekeyed.setdefault(table, {})
        names[came_with[place].get(identity, identity)] = new
    return len(losers)


def _free_ids(identities: list[int], table: str, runs: Sequence[Run]) -> list[int]:
    """Salted ids that no run has; each loser gets one of its own, so that none can meet again."""
    unique = LAYOUTS[table].unique
    taken: set[int] = set()
    while True:
        free = FreeIds(set(taken))
        fresh = [free.take(identity) for identity in identities]
        wanted = pa.array(fresh, pa.int64())
        found = {
            identity
            for run in runs
            for piece in run.read(table, budget=BUDGET, columns=(unique,))
            for identity in piece[unique].filter(pc.is_in(piece[unique], wanted)).to_pylist()
        }
        if not found:
            return fresh
        taken |= found


def _datasets(
    tenant: TenantId, facts: _Facts, paths: dict[str, Path], groups: dict[str, list[Group]]
) -> tuple[Dataset, ...]:
    sizes: dict[str, int] = dict.fromkeys(facts.times, 0)
    places: dict[str, list[int]] = {service: [] for service in facts.times}
    for place, group in enumerate(groups["samples"]):
        places.setdefault(group.service, []).append(place)
    for table in ("samples", "profiles", "stacks"):
        metadata = pq.read_metadata(paths[table])
        for place, group in enumerate(groups[table]):
            if group.service in sizes:
                sizes[group.service] += _size(metadata.row_group(place))
    return tuple(
        Dataset(
            tenant=tenant,
            service=service,
            types=tuple(sorted(facts.types.get(service, ()))),
            min_time_ns=least,
            max_time_ns=greatest,
            profiles=count,
            size=sizes[service],
            row_group_first=min(places[service], default=0),
            row_group_count=len(places[service]),
        )
        for service, (count, least, greatest) in sorted(facts.times.items())
    )


def _size(group: Any) -> int:
    return sum(group.column(place).total_compressed_size for place in range(group.num_columns))
