"""One profile back from the tables: equal to what was pushed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from maar.block.format import hidden
from maar.block.format.segment import open_segment
from maar.block.format.tables import LAYOUTS
from maar.block.read.copies import read_copy
from maar.block.read.mapped import MappedFiles
from maar.model.block import SEGMENT_TABLE, BlockMeta
from maar.model.errors import Corrupt
from maar.model.ids import ProfileId, TenantId
from maar.model.labels import PROFILE_NAME
from maar.model.predicate import Mask
from maar.model.profile import profile_type, with_underscores
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores, stores_of
from maar.pprof.columns import NONE
from maar.pprof.encode import encode
from maar.pprof.gzip import compress
from maar.pprof.plain import (
    PlainFunction,
    PlainLabel,
    PlainLine,
    PlainLocation,
    PlainMapping,
    PlainProfile,
    PlainSample,
)

_WORD = 1 << 64

Row = dict[str, Any]


def restore(
    profile_row: Row, samples: pa.Table, stacks: pa.Table, locations: pa.Table, series: pa.Table
) -> bytes:
    """The profile as gzip pprof.

    `samples` holds the rows of this profile and nothing else; the other tables hold at least what
    these rows refer to, all of one block.
    """
    labels = {row["series_id"]: dict(row["labels"]) for row in series.to_pylist()}
    symbols = _Symbols(profile_row, locations.to_pylist())
    places = {row["stack_id"]: row["location_ids"] for row in stacks.to_pylist()}
    kinds = profile_row["sample_types"]
    base = labels[profile_row["series_id"]]
    column_of = _columns(profile_row, base.get(PROFILE_NAME, ""))
    plain_samples = [
        PlainSample(
            locations=symbols.stack(places[rows[0]["stack_id"]]),
            values=_values(rows, column_of, len(kinds), profile_row["sample_count"]),
            labels=_labels(rows[0], labels, base),
        )
        for rows in _by_sample(samples.to_pylist(), profile_row["sample_count"])
    ]
    profile = PlainProfile(
        sample_types=[(kind["type"], kind["unit"]) for kind in kinds],
        samples=plain_samples,
        mappings=symbols.mappings,
        locations=symbols.locations,
        functions=list(symbols.functions),
        drop_frames=profile_row["drop_frames"],
        keep_frames=profile_row["keep_frames"],
        time_ns=profile_row["pprof_time_nanos"],
        duration_ns=profile_row["pprof_duration_nanos"],
        period_type=(profile_row["period_type"], profile_row["period_unit"]),
        period=profile_row["period"],
        comments=profile_row["comments"],
        default_sample_type=profile_row["default_type"],
        doc_url=profile_row["doc_url"],
    )
    return compress(encode(profile))


def profile_from_block(
    store: ObjectStore | Stores, meta: BlockMeta, profile: ProfileId
) -> bytes | None:
    """The profile from a block's files, or None when the block does not have it."""
    files = _Files(stores_of(store), meta)
    found = files.find("profiles", "profile_id", [profile])
    return _from_block(files, found.to_pylist()[0]) if found.num_rows else None


def profile_from_segment(
    store: ObjectStore | Stores,
    meta: BlockMeta,
    profile: ProfileId,
    *,
    tenant: TenantId,
    masks: Sequence[Mask] = (),
) -> bytes | None:
    """The payload from a segment or a quarantine block, as it came; None when it is not there, or
    is hidden.
    """

    def read(file: Any) -> bytes | None:
        parquet = open_segment(file)
        for group in range(parquet.num_row_groups):
            ids = parquet.read_row_group(group, columns=["tenant", "profile_id"])
            here = pc.and_(
                pc.equal(ids["tenant"], tenant), pc.equal(ids["profile_id"], _id(profile))
            )
            if masks and pc.any(here).as_py():
                told = parquet.read_row_group(group, columns=list(hidden.COLUMNS))
                here = pc.and_not(here, hidden.hidden_rows(told, masks))
            if pc.any(here).as_py():
                payloads = parquet.read_row_group(group, columns=["payload"])
                return bytes(payloads.filter(here)["payload"][0].as_py())
        return None

    return read_copy(stores_of(store), meta, SEGMENT_TABLE, read)


def _from_block(files: _Files, profile_row: Row) -> bytes:
    service, time = profile_row["service"], profile_row["time"]
    samples = files.find(
        "samples", "profile_id", [profile_row["profile_id"]], service=service, time=time
    )
    stacks = files.find(
        "stacks", "stack_id", samples["stack_id"], service=service, skip=("functions", "leaf")
    )
    series = pa.chunked_array([*samples["series_id"].chunks, [profile_row["series_id"]]])
    return restore(
        profile_row,
        samples,
        stacks,
        files.find("locations", "location_id", pc.list_flatten(stacks["location_ids"])),
        files.find("series", "series_id", series),
    )


class _Files:
    """The tables of one block, read no further than needed."""

    def __init__(self, stores: Stores, meta: BlockMeta) -> None:
        self._stores = stores
        self._meta = meta

    def find(
        self,
        table: str,
        column: str,
        wanted: Any,
        *,
        skip: tuple[str, ...] = (),
        **where: Any,
    ) -> pa.Table:
        """Rows whose id is wanted, from row groups that may have the values of `where`."""
        schema = LAYOUTS[table].schema
        names = [name for name in schema.names if name not in skip]
        kind = schema.field(column).type
        values = pc.unique(pa.array(wanted, kind) if isinstance(wanted, list) else wanted)

        def read(file: Any) -> list[pa.Table]:
            parts = []
            parquet = pq.ParquetFile(file)
            for group in range(parquet.num_row_groups):
                if not all(_may_hold(parquet, group, *item) for item in where.items()):
                    continue
                here = pc.is_in(parquet.read_row_group(group, columns=[column])[column], values)
                if pc.any(here).as_py():
                    parts.append(parquet.read_row_group(group, columns=names).filter(here))
            return parts

        parts = read_copy(self._stores, self._meta, table, read)
        if not parts:
            return pa.schema([schema.field(name) for name in names]).empty_table()
        return pa.concat_tables(parts)


