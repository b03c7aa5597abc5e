"""The five tables of a block: their columns, their order, and how they are laid out in Parquet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

FORMAT_KEY = b"maar.format"
FORMAT = b"block/1"
ColumnMakers = Mapping[str, Callable[[], pa.Array]]  # by name; what nobody wants is not made
DIMENSIONS = ("locations", "series", "stacks")  # others refer to them by id; stacks to locations

_TEXT = pa.string()
_ID = pa.int64()
_TIME = pa.timestamp("us", tz="UTC")
_PROFILE_ID = pa.binary(16)

MAPPING = pa.struct(
    [
        pa.field("start", pa.int64(), nullable=False),  # 64 bits as they come, read as signed
        pa.field("limit", pa.int64(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("file", _TEXT, nullable=False),
        pa.field("build_id", _TEXT, nullable=False),
        pa.field("flags", pa.int64(), nullable=False),
    ]
)
SAMPLE_TYPE = pa.struct(
    [pa.field("type", _TEXT, nullable=False), pa.field("unit", _TEXT, nullable=False)]
)
SAMPLE_LABEL = pa.struct(
    [
        pa.field("key", _TEXT, nullable=False),
        pa.field("str", _TEXT, nullable=False),
        pa.field("num", pa.int64(), nullable=False),
        pa.field("num_unit", _TEXT, nullable=False),
    ]
)
LABELS = pa.map_(_TEXT, _TEXT)

SAMPLES = pa.schema(
    [
        pa.field("service", _TEXT, nullable=False),
        pa.field("profile_type", _TEXT, nullable=False),
        pa.field("series_id", _ID, nullable=False),
        pa.field("time", _TIME, nullable=False),
        pa.field("profile_id", _PROFILE_ID, nullable=False),
        pa.field("stack_id", _ID, nullable=False),
        pa.field("value", pa.int64(), nullable=False),
        pa.field("sample", pa.int32()),
        pa.field("span_id", _TEXT),
        pa.field("sample_labels", pa.list_(pa.field("element", SAMPLE_LABEL, nullable=False))),
    ]
)
PROFILES = pa.schema(
    [
        pa.field("service", _TEXT, nullable=False),
        pa.field("profile_id", _PROFILE_ID, nullable=False),
        pa.field("series_id", _ID, nullable=False),
        pa.field("time", _TIME, nullable=False),
        pa.field("time_nanos", pa.int64(), nullable=False),
        pa.field("duration_nanos", pa.int64(), nullable=False),
        pa.field("pprof_time_nanos", pa.int64(), nullable=False),
        pa.field("pprof_duration_nanos", pa.int64(), nullable=False),
        pa.field("period", pa.int64(), nullable=False),
        pa.field("period_type", _TEXT, nullable=False),
        pa.field("period_unit", _TEXT, nullable=False),
        pa.field("default_type", _TEXT, nullable=False),
        pa.field("sample_types", pa.list_(pa.field("element", SAMPLE_TYPE, nullable=False))),
        pa.field("sample_count", pa.int64(), nullable=False),
        pa.field("comments", pa.list_(pa.field("element", _TEXT, nullable=False))),
        pa.field("drop_frames", _TEXT, nullable=False),
        pa.field("keep_frames", _TEXT, nullable=False),
        pa.field("doc_url", _TEXT, nullable=False),
        pa.field("mappings", pa.list_(pa.field("element", MAPPING, nullable=False))),
    ]
)
STACKS = pa.schema(
    [
        pa.field("service", _TEXT, nullable=False),
        pa.field("stack_id", _ID, nullable=False),
        pa.field("leaf", _TEXT),
        pa.field("functions", pa.list_(pa.field("element", _TEXT, nullable=False))),
        pa.field("location_ids", pa.list_(pa.field("element", _ID, nullable=False))),
    ]
)
LOCATIONS = pa.schema(
    [
        pa.field("location_id", _ID, nullable=False),
        pa.field("function", _TEXT),
        pa.field("system_name", _TEXT),
        pa.field("file", _TEXT),
        pa.field("start_line", pa.int64()),
        pa.field("line", pa.int64()),
        pa.field("column_number", pa.int64()),
        pa.field("inlined", pa.bool_(), nullable=False),
        pa.field("folded", pa.bool_(), nullable=False),
        pa.field("mapping", _TEXT),
        pa.field("build_id", _TEXT),
        pa.field("address", pa.int64()),
    ]
)
SERIES = pa.schema(
    [
        pa.field("series_id", _ID, nullable=False),
        pa.field("service", _TEXT, nullable=False),
        pa.field("version", _TEXT),
        pa.field("labels", LABELS, nullable=False),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How one table is kept: with dictionaries in memory, as plain columns at rest."""

    schema: pa.Schema
    key: tuple[str, ...]  # the order of rows; nulls and empty text come first
    by_service: bool  # row groups are cut where the service changes
    unique: str = ""  # the id of which a block has one row
    compact: tuple[str, ...] = ()  # text that repeats: dictionary codes in memory
    sparse: tuple[str, ...] = ()  # null, and no empty list, where there is nothing to say
    hashes: tuple[str, ...] = ()  # whose bounds say nothing: no statistics

    @property
    def working(self) -> pa.Schema:
        """The schema in memory."""
        return pa.schema([_compact_field(field, self.compact) for field in self.schema])

    @property
    def dictionary_columns(self) -> list[str]:
        """Parquet columns with dictionary pages: all but the ids that never repeat."""
        return self._leaves_without((self.unique,))

    @property
    def statistics_columns(self) -> list[str]:
        return self._leaves_without(self.hashes)

    def _leaves_without(self, names: tuple[str, ...]) -> list[str]:
        return [path for field in self.schema if field.name not in names for path in _leaves(field)]

    @property
    def read_dictionary(self) -> list[str]:
        """Parquet columns that are read as dictionary codes."""
        return [path for name in self.compact for path in _leaves(self.schema.field(name))]


