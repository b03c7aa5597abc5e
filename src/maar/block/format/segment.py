"""Level 0: many raw profiles in one Parquet object, a run of row groups for each dataset."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from maar.block.format import checksum
from maar.model import keys
from maar.model.block import (
    FORMAT_VERSION,
    NO_DAY,
    SEGMENT_TABLE,
    BlockMeta,
    Dataset,
    File,
    Kind,
    Location,
)
from maar.model.errors import Corrupt
from maar.model.ids import (
    NO_TENANT,
    NO_ZONE,
    BlockId,
    PlanId,
    ProfileId,
    Shard,
    StoreName,
    TenantId,
    Zone,
)
from maar.model.profile import RawProfile

FORMAT_KEY = b"maar.format"
FORMAT = b"segment/1"
DATED_KEY = b"maar.dated"  # the newest time that a client gave; not where none did
SINCE_KEY = b"maar.since"  # the entry that gave leave to write it; only in quarantine
ZONE_KEY = b"maar.zone"  # where the writer ran; not in segments from before zones
ROW_GROUP_BYTES = 32 << 20  # a reader holds one row group at a time

SCHEMA = pa.schema(
    [
        pa.field("tenant", pa.string(), nullable=False),
        pa.field("service", pa.string(), nullable=False),
        pa.field("labels", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("types", pa.list_(pa.string()), nullable=False),
        pa.field("profile_id", pa.binary(16), nullable=False),
        pa.field("time_nanos", pa.int64(), nullable=False),
        pa.field("duration_nanos", pa.int64(), nullable=False),
        pa.field("samples", pa.int64(), nullable=False),
        pa.field("raw_size", pa.int64(), nullable=False),
        pa.field("payload", pa.binary(), nullable=False),
    ]
)
CAUSE = pa.field("cause", pa.string(), nullable=False)  # only in quarantine: why it is there


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentBytes:
    """A finished segment and what the index has to know of it."""

    body: bytes
    checksum: bytes
    footer_size: int
    datasets: tuple[Dataset, ...]
    profiles: int
    samples: int
    min_time_ns: int
    max_time_ns: int
    zone: Zone = NO_ZONE
    dated_ns: int = 0  # the newest time that a client gave
    since: int = 0  # the entry that gave leave to write it, as far as it says so itself


def write_segment(
    profiles: Sequence[RawProfile],
    *,
    zone: Zone = NO_ZONE,
    causes: Sequence[str] | None = None,
    since: int = 0,
    row_group_bytes: int = ROW_GROUP_BYTES,
) -> SegmentBytes:
    """Sort by tenant, service and time, and write; `causes` (one per profile) make a quarantine,
    whose copies have to say `since` when it is: their keys do not.
    """
    if not profiles:
        raise ValueError("a segment holds at least one profile")
    places = [(one.tenant, one.service, one.time_ns, one.id) for one in profiles]
    order = sorted(range(len(profiles)), key=places.__getitem__)
    rows = [profiles[row] for row in order]
    # What comes into quarantine was read from segments, which do not say who dated each profile.
    witnesses = [row.time_ns for row in rows if row.dated] if causes is None else []
    dated_ns = max(witnesses, default=0)
    table = _table(rows, None if causes is None else [causes[row] for row in order])
    writer = SegmentFile(table.schema, zone=zone, dated_ns=dated_ns, since=since)
    first = 0
    for (tenant, service), members in groupby(rows, key=lambda p: (p.tenant, p.service)):
        dataset = list(members)
        writer.add(
            table.slice(first, len(dataset)),
            row_group_lengths([len(one.payload) for one in dataset], row_group_bytes),
            _dataset(tenant, service, dataset),
        )
        first += len(dataset)
    return writer.finish(samples=sum(row.samples for row in rows))


class SegmentFile:
    """A segment in the making: dataset after dataset, by tenant and service."""

    def __init__(self, schema: pa.Schema, *, zone: Zone, dated_ns: int, since: int = 0) -> None:
        self._zone = zone
        self._dated_ns = dated_ns
        self._since = since
        self._datasets: list[Dataset] = []
        self._groups = 0
        self._sink = io.BytesIO()
        self._writer = pq.ParquetWriter(
            self._sink,
            schema,
            compression="none",  # payloads are gzip already, the rest is small
            use_dictionary=False,
            write_statistics=["tenant", "service", "time_nanos"],
            store_schema=False,
        )
        named = {ZONE_KEY: zone.encode()} if zone else {}
        when = {DATED_KEY: str(dated_ns).encode()} if dated_ns else {}
        leave = {SINCE_KEY: str(since).encode()} if since else {}
        self._writer.add_key_value_metadata({FORMAT_KEY: FORMAT, **named, **when, **leave})

    def add(self, rows: pa.Table, lengths: Sequence[int], dataset: Dataset) -> None:
        """All rows of a dataset, in row groups of these lengths; where they are is filled in."""
        first = 0
        for length in lengths:
            self._writer.write_table(rows.slice(first, length), row_group_size=length)
            first += length
        self._datasets.append(
            msgspec.structs.replace(
                dataset, row_group_first=self._groups, row_group_count=len(lengths)
            )
        )
        self._groups += len(lengths)

    def finish(self, *, samples: int) -> SegmentBytes:
        self._writer.close()
        body = self._sink.getvalue()
        return SegmentBytes(
            body=body,
            checksum=checksum.of_bytes(body),
            footer_size=checksum.footer_size(body[-8:]),
            datasets=tuple(self._datasets),
            profiles=sum(dataset.profiles for dataset in self._datasets),
            samples=samples,
            min_time_ns=min(dataset.min_time_ns for dataset in self._datasets),
            max_time_ns=max(dataset.max_time_ns for dataset in self._datasets),
            zone=self._zone,
            dated_ns=self._dated_ns,
            since=self._since,
        )


def segment_meta(
    segment: SegmentBytes,
    *,
    block: BlockId,
    key: str,
    shard: Shard,
    store: StoreName,
    created_by: str,
    created_at_ns: int,
    kind: Kind = Kind.SEGMENT,
    tenant: TenantId = NO_TENANT,
    level: int = 0,
    plan: PlanId | None = None,
) -> BlockMeta:
    """The index entry of a segment (or, with its tenant, of a quarantine block)."""
    size = len(segment.body)
    file = File(
        table=SEGMENT_TABLE,
        size=size,
        checksum=segment.checksum,
        footer_size=segment.footer_size,
        rows=segment.profiles,
        locations=(Location(store, key),),
    )
    return BlockMeta(
        version=FORMAT_VERSION,
        id=block,
        kind=kind,
        level=level,
        tenant=tenant,
        shard=shard,
        store=store,
        day=NO_DAY,
        min_time_ns=segment.min_time_ns,
        max_time_ns=segment.max_time_ns,
        profiles=segment.profiles,
        samples=segment.samples,
        size=size,
        files=(file,),
        datasets=segment.datasets,
        created_by=created_by,
        created_at_ns=created_at_ns,
        plan=plan,
        zone=segment.zone,
        dated_ns=segment.dated_ns,
        since=segment.since or keys.since(key),
    )


def read_datasets(open_file: Any, datasets: Iterable[Dataset]) -> Iterator[RawProfile]:
    """The profiles of some datasets, from the row groups that the index names: others cost nothing.

    Corrupt when those row groups are not theirs.
    """
    wanted = list(datasets)
    parquet = open_segment(open_file)
    groups = [
        group
        for dataset in wanted
        for group in range(
            dataset.row_group_first, dataset.row_group_first + dataset.row_group_count
        )
    ]
    names = {(dataset.tenant, dataset.service) for dataset in wanted}
    # Every read costs a third of a millisecond, and a small service is one row group of one row.
    at_once = sum(dataset.size for dataset in wanted) <= ROW_GROUP_BYTES
    runs = [groups] if at_once else [[group] for group in groups]
    found = 0
    for profile in (each for run in runs for each in profiles_of_rows(read_rows(parquet, run))):
        if (profile.tenant, profile.service) not in names:
            raise Corrupt(
                f"A segment holds {profile.service} of {profile.tenant} where the index says that "
                "another dataset is. Restore the object from a copy."
            )
        found += 1
        yield profile
    if found != sum(dataset.profiles for dataset in wanted):
        raise Corrupt(
            f"A segment holds {found} profiles of {len(wanted)} datasets, and the index says "
            f"{sum(dataset.profiles for dataset in wanted)}. Restore the object from a copy."
        )


def read_groups(parquet: pq.ParquetFile, groups: Iterable[int]) -> Iterator[RawProfile]:
    """The profiles of some row groups of an opened segment."""
    for rows in read_pieces(parquet, groups):
        yield from profiles_of_rows(rows)


def read_pieces(parquet: pq.ParquetFile, groups: Iterable[int]) -> Iterator[pa.Table]:
    """The rows of some row groups of an opened segment; small ones are read together, since every
    read costs a third of a millisecond.
    """
    together: list[int] = []
    held = 0
    for group in groups:
        size = parquet.metadata.row_group(group).total_byte_size
        if together and held + size > ROW_GROUP_BYTES:
            yield read_rows(parquet, together)
            together, held = [], 0
        together.append(group)
        held += size
    if together:
        yield read_rows(parquet, together)


def count_causes(open_file: Any) -> Counter[str]:
    """Why profiles are in a quarantine block; of its columns only this one is read."""
    parquet = open_segment(open_file)
    counts: Counter[str] = Counter()
    for group in range(parquet.num_row_groups):
        counts.update(read_rows(parquet, [group], [CAUSE.name])[CAUSE.name].to_pylist())
    return counts


def open_segment(open_file: Any, *, pre_buffer: bool = True) -> pq.ParquetFile:
    """Open and check the version; Corrupt when the bytes are anything else.

    A reader that buffers keeps all that was ever read, as long as it is open: for few reads of a
    store, and not where many segments are open at once.
    """
    try:
        parquet = pq.ParquetFile(open_file, pre_buffer=pre_buffer)
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(
            f"A segment cannot be opened as Parquet ({error}). Its bytes are not what was written; "
            "restore the object from a copy."
        ) from error
    found = (parquet.metadata.metadata or {}).get(FORMAT_KEY)
    if found != FORMAT:
        raise Corrupt(
            f"A segment of format {FORMAT.decode()} was expected, and the file says "
            f"{(found or b'nothing').decode('utf-8', 'replace')!r}. "
            "It is another kind of file, or was written by a newer maar: upgrade this one."
        )
    return parquet


def _table(rows: list[RawProfile], causes: list[str] | None) -> pa.Table:
    columns = [
        pa.array([row.tenant for row in rows], pa.string()),
        pa.array([row.service for row in rows], pa.string()),
        pa.array([row.labels for row in rows], pa.map_(pa.string(), pa.string())),
        pa.array([row.types for row in rows], pa.list_(pa.string())),
        pa.array([row.id for row in rows], pa.binary(16)),
        pa.array([row.time_ns for row in rows], pa.int64()),
        pa.array([row.duration_ns for row in rows], pa.int64()),
        pa.array([row.samples for row in rows], pa.int64()),
        pa.array([row.raw_size for row in rows], pa.int64()),
        pa.array([row.payload for row in rows], pa.binary()),
    ]
    if causes is None:
        return pa.Table.from_arrays(columns, schema=SCHEMA)
    schema = SCHEMA.append(CAUSE)
    return pa.Table.from_arrays([*columns, pa.array(causes, pa.string())], schema=schema)


def row_group_lengths(payloads: Iterable[int], bytes_max: int = ROW_GROUP_BYTES) -> list[int]:
    """Lengths of runs of rows that keep a row group within its bound; rows are given by size."""
    lengths = [0]
    held = 0
    for size in payloads:
        if lengths[-1] and held + size > bytes_max:
            lengths.append(0)
            held = 0
        lengths[-1] += 1
        held += size
    return lengths


def _dataset(tenant: TenantId, service: str, rows: list[RawProfile]) -> Dataset:
    """Where its row groups are is not known yet."""
    return Dataset(
        tenant=tenant,
        service=service,
        types=tuple(sorted({kind for row in rows for kind in row.types})),
        min_time_ns=rows[0].time_ns,
        max_time_ns=rows[-1].time_ns,
        profiles=len(rows),
        size=sum(len(row.payload) for row in rows),
        row_group_first=0,
        row_group_count=0,
    )


def read_rows(
    parquet: pq.ParquetFile, groups: list[int], columns: list[str] | None = None
) -> pa.Table:
    """Some row groups of an opened segment, or some of their columns."""
    try:
        return parquet.read_row_groups(groups, columns=columns, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(
            f"Row groups {groups} of a segment cannot be read ({error}). Its bytes are not what "
            "was written; restore the object from a copy."
        ) from error


def profiles_of_rows(table: pa.Table) -> Iterator[RawProfile]:
    columns = [table[name].to_pylist() for name in SCHEMA.names]
    for tenant, service, labels, types, profile, time, duration, samples, size, payload in zip(
        *columns, strict=True
    ):
        yield RawProfile(
            id=ProfileId(profile),
            tenant=TenantId(tenant),
            service=service,
            labels=tuple((name, value) for name, value in labels),
            types=tuple(types),
            time_ns=time,
            duration_ns=duration,
            samples=samples,
            payload=payload,
            raw_size=size,
        )
