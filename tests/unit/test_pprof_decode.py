"""The decoder and the validator on hand-made bytes: what they read and what they refuse."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from maar.model.errors import MalformedProfile, TooLarge
from maar.pprof.columns import NONE
from maar.pprof.decode import decode, warm
from maar.pprof.limits import ProfileLimits
from maar.pprof.validate import Summary, validate


def varint(value: int) -> bytes:
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def nested(field: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return varint(field << 3 | 2) + varint(len(body)) + body


def strings(*texts: bytes) -> bytes:
    return b"".join(nested(6, text) for text in texts)


def packed(*values: int) -> bytes:
    return b"".join(varint(value) for value in values)


TEXTS = strings(b"", b"cpu", b"nanoseconds", b"main", b"main.py", b"/bin/app", b"abc123")
TYPE = nested(1, number(1, 1), number(2, 2))
MAPPING = nested(3, number(1, 1), number(2, 4096), number(5, 5), number(6, 6), number(8, 1))
FUNCTION = nested(5, number(1, 1), number(2, 3), number(4, 4), number(5, 10))
LOCATION = nested(
    4, number(1, 1), number(2, 1), number(3, 8192), nested(4, number(1, 1), number(2, 12))
)
SAMPLE = nested(2, nested(1, packed(1)), nested(2, packed(7)))
WHOLE = TYPE + SAMPLE + MAPPING + LOCATION + FUNCTION + TEXTS + number(9, 1000) + number(10, 50)


def refused(raw: bytes) -> str:
    """Both readers refuse, with the same sentence."""
    with pytest.raises(MalformedProfile) as decoding:
        decode(raw)
    with pytest.raises(MalformedProfile) as validating:
        validate(raw)
    assert str(decoding.value) == str(validating.value)
    return str(decoding.value)


def test_a_small_profile_is_read_whole() -> None:
    columns = decode(WHOLE)
    assert columns.samples == 1
    assert columns.value.tolist() == [[7]]
    assert columns.sample_location.tolist() == [0]
    assert columns.location_mapping.tolist() == [0]
    assert columns.location_address.tolist() == [8192]
    assert columns.mapping_flags.tolist() == [2]
    assert columns.text(int(columns.function_name[columns.line_function[0]])) == "main"
    assert columns.line_number.tolist() == [12]
    assert (columns.time_ns, columns.duration_ns) == (1000, 50)


def test_the_validator_says_what_the_push_path_needs() -> None:
    period = nested(11, number(1, 1), number(2, 2)) + number(12, 99)
    assert validate(WHOLE + period) == Summary(
        time_ns=1000,
        duration_ns=50,
        samples=1,
        sample_types=(("cpu", "nanoseconds"),),
        period_type="cpu",
        period_unit="nanoseconds",
        period=99,
    )


def test_no_mapping_and_no_function_are_rows_of_none() -> None:
    columns = decode(TYPE + nested(4, number(1, 5), nested(4, number(2, 3))) + TEXTS)
    assert columns.location_mapping.tolist() == [NONE]
    assert columns.line_function.tolist() == [NONE]


def test_ids_may_be_far_apart_and_use_all_64_bits() -> None:
    locations = b"".join(nested(4, number(1, each)) for each in (1 << 63, 3, (1 << 64) - 1))
    sample = nested(2, nested(1, packed((1 << 64) - 1, 1 << 63, 3)), nested(2, packed(1)))
    assert decode(TYPE + sample + locations + TEXTS).sample_location.tolist() == [2, 0, 1]


def test_functions_without_any_ids_are_numbered_in_their_order() -> None:
    functions = nested(5, number(2, 3)) + nested(5, number(2, 4))
    location = nested(4, number(1, 1), nested(4, number(1, 2)), nested(4, number(1, 1)))
    assert decode(TYPE + location + functions + TEXTS).line_function.tolist() == [1, 0]


def test_of_a_scalar_given_twice_the_last_wins() -> None:
    assert decode(WHOLE + number(9, 5) + number(9, 6)).time_ns == 6


def test_a_period_type_in_two_parts_is_merged() -> None:
    columns = decode(WHOLE + nested(11, number(1, 1)) + nested(11, number(2, 2)))
    assert (columns.period_type, columns.period_unit) == (1, 2)


def test_unknown_fields_are_skipped() -> None:
    extra = number(16, 1 << 63) + nested(99, b"later") + varint(17 << 3 | 1) + bytes(8)
    assert decode(extra + WHOLE + varint(18 << 3 | 5) + bytes(4)).samples == 1


def test_negative_values_stay_negative() -> None:
    sample = nested(2, nested(2, packed(-7)))
    assert decode(TYPE + sample + TEXTS).value.tolist() == [[-7]]


def test_text_that_is_not_utf8_is_refused_by_name() -> None:
    with pytest.raises(MalformedProfile, match=r"string 2 of .* is not UTF-8: '\\xff\\xfeok'"):
        decode(strings(b"", b"ok", b"\xff\xfeok"))


@pytest.mark.parametrize("row", [1, 15, 16, 17, 31, 32, 39])
def test_text_that_is_not_utf8_is_found_among_many(row: int) -> None:
    texts = [b"", *(b"ok" for _ in range(39))]
    texts[row] = b"\xff"
    with pytest.raises(MalformedProfile, match=f"string {row} of "):
        decode(strings(*texts))


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b"", "no string table"),
        (strings(b"x"), "first string is not empty"),
        (b"not a protobuf at all", "malformed"),
        (TEXTS + b"\x80", "ends before the field does"),
        (TEXTS + b"\x48", "time_nanos: it ends before the field does"),
        (TEXTS + b"\x32\x05ab", "in string 7: it ends before the field does"),
        (TEXTS + varint(9 << 3) + b"\xff" * 9 + b"\x02", "more than 64 bits"),
        (TEXTS + varint(9 << 3) + b"\x80" * 10 + b"\x00", "more than 64 bits"),
        (TEXTS + b"\x00\x00", "no field with such a key"),
        (TEXTS + b"\x07", "no field with such a key"),
        (TEXTS + b"\x80\x80\x80\x80\x80\x01\x00", "no field with such a key"),
        (TEXTS + b"\x86\x01\x00", "no field with such a key"),
        (TEXTS + varint(16 << 3 | 3) + varint(16 << 3 | 4), "a group"),
        (TEXTS + nested(9, b"\x01"), "wire type"),
        (TEXTS + number(2, 1), "in sample 0: a field has a wire type"),
        (TEXTS + varint(13 << 3 | 5) + bytes(4), "wire type"),
        (TEXTS + TYPE + nested(2, number(3, 1)), "wire type"),
        (TEXTS + nested(4, number(4, 1)), "wire type"),
        (TEXTS + nested(4, nested(1, b"\x01")), "wire type"),
        (TEXTS + nested(5, nested(2, b"\x01")), "wire type"),
        (TEXTS + number(14, 7), "default_sample_type: a string index"),
        (TEXTS + number(7, -1), "drop_frames: a string index"),
        (TEXTS + nested(13, packed(0, 7)), "comment 2: a string index"),
        (TEXTS + nested(1, number(1, 7)), "in sample type 0: a string index"),
        (TEXTS + nested(5, number(1, 1), number(3, 7)), "in function 0: a string index"),
        (TEXTS + nested(3, number(1, 1), number(6, 7)), "in mapping 0: a string index"),
        (TEXTS + TYPE + nested(2, number(2, 1), nested(3, number(4, 9))), "in sample 0"),
        (TEXTS + nested(11, number(2, 7)), "period_type: a string index"),
        (TEXTS + TYPE + nested(2, nested(2, packed(1, 2))), "have 2 values, but it has 1 sample"),
        (TEXTS + nested(2), "have 0 values, but it has 0 sample types"),
        (TEXTS + TYPE + SAMPLE + nested(2), "in sample 1: the sample has another number"),
        (TEXTS + TYPE + SAMPLE, "a stack refers to location id 1, which"),
        (TEXTS + LOCATION + FUNCTION, "a location refers to mapping id 1, which"),
        (TEXTS + LOCATION + MAPPING, "a line refers to function id 1, which"),
        (WHOLE + LOCATION, "location id 1 is given twice"),
        (WHOLE + FUNCTION, "function id 1 is given twice"),
        (WHOLE + nested(4, number(1, 1 << 40)) * 2, f"location id {1 << 40} is given twice"),
        (WHOLE + nested(4), "a location has no id"),
        (WHOLE + nested(5), "a function has no id"),
        (TEXTS + nested(3), "a mapping has no id"),
        (WHOLE + nested(2, number(1, 0), number(2, 7)), "a stack refers to location id 0"),
        (WHOLE + number(9, -1), "time_nanos is negative"),
        (WHOLE + number(10, -5), "duration_nanos is negative"),
    ],
)  # fmt: skip
def test_malformed_bytes_are_refused_with_a_sentence(raw: bytes, sentence: str) -> None:
    assert sentence in refused(raw)


def test_every_truncation_is_refused_or_read() -> None:
    for end in range(len(WHOLE)):
        try:
            validate(WHOLE[:end])
        except MalformedProfile:
            refused(WHOLE[:end])
        else:
            decode(WHOLE[:end])


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        (ProfileLimits(samples=0), "1 samples, over the limit of 0"),
        (ProfileLimits(locations=0), "1 locations"),
        (ProfileLimits(functions=0), "1 functions"),
        (ProfileLimits(mappings=0), "1 mappings"),
        (ProfileLimits(strings=6), "7 strings"),
        (ProfileLimits(sample_types=0), "1 sample types"),
        (ProfileLimits(stack_depth=0), "1 locations in one stack"),
        (ProfileLimits(symbol_length=6), "a name or file of 7 bytes"),
    ],
)
def test_what_is_over_a_limit_is_too_large(limits: ProfileLimits, sentence: str) -> None:
    with pytest.raises(TooLarge, match=sentence):
        validate(WHOLE, limits)
    assert decode(WHOLE).samples == 1  # limits are for the push path; what was taken in is read


@pytest.mark.parametrize(
    ("depth", "samples", "sentence"),
    [(3, 1, "4098 frames in one stack"), (2, 10, "27320 frames in all stacks")],
)
def test_lines_count_in_every_stack_that_has_their_location(
    depth: int, samples: int, sentence: str
) -> None:
    sample = nested(2, nested(1, packed(*[1] * depth)), nested(2, packed(1)))
    location = nested(4, number(1, 1), nested(4) * 1366)
    limits = ProfileLimits(frames=27_319)
    with pytest.raises(TooLarge, match=sentence):
        validate(TYPE + sample * samples + location + TEXTS, limits)
    validate(TYPE + sample * (samples - 1) + location + TEXTS, limits)


def test_a_string_counts_wherever_a_label_or_a_line_refers_to_it() -> None:
    table = strings(b"", b"x" * 1000, b"ns")
    sample = nested(2, nested(2, packed(1)), nested(3, number(1, 1), number(2, 1)))
    function = nested(5, number(1, 1), number(2, 1))
    location = nested(4, number(1, 1), nested(4, number(1, 1)) * 10)
    raw = TYPE + sample * 10 + function + location + table
    validate(raw, ProfileLimits(text_bytes=30_000))
    with pytest.raises(TooLarge, match="30000 bytes of text in its labels, lines and mappings"):
        validate(raw, ProfileLimits(text_bytes=29_999))


def test_a_mappings_file_counts_wherever_a_frame_is_called_by_it() -> None:
    table = strings(b"", b"m" * 1000, b"main")
    mapping = nested(3, number(1, 1), number(5, 1))
    functions = nested(5, number(1, 1), number(2, 2)) + nested(5, number(1, 2))
    lines = (nested(4), nested(4, number(1, 2)), nested(4, number(1, 1)))  # the last has a name
    locations = [b"", lines[0] + lines[1], lines[2], lines[2] + lines[0]]
    raw = b"".join(
        nested(4, number(1, place + 1), number(2, 1), each) for place, each in enumerate(locations)
    )
    raw += nested(4, number(1, 9), lines[0])  # in no mapping
    raw = TYPE + mapping + functions + raw + table
    size = 1000 + 4 * 1000 + 2 * 4  # of the mapping, of four nameless frames, and of two others
    validate(raw, ProfileLimits(text_bytes=size))
    with pytest.raises(TooLarge, match=f"{size} bytes of text"):
        validate(raw, ProfileLimits(text_bytes=size - 1))


def test_labels_on_one_sample_are_limited() -> None:
    sample = nested(2, nested(2, packed(1)), nested(3, number(1, 1), number(2, 2)) * 101)
    with pytest.raises(TooLarge, match="101 labels on one sample"):
        validate(TYPE + sample + TEXTS)


def test_a_long_string_that_is_no_symbol_is_allowed() -> None:
    raw = strings(b"", b"x" * 70_000) + nested(13, packed(1))
    assert validate(raw).samples == 0


@pytest.mark.parametrize("unit", [nested(1), nested(2), nested(3), nested(4), nested(5), nested(6)])
def test_memory_is_in_proportion_to_the_input(unit: bytes) -> None:
    """Two bytes are the least that a row costs; samples times types must not multiply."""
    raw = TEXTS + nested(1) * 20_000 + unit * 20_000
    tracemalloc.start()
    try:
        try:
            decode(raw)
        except MalformedProfile:
            pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 64 * len(raw)


def test_columns_keep_the_types_that_they_promise() -> None:
    columns = decode(WHOLE)
    assert columns.location_address.dtype == columns.mapping_start.dtype == np.uint64
    assert columns.location_is_folded.dtype == np.bool_
    assert columns.mapping_flags.dtype == columns.value.dtype == np.int64
    assert columns.value.shape == (1, 1)


def test_warming_reads_every_kind_of_table() -> None:
    warm()


@pytest.mark.parametrize("rows", [[(2**63 - 1, 2**63 - 1)], [(2**62, 5), (1 - 2**62, 7)]])
def test_values_may_fill_63_bits_by_type(rows: list[tuple[int, int]]) -> None:
    types = TYPE + nested(1, number(1, 3), number(2, 2))
    validate(types + b"".join(nested(2, nested(2, packed(*row))) for row in rows) + TEXTS)


def test_values_of_a_type_that_is_there_twice_count_together() -> None:
    sample = nested(2, nested(2, packed(2**62, 2**62)))
    with pytest.raises(MalformedProfile, match=f"add up to {2**63}"):
        validate(TYPE + TYPE + sample + TEXTS)
