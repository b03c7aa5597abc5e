"""Our records as plain JSON values, and back: objects with named fields, ids as text."""

from __future__ import annotations

import types
from enum import Enum
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec

from maar.model.errors import InvalidInput
from maar.model.ids import FencingToken, PlanId

T = TypeVar("T")


def plain(value: Any) -> Any:
    """Structs are arrays on the wire between us; people and scripts get names."""
    match value:
        case PlanId() | FencingToken():
            return str(value)
        case msgspec.Struct():
            ours = type(value)
            names = zip(ours.__struct_encode_fields__, ours.__struct_fields__, strict=True)
            return {told: plain(getattr(value, name)) for told, name in names}
        case Enum():
            return value.name.lower()
        case tuple() | list():
            return [plain(item) for item in value]
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case bytes():
            return value.hex()
        case _:
            return value


def record(kind: type[T], value: Any) -> T:
    """The record of which `plain` made this, or InvalidInput; fields that we do not know are
    ignored, since newer programs add some.
    """
    try:
        found: T = _read(kind, value)
    except (msgspec.ValidationError, ValueError, TypeError, KeyError) as error:
        raise InvalidInput(
            f"this is no {kind.__name__}: {str(error)[:300]}", reason="request"
        ) from error
    return found


def _read(kind: Any, value: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (one,) = (each for each in arguments if each is not type(None))
        return None if value is None else _read(one, value)
    if origin is tuple:
        items = msgspec.convert(value, list)
        kinds = arguments[:1] * len(items) if arguments[-1] is Ellipsis else arguments
        return tuple(_read(each, item) for each, item in zip(kinds, items, strict=True))
    if origin is dict:
        key_kind, item_kind = arguments
        return {
            msgspec.convert(key, key_kind, strict=False): _read(item_kind, item)
            for key, item in msgspec.convert(value, dict).items()
        }
    if not isinstance(kind, type):
        return msgspec.convert(value, kind)
    if issubclass(kind, (PlanId, FencingToken)):
        return kind.parse(msgspec.convert(value, str))
    if issubclass(kind, msgspec.Struct):
        return _read_struct(kind, msgspec.convert(value, dict))
    if issubclass(kind, Enum):
        return kind[msgspec.convert(value, str).upper()]
    return bytes.fromhex(value) if kind is bytes else msgspec.convert(value, kind)


def _read_struct(kind: type[msgspec.Struct], named: dict[str, Any]) -> msgspec.Struct:
    fields = msgspec.structs.fields(kind)
    given = {
        field.name: _read(field.type, named[field.encode_name])
        for field in fields
        if field.encode_name in named
    }
    return kind(**given)
