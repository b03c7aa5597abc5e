"""Numbers and durations as text."""

from __future__ import annotations

from maar.model.time import SECOND_NS


def count_text(number: int, what: str) -> str:
    """So many of them: `1 block`, `2 blocks`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def span_text(duration_ns: int) -> str:
    seconds = max(0, duration_ns) / SECOND_NS
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.1f} days"


def size_text(count: int) -> str:
    amount = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"
