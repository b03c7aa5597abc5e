"""The `profiles` table of a batch: one row per profile, all that is not of samples or symbols."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa

from maar.block.decode.batch import Batch
from maar.block.decode.sample_labels import Labelled
from maar.block.format.hashing import Int
from maar.block.format.tables import MAPPING, PROFILES, SAMPLE_TYPE, ColumnMakers
from maar.pprof.columns import Columns


def profiles_of(batch: Batch, labels: Labelled) -> ColumnMakers:
    raws, columns = batch.profiles, batch.columns

    def text(pick: Callable[[Columns], int]) -> pa.Array:
        return batch.text(np.array([pick(each) for each in columns], np.int64))

    def int64(values: Iterable[int]) -> pa.Array:
        return pa.array(list(values), pa.int64())

    def texts(pick: Callable[[Columns], Int]) -> tuple[pa.Array, pa.Array]:
        """Several strings of each profile, and where those of each begin."""
        parts = [pick(each) for each in columns]
        counts = np.array([part.size for part in parts], np.int64)
        offset = np.concatenate([np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)])
        return batch.text(np.concatenate(parts), counts), pa.array(offset)

    def sample_types() -> pa.Array:
        kinds, offset = texts(lambda each: each.sample_type)
        units, _ = texts(lambda each: each.sample_unit)
        pairs = pa.StructArray.from_arrays([kinds, units], fields=list(SAMPLE_TYPE))
        return pa.ListArray.from_arrays(offset, pairs, type=PROFILES.field("sample_types").type)

    def comments() -> pa.Array:
        found, offset = texts(lambda each: each.comment)
        return pa.ListArray.from_arrays(offset, found, type=PROFILES.field("comments").type)

    def times() -> pa.Array:
        micros = int64(raw.time_ns // 1000 for raw in raws)
        return micros.cast(PROFILES.field("time").type)

    return {
        "service": lambda: pa.array([r.service for r in raws], pa.string()).dictionary_encode(),
        "profile_id": lambda: pa.array([raw.id for raw in raws], pa.binary(16)),
        "series_id": lambda: pa.array(labels.profile_series),
        "time": times,
        "time_nanos": lambda: int64(raw.time_ns for raw in raws),
        "duration_nanos": lambda: int64(raw.duration_ns for raw in raws),
        "pprof_time_nanos": lambda: int64(each.time_ns for each in columns),
        "pprof_duration_nanos": lambda: int64(each.duration_ns for each in columns),
        "period": lambda: int64(each.period for each in columns),
        "period_type": lambda: text(lambda each: each.period_type),
        "period_unit": lambda: text(lambda each: each.period_unit),
        "default_type": lambda: text(lambda each: each.default_sample_type),
        "sample_types": sample_types,
        "sample_count": lambda: int64(each.samples for each in columns),
        "comments": comments,
        "drop_frames": lambda: text(lambda each: each.drop_frames),
        "keep_frames": lambda: text(lambda each: each.keep_frames),
        "doc_url": lambda: text(lambda each: each.doc_url),
        "mappings": lambda: _mappings(batch),
    }


def _mappings(batch: Batch) -> pa.Array:
    text = batch.strings.text
    rows = pa.StructArray.from_arrays(
        [
            pa.array(batch.mapping_start.view(np.int64)),
            pa.array(batch.mapping_limit.view(np.int64)),
            pa.array(batch.mapping_offset.view(np.int64)),
            text.take(pa.array(batch.mapping_file)),
            text.take(pa.array(batch.mapping_build_id)),
            pa.array(batch.mapping_flags),
        ],
        fields=list(MAPPING),
    )
    return pa.ListArray.from_arrays(
        pa.array(batch.mapping_base.astype(np.int32)), rows, type=PROFILES.field("mappings").type
    )
