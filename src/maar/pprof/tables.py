"""A profile's tables, counted, filled and linked; or MalformedProfile, saying what and where.

Choices where the format leaves one: a known field with another wire type, a group, a repeated id,
an id 0 in a definition or in a stack, and an id that nobody has are refused, and so is text that is
not UTF-8; of a scalar given twice the last wins, and a period type given twice is merged, as
protobuf does; unknown fields are skipped. Mapping id 0 and function id 0 mean "none"; when no
function at all has an id, they are numbered from 1 in their order, as the .NET agent presumes.
"""

from __future__ import annotations

import numpy as np

from maar.model.errors import MalformedProfile
from maar.pprof import wire
from maar.pprof.columns import NONE, Int
from maar.pprof.utf8 import first_not_utf8
from maar.pprof.wire import Tables, WireFault

_ROOM_MAX = 4 << 20  # words

_PLACES = {
    1: ("sample type", wire.TYPES),
    2: ("sample", wire.SAMPLES),
    3: ("mapping", wire.MAPPINGS),
    4: ("location", wire.LOCATIONS),
    5: ("function", wire.FUNCTIONS),
    6: ("string", wire.STRINGS),
    13: ("comment", wire.COMMENTS),
}
_FIELDS = {
    wire.DROP_FRAMES: "drop_frames",
    wire.KEEP_FRAMES: "keep_frames",
    wire.TIME: "time_nanos",
    wire.DURATION: "duration_nanos",
    11: "period_type",
    wire.PERIOD: "period",
    wire.DEFAULT_TYPE: "default_sample_type",
    wire.DOC_URL: "doc_url",
}
_CAUSES = {
    WireFault.TRUNCATED: "it ends before the field does",
    WireFault.VARINT: "a number has more than 64 bits",
    WireFault.KEY: "there is no field with such a key",
    WireFault.WIRE_TYPE: "a field has a wire type that pprof does not give it",
    WireFault.GROUP: "it has a group, which pprof does not use",
    WireFault.STRING: "a string index is outside of the string table",
    WireFault.WIDTH: "the sample has another number of values than the first one",
}


def count_parts(raw: bytes) -> Int:
    """The tally of a profile: how many of everything, at the places that wire names."""
    tally = np.zeros(wire.TALLY_SIZE, np.int64)
    fault = wire.walk(np.frombuffer(raw, np.uint8), False, tally, _NO_TABLES)
    if fault:
        raise _fault_error(fault, tally)
    if tally[wire.STRINGS] == 0:
        raise MalformedProfile("the profile is malformed: it has no string table")
    if tally[wire.SAMPLES] and (not tally[wire.TYPES] or tally[wire.WIDTH] != tally[wire.TYPES]):
        raise MalformedProfile(
            f"the profile is malformed: its samples have {tally[wire.WIDTH]} values, "
            f"but it has {tally[wire.TYPES]} sample types"
        )
    return tally


def read_tables(raw: bytes, room: TableRoom | None = None) -> Tables:
    """All that a profile says, counted and filled."""
    return fill_tables(raw, count_parts(raw), room)


class TableRoom:
    """Room for the tables of one profile, which those of the next one take over: memory that was
    used before costs less than fresh memory. Very large tables get room of their own.
    """

    def __init__(self) -> None:
        self._words = np.empty(1 << 15, np.int64)

    def take(self, words: int, zeros: int) -> Int:
        """So many words, of which the first are zeros."""
        if words > _ROOM_MAX:
            return np.zeros(words, np.int64)
        if words > self._words.size:
            self._words = np.empty(2 * words, np.int64)
        self._words[:zeros] = 0
        return self._words[:words]


def fill_tables(raw: bytes, counts: Int, room: TableRoom | None = None) -> Tables:
    """The tables of a profile that was counted; ids in them are resolved to rows, or NONE.

    With a room, they are good until it is used for another profile.
    """
    tables = _tables_for(counts, room)
    tally = np.zeros(wire.TALLY_SIZE, np.int64)
    fault = wire.walk(np.frombuffer(raw, np.uint8), True, tally, tables)
    if fault:
        raise _fault_error(fault, tally)
    if tables.strings[1, 0] != 0:
        raise MalformedProfile("the profile is malformed: its first string is not empty")
    _check_utf8(raw, tables.strings)
    for place in (wire.TIME, wire.DURATION):
        if tables.scalars[place] < 0:
            raise MalformedProfile(
                f"the profile is malformed: its {_FIELDS[place]} is negative "
                f"({tables.scalars[place]})"
            )
    locations = int(counts[wire.LOCATIONS])
    _link(tables.locations[0, :locations], "location", tables.refs, "a stack", optional=False)
    _link(
        tables.mappings[0], "mapping", tables.locations[1, :locations], "a location", optional=True
    )
    if not tables.functions[0].any():
        tables.functions[0] = np.arange(1, tables.functions.shape[1] + 1)
    _link(tables.functions[0], "function", tables.lines[0], "a line", optional=True)
    return tables


