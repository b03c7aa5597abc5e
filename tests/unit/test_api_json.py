"""Answers as JSON, against protobuf's own mapping."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from google.protobuf import json_format

from maar.api.protocol import wire

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
