"""Validate: what it lets through, decode can read; cheap enough for every push."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from maar.model.errors import MalformedProfile, TooLarge
from maar.pprof import wire
from maar.pprof.columns import NONE, Int
from maar.pprof.limits import ProfileLimits
from maar.pprof.tables import count_parts, fill_tables
from maar.pprof.wire import Tables

_VALUES_MAX = 2**63 - 1

DEFAULT_LIMITS = ProfileLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What the push path needs to know of a profile."""

    time_ns: int
    duration_ns: int
    samples: int
    sample_types: tuple[tuple[str, str], ...]  # type and unit
    period_type: str
    period_unit: str
    period: int


def validate(raw: bytes, limits: ProfileLimits = DEFAULT_LIMITS) -> Summary:
    """Check everything that decode checks, and the limits; MalformedProfile or TooLarge."""
    counts = count_parts(raw)
    _check_counts(counts, limits)
    tables = fill_tables(raw, counts)
    _check_symbols(tables, limits.symbol_length)
    _check_frames(tables, counts, limits)
    _check_text(tables, limits.text_bytes)
    types = tuple(
        (_text(raw, tables, kind), _text(raw, tables, unit))
        for kind, unit in tables.types.T.tolist()
    )
    _check_values(tables.values, types)
    return Summary(
        time_ns=int(tables.scalars[wire.TIME]),
        duration_ns=int(tables.scalars[wire.DURATION]),
        samples=int(counts[wire.SAMPLES]),
        sample_types=types,
        period_type=_text(raw, tables, int(tables.period_type[0, 0])),
        period_unit=_text(raw, tables, int(tables.period_type[1, 0])),
        period=int(tables.scalars[wire.PERIOD]),
    )


def _check_counts(counts: Int, limits: ProfileLimits) -> None:
    for place, limit, noun in (
        (wire.SAMPLES, limits.samples, "samples"),
        (wire.LOCATIONS, limits.locations, "locations"),
        (wire.FUNCTIONS, limits.functions, "functions"),
        (wire.MAPPINGS, limits.mappings, "mappings"),
        (wire.STRINGS, limits.strings, "strings"),
        (wire.TYPES, limits.sample_types, "sample types"),
        (wire.DEPTH_MAX, limits.stack_depth, "locations in one stack"),
        (wire.LABELS_MAX, limits.labels_per_sample, "labels on one sample"),
    ):
        if counts[place] > limit:
            raise TooLarge(f"the profile has {counts[place]} {noun}, over the limit of {limit}")


def _check_symbols(tables: Tables, limit: int) -> None:
    lengths = tables.strings[1]
    if int(lengths.max()) <= limit:  # nearly always: no need to look who uses the longest string
        return
    longest = int(np.max(lengths[tables.functions[1:4]], initial=0))
    if longest > limit:
        raise TooLarge(
            f"the profile has a function with a name or file of {longest} bytes, "
            f"over the limit of {limit}"
        )


def _check_frames(tables: Tables, counts: Int, limits: ProfileLimits) -> None:
    """Many lines in a location that many stacks have: kilobytes that swell to gigabytes."""
    lines = np.maximum(np.diff(tables.locations[3]), 1)
    most = int(lines.max(initial=1))
    if most * counts[wire.DEPTH_MAX] <= limits.stack_depth and (
        most * counts[wire.REFS] <= limits.frames
    ):
        return  # nearly always: no need to add them up
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(lines[tables.refs])))
    stacks = np.diff(before[tables.samples[0]])
    for count, limit, noun in (
        (stacks.max(initial=0), limits.stack_depth, "frames in one stack"),
        (before[-1], limits.frames, "frames in all stacks"),
    ):
        if count > limit:
            raise TooLarge(f"the profile has {count} {noun}, over the limit of {limit}")


def _check_text(tables: Tables, limit: int) -> None:
    """A long string that many labels, lines or frames refer to swells in the same way."""
    length = tables.strings[1]
    function = tables.lines[0]
    owners, mappings = tables.locations.shape[1], tables.mappings.shape[1]
    references = 3 * (tables.labels.shape[1] + function.size) + owners + 2 * mappings
    if int(length.max()) * references <= limit:
        return  # nearly always: no need to add it up
    named = tables.functions[1:4, function[function != NONE]]
    texts = (tables.labels[[0, 1, 3]], named, tables.mappings[4:6])
    size = sum(int(length[each].sum()) for each in texts) + _text_of_places(tables)
    if size > limit:
        raise TooLarge(
            f"the profile has {size} bytes of text in its labels, lines and mappings, each string "
            f"counted wherever it is referred to, over the limit of {limit}"
        )


def _text_of_places(tables: Tables) -> int:
    """Of frames without a name, which are called by their mapping and their own address."""
    length, function, offset = tables.strings[1], tables.lines[0], tables.locations[3]
    nameless = function == NONE
    names = length[tables.functions[1]] + length[tables.functions[2]]
    nameless[~nameless] = names[function[~nameless]] == 0
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(nameless)))
    frames = before[offset[1:]] - before[offset[:-1]]
    frames[np.diff(offset) == 0] = 1
    owner = tables.locations[1, :-1]
    inside = owner != NONE
    return int((length[tables.mappings[4, owner[inside]]] * frames[inside]).sum())


def _check_values(values: Int, types: tuple[tuple[str, str], ...]) -> None:
    """No answer could hold a profile whose values of one type overflow 63 bits by themselves."""
    largest = max(-int(values.min(initial=0)), int(values.max(initial=0)))
    if largest * len(values) <= _VALUES_MAX:
        return  # nearly always: no need to add them up
    sums: Counter[tuple[str, str]] = Counter()
    for place, sample_type in enumerate(types):
        sums[sample_type] += sum(map(abs, values[place :: len(types)].tolist()))
    for (kind, unit), weight in sums.items():
        if weight > _VALUES_MAX:
            raise MalformedProfile(
                f"the profile's values of type {kind!r} in {unit!r} add up to {weight} without "
                "their signs, which is more than 2^63-1 and overflows every sum; check what the "
                "agent measures",
                reason="values",
            )


def _text(raw: bytes, tables: Tables, index: int) -> str:
    start, length = int(tables.strings[0, index]), int(tables.strings[1, index])
    return raw[start : start + length].decode()
