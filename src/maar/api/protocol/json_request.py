"""Requests in JSON as their messages: plain ones read at once, all others by protobuf's own reader.

Protobuf's takes longer than the whole of a small query. What is read here is only what both read in
the same way: text, whole numbers and lists of text, each field once and by a name that is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
from google.protobuf import json_format

DIGITS_MAX = 18  # so many always fit 64 bits

_KEY_END = re.compile(rb'"[ \t\r\n]*:')  # behind every key, and perhaps within some text
_decode = msgspec.json.Decoder(dict[str, str | int | float | list[str]]).decode
Take = Callable[[Any], Any]  # None: protobuf's reader has to say what it is


def parse_json(raw: bytes, kind: Any) -> Any:
    """The message; errors are those of `json_format.Parse`."""
    plain = read_plain(raw, kind)
    if plain is not None:
        return plain
    return json_format.Parse(raw, kind(), ignore_unknown_fields=True)


def read_plain(raw: bytes, kind: Any) -> Any:
    """The message of a plain request, or None."""
    try:
        given = _decode(raw)
    except msgspec.DecodeError:
        return None
    if len(_KEY_END.findall(raw)) != len(given):  # a key may be there twice, which is an error
        return None
    fields = _fields(kind.DESCRIPTOR)
    values: dict[str, Any] = {}
    for key, value in given.items():
        name, take = fields.get(key, ("", None))
        taken = take(value) if take is not None else None
        if taken is None or name in values:
            return None
        values[name] = taken
    return kind(**values)


@cache
def _fields(descriptor: Any) -> dict[str, tuple[str, Take]]:
    """By both names that JSON may call a field by."""
    found = {}
    for field in descriptor.fields:
        take = _take_of(field)
        if take is not None:
            found[field.name] = found[field.json_name] = (field.name, take)
    return found


def _take_of(field: Any) -> Take | None:
    is_text = field.type == field.TYPE_STRING
    if field.is_repeated:
        return _take_texts if is_text else None
    if is_text:
        return _take_text
    if field.cpp_type == field.CPPTYPE_INT64:
        return _take_integer
    if field.cpp_type == field.CPPTYPE_DOUBLE:
        return _take_number
    return None


def _take_text(value: Any) -> str | None:
    return value if type(value) is str else None


def _take_texts(value: Any) -> list[str] | None:
    return value if type(value) is list else None


def _take_integer(value: Any) -> int | None:
    if type(value) is str and len(value) <= DIGITS_MAX and value.isascii() and value.isdigit():
        return int(value)
    return value if _is_whole(value) else None


def _take_number(value: Any) -> float | None:
    return float(value) if type(value) is float or _is_whole(value) else None


def _is_whole(value: Any) -> bool:
    return type(value) is int and abs(value) < 10**DIGITS_MAX
