"""A view of the index as tables that DuckDB can scan: listed files, and decoded level 0."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from maar.block.format.hidden import without_hidden
from maar.model.block import Location
from maar.model.predicate import Mask
from maar.model.time import TimeRange
from maar.ports.stores.stores import Stores
from maar.query.decide.select import Parts
from maar.query.read.level0 import COLUMNS, DecodedPart
from maar.query.read.sql import micros

PROTOCOL = "maar"  # of objects in stores that are no directories
TIMED = ("samples", "profiles")  # tables whose rows have a service and a time
_WILD = re.compile(r"[*?\[\]]")


def tables_of(
    cursor: Any,
    parts: Parts,
    *,
    stores: Stores,
    decode: Callable[..., list[DecodedPart]],
) -> dict[str, str]:
    """A SELECT per table, each row with the number of its part: ids are only joined with it."""
    raw = [
        _visible(part, parts.masks.get(meta.id, ()))
        for meta, datasets in parts.raw
        for part in decode(meta, datasets)
    ]
    return {
        table: " UNION ALL ".join(
            [
                *([listed_files(parts, table, stores)] if parts.blocks else []),
                *_from_memory(cursor, raw, table, first=len(parts.blocks)),
            ]
        )
        for table in COLUMNS
    }


def _visible(part: DecodedPart, masks: Sequence[Mask]) -> DecodedPart:
    """Without what was deleted. What others decoded and kept may hold services of which all was."""
    if not masks:
        return part
    tables = {
        name: without_hidden(rows, masks, time="time") if name in TIMED else rows
        for name, rows in part.tables.items()
    }
    return replace(part, tables=tables)


def listed_files(parts: Parts, table: str, stores: Stores) -> str:
    """A table of at least one block, from the keys that the index lists and no others (S3), without
    the rows that were deleted and are still in them (S8).
    """
    blocks = parts.blocks
    copies = (stores.choose(meta.id, meta.file(table).locations) for meta in blocks)
    paths = [_path(stores, at) for at in copies]
    listed = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
    # file_index counts in the order of the list, so it is the number of the part.
    hidden = [
        f"(file_index = {number} AND {_condition(mask)})"
        for number, meta in enumerate(blocks)
        for mask in parts.masks.get(meta.id, ())
        if table in TIMED
    ]
    return (
        f"SELECT file_index::BIGINT AS block, {', '.join(COLUMNS[table])} "
        f"FROM read_parquet([{listed}], hive_partitioning = false, union_by_name = false)"
        + (f" WHERE NOT ({' OR '.join(hidden)})" if hidden else "")
    )


def _condition(mask: Mask) -> str:
    """Of a row that a mask hides; its bounds are whole microseconds."""
    start, end = micros(TimeRange(mask.from_ns, mask.until_ns))
    during = f"epoch_us(time) >= {start} AND epoch_us(time) < {end}"
    if not mask.service:
        return during
    return "service = '" + mask.service.replace("'", "''") + f"' AND {during}"


def _path(stores: Stores, at: Location) -> str:
    path = stores.open(at.store).local_path(at.key)
    if path is None or _WILD.search(str(path)):  # DuckDB would expand wildcards in a path
        return f"{PROTOCOL}://{at.store}/{at.key}"
    return str(path)


def _from_memory(cursor: Any, raw: Sequence[DecodedPart], table: str, *, first: int) -> list[str]:
    alike: dict[str, list[pa.Table]] = defaultdict(list)  # tables may differ in how text is coded
    for number, dataset in enumerate(raw, first):
        rows = dataset.tables[table]
        block = pa.repeat(pa.scalar(number, pa.int64()), rows.num_rows)
        alike[str(rows.schema)].append(rows.append_column("block", block))
    selects = []
    for number, tables in enumerate(alike.values()):
        name = f"raw_{table}_{number}"
        cursor.register(name, pa.concat_tables(tables).unify_dictionaries())
        selects.append(f"SELECT block, {', '.join(COLUMNS[table])} FROM {name}")
    return selects
