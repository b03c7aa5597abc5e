"""A run: five tables in their order, in memory or in files, read a little at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from maar.block.format.dictionary import plain_bytes, trim
from maar.block.format.hashing import Int
from maar.block.format.tables import FORMAT, FORMAT_KEY, LAYOUTS
from maar.model.errors import Corrupt

ROWS_MAX = 65_536  # of one piece
ROWS_MIN = 64
_BYTES_PER_VALUE = 12  # an item in memory, offsets and codes counted in


@dataclass(frozen=True, slots=True, order=True)
class CutPoint:
    """A point in the order of profiles: where one output ends and the next begins."""

    service: str
    time_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShare:
    """What of a run goes into one output; None means everything."""

    first: CutPoint | None = None  # included
    end: CutPoint | None = None  # excluded
    used: dict[str, Int] = field(default_factory=dict)  # sorted ids, by table

    @property
    def whole(self) -> bool:
        return self.first is None and self.end is None


@dataclass(slots=True, kw_only=True)
class Run:
    """Sorted tables whose ids belong together."""

    name: str  # for the sentence that says which one is broken
    tables: dict[str, pa.Table | Path]
    dropped: pa.Array | None = None  # profile ids that another run has, or were deleted: left out
    thinned: bool = False  # profiles were deleted, so what only they refer to is left out too
    rekeyed: dict[str, dict[int, int]] = field(default_factory=dict)  # by table (S17)
    rows_min: int = ROWS_MIN  # of one piece, whatever the budget

    def read(
        self,
        table: str,
        *,
        budget: int,
        share: RunShare | None = None,
        columns: tuple[str, ...] | None = None,
    ) -> Iterator[pa.Table]:
        """Pieces of about `budget` bytes, without what is dropped or not in the share.

        They are in the order of the ids that the run came with.
        """
        for piece in self.originals(table, budget=budget, share=share, columns=columns):
            yield self._with_new_ids(piece)

    def originals(
        self,
        table: str,
        *,
        budget: int,
        share: RunShare | None = None,
        columns: tuple[str, ...] | None = None,
    ) -> Iterator[pa.Table]:
        """The same with the ids that the run itself has."""
        share = share or RunShare()
        for piece in self._pieces(table, budget, share, columns):
            kept = self._filter(table, piece, share)
            if kept.num_rows:
                yield trim(kept)  # else every piece would drag the dictionary of its table

    def rows(self, table: str) -> int:
        held = self.tables[table]
        return int(self._open(table).metadata.num_rows if isinstance(held, Path) else held.num_rows)

    def _pieces(
        self, table: str, budget: int, share: RunShare, columns: tuple[str, ...] | None
    ) -> Iterator[pa.Table]:
        held = self.tables[table]
        if not isinstance(held, Path):
            chosen = held.select(columns) if columns else held
            size = max(_values_in(held) * _BYTES_PER_VALUE, plain_bytes(held))
            step = self._rows_within(budget, held.num_rows, size)
            for start in range(0, held.num_rows, step):
                yield chosen.slice(start, step)
            return
        parquet = self._open(table)
        layout = LAYOUTS[table]
        names = columns or tuple(layout.schema.names)
        schema = pa.schema([layout.working.field(name) for name in names])
        try:
            for group in range(parquet.num_row_groups):
                facts = parquet.metadata.row_group(group)
                if layout.by_service and not _overlaps(facts, parquet, share):
                    continue
                values = sum(facts.column(leaf).num_values for leaf in range(facts.num_columns))
                size = values * _BYTES_PER_VALUE
                step = self._rows_within(budget, facts.num_rows, size)
                empty = _empty_columns(facts) & set(layout.sparse)
                read = [name for name in names if name not in empty]
                # Other tasks have the other cores, and to hand over to threads costs a fifth.
                for batch in parquet.iter_batches(
                    step, row_groups=[group], columns=read, use_threads=False
                ):
                    arrays = [
                        pa.nulls(batch.num_rows, schema.field(name).type)
                        if name in empty
                        else batch.column(name)
                        for name in names
                    ]
                    yield pa.Table.from_arrays(arrays, schema=schema)
        except (pa.ArrowException, OSError) as error:
            raise Corrupt(
                f"{self.name}: table {table} cannot be read ({error}). "
                "Its bytes are not what was written; restore the object from a copy."
            ) from error

    def _rows_within(self, budget: int, rows: int, size: int) -> int:
        """How many rows fit the budget, when they are like the average of their table."""
        width = max(1, size // max(rows, 1))
        return max(self.rows_min, min(ROWS_MAX, budget // width))

    def _open(self, table: str) -> pq.ParquetFile:
        return open_table(self.tables[table], table, self.name)

    def _filter(self, table: str, piece: pa.Table, share: RunShare) -> pa.Table:
        if table in ("samples", "profiles"):
            if self.dropped is not None and "profile_id" in piece.column_names:
                piece = piece.filter(pc.invert(pc.is_in(piece["profile_id"], self.dropped)))
            return piece if share.whole else piece.filter(pa.array(_inside(piece, share)))
        used = share.used.get(table)
        if used is None:
            return piece
        return piece.filter(pa.array(_is_in(piece[LAYOUTS[table].unique].to_numpy(), used)))

    def _with_new_ids(self, piece: pa.Table) -> pa.Table:
        for column, target in (
            ("location_id", "locations"),
            ("location_ids", "locations"),
            ("stack_id", "stacks"),
            ("series_id", "series"),
        ):
            new = self.rekeyed.get(target)
            if new and column in piece.column_names:
                place = piece.column_names.index(column)
                kind = piece.schema.field(column)
                piece = piece.set_column(place, kind, _replace_ids(piece[column], new))
        return piece


def open_table(path: Any, table: str, name: str) -> pq.ParquetFile:
    """Open one file of a block and check its version; Corrupt says which block is meant."""
    try:
        metadata = pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(
            f"{name}: table {table} cannot be opened as Parquet ({error}). "
            "Its bytes are not what was written; restore the object from a copy."
        ) from error
    found = (metadata.metadata or {}).get(FORMAT_KEY)
    if found != FORMAT:
        raise Corrupt(
            f"{name}: table {table} should be of format {FORMAT.decode()}, and the file says "
            f"{(found or b'nothing').decode('utf-8', 'replace')!r}. "
            "It is another kind of file, or was written by a newer maar: upgrade this one."
        )
    return pq.ParquetFile(
        path,
        metadata=metadata,
        read_dictionary=LAYOUTS[table].read_dictionary,
        pre_buffer=False,
        memory_map=False,
    )


def _values_in(table: pa.Table) -> int:
    lists = [column for column in table.columns if pa.types.is_list(column.type)]
    nested = sum(len(chunk.values) for column in lists for chunk in column.chunks)
    return int(table.num_rows * table.num_columns + nested)


def _empty_columns(facts: Any) -> set[str]:
    """Columns of which a row group has no value, as its statistics say."""
    empty: set[str] = set()
    filled: set[str] = set()
    for leaf in range(facts.num_columns):
        column = facts.column(leaf)
        known = column.statistics
        nothing = known is not None and known.has_null_count
        nothing = nothing and known.null_count == column.num_values
        (empty if nothing else filled).add(column.path_in_schema.partition(".")[0])
    return empty - filled


def _overlaps(facts: Any, parquet: pq.ParquetFile, share: RunShare) -> bool:
    """May a row group of one service hold something of the share?"""
    if share.whole:
        return True
    statistics = facts.column(parquet.schema_arrow.get_field_index("service")).statistics
    if statistics is None or not statistics.has_min_max:  # Parquet keeps none of very long text
        return True
    service = statistics.min
    return bool(
        (share.first is None or service >= share.first.service)
        and (share.end is None or service <= share.end.service)
    )


def _inside(piece: pa.Table, share: RunShare) -> Any:
    """Rows from the share's first place until before its end."""
    services = piece["service"].combine_chunks()
    if isinstance(services, pa.ChunkedArray):
        services = services.chunk(0)
    names = services.dictionary.to_pylist()
    codes = services.indices.to_numpy()
    times = piece["time"].cast(pa.int64()).to_numpy()
    inside = np.ones(piece.num_rows, np.bool_)
    if share.first is not None:
        inside &= _at_or_after(names, codes, times, share.first)
    if share.end is not None:
        inside &= ~_at_or_after(names, codes, times, share.end)
    return inside


def _at_or_after(names: list[str], codes: Any, times: Any, place: CutPoint) -> Any:
    later = np.array([name > place.service for name in names], np.bool_)
    equal = np.array([name == place.service for name in names], np.bool_)
    return later[codes] | (equal[codes] & (times >= place.time_us))


def _is_in(ids: Int, used: Int) -> Any:
    if not used.size:
        return np.zeros(ids.size, np.bool_)
    place = np.minimum(np.searchsorted(used, ids), used.size - 1)
    return used[place] == ids


def _replace_ids(column: Any, new: dict[int, int]) -> Any:
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if pa.types.is_list(array.type):
        values = pa.array(_map_ids(array.values.to_numpy(), new))
        return pa.ListArray.from_arrays(array.offsets, values, type=array.type)
    return pa.array(_map_ids(array.to_numpy(), new))


def _map_ids(ids: Int, new: dict[int, int]) -> Int:
    old = np.array(sorted(new), np.int64)
    renamed = np.array([new[identity] for identity in old.tolist()], np.int64)
    there = _is_in(ids, old)
    mapped = ids.copy()
    mapped[there] = renamed[np.searchsorted(old, ids[there])]
    return mapped
