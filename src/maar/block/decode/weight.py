"""How large a profile becomes as tables: a string or a location may be referred to very often."""

from __future__ import annotations

import numpy as np

from maar.block.format.hashing import Int
from maar.pprof.columns import NONE, Columns

_FRAME = 8
_LABEL = 32  # offsets and numbers of a label, without its text


def weight(columns: Columns) -> int:
    """About how many bytes of frames and text the profile's tables hold."""
    length = columns.string_length
    width = max(columns.sample_type.size, 1)  # labels are repeated for each value

    def text(*strings: Int) -> int:
        return sum(int(length[column].sum()) for column in strings)

    lines = np.maximum(np.diff(columns.line_offset), 1)
    named = columns.line_function[columns.line_function != NONE]
    labels = _LABEL * columns.label_key.size + text(
        columns.label_key, columns.label_str, columns.label_num_unit
    )
    period = int(length[columns.period_type] + length[columns.period_unit])
    return (
        _FRAME * int(lines[columns.sample_location].sum())
        + text(
            columns.function_name[named],
            columns.function_system_name[named],
            columns.function_file[named],
            columns.mapping_file,
            columns.mapping_build_id,
            columns.comment,
            columns.sample_type,
            columns.sample_unit,
        )
        + width * (labels + period)
    )
