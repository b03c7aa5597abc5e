"""Joins segments into one: rows are copied, and no profile is decoded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from maar.block.format.hidden import without_hidden
from maar.block.format.segment import (
    ROW_GROUP_BYTES,
    SCHEMA,
    SegmentBytes,
    SegmentFile,
    open_segment,
    read_rows,
    row_group_lengths,
)
from maar.model.block import BlockMeta, Dataset
from maar.model.errors import Corrupt
from maar.model.ids import BlockId, TenantId, Zone
from maar.model.predicate import Mask

NO_MASKS: Mapping[BlockId, tuple[Mask, ...]] = {}

Name = tuple[TenantId, str]  # of a dataset


def join(
    segments: Iterable[tuple[BlockMeta, bytes]],
    *,
    zone: Zone,
    row_group_bytes: int = ROW_GROUP_BYTES,
) -> SegmentBytes:
    """One segment with all rows of all."""
    joined = join_visible(segments, zone=zone, row_group_bytes=row_group_bytes)
    assert joined is not None
    return joined


def join_visible(
    segments: Iterable[tuple[BlockMeta, bytes]],
    *,
    zone: Zone,
    row_group_bytes: int = ROW_GROUP_BYTES,
    masks: Mapping[BlockId, tuple[Mask, ...]] = NO_MASKS,
) -> SegmentBytes | None:
    """One segment with the rows of all, by tenant and service; within a dataset in the order in
    which they were given. A profile that came twice stays twice: merging removes it. What masks
    hide is left out; None when that is everything.

    Corrupt names the block whose bytes are not what the index says.
    """
    datasets: dict[Name, list[Dataset]] = defaultdict(list)
    rows: dict[Name, list[pa.Table]] = defaultdict(list)
    samples = dated_ns = 0
    for meta, body in segments:
        table, first = _rows(meta, body), 0
        for dataset in _in_order(meta):
            part, known = table.slice(first, dataset.profiles), dataset
            first += dataset.profiles
            some = [mask for mask in masks.get(meta.id, ()) if mask.touches(dataset)]
            if some:
                before = part
                part = without_hidden(part, some)
                samples -= _samples(before) - _samples(part)
                known = _dataset_of(dataset, part)
            if part.num_rows:
                name = dataset.tenant, dataset.service
                datasets[name].append(known)
                rows[name].append(part)
        samples += meta.samples
        dated_ns = max(dated_ns, meta.dated_ns)
    if not rows:
        return None
    writer = SegmentFile(SCHEMA, zone=zone, dated_ns=dated_ns)
    for name in sorted(rows):
        table = pa.concat_tables(rows.pop(name)).combine_chunks()
        sizes = pc.binary_length(table["payload"]).to_pylist()
        writer.add(table, row_group_lengths(sizes, row_group_bytes), _together(datasets[name]))
    return writer.finish(samples=samples)


def _in_order(meta: BlockMeta) -> list[Dataset]:
    """As their row groups follow each other."""
    return sorted(meta.datasets, key=lambda dataset: dataset.row_group_first)


def _rows(meta: BlockMeta, body: bytes) -> pa.Table:
    """All rows of a segment, of which each dataset has its own: a read costs more than a slice."""
    try:
        parquet = open_segment(pa.BufferReader(body))
        _check(meta, parquet)
        return read_rows(parquet, list(range(parquet.num_row_groups))).cast(SCHEMA)
    except (Corrupt, pa.ArrowException) as error:
        raise Corrupt(f"Block {meta.id}: {error}") from error


def _check(meta: BlockMeta, parquet: pq.ParquetFile) -> None:
    """The row groups are those of the datasets that the index names, and no others."""
    groups = [parquet.metadata.row_group(n).num_rows for n in range(parquet.num_row_groups)]
    at = 0
    for dataset in _in_order(meta):
        end = dataset.row_group_first + dataset.row_group_count
        if dataset.row_group_first != at or sum(groups[at:end]) != dataset.profiles:
            raise Corrupt(
                f"{dataset.service} of {dataset.tenant} is not where the index says that it is. "
                "Restore the object from a copy."
            )
        at = end
    if at != len(groups) or sum(groups) != meta.profiles:
        raise Corrupt(
            f"it has {sum(groups)} profiles, and the index says {meta.profiles}. Restore the "
            "object from a copy."
        )


def _samples(rows: pa.Table) -> int:
    return pc.sum(rows["samples"]).as_py() or 0


def _dataset_of(dataset: Dataset, rows: pa.Table) -> Dataset:
    """What is known of a dataset of which only these rows are left."""
    if not rows.num_rows:
        return dataset
    times = pc.min_max(rows["time_nanos"]).as_py()
    return msgspec.structs.replace(
        dataset,
        types=tuple(sorted({kind for some in rows["types"].to_pylist() for kind in some})),
        min_time_ns=times["min"],
        max_time_ns=times["max"],
        profiles=rows.num_rows,
        size=pc.sum(pc.binary_length(rows["payload"])).as_py(),
    )


def _together(parts: Sequence[Dataset]) -> Dataset:
    """What is known of a dataset, from what was known of its parts."""
    first = parts[0]
    return Dataset(
        tenant=first.tenant,
        service=first.service,
        types=tuple(sorted({kind for part in parts for kind in part.types})),
        min_time_ns=min(part.min_time_ns for part in parts),
        max_time_ns=max(part.max_time_ns for part in parts),
        profiles=sum(part.profiles for part in parts),
        size=sum(part.size for part in parts),
        row_group_first=0,
        row_group_count=0,
    )
