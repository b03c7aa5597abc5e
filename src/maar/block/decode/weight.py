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
    length = columns.string_length
    width = max(columns.sample_type.size, 1)  # labels are repeated for each value
    labels = _LABEL * columns.label_key.size
    for text in (columns.label_key, columns.label_str, columns.label_num_unit):
        labels += _text(length, text)
    functions = _function_text(
        length,
        columns.line_function,
        columns.function_name,
        columns.function_system_name,
        columns.function_file,
    )
    others = sum(
        _text(length, text)
        for text in (
            columns.mapping_file,
            columns.mapping_build_id,
            columns.comment,
            columns.sample_type,
            columns.sample_unit,
        )
    )
    period = int(length[columns.period_type] + length[columns.period_unit])
    frames = _frames(columns.sample_location, columns.line_offset)
    return int(_FRAME * frames + functions + others + width * (labels + period))


@njit(cache=True)
def _frames(location: Any, line_offset: Any) -> Any:
    """Frames of all stacks: a location without lines is one."""
    count = 0
    for at in range(location.size):
        row = location[at]
        count += max(line_offset[row + 1] - line_offset[row], 1)
    return count


@njit(cache=True)
def _text(length: Any, strings: Any) -> Any:
    size = 0
    for at in range(strings.size):
        size += length[strings[at]]
    return size


@njit(cache=True)
def _function_text(length: Any, function: Any, name: Any, system_name: Any, file: Any) -> Any:
    """Of the function of each line: every line is a row of its own."""
    size = 0
    for at in range(function.size):
        row = function[at]
        if row != NONE:
            size += length[name[row]] + length[system_name[row]] + length[file[row]]
    return size
