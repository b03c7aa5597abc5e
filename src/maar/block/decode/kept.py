"""A decoded profile on its way to tables, as numbers."""

from __future__ import annotations

from typing import Any

import msgspec

from maar.block.format.hashing import Int
from maar.model.profile import RawProfile
from maar.pprof import wire


class KeptProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A profile without its bytes; strings are numbers of all profiles' strings."""

    raw: RawProfile  # without its payload
    stack: Any  # int32, of each sample
    value: Int  # shape (samples, value columns)
    label_offset: Int
    labels: Int  # key, str, num and num_unit, a row each
    mappings: Int  # start, limit, offset, file, build id and flags, a row each
    types: Int  # type and unit of each value column, a row each
    comment: Int
    period_types: Int  # type and unit
    scalars: Int  # at the places that wire names

    @property
    def samples(self) -> int:
        return int(self.value.shape[0])

    @property
    def sample_type(self) -> Int:
        types: Int = self.types[0]
        return types

    @property
    def sample_unit(self) -> Int:
        units: Int = self.types[1]
        return units

    @property
    def default_sample_type(self) -> int:
        return int(self.scalars[wire.DEFAULT_TYPE])

    @property
    def drop_frames(self) -> int:
        return int(self.scalars[wire.DROP_FRAMES])

    @property
    def keep_frames(self) -> int:
        return int(self.scalars[wire.KEEP_FRAMES])

    @property
    def doc_url(self) -> int:
        return int(self.scalars[wire.DOC_URL])

    @property
    def period_type(self) -> int:
        return int(self.period_types[0])

    @property
    def period_unit(self) -> int:
        return int(self.period_types[1])

    @property
    def period(self) -> int:
        return int(self.scalars[wire.PERIOD])

    @property
    def time_ns(self) -> int:
        return int(self.scalars[wire.TIME])

    @property
    def duration_ns(self) -> int:
        return int(self.scalars[wire.DURATION])

    @property
    def nbytes(self) -> int:
        samples = self.stack.nbytes + self.value.nbytes + self.label_offset.nbytes
        return int(samples + self.labels.nbytes + self.mappings.nbytes) + 1_000
