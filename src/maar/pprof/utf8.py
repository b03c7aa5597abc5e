"""Is all text of a profile UTF-8, as Parquet and protobuf want it? Compiled: every push asks.

In a file of its own: a change here does not have the walk over the wire compiled again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from maar.pprof.kernel import inline, kernel

_AT_ONCE = 16  # strings


@kernel
def first_not_utf8(raw: Any, starts: Any, lengths: Any) -> Any:
    """The row of the first string that is not UTF-8, or -1. Spans must lie within `raw`, in order.

    Neighbours are looked at together with what is between them, since most strings are short.
    """
    rows = starts.shape[0]
    for first in range(0, rows, _AT_ONCE):
        last = min(first + _AT_ONCE, rows) - 1
        if _is_ascii(raw, starts[first], starts[last] + lengths[last]):
            continue
        for row in range(first, last + 1):
            at, end = starts[row], starts[row] + lengths[row]
            if not _is_ascii(raw, at, end) and not _is_utf8(raw, at, end):
                return row
    return -1


@inline
def _is_ascii(raw: Any, start: Any, end: Any) -> Any:
    """As nearly all text is. No early end: so it runs many bytes at a time."""
    bits = np.uint8(0)
    for place in range(start, end):
        bits |= raw[np.uint64(place)]
    return bits < 0x80


@inline
def _is_utf8(raw: Any, at: Any, end: Any) -> Any:
    while at < end:
        byte = raw[at]
        at += 1
        if byte < 0x80:
            continue
        # How many bytes must follow, and what the first of them may be: no overlong forms,
        # no surrogates, nothing beyond U+10FFFF.
        low, high = 0x80, 0xBF
        if 0xC2 <= byte <= 0xDF:
            follow = 1
        elif 0xE0 <= byte <= 0xEF:
            follow = 2
            if byte == 0xE0:
                low = 0xA0
            elif byte == 0xED:
                high = 0x9F
        elif 0xF0 <= byte <= 0xF4:
            follow = 3
            if byte == 0xF0:
                low = 0x90
            elif byte == 0xF4:
                high = 0x8F
        else:
            return False
        if at + follow > end:
            return False
        for _ in range(follow):
            if raw[at] < low or raw[at] > high:
                return False
            low, high = 0x80, 0xBF
            at += 1
    return True
