"""Rebuilds the index metadata of a segment from its bytes, when nothing else has it."""

from __future__ import annotations

from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from maar.block.format import checksum
from maar.block.format.segment import (
    DATED_KEY,
    SINCE_KEY,
    ZONE_KEY,
    SegmentBytes,
    open_segment,
    read_rows,
)
from maar.model.block import Dataset
from maar.model.errors import Corrupt
from maar.model.ids import TenantId, Zone

_COLUMNS = ["tenant", "service", "types", "time_nanos", "samples", "payload"]


def reread(body: bytes) -> SegmentBytes:
    """As `write_segment` gave it; Corrupt when the bytes are no segment that it wrote."""
    parquet = open_segment(pa.BufferReader(body))
    groups: list[Dataset] = []
    samples = 0
    for place in range(parquet.num_row_groups):
        table = read_rows(parquet, [place], _COLUMNS)
        groups.append(_of_group(table, place))
        samples += pc.sum(table["samples"]).as_py()
    if not groups:
        raise Corrupt("A segment holds at least one profile, and this one holds none.")
    by_name = groupby(groups, key=lambda group: (group.tenant, group.service))
    datasets = tuple(_together(list(members)) for _, members in by_name)
    return SegmentBytes(
        body=body,
        checksum=checksum.of_bytes(body),
        footer_size=checksum.footer_size(body[-8:]),
        datasets=datasets,
        profiles=sum(dataset.profiles for dataset in datasets),
        samples=samples,
        min_time_ns=min(dataset.min_time_ns for dataset in datasets),
        max_time_ns=max(dataset.max_time_ns for dataset in datasets),
        zone=_zone(parquet),
        dated_ns=_number(parquet, DATED_KEY),
        since=_number(parquet, SINCE_KEY),
    )


def _number(parquet: pq.ParquetFile, name: bytes) -> int:
    text = (parquet.metadata.metadata or {}).get(name, b"0")
    return int(text) if text.isdigit() else 0


def _zone(parquet: pq.ParquetFile) -> Zone:
    return Zone((parquet.metadata.metadata or {}).get(ZONE_KEY, b"").decode("utf-8", "replace"))


def _of_group(table: pa.Table, place: int) -> Dataset:
    names = {(t, s) for t in table["tenant"].unique() for s in table["service"].unique()}
    if len(names) != 1:
        raise Corrupt(f"Row group {place} of a segment holds more than one dataset, or none.")
    ((tenant, service),) = names
    times = pc.min_max(table["time_nanos"]).as_py()
    return Dataset(
        tenant=TenantId(tenant.as_py()),
        service=service.as_py(),
        types=tuple(pc.list_flatten(table["types"]).unique().to_pylist()),
        min_time_ns=times["min"],
        max_time_ns=times["max"],
        profiles=table.num_rows,
        size=pc.sum(pc.binary_length(table["payload"])).as_py(),
        row_group_first=place,
        row_group_count=1,
    )


def _together(groups: list[Dataset]) -> Dataset:
    """One dataset of its row groups, which follow each other."""
    first = groups[0]
    return Dataset(
        tenant=first.tenant,
        service=first.service,
        types=tuple(sorted({kind for group in groups for kind in group.types})),
        min_time_ns=min(group.min_time_ns for group in groups),
        max_time_ns=max(group.max_time_ns for group in groups),
        profiles=sum(group.profiles for group in groups),
        size=sum(group.size for group in groups),
        row_group_first=first.row_group_first,
        row_group_count=len(groups),
    )