def _may_hold(parquet: pq.ParquetFile, group: int, column: str, value: Any) -> bool:
    place = parquet.schema_arrow.get_field_index(column)  # these columns come before nested ones
    statistics = parquet.metadata.row_group(group).column(place).statistics
    if statistics is None or not statistics.has_min_max:  # Parquet keeps none of very long text
        return True
    return bool(statistics.min <= value <= statistics.max)


def _id(profile: ProfileId) -> pa.Scalar:
    return pa.scalar(profile, pa.binary(16))


def _columns(profile_row: Row, name: str) -> dict[str, list[int]]:
    """Value columns by profile type, in either spelling; a type may come more than once."""
    columns: dict[str, list[int]] = defaultdict(list)
    kinds = tuple(kind["type"] for kind in profile_row["sample_types"])
    for column, spellings in enumerate(zip(kinds, with_underscores(kinds), strict=True)):
        for spelling in set(spellings):
            full = profile_type(
                name=name,
                sample_type=spelling,
                sample_unit=profile_row["sample_types"][column]["unit"],
                period_type=profile_row["period_type"],
                period_unit=profile_row["period_unit"],
            )
            columns[full].append(column)
    return columns


def _by_sample(rows: list[Row], count: int) -> Iterator[list[Row]]:
    """The rows of each sample; without an ordinal every row is one."""
    together: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        if row["sample"] is None:
            yield [row]
        else:
            together[row["sample"] % count].append(row)
    yield from together.values()


def _values(
    rows: list[Row], columns: dict[str, list[int]], width: int, count: int
) -> tuple[int, ...]:
    values = [0] * width
    for row in rows:
        occurrence = 0 if row["sample"] is None else row["sample"] // count
        values[columns[row["profile_type"]][occurrence]] = row["value"]
    return tuple(values)


def _labels(row: Row, series: dict[int, dict[str, str]], base: dict[str, str]) -> list[PlainLabel]:
    """Labels that became the series' own, and those that stayed."""
    promoted = [
        PlainLabel(name, value)
        for name, value in series[row["series_id"]].items()
        if name not in base
    ]
    stayed = [
        PlainLabel(label["key"], label["str"], label["num"], label["num_unit"])
        for label in row["sample_labels"] or ()
    ]
    return [*promoted, *stayed]


class _Symbols:
    """Frames back to locations, functions and mappings, each once."""

    def __init__(self, profile_row: Row, frames: list[Row]) -> None:
        self.mappings = [_mapping(row) for row in profile_row["mappings"]]
        self._mapped = MappedFiles(self.mappings)
        self.functions: dict[PlainFunction, int] = {}
        self.locations: list[PlainLocation] = []
        self._frames = {frame["location_id"]: frame for frame in frames}
        self._rows: dict[tuple[int, ...], int] = {}

    def stack(self, frames: list[int]) -> list[int]:
        """Rows of locations, leaf first, of frames that come root first."""
        groups: list[list[int]] = []
        for frame in frames:
            if self._frames[frame]["inlined"] and groups:
                groups[-1].append(frame)
            else:
                groups.append([frame])
        return [self._location(tuple(group)) for group in reversed(groups)]

    def _location(self, group: tuple[int, ...]) -> int:
        if group not in self._rows:
            frames = [self._frames[frame] for frame in reversed(group)]
            mapping, address = self._place(frames[0])
            lines = tuple(self._line(frame) for frame in frames if frame["line"] is not None)
            self._rows[group] = len(self.locations)
            self.locations.append(PlainLocation(mapping, address, lines, frames[0]["folded"]))
        return self._rows[group]

    def _line(self, frame: Row) -> PlainLine:
        if frame["function"] is None:
            return PlainLine(NONE, frame["line"], frame["column_number"])
        function = PlainFunction(
            frame["function"], frame["system_name"], frame["file"], frame["start_line"]
        )
        row = self.functions.setdefault(function, len(self.functions))
        return PlainLine(row, frame["line"], frame["column_number"])

    def _place(self, frame: Row) -> tuple[int, int]:
        """Mapping and address in memory, from the address within the build."""
        address = frame["address"] or 0
        if frame["mapping"] is None:
            return NONE, address % _WORD
        row = self._mapping_of(frame["mapping"], frame["build_id"], address % _WORD)
        mapping = self.mappings[row]
        return row, (address + mapping.start - mapping.offset) % _WORD

    def _mapping_of(self, file: str, build_id: str, address: int) -> int:
        row = self._mapped.row((file, build_id), address)
        if row is None:
            raise Corrupt(
                f"A frame lies in mapping {file!r}, which its profile does not have. The block's "
                "tables do not belong together; restore its objects from a copy."
            )
        return row


def _mapping(row: Row) -> PlainMapping:
    return PlainMapping(
        start=row["start"] % _WORD,
        limit=row["limit"] % _WORD,
        offset=row["offset"] % _WORD,
        file=row["file"],
        build_id=row["build_id"],
        has_functions=bool(row["flags"] & 1),
        has_filenames=bool(row["flags"] & 2),
        has_line_numbers=bool(row["flags"] & 4),
        has_inline_frames=bool(row["flags"] & 8),
    )
