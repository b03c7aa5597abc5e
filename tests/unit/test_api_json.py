"""Answers and requests as JSON, against protobuf's own mapping."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import msgspec
import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from maar.api.protocol import wire
from maar.api.protocol.json_request import parse_json, read_plain

KINDS = (
    wire.PushRequest,
    wire.LabelNamesResponse,
    wire.ProfileTypesResponse,
    wire.SeriesResponse,
    wire.SelectMergeStacktracesRequest,
    wire.SelectMergeStacktracesResponse,
    wire.SelectSeriesRequest,
    wire.SelectSeriesResponse,
)


def some_value(random: Random, field: Any) -> Any:
    if field.cpp_type == field.CPPTYPE_INT64:
        return random.choice((0, 1, -1, 2**63 - 1))
    if field.cpp_type == field.CPPTYPE_DOUBLE:
        return random.choice((0.0, -0.0, 1.5, -2e18))
    if field.cpp_type == field.CPPTYPE_BOOL:
        return random.random() < 0.5
    if field.type == field.TYPE_BYTES:
        return random.choice((b"", b"\xff\x00a"))
    if field.cpp_type == field.CPPTYPE_STRING:
        return random.choice(("", "é", "a b"))
    return random.choice((0, 1))


def fill(random: Random, message: Any, depth: int = 0) -> None:
    for field in message.DESCRIPTOR.fields:
        if random.random() < 0.3:
            continue
        if field.cpp_type == field.CPPTYPE_MESSAGE:
            if depth < 4:
                target = getattr(message, field.name)
                for _ in range(random.randrange(3) if field.is_repeated else 1):
                    inner = target.add() if field.is_repeated else target
                    inner.SetInParent()
                    fill(random, inner, depth + 1)
        elif field.is_repeated:
            values = [some_value(random, field) for _ in range(random.randrange(3))]
            getattr(message, field.name).extend(values)
        else:
            setattr(message, field.name, some_value(random, field))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.DESCRIPTOR.name)
def test_a_message_as_json_is_what_protobuf_makes_of_it(kind: Any) -> None:
    random = Random(5)
    for _ in range(50):
        message = kind()
        fill(random, message)
        ours = msgspec.json.decode(msgspec.json.encode(wire.json_of(message)))
        theirs = json_format.MessageToDict(message, use_integers_for_enums=True)
        assert ours == theirs


PLAIN_KINDS = (
    wire.LabelNamesRequest,
    wire.LabelValuesRequest,
    wire.ProfileTypesRequest,
    wire.SeriesRequest,
    wire.SelectMergeStacktracesRequest,
    wire.SelectSeriesRequest,
)


def outcome(read: Any, raw: bytes, kind: Any) -> Any:
    """A message, or that there is none."""
    try:
        return read(raw, kind)
    except json_format.ParseError:
        return None


def by_protobuf(raw: bytes, kind: Any) -> Any:
    return json_format.Parse(raw, kind(), ignore_unknown_fields=True)


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**64), 2**64),
    st.floats(),
    st.text(max_size=4),
    st.sampled_from(["12", "-12", "1_2", " 1", "9" * 19, "٣", '":', "1.0", "NaN", "\ud800"]),
    st.lists(st.text(max_size=2) | st.none(), max_size=2),
    st.dictionaries(st.text(max_size=2), st.text(max_size=2), max_size=1),
)


@pytest.mark.parametrize("kind", PLAIN_KINDS, ids=lambda kind: kind.DESCRIPTOR.name)
@given(data=st.data())
def test_a_request_in_json_is_read_as_protobuf_reads_it(kind: Any, data: st.DataObject) -> None:
    fields = kind.DESCRIPTOR.fields
    keys = [*(f.name for f in fields), *(f.json_name for f in fields), "unknown"]
    pairs = data.draw(st.lists(st.tuples(st.sampled_from(keys), values), max_size=4))
    said = ",".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in pairs)
    raw = f"{{{said}}}".encode()
    assert outcome(parse_json, raw, kind) == outcome(by_protobuf, raw, kind)


def test_a_usual_request_is_read_at_once() -> None:
    raw = b'{"start": "1000", "end": 2000, "profile_typeID": "a:b", "labelSelector": "{}"}'
    found = read_plain(raw, wire.SelectMergeStacktracesRequest)
    assert (found.start, found.end, found.profile_typeID) == (1000, 2000, "a:b")
    assert found.label_selector == "{}"


@pytest.mark.parametrize(
    "raw", [b'{"start": "1", "start": "2"}', b'{"name": "a", "other": 1}', b'{"start": null}', b"["]
)
def test_whatever_else_is_left_to_protobuf(raw: bytes) -> None:
    assert read_plain(raw, wire.LabelValuesRequest) is None
