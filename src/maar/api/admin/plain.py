"""Our records as plain JSON values: objects with named fields, ids as text."""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from maar.model.ids import FencingToken, PlanId


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