def _link(ids: Int, noun: str, refs: Int, referrer: str, *, optional: bool) -> None:
    """Resolve refs in place. Ids far apart are searched for, since a table would be too large."""
    if wire.link_in_order(refs, ids, 0 if optional else 1):
        return
    count = len(ids)
    top = int(ids.max(initial=0))
    if int(ids.min(initial=1)) > 0 and top <= 4 * count + 64:
        table = np.full(top + 1, NONE, np.int64)
        repeated = wire.index_ids(ids, table)
        if repeated >= 0:
            raise MalformedProfile(
                f"the profile is malformed: {noun} id {ids[repeated]} is given twice"
            )
        missing = wire.link_by_table(refs, table, optional)
    else:
        order = np.argsort(ids, kind="stable")
        ordered = ids[order]
        _check_sparse(ordered, noun)
        missing = wire.link_by_search(refs, ordered, order, optional)
    if missing >= 0:
        raise MalformedProfile(
            f"the profile is malformed: {referrer} refers to {noun} id "
            f"{_to_unsigned(refs[missing])}, which the profile does not have"
        )


def _check_sparse(ordered: Int, noun: str) -> None:
    if np.any(ordered == 0):
        raise MalformedProfile(f"the profile is malformed: a {noun} has no id, or the id 0")
    repeated = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(repeated):
        raise MalformedProfile(
            f"the profile is malformed: {noun} id {_to_unsigned(ordered[repeated[0]])} "
            "is given twice"
        )


def _check_utf8(raw: bytes, strings: Int) -> None:
    row = first_not_utf8(np.frombuffer(raw, np.uint8), strings[0], strings[1])
    if row >= 0:
        start, length = strings[:, row].tolist()
        shown = ascii(raw[start : start + min(length, 60)])[1:]
        raise MalformedProfile(
            f"string {row} of the profile's string table is not UTF-8: {shown}; "
            "every text of a pprof must be, so the agent should escape or leave out other bytes",
            reason="utf8",
        )


def _to_unsigned(value: np.int64) -> int:
    return int(value) & 0xFFFF_FFFF_FFFF_FFFF


def _tables_for(tally: Int, room: TableRoom | None = None) -> Tables:
    """Room for what was counted: at most 40 bytes for each byte of the profile."""
    n: list[int] = tally.tolist()
    shapes = (
        (2, n[wire.TYPES]),
        (2, n[wire.SAMPLES] + 1),
        (4, n[wire.LABELS]),
        (5, n[wire.LOCATIONS] + 1),
        (3, n[wire.LINES]),
        (5, n[wire.FUNCTIONS]),
        (10, n[wire.MAPPINGS]),
        (2, 1),
        (2, n[wire.STRINGS]),
    )
    ends = [wire.SCALARS_SIZE]
    for rows, columns in shapes:
        ends.append(ends[-1] + rows * columns)
    refs = ends[-1] + n[wire.REFS]
    values = refs + n[wire.VALUES]
    whole = values + n[wire.COMMENTS]
    zeros = ends[-2]  # what a message does not say is 0; the tables behind are filled altogether
    space = np.zeros(whole, np.int64) if room is None else room.take(whole, zeros)
    types, samples, labels, locations, lines, functions, mappings, period_type, strings = [
        space[at:end].reshape(shape) for at, end, shape in zip(ends, ends[1:], shapes, strict=False)
    ]
    return Tables(
        strings=strings,
        types=types,
        samples=samples,
        refs=space[ends[-1] : refs],
        values=space[refs:values],
        labels=labels,
        locations=locations,
        lines=lines,
        functions=functions,
        mappings=mappings,
        comments=space[values:],
        period_type=period_type,
        scalars=space[: wire.SCALARS_SIZE],
    )


_NO_TABLES = _tables_for(np.zeros(wire.TALLY_SIZE, np.int64))


def _fault_error(fault: int, tally: Int) -> MalformedProfile:
    field = int(tally[wire.PLACE])
    if field in _PLACES:
        noun, place = _PLACES[field]
        where = f"in {noun} {tally[place]}"
    else:
        where = f"in {_FIELDS.get(field, f'unknown field {field}')}"
    cause = _CAUSES[WireFault(fault)]
    return MalformedProfile(
        f"the profile is malformed at byte {tally[wire.OFFSET]}, {where}: {cause}"
    )
