"""Decoded columns as plain values, to compare them with what protobuf reads."""

from __future__ import annotations

from itertools import pairwise

from maar.pprof.columns import Columns, Int
from maar.pprof.plain import (
    PlainFunction,
    PlainLabel,
    PlainLine,
    PlainLocation,
    PlainMapping,
    PlainProfile,
    PlainSample,
)

_FLAGS = (1, 2, 4, 8)  # has functions, file names, line numbers, inline frames


def unpack(columns: Columns) -> PlainProfile:
    """The same profile, a Python object per row: slow, and for tests."""
    text = [columns.text(index) for index in range(len(columns.string_start))]
    labels = [
        PlainLabel(text[key], text[string], num, text[unit])
        for key, string, num, unit in zip(
            columns.label_key.tolist(),
            columns.label_str.tolist(),
            columns.label_num.tolist(),
            columns.label_num_unit.tolist(),
            strict=True,
        )
    ]
    lines = [
        PlainLine(*line)
        for line in zip(
            columns.line_function.tolist(),
            columns.line_number.tolist(),
            columns.line_column.tolist(),
            strict=True,
        )
    ]
    refs = columns.sample_location.tolist()
    return PlainProfile(
        sample_types=_pairs(text, columns.sample_type, columns.sample_unit),
        samples=[
            PlainSample(tuple(refs[ref]), tuple(values), tuple(labels[label]))
            for ref, values, label in zip(
                _slices(columns.sample_location_offset),
                columns.value.tolist(),
                _slices(columns.sample_label_offset),
                strict=True,
            )
        ],
        mappings=[
            PlainMapping(
                start,
                limit,
                offset,
                text[file],
                text[build],
                *(bool(flags & bit) for bit in _FLAGS),
            )
            for start, limit, offset, file, build, flags in zip(
                columns.mapping_start.tolist(),
                columns.mapping_limit.tolist(),
                columns.mapping_offset.tolist(),
                columns.mapping_file.tolist(),
                columns.mapping_build_id.tolist(),
                columns.mapping_flags.tolist(),
                strict=True,
            )
        ],
        locations=[
            PlainLocation(mapping, address, tuple(lines[line]), is_folded)
            for mapping, address, line, is_folded in zip(
                columns.location_mapping.tolist(),
                columns.location_address.tolist(),
                _slices(columns.line_offset),
                columns.location_is_folded.tolist(),
                strict=True,
            )
        ],
        functions=[
            PlainFunction(text[name], text[system], text[file], start_line)
            for name, system, file, start_line in zip(
                columns.function_name.tolist(),
                columns.function_system_name.tolist(),
                columns.function_file.tolist(),
                columns.function_start_line.tolist(),
                strict=True,
            )
        ],
        drop_frames=text[columns.drop_frames],
        keep_frames=text[columns.keep_frames],
        time_ns=columns.time_ns,
        duration_ns=columns.duration_ns,
        period_type=(text[columns.period_type], text[columns.period_unit]),
        period=columns.period,
        comments=[text[index] for index in columns.comment.tolist()],
        default_sample_type=text[columns.default_sample_type],
        doc_url=text[columns.doc_url],
    )


def _pairs(text: list[str], first: Int, second: Int) -> list[tuple[str, str]]:
    return [(text[a], text[b]) for a, b in zip(first.tolist(), second.tolist(), strict=True)]


def _slices(offsets: Int) -> list[slice]:
    return [slice(start, end) for start, end in pairwise(offsets.tolist())]
