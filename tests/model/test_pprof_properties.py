"""The compiled readers against a plain protobuf reading of the same bytes, on any profile."""

from __future__ import annotations

import re
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maar.model.errors import InvalidInput, MalformedProfile, TooLarge
from maar.pprof import folded, gzip
from maar.pprof.columns import NONE
from maar.pprof.decode import decode
from maar.pprof.encode import encode
from maar.pprof.limits import ProfileLimits
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
from maar.pprof.validate import validate
from support.load.pprof_scramble import (
    INT64_MAX,
    UINT64,
    mutate,
    random_profile,
    renumber,
    scramble,
)
from support.oracles.pprof_columns import unpack
from support.oracles.pprof_reader import canonical, canonical_of, read_plain

NO_LIMITS = ProfileLimits(**dict.fromkeys(ProfileLimits.__struct_fields__, 1 << 62))

texts = st.text(st.characters(codec="utf-8"), max_size=8)
signed = st.integers(-INT64_MAX - 1, INT64_MAX)
unsigned = st.integers(0, UINT64)
times = st.integers(0, INT64_MAX)
randoms = st.integers(0, (1 << 32) - 1).map(Random)

mappings = st.builds(PlainMapping, unsigned, unsigned, unsigned, texts, texts, *[st.booleans()] * 4)
functions = st.builds(PlainFunction, texts, texts, texts, signed)
labels = st.builds(PlainLabel, texts, texts, signed, texts)


def rows(count: int) -> st.SearchStrategy[int]:
    return st.integers(NONE, count - 1)


def locations(mapping_count: int, function_count: int) -> st.SearchStrategy[PlainLocation]:
    lines = st.builds(PlainLine, rows(function_count), signed, signed)
    return st.builds(
        PlainLocation,
        rows(mapping_count),
        unsigned,
        st.lists(lines, max_size=4).map(tuple),
        st.booleans(),
    )


@st.composite
def profiles(draw: st.DrawFn) -> PlainProfile:
    types = draw(st.lists(st.tuples(texts, texts), min_size=1, max_size=4))
    some_mappings = draw(st.lists(mappings, max_size=3))
    some_functions = draw(st.lists(functions, max_size=5))
    some_locations = draw(st.lists(locations(len(some_mappings), len(some_functions)), max_size=6))
    refs = (
        st.lists(st.integers(0, len(some_locations) - 1), max_size=8)
        if some_locations
        else st.just([])
    )
    samples = st.builds(
        PlainSample,
        refs.map(tuple),
        st.tuples(*[signed] * len(types)),
        st.lists(labels, max_size=3).map(tuple),
    )
    return PlainProfile(
        sample_types=types,
        samples=draw(st.lists(samples, max_size=6)),
        mappings=some_mappings,
        locations=some_locations,
        functions=some_functions,
        drop_frames=draw(texts),
        keep_frames=draw(texts),
        time_ns=draw(times),
        duration_ns=draw(times),
        period_type=draw(st.tuples(texts, texts)),
        period=draw(signed),
        comments=draw(st.lists(texts, max_size=3)),
        default_sample_type=draw(texts),
        doc_url=draw(texts),
    )


@given(profiles())
@settings(max_examples=150, deadline=None)
def test_what_is_encoded_is_decoded_and_is_what_protobuf_reads(profile: PlainProfile) -> None:
    raw = encode(profile)
    assert read_plain(raw) == profile
    assert unpack(decode(raw)) == profile
    assert canonical(raw) == canonical_of(profile)


@given(profiles(), randoms)
@settings(max_examples=150, deadline=None)
def test_any_spelling_of_a_profile_is_read_alike(profile: PlainProfile, random: Random) -> None:
    """Unpacked, out of order, overlong, with unknown fields and ids far apart."""
    raw = scramble(renumber(encode(profile), random), random)
    assert unpack(decode(raw)) == read_plain(raw) == profile


