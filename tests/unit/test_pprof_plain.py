"""When two profiles are equal, and that the encoder says the same twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from maar.model.errors import MalformedProfile
from maar.pprof.encode import encode
from maar.pprof.plain import (
    PlainFunction,
    PlainLabel,
    PlainLine,
    PlainLocation,
    PlainMapping,
    PlainProfile,
    PlainSample,
)
from support.oracles.pprof_reader import canonical, read_plain

WHOLE = PlainProfile(
    sample_types=[("samples", "count"), ("cpu", "nanoseconds")],
    samples=[
        PlainSample((0, 1), (1, 10), (PlainLabel("a", "x"), PlainLabel("n", "", 5, "bytes"))),
        PlainSample((1,), (2, 20)),
        PlainSample((1,), (2, 20)),
    ],
    mappings=[PlainMapping(start=4096, limit=8192, offset=512, file="/bin/app", build_id="b1")],
    locations=[
        PlainLocation(0, 5000, (PlainLine(1, 7, 2), PlainLine(0, 9, 1))),
        PlainLocation(lines=(PlainLine(0, 3),), address=77),
    ],
    functions=[
        PlainFunction("main", "_main", "main.c", 1),
        PlainFunction("inlined", "_inlined", "main.c", 5),
    ],
    drop_frames="drop",
    keep_frames="keep",
    time_ns=1_700_000_000_000_000_000,
    duration_ns=10_000_000_000,
    period_type=("cpu", "nanoseconds"),
    period=10_000_000,
    comments=["one", "two"],
    default_sample_type="cpu",
    doc_url="about:profile",
)


def test_a_profile_survives_encoding() -> None:
    assert read_plain(encode(WHOLE)) == WHOLE
    assert encode(read_plain(encode(WHOLE))) == encode(WHOLE)


def test_the_order_of_samples_labels_and_tables_does_not_matter() -> None:
    first, second, third = WHOLE.samples
    shuffled = replace(
        WHOLE,
        samples=[second, replace(first, locations=(1, 0), labels=first.labels[::-1]), third],
        locations=WHOLE.locations[::-1],
    )
    assert canonical(encode(shuffled)) != canonical(encode(WHOLE))
    moved = [replace(sample, locations=(0,)) for sample in (second, third)]
    shuffled = replace(shuffled, samples=[moved[0], shuffled.samples[1], moved[1]])
    assert canonical(encode(shuffled)) == canonical(encode(WHOLE))


def test_a_mapping_moved_in_memory_is_the_same_build_relative_address() -> None:
    mapping, location = WHOLE.mappings[0], WHOLE.locations[0]
    moved = replace(
        WHOLE,
        mappings=[replace(mapping, start=0, limit=0, offset=0)],
        locations=[replace(location, address=5000 - 4096 + 512), WHOLE.locations[1]],
    )
    assert canonical(encode(moved)) == canonical(encode(WHOLE))


def test_without_mapping_an_address_counts_only_when_there_is_no_symbol() -> None:
    location = WHOLE.locations[1]
    other = replace(WHOLE, locations=[WHOLE.locations[0], replace(location, address=78)])
    assert canonical(encode(other)) == canonical(encode(WHOLE))
    bare = [
        replace(WHOLE, locations=[WHOLE.locations[0], PlainLocation(address=address)])
        for address in (77, 78)
    ]
    assert canonical(encode(bare[0])) != canonical(encode(bare[1]))


def _location(change: Callable[[PlainLocation], PlainLocation]) -> PlainProfile:
    return replace(WHOLE, locations=[change(WHOLE.locations[0]), WHOLE.locations[1]])


def _function(**changes: object) -> PlainProfile:
    return replace(
        WHOLE,
        functions=[replace(WHOLE.functions[0], **changes), WHOLE.functions[1]],  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "other",
    [
        replace(WHOLE, samples=WHOLE.samples[:2]),
        replace(WHOLE, samples=[*WHOLE.samples[:2], replace(WHOLE.samples[2], values=(2, 21))]),
        replace(WHOLE, samples=[replace(WHOLE.samples[0], labels=()), *WHOLE.samples[1:]]),
        replace(WHOLE, sample_types=WHOLE.sample_types[::-1]),
        replace(WHOLE, mappings=[replace(WHOLE.mappings[0], build_id="b2")]),
        replace(WHOLE, mappings=[replace(WHOLE.mappings[0], file="/bin/other")]),
        replace(WHOLE, mappings=[replace(WHOLE.mappings[0], start=4097)]),
        _location(lambda old: replace(old, mapping=-1)),
        _location(lambda old: replace(old, lines=old.lines[::-1])),
        _location(lambda old: replace(old, lines=old.lines[:1])),
        _location(lambda old: replace(old, is_folded=True)),
        _location(lambda old: replace(old, lines=(PlainLine(1, 7, 3), old.lines[1]))),
        _location(lambda old: replace(old, lines=(PlainLine(1, 8, 2), old.lines[1]))),
        _function(name="other"),
        _function(system_name="other"),
        _function(file="other"),
        _function(start_line=2),
        replace(WHOLE, drop_frames=""),
        replace(WHOLE, keep_frames=""),
        replace(WHOLE, time_ns=1),
        replace(WHOLE, duration_ns=1),
        replace(WHOLE, period_type=("cpu", "count")),
        replace(WHOLE, period=1),
        replace(WHOLE, comments=["two", "one"]),
        replace(WHOLE, default_sample_type="samples"),
        replace(WHOLE, doc_url=""),
    ],
)  # fmt: skip
def test_everything_that_a_person_could_see_counts(other: PlainProfile) -> None:
    assert canonical(encode(other)) != canonical(encode(WHOLE))


def test_a_table_that_nobody_uses_does_not_count() -> None:
    unused = replace(WHOLE, functions=[*WHOLE.functions, PlainFunction("unused")])
    assert canonical(encode(unused)) == canonical(encode(WHOLE))


def test_what_protobuf_cannot_read_is_a_malformed_profile() -> None:
    with pytest.raises(MalformedProfile, match="protobuf cannot read"):
        read_plain(b"\x32\xff")
