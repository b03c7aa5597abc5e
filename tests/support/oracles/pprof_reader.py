"""A pprof read slowly by protobuf into plain values: the judge of the fast decoder.

Also says when two profiles are equal (`canonical`): ids, string order and unused entries do not
count, everything that a person could see does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from maar.model.errors import MalformedProfile
from maar.pprof.columns import NONE
from maar.pprof.plain import (
    PlainFunction,
    PlainLabel,
    PlainLine,
    PlainLocation,
    PlainMapping,
    PlainProfile,
    PlainSample,
)
from maar.pprof.schema import Profile

_UINT64 = (1 << 64) - 1


def read_plain(raw: bytes) -> PlainProfile:
    """Read an uncompressed pprof with protobuf. Slow, and for valid profiles only."""
    try:
        message = Profile.FromString(raw)
        text = [string.decode() for string in message.string_table]
    except (DecodeError, UnicodeDecodeError) as error:
        raise MalformedProfile(f"protobuf cannot read the profile: {error}") from error
    return PlainProfile(
        sample_types=[(text[kind.type], text[kind.unit]) for kind in message.sample_type],
        samples=_samples(message, text),
        mappings=[
            PlainMapping(
                start=mapping.memory_start,
                limit=mapping.memory_limit,
                offset=mapping.file_offset,
                file=text[mapping.filename],
                build_id=text[mapping.build_id],
                has_functions=mapping.has_functions,
                has_filenames=mapping.has_filenames,
                has_line_numbers=mapping.has_line_numbers,
                has_inline_frames=mapping.has_inline_frames,
            )
            for mapping in message.mapping
        ],
        locations=_locations(message),
        functions=[
            PlainFunction(
                name=text[function.name],
                system_name=text[function.system_name],
                file=text[function.filename],
                start_line=function.start_line,
            )
            for function in message.function
        ],
        drop_frames=text[message.drop_frames],
        keep_frames=text[message.keep_frames],
        time_ns=message.time_nanos,
        duration_ns=message.duration_nanos,
        period_type=(text[message.period_type.type], text[message.period_type.unit]),
        period=message.period,
        comments=[text[index] for index in message.comment],
        default_sample_type=text[message.default_sample_type],
        doc_url=text[message.doc_url],
    )


def _samples(message: Any, text: list[str]) -> list[PlainSample]:
    rows = {location.id: row for row, location in enumerate(message.location)}
    return [
        PlainSample(
            locations=tuple(rows[location] for location in sample.location_id),
            values=tuple(sample.value),
            labels=tuple(
                PlainLabel(text[label.key], text[label.str], label.num, text[label.num_unit])
                for label in sample.label
            ),
        )
        for sample in message.sample
    ]


def _locations(message: Any) -> list[PlainLocation]:
    mappings = {mapping.id: row for row, mapping in enumerate(message.mapping)} | {0: NONE}
    unnumbered = not any(function.id for function in message.function)
    functions = {
        row + 1 if unnumbered else function.id: row for row, function in enumerate(message.function)
    } | {0: NONE}
    return [
        PlainLocation(
            mapping=mappings[location.mapping_id],
            address=location.address,
            lines=tuple(
                PlainLine(functions[line.function_id], line.line, line.column)
                for line in location.line
            ),
            is_folded=location.is_folded,
        )
        for location in message.location
    ]


CanonicalLine = tuple[PlainFunction, int, int]  # function, line, column


@dataclass(frozen=True, slots=True)
class CanonicalFrame:
    """A location as a person sees it. A line without function is one of a function without name."""

    lines: tuple[CanonicalLine, ...]
    mapping: tuple[str, str] | None  # file and build id
    address: int | None  # relative to the build; without mapping only if nothing else is known
    is_folded: bool


@dataclass(frozen=True, slots=True)
class CanonicalSample:
    stack: tuple[CanonicalFrame, ...]
    labels: tuple[PlainLabel, ...]  # sorted
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Canonical:
    """Two profiles are equal when these are: the samples as a multiset, the rest as it stands."""

    sample_types: tuple[tuple[str, str], ...]
    samples: Counter[CanonicalSample] = field(default_factory=Counter)
    period_type: tuple[str, str]
    period: int
    comments: tuple[str, ...]
    default_sample_type: str
    drop_frames: str
    keep_frames: str
    doc_url: str
    time_ns: int
    duration_ns: int


def canonical(raw: bytes) -> Canonical:
    """What makes an uncompressed pprof equal to another."""
    return canonical_of(read_plain(raw))


def canonical_of(profile: PlainProfile) -> Canonical:
    frames = [_frame(profile, location) for location in profile.locations]
    return Canonical(
        sample_types=tuple(profile.sample_types),
        samples=Counter(
            CanonicalSample(
                stack=tuple(frames[row] for row in sample.locations),
                labels=tuple(sorted(sample.labels)),
                values=tuple(sample.values),
            )
            for sample in profile.samples
        ),
        period_type=profile.period_type,
        period=profile.period,
        comments=tuple(profile.comments),
        default_sample_type=profile.default_sample_type,
        drop_frames=profile.drop_frames,
        keep_frames=profile.keep_frames,
        doc_url=profile.doc_url,
        time_ns=profile.time_ns,
        duration_ns=profile.duration_ns,
    )


def _frame(profile: PlainProfile, location: PlainLocation) -> CanonicalFrame:
    unknown = PlainFunction()
    lines = tuple(
        (
            unknown if line.function == NONE else profile.functions[line.function],
            line.line,
            line.column,
        )
        for line in location.lines
    )
    if location.mapping != NONE:
        mapping = profile.mappings[location.mapping]
        relative = (location.address - mapping.start + mapping.offset) & _UINT64
        return CanonicalFrame(lines, (mapping.file, mapping.build_id), relative, location.is_folded)
    has_symbol = any(function != unknown for function, _, _ in lines)
    return CanonicalFrame(lines, None, None if has_symbol else location.address, location.is_folded)
