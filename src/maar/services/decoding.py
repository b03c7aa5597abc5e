"""Decodes raw profiles into blocks of their tenant's days; what cannot be decoded is quarantined.

Memory is bounded whatever the input: raw profiles are decoded in batches, and decoded batches wait
in scratch files once there are many.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from maar.block.decode.to_tables import Decoded, decode_in_batches
from maar.block.format.hashing import ALL_BITS
from maar.block.merge.run import Run
from maar.model.ids import ProfileId, TenantId
from maar.model.profile import RawProfile
from maar.model.time import utc_day
from maar.services.merging import Merger

log = logging.getLogger("maar.compact")

QUARANTINE_BYTES = 64 << 20  # payloads of one quarantine block


class DecodeSizes(NamedTuple):
    """How much is in memory at a time; the result is the same for any."""

    batch_raw_bytes: int = 16 << 20  # decompressed bytes that are decoded at once
    memory_run_bytes: int = 48 << 20  # decoded tables of a day that stay in memory


SIZES = DecodeSizes()


class ProfilePool:
    """Raw profiles of one tenant on their way to blocks, by day."""

    def __init__(
        self,
        merger: Merger,
        tenant: TenantId,
        *,
        sizes: DecodeSizes = SIZES,
        id_mask: int = ALL_BITS,
    ) -> None:
        self._merger = merger
        self._tenant = tenant
        self._sizes = sizes
        self._id_mask = id_mask
        self._waiting: dict[int, list[RawProfile]] = defaultdict(list)
        self._waiting_bytes = 0
        self._memory: dict[int, list[Run]] = defaultdict(list)
        self._memory_bytes = 0
        self._files: dict[int, list[Run]] = defaultdict(list)
        self._bad: list[tuple[RawProfile, str]] = []
        self._bad_bytes = 0
        self.quarantined = 0
        self.held: list[tuple[ProfileId, str]] = []  # what is in quarantine, with the cause

    def add(self, profile: RawProfile) -> None:
        self._waiting[utc_day(profile.time_ns)].append(profile)
        self._waiting_bytes += profile.raw_size + len(profile.payload)
        if self._waiting_bytes >= self._sizes.batch_raw_bytes:
            self._decode()

    def publish(self) -> int:
        """Write the blocks of all days, and what is in quarantine; how many profiles were kept."""
        self._decode()
        self._quarantine()
        kept = 0
        for day in sorted({*self._memory, *self._files}):
            runs = [*self._files.pop(day, []), *self._memory.pop(day, [])]
            size = sum(_size(run) for run in runs)
            kept += self._merger.publish(runs, tenant=self._tenant, day=day, size=size)
        return kept

    def _decode(self) -> None:
        for day, profiles in self._waiting.items():
            for decoded in decode_in_batches(profiles, mask=self._id_mask):
                self._take(day, decoded)
        self._waiting.clear()
        self._waiting_bytes = 0

    def _take(self, day: int, decoded: Decoded) -> None:
        self._merger.collisions += decoded.collisions
        self.hold(decoded.quarantined)
        if decoded.tables["profiles"].num_rows:
            run = Run(name=f"Day {day} of {self._tenant}", tables=dict(decoded.tables))
            self._memory[day].append(run)
            self._memory_bytes += sum(table.nbytes for table in decoded.tables.values())
        if self._memory_bytes >= self._sizes.memory_run_bytes:
            self._spill()
        pa.default_memory_pool().release_unused()  # the next batch differs in its sizes

    def _spill(self) -> None:
        for day, runs in self._memory.items():
            self._files[day].append(
                self._merger.spill(runs, tenant=self._tenant, first=None, end=None)
            )
        self._memory.clear()
        self._memory_bytes = 0

    def hold(self, bad: Sequence[tuple[RawProfile, str]]) -> None:
        """Profiles for quarantine, each with the cause."""
        for profile, cause in bad:
            self.held.append((profile.id, cause))
            self._bad.append((profile, cause))
            self._bad_bytes += len(profile.payload)
            if self._bad_bytes >= QUARANTINE_BYTES:
                self._quarantine()

    def _quarantine(self) -> None:
        if self._bad:
            meta = self._merger.publisher.quarantine(self._bad, tenant=self._tenant)
            log.warning(
                "profiles quarantined block=%s tenant=%s profiles=%d cause=%r",
                meta.id, self._tenant, len(self._bad), self._bad[0][1],
            )  # fmt: skip
            self.quarantined += len(self._bad)
        self._bad, self._bad_bytes = [], 0


def _size(run: Run) -> int:
    """About how many bytes a run will have as a block."""
    return sum(
        table.stat().st_size // 2 if isinstance(table, Path) else table.nbytes // 8
        for table in run.tables.values()
    )
