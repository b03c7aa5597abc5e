"""The five tables of decoded profiles: columns, order, names, labels and quarantine."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from maar.block.decode import sample_labels
from maar.block.decode.to_tables import WEIGHT_MAX, decode_in_batches, decode_profiles
from maar.block.decode.weight import surely_weighs_less, weight
from maar.block.format.tables import LAYOUTS
from maar.model.labels import series_id
from maar.model.profile import RawProfile
from maar.pprof.columns import NONE
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
from maar.pprof.tables import read_tables
from support.lake.block_plans import NOON_NS, raw_profile

CPU = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"
COUNT = "process_cpu:samples:count:cpu:nanoseconds"


def profile(**changes: Any) -> PlainProfile:
    """main calls work, into which helper is inlined; a frame of libc has no symbol."""
    values: dict[str, Any] = {
        "sample_types": [("samples", "count"), ("cpu", "nanoseconds")],
        "functions": [
            PlainFunction("main", "main", "main.go", 1),
            PlainFunction("work", "work", "work.go", 10),
            PlainFunction("helper", "helper", "work.go", 30),
        ],
        "mappings": [PlainMapping(0x1000, 0x9000, 0x200, "/usr/lib/libc.so", "b1")],
        "locations": [
            PlainLocation(NONE, 0x10, (PlainLine(0, 5),)),
            PlainLocation(NONE, 0x20, (PlainLine(2, 31), PlainLine(1, 12))),
            PlainLocation(0, 0x1300),
        ],
        "samples": [PlainSample([2, 1, 0], [1, 100]), PlainSample([0], [0, 7])],
        "period_type": ("cpu", "nanoseconds"),
        "period": 10,
    }
    return PlainProfile(**(values | changes))


def rows(profiles: list[RawProfile], table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = decode_profiles(profiles).tables[table].to_pylist()
    return found


def test_the_tables_have_the_columns_of_the_format() -> None:
    tables = decode_profiles([raw_profile(profile())]).tables
    assert {name: table.schema.names for name, table in tables.items()} == {
        name: layout.schema.names for name, layout in LAYOUTS.items()
    }
    assert decode_profiles([]).tables.keys() == tables.keys()


def test_stacks_are_read_from_the_root_with_inlined_frames_and_readable_names() -> None:
    stacks = rows([raw_profile(profile())], "stacks")
    assert [(stack["functions"], stack["leaf"]) for stack in stacks] == [
        (["main"], "main"),
        (["main", "work", "helper", "libc.so!0x500"], "libc.so!0x500"),
    ]
    frames = {row["location_id"]: row for row in rows([raw_profile(profile())], "locations")}
    deep = [frames[identity] for identity in stacks[1]["location_ids"]]
    assert [frame["function"] for frame in deep] == ["main", "work", "helper", None]
    assert [frame["inlined"] for frame in deep] == [False, False, True, False]
    assert [frame["address"] for frame in deep] == [None, None, None, 0x500]
    assert (deep[3]["mapping"], deep[3]["build_id"], deep[3]["line"]) == (
        "/usr/lib/libc.so",
        "b1",
        None,
    )


def test_a_frame_that_nothing_is_known_of_still_has_a_name() -> None:
    unnamed = [
        PlainLocation(NONE, 0xBEEF),
        PlainLocation(NONE, 0, (PlainLine(0, 3),)),
    ]
    plain = profile(
        functions=[PlainFunction("", "", "a.go", 1)],
        locations=unnamed,
        samples=[PlainSample([0, 1], [1, 1]), PlainSample([], [1, 1])],
    )
    stacks = rows([raw_profile(plain)], "stacks")
    assert [(stack["functions"], stack["leaf"]) for stack in stacks] == [
        ([], None),
        (["[unknown]", "0xbeef"], "0xbeef"),
    ]


def test_zero_values_are_left_out_unless_a_sample_has_nothing_else() -> None:
    plain = profile(
        samples=[PlainSample([0], [0, 7]), PlainSample([1], [2, 3]), PlainSample([0], [0, 0])]
    )
    samples = rows([raw_profile(plain)], "samples")
    found = sorted((row["sample"], row["profile_type"], row["value"]) for row in samples)
    assert found == [(0, CPU, 7), (1, CPU, 3), (1, COUNT, 2), (2, CPU, 0)]


def test_a_profile_of_one_type_needs_no_ordinal() -> None:
    plain = profile(sample_types=[("cpu", "nanoseconds")], samples=[PlainSample([0], [4])])
    (row,) = rows([raw_profile(plain)], "samples")
    assert (row["sample"], row["value"], row["profile_type"]) == (None, 4, CPU)


def test_rows_are_in_the_order_of_their_table() -> None:
    profiles = [
        raw_profile(profile(), service=service, time_ns=NOON_NS + offset)
        for offset in (5_000, 0, 9_000)
        for service in ("b", "a", "c")
    ]
    tables = decode_profiles(profiles).tables
    for name, layout in LAYOUTS.items():
        found = [
            tuple((row[key] is not None, row[key]) for key in layout.key)
            for row in tables[name].to_pylist()
        ]
        assert found == sorted(found), name


def test_a_stack_of_two_services_has_two_ids() -> None:
    stacks = rows(
        [raw_profile(profile(), service="a"), raw_profile(profile(), service="b")], "stacks"
    )
    assert len({stack["stack_id"] for stack in stacks}) == len(stacks) == 4
    assert (
        len(rows([raw_profile(profile(), service="a"), raw_profile(profile())], "locations")) == 4
    )


def test_string_labels_of_samples_become_series() -> None:
    labels = [PlainLabel("endpoint", "/pay"), PlainLabel("span_id", "abc"), PlainLabel("n", "", 7)]
    raw = raw_profile(profile(samples=[PlainSample([0], [1, 1], labels), PlainSample([0], [1, 1])]))
    tables = decode_profiles([raw]).tables
    series = {row["series_id"]: dict(row["labels"]) for row in tables["series"].to_pylist()}
    base = dict(raw.labels)
    assert sorted(series.values(), key=len) == [base, base | {"endpoint": "/pay"}]
    assert series[series_id(raw.labels)] == base
    with_labels = [row for row in tables["samples"].to_pylist() if row["sample"] == 0]
    for row in with_labels:
        assert series[row["series_id"]]["endpoint"] == "/pay"
        assert row["span_id"] == "abc"
        assert [label["key"] for label in row["sample_labels"]] == ["span_id", "n"]


@pytest.mark.parametrize(
    "label",
    [
        PlainLabel("service_name", "other"),  # the profile's own
        PlainLabel("otel.scope", "x"),  # would have to be renamed
        PlainLabel("trace_id", "x"),
        PlainLabel("mixed", "x", 3),
        PlainLabel("empty", ""),
        PlainLabel("control", "a\nb"),
    ],
)
def test_labels_that_cannot_be_told_again_stay_on_the_sample(label: PlainLabel) -> None:
    tables = decode_profiles(
        [raw_profile(profile(samples=[PlainSample([0], [0, 1], [label])]))]
    ).tables
    (row,) = tables["samples"].to_pylist()
    assert tables["series"].num_rows == 1
    assert row["sample_labels"][0]["key"] == label.key


def test_a_profile_with_very_many_label_sets_makes_no_series_of_them() -> None:
    many = sample_labels.SERIES_PER_PROFILE_MAX + 1
    samples = [
        PlainSample([0], [0, 1], [PlainLabel("request", str(place))]) for place in range(many)
    ]
    tables = decode_profiles([raw_profile(profile(samples=samples))]).tables
    assert tables["series"].num_rows == 1
    assert all(row["sample_labels"] for row in tables["samples"].to_pylist())
    fewer = decode_profiles([raw_profile(profile(samples=samples[1:]))]).tables
    assert fewer["series"].num_rows == many  # the profile's own, too


def test_the_version_is_a_column_of_series() -> None:
    raw = raw_profile(profile(), labels=(("service_version", "1.4"),))
    assert rows([raw], "series")[0]["version"] == "1.4"


def test_what_cannot_be_decoded_holds_up_nobody() -> None:
    good = raw_profile(profile())
    bad = msgspec.structs.replace(good, payload=b"\x1f\x8bno", raw_size=4)
    decoded = decode_profiles([bad, good])
    assert decoded.tables["profiles"].num_rows == 1
    ((held, cause),) = decoded.quarantined
    assert held == bad
    assert "gzip" in cause


def test_profiles_of_many_frames_are_decoded_apart() -> None:
    lines = tuple(PlainLine(NONE, line) for line in range(100))
    deep = profile(locations=[PlainLocation(lines=lines)], samples=[PlainSample((0,) * 10, (1, 1))])
    raws = [raw_profile(deep, client_id=str(place)) for place in range(3)]
    parts = list(decode_in_batches(raws, batch_weight=30_000))  # 1,000 frames of 8 bytes each
    assert [part.tables["profiles"].num_rows for part in parts] == [2, 1]


def test_a_profile_that_swells_to_more_than_64_bits_can_count_is_too_large() -> None:
    """Labels of a long text, repeated for each of very many values: the product wrapped around."""
    values = labels = 120_000
    label = bytes.fromhex("1a06 0801 1001 2001")
    sample = b"\x12" + varint(values) + bytes(values) + labels * label
    raw = values * b"\x0a\0" + b"\x12" + varint(len(sample)) + sample + b"\x32\0\x32\1x"
    tables = read_tables(raw)
    tables.strings[1, 1] = 256 << 20  # as long as it could be, without having it in memory
    assert not surely_weighs_less(tables, WEIGHT_MAX)
    assert weight(tables) > 1 << 63


@pytest.mark.parametrize(
    ("locations", "least"),
    [
        ([PlainLocation(lines=(PlainLine(NONE, 1),) * 10_000)], 500_000),  # nobody refers to it
        ([PlainLocation(0, place) for place in range(500)], 500 * 1_000),  # nameless: m…m!0x1f3
        ([PlainLocation(0, place, (PlainLine(0, 0),)) for place in range(500)], 500 * 1_000),
    ],
)
def test_lines_and_places_have_a_weight(locations: list[PlainLocation], least: int) -> None:
    raw = encode(
        profile(
            mappings=[PlainMapping(0, 1 << 40, 0, "m" * 1_000)],
            functions=[PlainFunction(file="nowhere.c")],
            locations=locations,
            samples=[],
        )
    )
    tables = read_tables(raw)
    assert least < weight(tables) < 3 * least
    assert not surely_weighs_less(tables, least)


def varint(number: int) -> bytes:
    return bytes([*(number >> shift & 0x7F | 0x80 for shift in (0, 7, 14)), number >> 21])
