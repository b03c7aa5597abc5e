"""What the index knows of the bytes at rest: segments (level 0) and blocks (level 1 and up)."""

from __future__ import annotations

from enum import IntEnum

import msgspec

from maar.model.ids import NO_ZONE, BlockId, PlanId, Shard, StoreName, TenantId, Zone
from maar.model.time import utc_day

TABLES = ("samples", "profiles", "stacks", "locations", "series")
SEGMENT_TABLE = "segment"  # the one file of a segment or a quarantine block
FORMAT_VERSION = 1
NO_DAY = -1
INGESTED = 99  # the level of blocks of a bulk write: clustering takes them, and compaction never
CLUSTERED = 100  # the level of blocks of a whole day, of all shards; nothing queues them again


class Kind(IntEnum):
    SEGMENT = 0  # level 0: raw profiles of all tenants
    BLOCK = 1  # the five tables of one tenant and day
    QUARANTINE = 2  # raw profiles that could not be decoded, in the segment format; never merged


class Location(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One copy of an object. Copies are listed, never inferred (S14)."""

    store: StoreName
    key: str
    verified_at_ns: int = 0


class File(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One object of a block: exactly what was written, so that a reader can tell."""

    table: str
    size: int
    checksum: bytes  # xxh3-128 of the whole object
    footer_size: int  # bytes of Parquet footer at the end, magic and length included
    rows: int
    locations: tuple[Location, ...]


class Dataset(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One service of one tenant within a block: a run of row groups.

    The run is of the `segment` table in segments, of `samples` in blocks.
    """

    tenant: TenantId
    service: str
    types: tuple[str, ...]
    min_time_ns: int
    max_time_ns: int
    profiles: int
    size: int
    row_group_first: int
    row_group_count: int


class BlockOutline(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A BlockMeta whose datasets, most of its bytes, stay unread: what the index itself needs."""

    version: int
    id: BlockId
    kind: Kind
    level: int
    tenant: TenantId  # "" for segments
    shard: Shard
    store: StoreName  # where it was written first; compaction never mixes stores
    day: int  # UTC day for blocks, NO_DAY for segments
    min_time_ns: int
    max_time_ns: int
    profiles: int
    samples: int
    size: int
    files: tuple[File, ...]
    datasets: msgspec.Raw
    created_by: str  # a writer, or the plan
    created_at_ns: int  # wall time, for people
    plan: PlanId | None = None
    zone: Zone = NO_ZONE  # of the writer; compaction never mixes zones
    dated_ns: int = 0  # of a segment: the newest time that a client itself gave; 0: none did
    # The entry that gave leave to write it, by which deletions tell older from younger. Copies keep
    # it. 0: of a writer's segment, or written before there was this field: then its keys tell.
    since: int = 0


class BlockMeta(BlockOutline, frozen=True, array_like=True, gc=False):
    """All that is known of a block without opening it."""

    datasets: tuple[Dataset, ...]  # type: ignore[assignment]  # the same field, read

    def file(self, table: str) -> File:
        return next(file for file in self.files if file.table == table)


class Damage(msgspec.Struct, frozen=True):
    """An object that is not what the index says, in words that follow its key."""

    block: BlockId
    key: str
    what: str

    def __str__(self) -> str:
        return f"object {self.key} of block {self.block} {self.what}"


def day_of(meta: BlockOutline) -> int:
    """Segments have no day of their own: they go by their oldest profile."""
    return utc_day(meta.min_time_ns) if meta.day == NO_DAY else meta.day
