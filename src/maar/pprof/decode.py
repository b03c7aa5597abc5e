"""Decode: a pprof's bytes to columns, whole, or MalformedProfile and nothing else."""

from __future__ import annotations

import numpy as np

from maar.pprof import wire
from maar.pprof.columns import Columns
from maar.pprof.compile_once import once
from maar.pprof.tables import TableRoom, read_tables
from maar.pprof.wire import Tables


def decode(raw: bytes, room: TableRoom | None = None) -> Columns:
    """The columns of an uncompressed pprof; strings stay where they are, in `raw`.

    With a room, the columns are good until it is used for another profile.
    """
    return columns_of(raw, read_tables(raw, room))


def columns_of(raw: bytes, tables: Tables) -> Columns:
    """The same of a profile whose tables are filled."""
    locations = tables.locations.shape[1] - 1
    flags = tables.mappings[6:] != 0
    return Columns(
        raw=raw,
        string_start=tables.strings[0],
        string_length=tables.strings[1],
        sample_type=tables.types[0],
        sample_unit=tables.types[1],
        value=tables.values.reshape(tables.samples.shape[1] - 1, tables.types.shape[1]),
        sample_location_offset=tables.samples[0],
        sample_location=tables.refs,
        sample_label_offset=tables.samples[1],
        label_key=tables.labels[0],
        label_str=tables.labels[1],
        label_num=tables.labels[2],
        label_num_unit=tables.labels[3],
        location_mapping=tables.locations[1, :locations],
        location_address=tables.locations[2, :locations].view(np.uint64),
        line_offset=tables.locations[3],
        location_is_folded=tables.locations[4, :locations] != 0,
        line_function=tables.lines[0],
        line_number=tables.lines[1],
        line_column=tables.lines[2],
        function_name=tables.functions[1],
        function_system_name=tables.functions[2],
        function_file=tables.functions[3],
        function_start_line=tables.functions[4],
        mapping_start=tables.mappings[1].view(np.uint64),
        mapping_limit=tables.mappings[2].view(np.uint64),
        mapping_offset=tables.mappings[3].view(np.uint64),
        mapping_file=tables.mappings[4],
        mapping_build_id=tables.mappings[5],
        mapping_flags=flags[0] * 1 + flags[1] * 2 + flags[2] * 4 + flags[3] * 8,
        comment=tables.comments,
        default_sample_type=int(tables.scalars[wire.DEFAULT_TYPE]),
        drop_frames=int(tables.scalars[wire.DROP_FRAMES]),
        keep_frames=int(tables.scalars[wire.KEEP_FRAMES]),
        doc_url=int(tables.scalars[wire.DOC_URL]),
        period_type=int(tables.period_type[0, 0]),
        period_unit=int(tables.period_type[1, 0]),
        period=int(tables.scalars[wire.PERIOD]),
        time_ns=int(tables.scalars[wire.TIME]),
        duration_ns=int(tables.scalars[wire.DURATION]),
    )


# A profile with one sample and one location, whose id is the next, a near or a far one: together
# they call every compiled function.
_SAMPLES = tuple(
    bytes.fromhex(f"0a00 3200 1208 0a03{location} 120101 2204 08{location}")
    for location in ("818000", "828000", "ffff01")
)


def warm() -> None:
    """Load the compiled code, or have it compiled where there is no cache yet (seconds, once).

    The cache is beside the source, or where NUMBA_CACHE_DIR says, or, if neither can be written,
    in the user's cache directory; a process that can write none of them compiles for itself.
    """
    once("decoder", wire.walk.stats.cache_path, _call_all)


def _call_all() -> None:
    for raw in _SAMPLES:
        decode(raw)
