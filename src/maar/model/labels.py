"""Labels: sorted, unique pairs of names and values that name a series."""

from __future__ import annotations

import re
from collections.abc import Iterable

import xxhash

from maar.model.errors import InvalidInput

Labels = tuple[tuple[str, str], ...]  # sorted by name, names unique

SERVICE_NAME = "service_name"
PROFILE_NAME = "__name__"
LABELS_MAX = 30
NAME_LENGTH_MAX = 1024
VALUE_LENGTH_MAX = 2048

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


def sanitize_name(name: str) -> str:
    """Agents send dotted names (otel.scope.name); they are kept with underscores."""
    return name.replace(".", "_")


def labels_of(pairs: Iterable[tuple[str, str]]) -> Labels:
    """Check, sanitize and sort; empty values mean absent, as everywhere in this field."""
    seen: dict[str, str] = {}
    for name, value in pairs:
        _check(name, value)
        clean = sanitize_name(name)
        if clean in seen and seen[clean] != value:
            raise InvalidInput(
                f"label {clean!r} is given twice with different values", reason="labels"
            )
        if value:
            seen[clean] = value
    if len(seen) > LABELS_MAX:
        raise InvalidInput(
            f"{len(seen)} labels are more than the {LABELS_MAX} allowed", reason="labels"
        )
    return tuple(sorted(seen.items()))


def _check(name: str, value: str) -> None:
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidInput(
            f"a label name of {len(name)} characters is over {NAME_LENGTH_MAX}", reason="labels"
        )
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"label name {name[:60]!r} is not allowed: letters, digits, '_' and '.' only",
            reason="labels",
        )
    if len(value) > VALUE_LENGTH_MAX:
        raise InvalidInput(
            f"label {name[:60]!r} has a value of {len(value)} characters, over {VALUE_LENGTH_MAX}",
            reason="labels",
        )
    if any(ord(char) < 0x20 or ord(char) == 0x7F for char in value):
        raise InvalidInput(
            f"label {name[:60]!r} has a control character in its value", reason="labels"
        )


def value_of(labels: Labels, name: str) -> str:
    """The value of a label, or '' when it is absent."""
    return next((value for key, value in labels if key == name), "")


def fingerprint(labels: Labels) -> int:
    """64 bits that name a series for placement (unsigned)."""
    return xxhash.xxh64_intdigest(_join(labels))


def series_id(labels: Labels) -> int:
    """64 bits that name a series within a block; signed, since Spark reads unsigned slowly."""
    unsigned = xxhash.xxh3_64_intdigest(_join(labels))
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned


def _join(labels: Labels) -> bytes:
    return b"".join(
        f"{name}\xff{value}\xff".encode("utf-8", "surrogateescape") for name, value in labels
    )
