"""The `profiles` table of a batch: one row per profile, all that is not of samples or symbols."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from maar.block.decode.batch import Batch
from maar.block.decode.sample_labels import Labelled
from maar.block.format.tables import LAYOUTS, MAPPING, PROFILES


def profiles_of(batch: Batch, labels: Labelled) -> pa.Table:
    raws, columns = batch.profiles, batch.columns
    times = [raw.time_ns for raw in raws]

    def text(pick: Any) -> list[str]:
        return [each.text(pick(each)) for each in columns]

    def int64(values: Iterable[int]) -> pa.Array:
        return pa.array(list(values), pa.int64())

    types = [
        [
            {"type": each.text(kind), "unit": each.text(unit)}
            for kind, unit in zip(each.sample_type, each.sample_unit, strict=True)
        ]
        for each in columns
    ]
    return pa.Table.from_arrays(
        [
            pa.array([raw.service for raw in raws], pa.string()).dictionary_encode(),
            pa.array([raw.id for raw in raws], pa.binary(16)),
            pa.array(labels.profile_series),
            int64(time // 1000 for time in times).cast(PROFILES.field("time").type),
            int64(times),
            int64(raw.duration_ns for raw in raws),
            int64(each.time_ns for each in columns),
            int64(each.duration_ns for each in columns),
            int64(each.period for each in columns),
            pa.array(text(lambda each: each.period_type), pa.string()),
            pa.array(text(lambda each: each.period_unit), pa.string()),
            pa.array(text(lambda each: each.default_sample_type), pa.string()),
            pa.array(types, PROFILES.field("sample_types").type),
            int64(each.samples for each in columns),
            pa.array(
                [[each.text(index) for index in each.comment] for each in columns],
                PROFILES.field("comments").type,
            ),
            pa.array(text(lambda each: each.drop_frames), pa.string()),
            pa.array(text(lambda each: each.keep_frames), pa.string()),
            pa.array(text(lambda each: each.doc_url), pa.string()),
            _mappings(batch),
        ],
        schema=LAYOUTS["profiles"].working,
    )


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
