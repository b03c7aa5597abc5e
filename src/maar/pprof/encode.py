"""Encode: plain values back to a pprof's bytes; equal values give equal bytes."""

from __future__ import annotations

from typing import Any

from maar.pprof.columns import NONE
from maar.pprof.plain import PlainLine, PlainProfile
from maar.pprof.schema import Profile


class _Strings(dict[str, int]):
    """The string table: each string once, in the order of first use, after the empty one."""

    def __init__(self) -> None:
        super().__init__({"": 0})

    def __missing__(self, text: str) -> int:
        self[text] = index = len(self)
        return index


def encode(profile: PlainProfile) -> bytes:
    """The uncompressed pprof. Ids are row numbers from 1."""
    strings = _Strings()
    message = Profile()
    for kind, unit in profile.sample_types:
        message.sample_type.add(type=strings[kind], unit=strings[unit])
    _add_samples(message, profile, strings)
    for row, mapping in enumerate(profile.mappings):
        message.mapping.add(
            id=row + 1,
            memory_start=mapping.start,
            memory_limit=mapping.limit,
            file_offset=mapping.offset,
            filename=strings[mapping.file],
            build_id=strings[mapping.build_id],
            has_functions=mapping.has_functions,
            has_filenames=mapping.has_filenames,
            has_line_numbers=mapping.has_line_numbers,
            has_inline_frames=mapping.has_inline_frames,
        )
    for row, location in enumerate(profile.locations):
        added = message.location.add(
            id=row + 1,
            mapping_id=_id(location.mapping),
            address=location.address,
            is_folded=location.is_folded,
        )
        _add_lines(added, location.lines)
    for row, function in enumerate(profile.functions):
        message.function.add(
            id=row + 1,
            name=strings[function.name],
            system_name=strings[function.system_name],
            filename=strings[function.file],
            start_line=function.start_line,
        )
    _set_header(message, profile, strings)
    message.string_table.extend(text.encode() for text in strings)
    return bytes(message.SerializeToString(deterministic=True))


def _add_samples(message: Any, profile: PlainProfile, strings: _Strings) -> None:
    for sample in profile.samples:
        added = message.sample.add(
            location_id=[row + 1 for row in sample.locations], value=sample.values
        )
        for label in sample.labels:
            added.label.add(
                key=strings[label.key],
                str=strings[label.text],
                num=label.num,
                num_unit=strings[label.num_unit],
            )


def _add_lines(location: Any, lines: tuple[PlainLine, ...]) -> None:
    for line in lines:
        location.line.add(function_id=_id(line.function), line=line.line, column=line.column)


def _set_header(message: Any, profile: PlainProfile, strings: _Strings) -> None:
    message.drop_frames = strings[profile.drop_frames]
    message.keep_frames = strings[profile.keep_frames]
    message.time_nanos = profile.time_ns
    message.duration_nanos = profile.duration_ns
    if profile.period_type != ("", ""):
        kind, unit = profile.period_type
        message.period_type.type = strings[kind]
        message.period_type.unit = strings[unit]
    message.period = profile.period
    message.comment.extend(strings[comment] for comment in profile.comments)
    message.default_sample_type = strings[profile.default_sample_type]
    message.doc_url = strings[profile.doc_url]


def _id(row: int) -> int:
    return 0 if row == NONE else row + 1
