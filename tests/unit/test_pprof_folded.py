"""Folded stacks: what the text says, as a profile."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maar.model.errors import InvalidInput, TooLarge
from maar.pprof.encode import encode
from maar.pprof.folded import (
    CPU,
    TYPES,
    FoldedType,
    parse_groups,
    parse_lines,
    type_of_suffix,
)
from maar.pprof.plain import PlainProfile
from maar.pprof.validate import validate
from support.oracles.pprof_reader import read_plain


def stacks(profile: PlainProfile) -> dict[str, int]:
    """Root first, as in the text."""
    names = [profile.functions[location.lines[0].function].name for location in profile.locations]
    return {
        ";".join(names[row] for row in reversed(sample.locations)): sample.values[0]
        for sample in profile.samples
    }


def test_groups_are_split_at_the_last_space() -> None:
    raw = parse_groups(b"main;do work 12\nmain 3\r\n\n", kind=TYPES["alloc_space"])
    assert stacks(read_plain(raw)) == {"main;do work": 12, "main": 3}


def test_equal_groups_are_added_up() -> None:
    raw = parse_groups(b"a;b 1\nc 2\na;b 40", kind=TYPES["goroutines"])
    assert stacks(read_plain(raw)) == {"a;b": 41, "c": 2}


def test_lines_are_counted() -> None:
    raw = parse_lines(b"a;b\na;b\nc d\n", kind=TYPES["exceptions"])
    assert stacks(read_plain(raw)) == {"a;b": 2, "c d": 1}


def test_cpu_ticks_become_nanoseconds() -> None:
    raw = parse_groups(b"a 3", kind=CPU, sample_rate=100, time_ns=5, duration_ns=6)
    profile = read_plain(raw)
    assert profile.samples[0].values == (30_000_000,)
    assert profile.sample_types == [("cpu", "nanoseconds")]
    assert (profile.period_type, profile.period) == (("cpu", "nanoseconds"), 10_000_000)
    assert (profile.time_ns, profile.duration_ns) == (5, 6)


def test_a_recursive_stack_keeps_its_depth() -> None:
    profile = read_plain(parse_lines(b"a;b;a;b;a", kind=CPU))
    assert len(profile.samples[0].locations) == 5
    assert [function.name for function in profile.functions] == ["a", "b"]


@given(
    st.dictionaries(
        st.lists(st.sampled_from(["a", "b", "", "cpu", "nanoseconds", "ü", "x" * 200]), min_size=1)
        .map(";".join)
        .filter(bool),
        st.integers(0, 1 << 62),
        min_size=1,
    ),
    st.sampled_from([TYPES["alloc_space"], TYPES["goroutines"]]),
    st.integers(0, (1 << 63) - 1),
)
def test_what_is_written_is_what_protobuf_writes(
    counts: dict[str, int], kind: FoldedType, time_ns: int
) -> None:
    text = "".join(f"{stack} {count}\n" for stack, count in counts.items())
    raw = parse_groups(text.encode(), kind=kind, time_ns=time_ns)
    assert stacks(read_plain(raw)) == counts
    assert encode(read_plain(raw)) == raw


def test_to_read_text_takes_a_bounded_part_of_its_memory() -> None:
    """A small gzip may hold a million stacks, whatever the limits of bodies say."""
    text = b"".join(b"%x;%x;main;work 1\n" % (row, row * row) for row in range(20_000))
    tracemalloc.start()
    try:
        parse_groups(text, kind=CPU)
        assert tracemalloc.get_traced_memory()[1] < 35 * len(text)
    finally:
        tracemalloc.stop()


def test_text_that_is_not_utf8_is_refused_with_its_line() -> None:
    with pytest.raises(InvalidInput, match=r"line 2 of the folded stacks is not UTF-8: 'caf\\xe9'"):
        parse_lines(b"main\ncaf\xe9", kind=CPU)


def test_what_is_made_passes_the_validator() -> None:
    summary = validate(parse_groups(b"a;b 1\nb 2", kind=CPU))
    assert (summary.samples, summary.sample_types) == (2, (("cpu", "nanoseconds"),))


@pytest.mark.parametrize("count", [b"x", b"1.5", b"-1", b"1_0", b"9" * 20, "٣".encode()])
def test_a_count_that_is_no_whole_number_names_its_line(count: bytes) -> None:
    with pytest.raises(InvalidInput, match="line 3 of the folded stacks must end in"):
        parse_groups(b"a 1\n\nb " + count, kind=CPU)


def test_a_line_without_count_or_stack_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"line 1 .* ends in 'main'"):
        parse_groups(b"main", kind=CPU)
    with pytest.raises(InvalidInput, match="line 1 of the folded stacks has no stack"):
        parse_groups(b"12", kind=CPU)


def test_a_count_over_64_bits_is_refused() -> None:
    with pytest.raises(InvalidInput, match="too large for 64 bits"):
        parse_groups(b"a 9223372036854775807", kind=CPU)
    with pytest.raises(InvalidInput, match="too large for 64 bits"):
        parse_groups(b"a 9223372036854775807\na 1", kind=TYPES["alloc_space"])


def test_depth_symbols_and_stacks_are_bounded() -> None:
    with pytest.raises(TooLarge, match="line 1 of the folded stacks has over 4096 frames"):
        parse_lines(b"a;" * 4096 + b"a", kind=CPU)
    with pytest.raises(TooLarge, match="65536 bytes"):
        parse_lines(b"a" * 65536, kind=CPU)
    with pytest.raises(TooLarge, match="different stacks"):
        parse_lines(b"a\nb\nc", kind=CPU, stacks_max=2)


@pytest.mark.parametrize("rate", [0, -1, 2_000_000_000])
def test_a_sample_rate_out_of_bounds_is_refused(rate: int) -> None:
    with pytest.raises(InvalidInput, match="sample rate"):
        parse_lines(b"a", kind=CPU, sample_rate=rate)


@pytest.mark.parametrize(
    ("name", "app", "kind"),
    [
        ("shop", "shop", "process_cpu:cpu:nanoseconds:cpu:nanoseconds"),
        ("shop.cpu", "shop", "process_cpu:cpu:nanoseconds:cpu:nanoseconds"),
        ("shop.itimer", "shop", "process_cpu:cpu:nanoseconds:cpu:nanoseconds"),
        ("my.shop.wall", "my.shop", "wall:wall:nanoseconds:wall:nanoseconds"),
        ("shop.inuse_space", "shop", "memory:inuse_space:bytes:space:bytes"),
        ("shop.alloc_objects", "shop", "memory:alloc_objects:count:space:bytes"),
        (
            "shop.alloc_in_new_tlab_objects",
            "shop",
            "memory:alloc_in_new_tlab_objects:count:space:bytes",
        ),
        (
            "shop.alloc_in_new_tlab_bytes",
            "shop",
            "memory:alloc_in_new_tlab_bytes:bytes:space:bytes",
        ),
        (
            "shop.alloc_outside_tlab_objects",
            "shop",
            "memory:alloc_outside_tlab_objects:count:space:bytes",
        ),
        (
            "shop.alloc_outside_tlab_bytes",
            "shop",
            "memory:alloc_outside_tlab_bytes:bytes:space:bytes",
        ),
        ("shop.goroutines", "shop", "goroutine:goroutine:count:goroutine:count"),
        ("shop.mutex_count", "shop", "mutex:contentions:count:contentions:count"),
        ("shop.mutex_duration", "shop", "mutex:delay:nanoseconds:contentions:count"),
        ("shop.lock_duration", "shop", "block:delay:nanoseconds:contentions:count"),
    ],
)
def test_the_suffix_of_the_name_says_what_is_counted(name: str, app: str, kind: str) -> None:
    found, what = type_of_suffix(name)
    parts = (what.name, what.sample_type, what.sample_unit, what.period_type, what.period_unit)
    assert (found, ":".join(parts)) == (app, kind)


@pytest.mark.parametrize("name", ["old.app", "shop.", ".cpu"])
def test_an_unknown_suffix_is_refused_with_those_that_exist(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"must end in what the text counts.*alloc_objects"):
        type_of_suffix(name)
