"""A pprof as plain Python values: what `encode` writes, when there are no columns to write from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from maar.pprof.columns import NONE


@dataclass(frozen=True, slots=True)
class PlainMapping:
    start: int = 0
    limit: int = 0
    offset: int = 0
    file: str = ""
    build_id: str = ""
    has_functions: bool = False
    has_filenames: bool = False
    has_line_numbers: bool = False
    has_inline_frames: bool = False


@dataclass(frozen=True, slots=True)
class PlainFunction:
    name: str = ""
    system_name: str = ""
    file: str = ""
    start_line: int = 0


@dataclass(frozen=True, slots=True)
class PlainLine:
    function: int = NONE  # row of a function
    line: int = 0
    column: int = 0


@dataclass(frozen=True, slots=True)
class PlainLocation:
    mapping: int = NONE  # row of a mapping
    address: int = 0
    lines: tuple[PlainLine, ...] = ()  # the last is the caller of those inlined before it
    is_folded: bool = False


@dataclass(frozen=True, slots=True, order=True)
class PlainLabel:
    key: str
    text: str = ""  # `str` on the wire
    num: int = 0
    num_unit: str = ""


@dataclass(frozen=True, slots=True)
class PlainSample:
    locations: Sequence[int]  # rows of locations, leaf first
    values: Sequence[int]  # one per sample type
    labels: Sequence[PlainLabel] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainProfile:
    """The tables of a pprof with strings in place; rows refer to each other by number."""

    sample_types: Sequence[tuple[str, str]] = ()  # type and unit
    samples: Sequence[PlainSample] = ()
    mappings: Sequence[PlainMapping] = ()
    locations: Sequence[PlainLocation] = ()
    functions: Sequence[PlainFunction] = ()
    drop_frames: str = ""
    keep_frames: str = ""
    time_ns: int = 0
    duration_ns: int = 0
    period_type: tuple[str, str] = ("", "")
    period: int = 0
    comments: Sequence[str] = ()
    default_sample_type: str = ""
    doc_url: str = ""
