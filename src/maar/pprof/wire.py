"""The compiled walk over a pprof's wire bytes: reads only inside them, raises nothing.

One walk does both passes, so that they cannot disagree: the first counts, the second fills tables
of exactly those counts. Every read is checked against the end of the message that holds it, since
compiled code does not check bounds by itself. Numbers are 64-bit patterns in int64 throughout:
np.uint64 mixed with int64 would become float64.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from maar.pprof.columns import NONE, Int
from maar.pprof.kernel import inline, kernel

# Places of the tally. In the second pass they count the rows filled so far.
STRINGS, TYPES, SAMPLES, REFS, VALUES, LABELS = 0, 1, 2, 3, 4, 5
LOCATIONS, LINES, FUNCTIONS, MAPPINGS, COMMENTS = 6, 7, 8, 9, 10
DEPTH_MAX, LABELS_MAX = 11, 12  # the largest of any sample
WIDTH = 13  # values of the first sample, and so of all
PLACE = 14  # field number of the top-level field being read
OFFSET = 15  # the byte that it had come to
PERIOD_TYPES = 16
TALLY_SIZE = 17

# Places of Tables.scalars: the field numbers.
DROP_FRAMES, KEEP_FRAMES, TIME, DURATION, PERIOD, DEFAULT_TYPE, DOC_URL = 7, 8, 9, 10, 12, 14, 15
SCALARS_SIZE = 16


class WireFault(IntEnum):
    """Why a walk stopped; 0 stands for success."""

    TRUNCATED = 1
    VARINT = 2
    KEY = 3
    WIRE_TYPE = 4
    GROUP = 5
    STRING = 6
    WIDTH = 7


class Tables(NamedTuple):
    """What the second pass fills. Field f of a message is in row f - 1 of its table."""

    strings: Int  # start, length
    types: Int  # type, unit
    samples: Int  # offsets of locations and of labels; one column more than samples
    refs: Int  # locations of samples
    values: Int
    labels: Int  # key, str, num, num_unit
    locations: Int  # id, mapping, address, offset of lines, is_folded; one column more
    lines: Int  # function, line, column
    functions: Int  # id, name, system_name, filename, start_line
    mappings: Int  # id, start, limit, offset, filename, build_id, four flags
    comments: Int
    period_type: Int  # type, unit
    scalars: Int


_TRUNCATED, _VARINT, _KEY = int(WireFault.TRUNCATED), int(WireFault.VARINT), int(WireFault.KEY)
_WIRE_TYPE, _GROUP = int(WireFault.WIRE_TYPE), int(WireFault.GROUP)
_STRING, _WIDTH = int(WireFault.STRING), int(WireFault.WIDTH)

# Which fields of a message are string indexes, as a set of bits.
_TYPE_TEXT = 1 << 1 | 1 << 2
_LABEL_TEXT = 1 << 1 | 1 << 2 | 1 << 4
_FUNCTION_TEXT = 1 << 2 | 1 << 3 | 1 << 4
_MAPPING_TEXT = 1 << 5 | 1 << 6
_SCALAR_TEXT = 1 << DROP_FRAMES | 1 << KEEP_FRAMES | 1 << DEFAULT_TYPE | 1 << DOC_URL


@kernel
def walk(raw: Any, filling: Any, tally: Any, tables: Any) -> Any:
    """Count what a profile holds, or fill the tables; returns a fault or 0."""
    string, kind, sample, ref, value, label, location, line = tables[:8]
    function, mapping, comment, period_type, scalars = tables[8:]
    strings = string.shape[1]
    pos, end = np.int64(0), np.int64(raw.shape[0])
    while pos < end:
        tally[OFFSET] = pos
        key, pos = _key(raw, pos, end)
        if pos < 0:
            return key
        field, wire = key >> 3, key & 7
        tally[PLACE] = field
        if field <= 6 or field == 11:
            if wire != 2:
                return _WIRE_TYPE
            start, pos = _span(raw, pos, end)
            if pos < 0:
                return start
            fault, place = 0, PERIOD_TYPES
            if field == 2:
                place = SAMPLES
                fault = _sample(raw, start, pos, filling, strings, tally, sample, ref, value, label)
            elif field == 4:
                place = LOCATIONS
                fault = _location(raw, start, pos, filling, tally, location, line)
            elif field == 6:
                place = STRINGS
                if filling:
                    string[0, tally[STRINGS]] = start
                    string[1, tally[STRINGS]] = pos - start
            elif field == 5:
                place = FUNCTIONS
                if filling:
                    row = tally[FUNCTIONS]
                    fault = _flat(raw, start, pos, _FUNCTION_TEXT, strings, function, row, tally)
            elif field == 3:
                place = MAPPINGS
                if filling:
                    row = tally[MAPPINGS]
                    fault = _flat(raw, start, pos, _MAPPING_TEXT, strings, mapping, row, tally)
            elif field == 1:
                place = TYPES
                if filling:
                    fault = _flat(raw, start, pos, _TYPE_TEXT, strings, kind, tally[TYPES], tally)
            elif filling:  # given twice, the second is merged into the first
                fault = _flat(raw, start, pos, _TYPE_TEXT, strings, period_type, 0, tally)
            if fault != 0:
                return fault
            tally[place] += 1
        elif field == 13:
            row, pos = _numbers(raw, pos, end, wire, filling, comment, tally[COMMENTS])
            if pos < 0:
                return row
            tally[COMMENTS] = row
        elif field <= 15:
            if wire != 0:
                return _WIRE_TYPE
            number, pos = _varint(raw, pos, end)
            if pos < 0:
                return number
            if filling:
                if (_SCALAR_TEXT >> field) & 1 and (number < 0 or number >= strings):
                    return _STRING
                scalars[field] = number
        else:
            fault, pos = _skip(raw, pos, end, wire)
            if pos < 0:
                return fault
    if filling:
        for index in comment:
            if index < 0 or index >= strings:
                tally[PLACE] = 13
                return _STRING
    return 0


@inline
def _sample(
    raw: Any,
    pos: Any,
    end: Any,
    filling: Any,
    strings: Any,
    tally: Any,
    samples: Any,
    refs: Any,
    values: Any,
    labels: Any,
) -> Any:
    ref, value, label = tally[REFS], tally[VALUES], tally[LABELS]
    while pos < end:
        tally[OFFSET] = pos
        key, pos = _key(raw, pos, end)
        if pos < 0:
            return key
        field, wire = key >> 3, key & 7
        if field == 1:
            ref, pos = _numbers(raw, pos, end, wire, filling, refs, ref)
            if pos < 0:
                return ref
        elif field == 2:
            value, pos = _numbers(raw, pos, end, wire, filling, values, value)
            if pos < 0:
                return value
        elif field == 3:
            if wire != 2:
                return _WIRE_TYPE
            start, stop = _span(raw, pos, end)
            if stop < 0:
                return start
            if filling:
                fault = _flat(raw, start, stop, _LABEL_TEXT, strings, labels, label, tally)
                if fault != 0:
                    return fault
            label += 1
            pos = stop
        else:
            fault, pos = _skip(raw, pos, end, wire)
            if pos < 0:
                return fault
    width = value - tally[VALUES]
    if tally[SAMPLES] == 0:
        tally[WIDTH] = width
    elif width != tally[WIDTH]:
        return _WIDTH
    tally[DEPTH_MAX] = max(tally[DEPTH_MAX], ref - tally[REFS])
    tally[LABELS_MAX] = max(tally[LABELS_MAX], label - tally[LABELS])
    tally[REFS], tally[VALUES], tally[LABELS] = ref, value, label
    if filling:
        samples[0, tally[SAMPLES] + 1] = ref
        samples[1, tally[SAMPLES] + 1] = label
    return 0


@inline
def _location(
    raw: Any, pos: Any, end: Any, filling: Any, tally: Any, locations: Any, lines: Any
) -> Any:
    row = tally[LOCATIONS]
    while pos < end:
        tally[OFFSET] = pos
        key, pos = _key(raw, pos, end)
        if pos < 0:
            return key
        field, wire = key >> 3, key & 7
        if field == 4:
            if wire != 2:
                return _WIRE_TYPE
            start, stop = _span(raw, pos, end)
            if stop < 0:
                return start
            if filling:
                fault = _flat(raw, start, stop, 0, 0, lines, tally[LINES], tally)
                if fault != 0:
                    return fault
            tally[LINES] += 1
            pos = stop
        elif field <= 5:
            if wire != 0:
                return _WIRE_TYPE
            number, pos = _varint(raw, pos, end)
            if pos < 0:
                return number
            if filling:
                locations[field - 1, row] = number
        else:
            fault, pos = _skip(raw, pos, end, wire)
            if pos < 0:
                return fault
    if filling:
        locations[3, row + 1] = tally[LINES]
    return 0


@inline
def _flat(
    raw: Any, pos: Any, end: Any, text: Any, strings: Any, table: Any, row: Any, tally: Any
) -> Any:
    """A message of plain numbers, as many as the table has rows; of a repeated one the last wins.

    Fields in the set `text` must be indexes of strings.
    """
    while pos < end:
        tally[OFFSET] = pos
        key, pos = _key(raw, pos, end)
        if pos < 0:
            return key
        field = key >> 3
        if field > table.shape[0]:
            fault, pos = _skip(raw, pos, end, key & 7)
            if pos < 0:
                return fault
            continue
        if key & 7 != 0:
            return _WIRE_TYPE
        value, pos = _varint(raw, pos, end)
        if pos < 0:
            return value
        if (text >> field) & 1 and (value < 0 or value >= strings):
            return _STRING
        table[field - 1, row] = value
    return 0


@inline
def _numbers(raw: Any, pos: Any, end: Any, wire: Any, filling: Any, out: Any, row: Any) -> Any:
    """Repeated numbers, packed or one by one; (next row, position), or (fault, -1)."""
    if wire == 0:
        value, pos = _varint(raw, pos, end)
        if pos < 0:
            return value, pos
        if filling:
            out[row] = value
        return row + 1, pos
    if wire != 2:
        return _WIRE_TYPE, -1
    pos, stop = _span(raw, pos, end)
    if stop < 0:
        return pos, stop
    if not filling:  # a number ends with the byte that has no high bit
        for byte in raw[pos:stop]:
            row += byte < 0x80
        return row, stop
    while pos < stop:
        value, pos = _varint(raw, pos, stop)
        if pos < 0:
            return value, pos
        out[row] = value
        row += 1
    return row, stop


@inline
def _varint(raw: Any, pos: Any, end: Any) -> Any:
    """(value, position behind it), or (fault, -1): at most 64 bits in at most ten bytes."""
    value, shift = np.int64(0), np.int64(0)
    while pos < end:
        byte = np.int64(raw[np.uint64(pos)])  # unsigned: a signed index costs a test for < 0
        pos += 1
        if shift == 63 and byte > 1:
            return _VARINT, -1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
    return _TRUNCATED, -1


@inline
def _key(raw: Any, pos: Any, end: Any) -> Any:
    """(field number * 8 + wire type, position behind it), or (fault, -1)."""
    if pos < end:  # nearly always one byte, for which no loop is needed; so with lengths below
        byte = np.int64(raw[np.uint64(pos)])
        if 8 <= byte < 0x80:
            return byte, pos + 1
    start = pos
    key, pos = _varint(raw, pos, end)
    if pos < 0:
        return key, pos
    if pos - start > 5 or key >> 32 != 0 or key < 8:
        return _KEY, -1
    return key, pos


@inline
def _span(raw: Any, pos: Any, end: Any) -> Any:
    """(start, end) of what a length announces, or (fault, -1)."""
    if pos < end:
        byte = np.int64(raw[np.uint64(pos)])
        if byte < 0x80 and byte < end - pos:
            return pos + 1, pos + 1 + byte
    start = pos
    length, pos = _varint(raw, pos, end)
    if pos < 0:
        return length, pos
    if pos - start > 5 or length < 0 or length > end - pos:
        return _TRUNCATED, -1
    return pos, pos + length


@inline
def _skip(raw: Any, pos: Any, end: Any, wire: Any) -> Any:
    """(0, position behind a field that a later version of pprof may have), or (fault, -1)."""
    if wire == 0:
        return _varint(raw, pos, end)
    if wire == 2:
        return _span(raw, pos, end)
    if wire == 1 or wire == 5:
        pos += 8 if wire == 1 else 4
        return (0, pos) if pos <= end else (_TRUNCATED, -1)
    return (_GROUP, -1) if wire <= 4 else (_KEY, -1)


@kernel
def link_in_order(refs: Any, ids: Any, least: Any) -> Any:
    """Turn ids into rows in place, if ids count from 1, as they mostly do, and all refs are known.

    No early ends: such loops run eight numbers at a time. Where 0 is allowed it becomes NONE.
    """
    count = ids.shape[0]
    known = True
    for row in range(count):
        known &= ids[row] == row + 1
    for at in range(refs.shape[0]):
        known &= (refs[at] >= least) & (refs[at] <= count)
    if known:
        for at in range(refs.shape[0]):
            refs[at] -= 1
    return known


@kernel
def index_ids(ids: Any, table: Any) -> Any:
    """Note the row of each id in a table that starts as NONE; the row of a repeated id, or -1."""
    for row in range(ids.shape[0]):
        if table[ids[row]] != NONE:
            return row
        table[ids[row]] = row
    return -1


@kernel
def link_by_table(refs: Any, table: Any, optional: Any) -> Any:
    """Turn ids into rows in place; the place of an id that nobody has, or -1."""
    for at in range(refs.shape[0]):
        ref = refs[at]
        if ref == 0 and optional:
            refs[at] = NONE
        elif ref <= 0 or ref >= table.shape[0] or table[ref] == NONE:
            return at
        else:
            refs[at] = table[ref]
    return -1


@kernel
def link_by_search(refs: Any, ids: Any, rows: Any, optional: Any) -> Any:
    """The same for ids too far apart for a table: `ids` is sorted, `rows` its order."""
    for at in range(refs.shape[0]):
        ref = refs[at]
        if ref == 0 and optional:
            refs[at] = NONE
            continue
        low, high = 0, ids.shape[0]
        while low < high:
            middle = (low + high) // 2
            if ids[middle] < ref:
                low = middle + 1
            else:
                high = middle
        if low == ids.shape[0] or ids[low] != ref:
            return at
        refs[at] = rows[low]
    return -1
