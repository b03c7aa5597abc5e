# mypy: disallow-untyped-decorators=False
"""How large a profile becomes as tables: a string or a location may be referred to very often."""

from __future__ import annotations

from typing import Any

import numpy as np

from maar.pprof.columns import NONE
from maar.pprof.kernel import inline, kernel
from maar.pprof.wire import Tables

_FRAME = 8
_LINE = 64  # a line, if its text is no more
_LABEL = 32  # offsets and numbers of a label, without its text


def weight(tables: Tables) -> int:
    """About how many bytes of frames and text the profile's tables hold."""
    return int(_weight(tables))


def surely_weighs_less(tables: Tables, limit: int) -> bool:
    """Whether it cannot come to the limit, if everything refers to what is largest."""
    return bool(_most(tables) < limit)


@kernel
def _most(tables: Any) -> Any:
    """In floating point, which has no end to wrap around at."""
    most_bytes, most_lines = 0, 1
    for row in range(tables.strings.shape[1]):
        most_bytes = max(most_bytes, tables.strings[1, row])
    for row in range(tables.locations.shape[1] - 1):
        most_lines = max(most_lines, tables.locations[3, row + 1] - tables.locations[3, row])
    longest, lines = float(most_bytes), float(most_lines)
    others = 2 * tables.mappings.shape[1] + tables.comments.shape[0] + 2 * tables.types.shape[1]
    rows = tables.lines.shape[1] + tables.locations.shape[1]
    texts = max(3 * longest, float(_LINE)) * rows + longest * others
    labels = (_LABEL + 3 * longest) * tables.labels.shape[1] + 2 * longest
    return _FRAME * lines * tables.refs.shape[0] + texts + max(tables.types.shape[1], 1) * labels


@kernel
def _weight(tables: Any) -> Any:
    length, line_offset, functions = tables.strings[1], tables.locations[3], tables.functions
    frames = 0  # of all stacks: a location without lines is one
    for row in tables.refs:
        frames += max(line_offset[row + 1] - line_offset[row], 1)
    lines: Any = 0  # each is a row of its own; one without a name is called by its mapping's file
    for row in range(tables.locations.shape[1] - 1):
        owner, first, end = tables.locations[1, row], line_offset[row], line_offset[row + 1]
        place: Any = np.int64(0) if owner == NONE else length[tables.mappings[4, owner]]
        if first == end:
            lines += max(place, _LINE)
        for line in range(first, end):
            size, function = place, tables.lines[0, line]
            if function != NONE:
                name = length[functions[1, function]] + length[functions[2, function]]
                size = (name if name > 0 else place) + length[functions[3, function]]
            lines += max(size, _LINE)
    labels = _LABEL * tables.labels.shape[1] + _text(length, tables.period_type[:, 0])
    for field in (0, 1, 3):
        labels += _text(length, tables.labels[field])
    others = _text(length, tables.mappings[4]) + _text(length, tables.mappings[5])
    others += _text(length, tables.types[0]) + _text(length, tables.types[1])
    others += _text(length, tables.comments)
    width = max(tables.types.shape[1], 1)  # labels are repeated for each value
    return _FRAME * frames + lines + others + float(width) * labels  # beyond 64 bits at worst


@inline
def _text(length: Any, strings: Any) -> Any:
    size = 0
    for index in strings:
        size += length[index]
    return size
