"""Which profiles the index has already, so that the same source again adds nothing.

Only blocks that hold profiles of the service at a profile's own time are opened, each once, and of
those only the column of ids is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow.compute as pc
import pyarrow.parquet as pq

from maar.block.format.segment import open_segment
from maar.block.read.fetch import fetch
from maar.model.block import SEGMENT_TABLE, BlockMeta, Dataset, Kind
from maar.model.errors import Corrupt
from maar.model.ids import ProfileId
from maar.model.profile import RawProfile
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores
from maar.services.ingest.source import Whose


class KnownBlock(msgspec.Struct, frozen=True, array_like=True):
    """A block that may hold profiles of the source."""

    meta: BlockMeta
    dataset: Dataset  # of the service

    def may_hold(self, profile: RawProfile) -> bool:
        """What is in quarantine has the time at which somebody looked at it."""
        if self.meta.kind is Kind.QUARANTINE:
            return True
        return self.dataset.min_time_ns <= profile.time_ns <= self.dataset.max_time_ns


def known_blocks(metas: Sequence[BlockMeta], whose: Whose) -> tuple[KnownBlock, ...]:
    return tuple(
        KnownBlock(meta, dataset)
        for meta in metas
        for dataset in meta.datasets
        if (dataset.tenant, dataset.service) == (whose.tenant, whose.service)
    )


class KnownProfiles:
    """The ids in these blocks, as far as somebody asked for a profile that they may hold."""

    def __init__(
        self, blocks: Sequence[KnownBlock], store: ObjectStore | Stores, work: Path
    ) -> None:
        self._unread = list(blocks)
        self._store = store
        self._work = work
        self._ids: set[bytes] = set()

    def __contains__(self, profile: RawProfile) -> bool:
        wanted = [block for block in self._unread if block.may_hold(profile)]
        if wanted:
            self._unread = [block for block in self._unread if block not in wanted]
            for block in wanted:
                self._ids |= self._read(block)
        return profile.id in self._ids

    def add(self, profile: ProfileId) -> None:
        self._ids.add(profile)

    def _read(self, block: KnownBlock) -> set[bytes]:
        """None of a block that is gone: it was merged meanwhile. Its profiles come in again then,
        are counted once by every query (S9), and go with the next merge.
        """
        segment = block.meta.kind is not Kind.BLOCK
        try:
            file = block.meta.file(SEGMENT_TABLE if segment else "profiles")
            path = fetch(self._store, block.meta, file, self._work)
            return _of_segment(path, block) if segment else _of_block(path, block)
        except Corrupt:
            return set()


def _of_segment(path: Path, block: KnownBlock) -> set[bytes]:
    first, count = block.dataset.row_group_first, block.dataset.row_group_count
    rows = open_segment(path).read_row_groups(range(first, first + count), columns=["profile_id"])
    return set(rows["profile_id"].to_pylist())


def _of_block(path: Path, block: KnownBlock) -> set[bytes]:
    rows = pq.ParquetFile(path).read(columns=["service", "profile_id"])
    mine = rows.filter(pc.equal(rows["service"], block.dataset.service))
    return set(mine["profile_id"].to_pylist())
