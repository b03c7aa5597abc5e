"""Is all text of a profile UTF-8, as Parquet and protobuf want it? Compiled: every push asks.

In a file of its own: a change here does not have the walk over the wire compiled again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from maar.pprof.kernel import kernel


@kernel
def first_not_utf8(raw: Any, starts: Any, lengths: Any) -> Any:
    """The row of the first string that is not UTF-8, or -1. Spans must lie within `raw`."""
    for row in range(starts.shape[0]):
        at = starts[row]
        end = at + lengths[row]
        bits = np.uint8(0)
        for place in range(at, end):
            bits |= raw[np.uint64(place)]
        if bits < 0x80:  # ASCII, as nearly all text is
            continue
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
                return row
            if at + follow > end:
                return row
            for _ in range(follow):
                if raw[at] < low or raw[at] > high:
                    return row
                low, high = 0x80, 0xBF
                at += 1
    return -1