def _compact_field(field: Any, compact: tuple[str, ...]) -> Any:
    if field.name not in compact:
        return field
    coded = pa.dictionary(pa.int32(), pa.string())
    if pa.types.is_list(field.type):
        return field.with_type(pa.list_(field.type.value_field.with_type(coded)))
    return field.with_type(coded)


def _leaves(field: Any, prefix: str = "") -> list[str]:
    path = f"{prefix}{field.name}"
    if pa.types.is_map(field.type):
        return [f"{path}.key_value.key", f"{path}.key_value.value"]
    if pa.types.is_list(field.type):
        return _leaves(field.type.value_field.with_name("element"), f"{path}.list.")
    if pa.types.is_struct(field.type):
        return [leaf for child in field.type for leaf in _leaves(child, f"{path}.")]
    return [path]


LAYOUTS = {
    "samples": Layout(
        schema=SAMPLES,
        key=("service", "profile_type", "series_id", "time", "stack_id"),
        by_service=True,
        compact=("service", "profile_type"),
        sparse=("sample", "span_id", "sample_labels"),
        hashes=("profile_id", "stack_id"),
    ),
    "profiles": Layout(
        schema=PROFILES,
        key=("service", "time", "profile_id"),
        by_service=True,
        unique="profile_id",
        compact=("service",),
        hashes=("profile_id",),
    ),
    "stacks": Layout(
        schema=STACKS,
        key=("service", "functions", "stack_id"),
        by_service=True,
        unique="stack_id",
        compact=("service", "leaf", "functions"),
        hashes=("stack_id", "location_ids"),
    ),
    "locations": Layout(
        schema=LOCATIONS,
        key=("file", "function", "line", "location_id"),
        by_service=False,
        unique="location_id",
        compact=("mapping", "build_id"),
        hashes=("location_id",),
    ),
    "series": Layout(
        schema=SERIES,
        key=("service", "series_id"),
        by_service=False,
        unique="series_id",
        compact=("service",),
    ),
}
