# mypy: disallow-untyped-decorators=False
"""The `samples` table of a batch: a row per sample and value type."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa

from maar.block.decode.batch import Batch
from maar.block.decode.frames import coded_text
from maar.block.decode.sample_labels import Labelled
from maar.block.format.hashing import Int
from maar.block.format.tables import SAMPLES, ColumnMakers
from maar.model.profile import RawProfile
from maar.pprof.kernel import allocating_kernel


def samples_of(batch: Batch, labels: Labelled, stack: Int) -> ColumnMakers:
    """A row per sample and value; zeros are left out, unless a sample has nothing else."""
    width = np.array([columns.sample_type.size for columns in batch.columns], np.int64)
    values = np.concatenate([columns.value.reshape(-1) for columns in batch.columns])
    profile, sample, column, value = explode(batch.sample_base, width, values)
    first_column = np.concatenate([np.zeros(1, np.int64), np.cumsum(width)])
    kind = first_column[profile] + column
    types, repeats = types_of(batch.profiles)
    services, service = batch.services()
    names, name = np.unique(np.array(types, object), return_inverse=True)
    ids = np.frombuffer(b"".join(raw.id for raw in batch.profiles), "V16")
    times = np.array([raw.time_ns // 1000 for raw in batch.profiles], np.int64)

    def ordinals() -> pa.Array:
        before = repeats[kind] * np.diff(batch.sample_base)[profile]
        ordinal = sample - batch.sample_base[profile] + before
        return pa.array(ordinal.astype(np.int32), mask=width[profile] == 1)

    def of_sample(column: pa.Array | None, field: str) -> pa.Array:
        if column is None:
            return pa.nulls(sample.size, SAMPLES.field(field).type)
        return column.take(pa.array(sample))

    return {
        "service": lambda: coded_text(pa.array(services, pa.string()), service[profile]),
        "profile_type": lambda: coded_text(pa.array(names.tolist(), pa.string()), name[kind]),
        "series_id": lambda: pa.array(labels.sample_series[sample]),
        "time": lambda: pa.array(times[profile]).cast(SAMPLES.field("time").type),
        "profile_id": lambda: _to_array(ids[profile]),
        "stack_id": lambda: pa.array(stack[sample]),
        "value": lambda: pa.array(value),
        "sample": ordinals,
        "span_id": lambda: of_sample(labels.span_id, "span_id"),
        "sample_labels": lambda: of_sample(labels.sample_labels, "sample_labels"),
    }


def _to_array(ids: Any) -> pa.Array:
    """16-byte items as an Arrow array, without a look at each."""
    return pa.Array.from_buffers(pa.binary(16), ids.size, [None, pa.py_buffer(ids.tobytes())])


def types_of(profiles: list[RawProfile]) -> tuple[list[str], Int]:
    """The profile type of every value column, and how often its profile had it before."""
    types: list[str] = []
    repeats: list[int] = []
    for profile in profiles:
        seen: Counter[str] = Counter()
        for full in profile.types:
            types.append(full)
            repeats.append(seen[full])
            seen[full] += 1
    return types, np.array(repeats, np.int64)


@allocating_kernel
def explode(sample_base: Any, width: Any, values: Any) -> Any:
    """Which values become rows: profile, sample, column and value of each."""
    rows = 0
    at = 0
    for profile in range(width.size):
        for _ in range(sample_base[profile], sample_base[profile + 1]):
            kept = 0
            for column in range(width[profile]):
                kept += values[at + column] != 0
            rows += max(kept, 1)
            at += width[profile]
    out_profile = np.empty(rows, np.int64)
    out_sample = np.empty(rows, np.int64)
    out_column = np.empty(rows, np.int64)
    out_value = np.empty(rows, np.int64)
    row = 0
    at = 0
    for profile in range(width.size):
        for sample in range(sample_base[profile], sample_base[profile + 1]):
            before = row
            for column in range(width[profile]):
                last = column == width[profile] - 1
                if values[at + column] != 0 or (last and row == before):
                    out_profile[row] = profile
                    out_sample[row] = sample
                    out_column[row] = column
                    out_value[row] = values[at + column]
                    row += 1
            at += width[profile]
    return out_profile, out_sample, out_column, out_value
