"""Decodes raw profiles into blocks of their tenant's days; what cannot be decoded is quarantined.

Memory is bounded whatever the input: decoded profiles are gathered with each symbol kept once, and
wait in scratch files when that becomes much.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from maar.block.decode.gather import Gather
from maar.block.decode.to_tables import read_one
from maar.block.format.hashing import ALL_BITS
from maar.block.merge.run import Run
from maar.model.errors import MalformedProfile, TooLarge
from maar.model.ids import ProfileId, TenantId
from maar.model.profile import RawProfile
from maar.model.time import utc_day
from maar.pprof.tables import TableRoom
from maar.services.merging import Merger

log = logging.getLogger("maar.compact")

QUARANTINE_BYTES = 64 << 20  # payloads of one quarantine block


class DecodeSizes(NamedTuple):
    """How much is in memory at a time; the result is the same for any."""

    gathered_bytes: int = 48 << 20  # what decoded profiles of all days take until they are written


SIZES = DecodeSizes()


class ProfilePool:
    """Raw profiles of one tenant on their way to blocks, by day."""

    def __init__(
        self,
        merger: Merger,
        tenant: TenantId,
        *,
        seed: str,  # nobody may know it before; the result is the same for any
        sizes: DecodeSizes = SIZES,
        id_mask: int = ALL_BITS,
    ) -> None:
        self._merger = merger
        self._tenant = tenant
        self._sizes = sizes
        self._id_mask = id_mask
        self._seed = seed
        self._room = TableRoom()
        self._days: dict[int, Gather] = {}
        self._files: dict[int, list[Run]] = defaultdict(list)
        self._bad: list[tuple[RawProfile, str]] = []
        self._bad_bytes = 0
        self.quarantined = 0
        self.held: list[tuple[ProfileId, str]] = []  # what is in quarantine, with the cause

    def add(self, profile: RawProfile) -> None:
        try:
            raw, tables = read_one(profile, self._room)
        except (MalformedProfile, TooLarge) as error:
            self.hold([(profile, str(error))])
            return
        day = utc_day(profile.time_ns)
        if day not in self._days:
            self._days[day] = Gather(seed=self._seed, mask=self._id_mask)
        self._days[day].add(profile, raw, tables)
        held = sum(gathered.held_bytes for gathered in self._days.values())
        if held >= self._sizes.gathered_bytes:
            self._spill()

    def publish(self) -> int:
        """Write the blocks of all days, and what is in quarantine; how many profiles were kept."""
        self._quarantine()
        if any(self._files.values()):
            self._spill()  # what is in memory is merged with what is not
        kept = 0
        for day in sorted({*self._days, *self._files}):
            kept += self._publish_day(day)
        return kept

    def _publish_day(self, day: int) -> int:
        runs = self._files.pop(day, [])
        if not runs:
            gathered = self._days.pop(day)
            return self._merger.publish_gathered(gathered, tenant=self._tenant, day=day)
        size = sum(_size(run) for run in runs)
        return self._merger.publish(runs, tenant=self._tenant, day=day, size=size)

    def _spill(self) -> None:
        while self._days:
            day, gathered = self._days.popitem()
            run = self._merger.spill_gathered(gathered, tenant=self._tenant)
            self._files[day].append(run)
            pa.default_memory_pool().release_unused()

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
    """About how many bytes a run of scratch files will have as a block."""
    return sum(path.stat().st_size // 2 for path in run.tables.values() if isinstance(path, Path))
