"""Reads what single queries need of a block, straight from its Parquet files, and keeps the rest.

DuckDB needs milliseconds to open files and to plan; for few rows that is most of a query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from maar.block.format.tables import LAYOUTS
from maar.model.block import BlockMeta
from maar.model.errors import Corrupt, NotFound
from maar.ports.stores import Stores
from maar.query.decide.label_columns import SeriesLabels, labels_of_series
from maar.query.decide.stack_sums import StackFrames, StackSums, frames_of
from maar.query.decide.totals import COLUMNS, Int, Totals, runs_of, totals_of
from maar.query.read.database import FOOTER_FACTOR
from maar.query.read.part_cache import PartCache

EVERY = ""  # in place of a service: all of a block
# Samples that one query looks through for runs that are not kept yet, in about 0.2 s.
COLD_ROWS_MAX = 4_000_000


@dataclass(frozen=True, slots=True)
class Footer:
    metadata: Any
    begins: Int  # the first row of each row group
    size: int


class BlockReader:
    """Used by many threads at once. Errors are Arrow's and the store's."""

    def __init__(
        self, stores: Stores, cache: PartCache, *, cold_rows_max: int = COLD_ROWS_MAX
    ) -> None:
        self._stores = stores
        self.cache = cache
        self.cold_rows_max = cold_rows_max

    def cold_rows(self, meta: BlockMeta, service: str) -> int:
        """About how many samples have to be looked through before the runs of a block are known."""
        if any(self.cache.peek(("totals", meta.id, each)) for each in (EVERY, service)):
            return 0
        mine = sum(each.profiles for each in meta.datasets if service in (EVERY, each.service))
        return meta.file("samples").rows * mine // max(meta.profiles, 1)

    def totals(self, meta: BlockMeta, service: str) -> Totals:
        """The runs of a block, or of one of its services."""
        if (whole := self.cache.peek(("totals", meta.id, EVERY))) is not None:
            kept: Totals = whole
            return kept
        return self.cache.get(
            ("totals", meta.id, service), lambda: self._read_totals(meta, service)
        )

    def labels(self, meta: BlockMeta) -> SeriesLabels:
        """Of all its series."""
        return self.cache.get(("labels", meta.id), lambda: self._read_labels(meta))

    def sums(
        self, meta: BlockMeta, service: str, totals: Totals, runs: Int, check: Callable[[], None]
    ) -> StackSums:
        """The values of some runs by stack; `check` raises when nobody waits for them any more."""
        stacks = self._stacks(meta, service)
        sums = StackSums(stacks)
        first, rows = totals.start[runs], totals.rows[runs]
        with self._opened(meta, "samples") as (parquet, footer):
            of_group = np.searchsorted(footer.begins, first, side="right") - 1
            for group in np.unique(of_group).tolist():
                check()
                here = np.flatnonzero(of_group == group)
                table = parquet.read_row_group(
                    group, columns=["stack_id", "value"], use_threads=False
                )
                start = first[here] - footer.begins[group]
                ids, values = _numbers(table["stack_id"]), _numbers(table["value"])
                sums.add(ids, values, start, start + rows[here])
        return sums

    def _stacks(self, meta: BlockMeta, service: str) -> StackFrames:
        if (whole := self.cache.peek(("stacks", meta.id, EVERY))) is not None:
            kept: StackFrames = whole
            return kept
        return self.cache.get(
            ("stacks", meta.id, service), lambda: self._read_stacks(meta, service)
        )

    def _read_totals(self, meta: BlockMeta, service: str) -> Totals:
        """Row group by row group, since few of their bytes are kept."""
        pieces = []
        with self._opened(meta, "samples") as (parquet, footer):
            wanted = range(footer.begins.size)
            if service != EVERY:
                (dataset,) = [each for each in meta.datasets if each.service == service]
                first = dataset.row_group_first
                wanted = range(first, first + dataset.row_group_count)
                if wanted.stop > footer.begins.size:
                    raise Corrupt(
                        f"block {meta.id} has {footer.begins.size} row groups of samples, and "
                        f"the index says that service {service} is in number {wanted.stop - 1}"
                    )
            for group in wanted:
                table = parquet.read_row_group(group, columns=list(COLUMNS), use_threads=False)
                pieces.append(runs_of(table, first_row=int(footer.begins[group])))
        return totals_of(pieces, service=service)

    def _read_labels(self, meta: BlockMeta) -> SeriesLabels:
        with self._opened(meta, "series") as (parquet, _):
            return labels_of_series(
                parquet.read(columns=["series_id", "labels"], use_threads=False)
            )

    def _read_stacks(self, meta: BlockMeta, service: str) -> StackFrames:
        try:
            return self._decode_stacks(meta, service, coded=True)
        except pa.ArrowNotImplementedError:  # a row group with more names than its dictionary holds
            return self._decode_stacks(meta, service, coded=False)

    def _decode_stacks(self, meta: BlockMeta, service: str, *, coded: bool) -> StackFrames:
        with self._opened(meta, "stacks", coded=coded) as (parquet, footer):
            columns = ["stack_id", "functions"]
            return frames_of(
                parquet.read_row_group(group, columns=columns, use_threads=False)
                for group in range(footer.begins.size)
                if service == EVERY or _may_hold(parquet, group, service)
            )

    @contextmanager
    def _opened(
        self, meta: BlockMeta, table: str, *, coded: bool = True
    ) -> Iterator[tuple[pq.ParquetFile, Footer]]:
        file = meta.file(table)
        at = self._stores.choose(meta.id, file.locations)
        store = self._stores.named(at.store)
        path = store.local_path(at.key)
        if path is None:
            source = pa.PythonFile(store.open(at.key), mode="r")
        else:
            try:
                source = pa.OSFile(str(path))  # not mapped: a file cut short would end the process
            except FileNotFoundError as error:
                raise NotFound(f"object {at.key} is not in the store {at.store}") from error
        with source:
            footer = self.cache.get(("footer", at.store, at.key), lambda: _footer(source))
            if footer.metadata.num_rows != file.rows:
                raise Corrupt(
                    f"block {meta.id}: table {table} has {footer.metadata.num_rows} rows, and the "
                    f"index says {file.rows}"
                )
            parquet = pq.ParquetFile(
                source,
                metadata=footer.metadata,
                read_dictionary=LAYOUTS[table].read_dictionary if coded else None,
                pre_buffer=path is None,
            )
            yield parquet, footer


def _footer(source: Any) -> Footer:
    metadata = pq.read_metadata(source)
    groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    begins = np.cumsum([0, *groups], dtype=np.int64)[:-1]
    return Footer(metadata, begins, FOOTER_FACTOR * metadata.serialized_size)


def _may_hold(parquet: pq.ParquetFile, group: int, service: str) -> bool:
    """Whether a row group may hold stacks of a service, by its statistics."""
    place = parquet.schema_arrow.get_field_index("service")
    statistics = parquet.metadata.row_group(group).column(place).statistics
    if statistics is None or not statistics.has_min_max:  # Parquet keeps none of very long text
        return True
    return bool(statistics.min <= service <= statistics.max)


def _numbers(column: pa.ChunkedArray) -> Int:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0)
    numbers: Int = array.to_numpy()
    return numbers