@given(profiles())
@settings(max_examples=100, deadline=None)
def test_the_summary_is_what_the_profile_says(profile: PlainProfile) -> None:
    weights: Counter[tuple[str, str]] = Counter()
    for sample in profile.samples:
        for sample_type, value in zip(profile.sample_types, sample.values, strict=True):
            weights[sample_type] += abs(value)
    if weights and max(weights.values()) >= 1 << 63:
        with pytest.raises(MalformedProfile, match="overflows every sum"):
            validate(encode(profile))
        return
    summary = validate(encode(profile))
    assert summary.samples == len(profile.samples)
    assert summary.sample_types == tuple(profile.sample_types)
    assert (summary.period_type, summary.period_unit) == profile.period_type
    assert (summary.period, summary.time_ns, summary.duration_ns) == (
        profile.period,
        profile.time_ns,
        profile.duration_ns,
    )


def is_utf8(text: bytes) -> bool:
    """By Python's own reckoning, which shares nothing with ours."""
    try:
        text.decode("utf-8", "strict")
    except UnicodeDecodeError:
        return False
    return True


# Bytes at the borders of what UTF-8 allows, so that random strings come near to it.
edges = st.sampled_from(bytes.fromhex("00417f808f909fa0bfc0c1c2dfe0e1ecedeeeff0f1f3f4f5ff"))
byte_strings = st.one_of(
    texts.map(str.encode), st.binary(max_size=6), st.lists(edges, max_size=6).map(bytes)
)


@given(st.lists(byte_strings, min_size=1, max_size=6))
@settings(max_examples=600, deadline=None)
def test_text_is_taken_exactly_when_it_is_utf8_and_the_first_other_is_named(
    strings: list[bytes],
) -> None:
    message = Profile.FromString(encode(PlainProfile(sample_types=[("a", "b")])))
    first = len(message.string_table)
    message.string_table.extend(strings)
    raw = message.SerializeToString()
    bad = [row for row, text in enumerate(strings, start=first) if not is_utf8(text)]
    if not bad:
        columns = decode(raw)
        read = [columns.text(row).encode() for row in range(first, first + len(strings))]
        assert read == strings
        return
    for reader in (validate, decode):
        with pytest.raises(
            MalformedProfile, match=f"^string {bad[0]} of .* is not UTF-8"
        ) as caught:
            reader(raw)
        assert caught.value.reason == "utf8"


@given(randoms)
@settings(max_examples=600, deadline=None)
def test_damaged_bytes_are_refused_by_both_readers_or_read_as_protobuf_reads_them(
    random: Random,
) -> None:
    raw = mutate(scramble(encode(random_profile(random)), random), random)
    try:
        validate(raw, NO_LIMITS)
    except MalformedProfile as refusal:
        if refusal.reason == "values":  # intact, but too much to add up: only admission refuses it
            assert unpack(decode(raw)) == read_plain(raw)
            return
        with pytest.raises(MalformedProfile, match=f"^{re.escape(str(refusal))}$"):
            decode(raw)
    else:
        assert unpack(decode(raw)) == read_plain(raw)


@given(st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_a_profile_or_malformed(raw: bytes) -> None:
    try:
        validate(raw)
    except (MalformedProfile, TooLarge):
        return
    decode(raw)


@given(st.binary(max_size=400), randoms)
@settings(max_examples=300, deadline=None)
def test_damaged_gzip_is_refused_or_gives_the_same_bytes(body: bytes, random: Random) -> None:
    try:
        assert gzip.gunzip(mutate(gzip.compress(body), random), limit=1000) is not None
    except (MalformedProfile, TooLarge):
        pass


@given(st.binary(max_size=100))
@settings(max_examples=200, deadline=None)
def test_folded_text_is_refused_or_becomes_a_valid_profile(text: bytes) -> None:
    for parse in (folded.parse_groups, folded.parse_lines):
        try:
            raw = parse(text, kind=folded.CPU)
        except (InvalidInput, TooLarge):
            continue
        validate(raw)
