"""Write sorted tables as Parquet: row groups of one service, bounded, with statistics."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from maar.block.format.dictionary import text_bytes, trim, trim_coded
from maar.block.format.tables import FORMAT, FORMAT_KEY, LAYOUTS

ROW_GROUP_ROWS = 131_072
ROW_GROUP_VALUES = 1_000_000  # of all columns, items of lists twice: bounds memory in merges
ROW_GROUP_BYTES = 32 << 20  # of plain columns and dictionaries in memory: text may be long
DICTIONARY_PAGE_BYTES = 2 << 20
RELEASE_VALUES = 16 * ROW_GROUP_VALUES  # are written before what is free is given back
BATCH_ROWS = 1 << 14  # of a column at once, then its page's size is asked; 1024 cost 6 % more
SCRATCH = "lz4"  # compression of runs that are read once and thrown away


class GroupBounds(NamedTuple):
    """Where a row group ends at the latest."""

    rows: int = ROW_GROUP_ROWS
    values: int = ROW_GROUP_VALUES
    bytes: int = ROW_GROUP_BYTES
    release_values: int = RELEASE_VALUES


GROUP_BOUNDS = GroupBounds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One row group as it was written."""

    service: str  # "" in tables that are not cut at services
    rows: int


class TableWriter:
    """One table into one local file. Rows come in order, in pieces of any size."""

    def __init__(
        self,
        path: Path,
        table: str,
        *,
        compression: str = "zstd",
        bounds: GroupBounds = GROUP_BOUNDS,
    ) -> None:
        self._bounds = bounds
        self._layout = LAYOUTS[table]
        self._writer = pq.ParquetWriter(
            path,
            self._layout.working,
            compression=compression,
            compression_level=3 if compression == "zstd" else None,
            use_dictionary=self._layout.dictionary_columns,
            dictionary_pagesize_limit=DICTIONARY_PAGE_BYTES,
            write_statistics=self._layout.statistics_columns,
            write_page_index=True,
            max_rows_per_page=ROW_GROUP_ROWS,
            write_batch_size=BATCH_ROWS,
            store_schema=False,
        )
        self._writer.add_key_value_metadata({FORMAT_KEY: FORMAT})
        self._service = ""
        self._held: list[pa.Table] = []
        self._rows = 0
        self._values = 0
        self._bytes = 0
        self._unreleased = 0
        self.groups: list[Group] = []
        self.releases = 0

    def add(self, piece: pa.Table) -> None:
        if not self._layout.by_service:
            return self._add("", piece)
        for service, part in by_service(piece):
            self._add(service, part)
        return None

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._flush()
        self._writer.close()

    def _add(self, service: str, piece: pa.Table) -> None:
        if service != self._service:
            self._flush()
            self._service = service
        start = 0
        while start < piece.num_rows:
            part, size = self._within_bytes(piece.slice(start, self._bounds.rows - self._rows))
            if self._bytes + size > self._bounds.bytes:
                self._flush()
            start += part.num_rows
            self._held.append(part)
            self._rows += part.num_rows
            self._values += _values(part)
            self._bytes += size
            if (
                self._rows >= self._bounds.rows
                or self._values >= self._bounds.values
                or self._bytes >= self._bounds.bytes
            ):
                self._flush()

    def _within_bytes(self, part: pa.Table) -> tuple[pa.Table, int]:
        """The first rows of it, if all have more text than a row group may, and how much they have;
        but not without end where it is one text that all of them have.
        """
        size = text_bytes(part)
        if size <= self._bounds.bytes:
            return part, size
        part = trim(part)
        size = text_bytes(part)
        while part.num_rows > 1 and size > self._bounds.bytes:
            half = trim(part.slice(0, part.num_rows // 2))
            before, size = size, text_bytes(half)
            if size > 3 * before // 4:
                return part, before
            part = half
        return part, size

    def _flush(self) -> None:
        if not self._rows:
            return
        table = trim_coded(pa.concat_tables(self._held))  # Parquet writes dictionaries whole
        self._writer.write_table(table, row_group_size=self._rows)
        self.groups.append(Group(service=self._service, rows=self._rows))
        self._unreleased += self._values
        self._held, self._rows, self._values, self._bytes = [], 0, 0, 0
        if self._unreleased >= self._bounds.release_values:
            self._release()

    def _release(self) -> None:
        """Else freed pages add up over the tables. Not for each of many small row groups: all that
        is free is looked through, and the next one has its pages made anew.
        """
        pa.default_memory_pool().release_unused()
        self._unreleased = 0
        self.releases += 1


def by_service(piece: pa.Table) -> list[tuple[str, pa.Table]]:
    """The parts of a sorted piece, one for each service."""
    services = piece["service"].combine_chunks()
    codes = services.indices.to_numpy()
    if not codes.size:
        return []
    cuts = [0, codes.size]
    if codes[0] != codes[-1]:  # else one service has all, since they are in order
        cuts[1:1] = (np.flatnonzero(np.diff(codes)) + 1).tolist()
    names = services.dictionary
    return [
        (names[int(codes[start])].as_py(), piece.slice(start, end - start))
        for start, end in pairwise(cuts)
    ]


def _values(part: pa.Table) -> int:
    """Numbers that the rows hold, those in lists counted one by one."""
    nested = 0
    for column in part.columns:
        if pa.types.is_list(column.type):
            for chunk in column.chunks:
                offsets = chunk.offsets
                nested += offsets[-1].as_py() - offsets[0].as_py()
    return int(part.num_rows * part.num_columns + 2 * nested)  # readers hold an id and a name
