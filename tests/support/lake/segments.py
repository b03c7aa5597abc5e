"""A segment read whole, as no role does: roles read the row groups that the index names."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from maar.block.format.segment import CAUSE, open_segment, read_groups
from maar.model.block import SEGMENT_TABLE, BlockMeta
from maar.model.profile import RawProfile
from maar.ports.stores.object_store import ObjectStore


def read_segment(open_file: Any) -> list[RawProfile]:
    """Every profile, in stored order; from a path, a buffer or a seekable binary file."""
    parquet = open_segment(open_file)
    return list(read_groups(parquet, range(parquet.num_row_groups)))


def read_causes(open_file: Any) -> list[tuple[RawProfile, str]]:
    """What a quarantine block holds, and why each profile is there."""
    causes = open_segment(open_file).read(columns=[CAUSE.name])[CAUSE.name].to_pylist()
    return list(zip(read_segment(open_file), causes, strict=True))


def segment_of(store: ObjectStore, meta: BlockMeta) -> pa.BufferReader:
    return pa.BufferReader(store.read(meta.file(SEGMENT_TABLE).locations[0].key))
