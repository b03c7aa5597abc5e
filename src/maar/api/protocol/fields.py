"""Counts the fields of a message before it is parsed: two bytes can cost forty of memory."""

from __future__ import annotations

from maar.model.errors import InvalidInput, TooLarge

_FIXED = {1: 8, 5: 4}  # bytes by wire type
_VARINT, _LENGTH = 0, 2


def check_fields(raw: bytes, *, depth: int, fields_max: int) -> None:
    """Refuse a message with too many fields, down to a depth; one walk, no copies."""
    left = [fields_max]
    _walk(raw, 0, len(raw), depth, left)


def _walk(raw: bytes, position: int, end: int, depth: int, left: list[int]) -> None:
    while position < end:
        left[0] -= 1
        if left[0] < 0:
            raise TooLarge("the request has too many fields; send fewer profiles in one push")
        tag, position = _varint(raw, position, end)
        kind = tag & 7
        if kind == _VARINT:
            _, position = _varint(raw, position, end)
        elif kind in _FIXED:
            position += _FIXED[kind]
        elif kind == _LENGTH:
            length, position = _varint(raw, position, end)
            if depth > 1:
                _walk(raw, position, min(end, position + length), depth - 1, left)
            position += length
        else:
            raise InvalidInput(
                f"the request is not a protobuf message: wire type {kind} at byte {position}",
                reason="request",
            )


def _varint(raw: bytes, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 70:
        byte = raw[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise InvalidInput(
        f"the request is not a protobuf message: it breaks off at byte {position}",
        reason="request",
    )
