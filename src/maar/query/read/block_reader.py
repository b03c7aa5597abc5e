"""Reads what single queries need of a block, straight from its Parquet files, and keeps the rest.

DuckDB needs milliseconds to open files and to plan; for few rows that is most of a query.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from maar.block.format.tables import LAYOUTS
from maar.model.block import BlockMeta, File
from maar.model.errors import Corrupt, NotFound
from maar.ports.stores.stores import Stores
from maar.query.decide.frame_names import FrameNames, join_names
from maar.query.decide.label_columns import SeriesLabels, labels_of_series
from maar.query.decide.stack_sums import StackFrames, StackSums, frames_of
from maar.query.decide.totals import COLUMNS, Int, Totals, runs_of, totals_of
from maar.query.read.database import FOOTER_FACTOR
from maar.query.read.part_cache import PartCache

EVERY = ""  # in place of a service: all of a block
ROW_BYTES = 16  # of a sample that is kept: its stack and its value
ONE_QUERY = 4  # the part of the kept samples that one query may replace: a fleet's would be all
# Samples that one query looks through for runs that are not kept yet, in about 0.2 s.
COLD_ROWS_MAX = 4_000_000


@dataclass(frozen=True, slots=True)
class Footer:
    metadata: Any
    begins: Int  # the first row of each row group
    rows: Int  # of each row group
    size: int


@dataclass(frozen=True, slots=True)
class SampleRows:
    """What a flame graph needs of a row group of samples, row by row."""

    stack: Int
    value: Int

    @property
    def size(self) -> int:
        return ROW_BYTES * self.value.size


class BlockReader:
    """Used by many threads at once. Errors are Arrow's and the store's."""

    def __init__(
        self,
        stores: Stores,
        cache: PartCache,
        samples: PartCache,
        *,
        cold_rows_max: int = COLD_ROWS_MAX,
    ) -> None:
        self._stores = stores
        self.cache = cache
        self.samples = samples  # in a cache of their own: they are many, and cheap to read again
        self.cold_rows_max = cold_rows_max

    def forget(self, names: Container[str]) -> None:
        """What was read of some blocks and objects: a copy of them is damaged."""
        self.cache.forget(names)
        self.samples.forget(names)

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

    def runs_at_hand(self, meta: BlockMeta, service: str, *, labels: bool) -> int | None:
        """How many runs are kept of a block or its service, if need be with its labels; None when
        not all.
        """
        if labels and self.cache.peek(("labels", meta.id)) is None:
            return None
        for each in (EVERY, service):
            totals: Totals | None = self.cache.peek(("totals", meta.id, each))
            if totals is not None:
                return totals.time.size
        return None

    def labels(self, meta: BlockMeta) -> SeriesLabels:
        """Of all its series."""
        return self.cache.get(("labels", meta.id), lambda: self._read_labels(meta))

    def names(self, parts: Sequence[StackFrames], *, folded: bool) -> FrameNames:
        """The names of some parts; kept, unless one of them is of level 0, which is soon gone."""
        if None in (part.key for part in parts):
            return join_names([part.names for part in parts], folded=folded)
        return self.cache.get(
            _names_key(parts, folded),
            lambda: join_names([part.names for part in parts], folded=folded),
        )

    def has_names(self, parts: Sequence[StackFrames], *, folded: bool) -> bool:
        return self.cache.peek(_names_key(parts, folded)) is not None

    def frames_at_hand(
        self, meta: BlockMeta, service: str, totals: Totals, runs: Int
    ) -> StackFrames | None:
        """The stacks of a block or its service, when they and the samples of some runs are kept."""
        footer: Footer | None = self.cache.peek(self._footer_key(meta, "samples"))
        kept = (self.cache.peek(("stacks", meta.id, each)) for each in (EVERY, service))
        stacks: StackFrames | None = next((each for each in kept if each is not None), None)
        if footer is None or stacks is None:
            return None
        groups = np.unique(_groups_of(footer, totals.start[runs])).tolist()
        whole = all(self.samples.peek((meta.id, group)) is not None for group in groups)
        return stacks if whole else None

    def sums(
        self, meta: BlockMeta, service: str, totals: Totals, runs: Int, check: Callable[[], None]
    ) -> StackSums:
        """The values of some runs by stack; `check` raises when nobody waits for them any more."""
        sums = StackSums(self._stacks(meta, service))
        footer = self._footer(meta, "samples")
        first, rows = totals.start[runs], totals.rows[runs]
        of_group = _groups_of(footer, first)
        groups = np.unique(of_group)
        for group, read in zip(groups.tolist(), self._rows(meta, footer, groups), strict=True):
            check()
            here = np.flatnonzero(of_group == group) if groups.size > 1 else slice(None)
            start = first[here] - footer.begins[group]
            sums.add(read.stack, read.value, start, start + rows[here])
        return sums

    def _rows(self, meta: BlockMeta, footer: Footer, groups: Int) -> Iterator[SampleRows]:
        """Some row groups of samples; kept, unless they would drive out those of other queries."""
        keeps = ROW_BYTES * int(footer.rows[groups].sum()) <= self.samples.bytes_max // ONE_QUERY
        with ExitStack() as stack:
            opened: list[pq.ParquetFile] = []

            def read(group: int) -> SampleRows:
                if not opened:
                    opened.append(stack.enter_context(self._open(meta, "samples"))[0])
                table = opened[0].read_row_group(
                    group, columns=["stack_id", "value"], use_threads=False
                )
                return SampleRows(_numbers(table["stack_id"]), _numbers(table["value"]))

            for group in groups.tolist():
                if keeps:
                    yield self.samples.get((meta.id, group), partial(read, group))
                else:
                    yield self.samples.peek((meta.id, group)) or read(group)

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
        with self._open(meta, "samples") as (parquet, footer):
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
        with self._open(meta, "series") as (parquet, _):
            return labels_of_series(
                parquet.read(columns=["series_id", "labels"], use_threads=False)
            )

    def _read_stacks(self, meta: BlockMeta, service: str) -> StackFrames:
        try:
            return self._decode_stacks(meta, service, coded=True)
        except pa.ArrowNotImplementedError:  # a row group with more names than its dictionary holds
            return self._decode_stacks(meta, service, coded=False)

    def _decode_stacks(self, meta: BlockMeta, service: str, *, coded: bool) -> StackFrames:
        with self._open(meta, "stacks", coded=coded) as (parquet, footer):
            columns = ["stack_id", "functions"]
            groups = (
                parquet.read_row_group(group, columns=columns, use_threads=False)
                for group in range(footer.begins.size)
                if service == EVERY or _may_hold(parquet, group, service)
            )
            return frames_of(groups, key=(meta.id, service))

    def _footer(self, meta: BlockMeta, table: str) -> Footer:
        """A file is opened for it only when it is not known yet."""
        footer: Footer | None = self.cache.peek(self._footer_key(meta, table))
        if footer is not None:
            return footer
        with self._open(meta, table) as (_, read):
            return read

    def _footer_key(self, meta: BlockMeta, table: str) -> Hashable:
        at = self._stores.choose(meta.id, meta.file(table).locations)
        return "footer", at.store, at.key

    @contextmanager
    def _open(
        self, meta: BlockMeta, table: str, *, coded: bool = True
    ) -> Iterator[tuple[pq.ParquetFile, Footer]]:
        file = meta.file(table)
        at = self._stores.choose(meta.id, file.locations)
        store = self._stores.open(at.store)
        path = store.local_path(at.key)
        if path is None:
            source = pa.PythonFile(store.open(at.key), mode="r")
        else:
            try:
                source = pa.OSFile(str(path))  # not mapped: a file cut short would end the process
            except FileNotFoundError as error:
                raise NotFound(f"object {at.key} is not in the store {at.store}") from error
        with source:
            footer = self.cache.get(
                ("footer", at.store, at.key), lambda: _read_footer(source, meta, file)
            )
            parquet = pq.ParquetFile(
                source,
                metadata=footer.metadata,
                read_dictionary=LAYOUTS[table].read_dictionary if coded else None,
                pre_buffer=path is None,
            )
            yield parquet, footer


def _read_footer(source: Any, meta: BlockMeta, file: File) -> Footer:
    """Not kept when it is another block's: then it has other rows than the index says."""
    metadata = pq.read_metadata(source)
    if metadata.num_rows != file.rows:
        raise Corrupt(
            f"block {meta.id}: table {file.table} has {metadata.num_rows} rows, and the index says "
            f"{file.rows}"
        )
    groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    rows = np.array(groups, np.int64)
    return Footer(metadata, np.cumsum(rows) - rows, rows, FOOTER_FACTOR * metadata.serialized_size)


def _names_key(parts: Sequence[StackFrames], folded: bool) -> Hashable:
    return "names", folded, tuple(part.key for part in parts)


def _groups_of(footer: Footer, rows: Int) -> Int:
    """The row group of each row."""
    return np.searchsorted(footer.begins, rows, side="right") - 1


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
