# mypy: disallow-untyped-decorators=False
"""How large a profile becomes as tables: a string or a location may be referred to very often."""

from __future__ import annotations

from typing import Any

from numba import njit

from maar.pprof.columns import NONE, Columns

_FRAME = 8
_LABEL = 32  # offsets and numbers of a label, without its text


def weight(columns: Columns) -> int:
    """About how many bytes of frames and text the profile's tables hold."""
    return int(
        _weight(
            columns.string_length,
            columns.sample_location,
            columns.line_offset,
            columns.line_function,
            columns.function_name,
            columns.function_system_name,
            columns.function_file,
            columns.label_key,
            columns.label_str,
            columns.label_num_unit,
            columns.mapping_file,
            columns.mapping_build_id,
            columns.comment,
            columns.sample_type,
            columns.sample_unit,
            columns.period_type,
            columns.period_unit,
        )
    )


@njit(cache=True, nogil=True)
def _weight(
    length: Any,
    location: Any,
    line_offset: Any,
    line_function: Any,
    name: Any,
    system_name: Any,
    file: Any,
    label_key: Any,
    label_str: Any,
    label_unit: Any,
    mapping_file: Any,
    build_id: Any,
    comment: Any,
    sample_type: Any,
    sample_unit: Any,
    period_type: Any,
    period_unit: Any,
) -> Any:
    frames = 0  # of all stacks: a location without lines is one
    for row in location:
        frames += max(line_offset[row + 1] - line_offset[row], 1)
    functions = 0  # of the function of each line: every line is a row of its own
    for row in line_function:
        if row != NONE:
            functions += length[name[row]] + length[system_name[row]] + length[file[row]]
    labels = _LABEL * label_key.size + length[period_type] + length[period_unit]
    labels += _text(length, label_key) + _text(length, label_str) + _text(length, label_unit)
    others = _text(length, mapping_file) + _text(length, build_id) + _text(length, comment)
    others += _text(length, sample_type) + _text(length, sample_unit)
    width = max(sample_type.size, 1)  # labels are repeated for each value
    return _FRAME * frames + functions + others + width * labels


@njit(forceinline=True)
def _text(length: Any, strings: Any) -> Any:
    size = 0
    for index in strings:
        size += length[index]
    return size
