"""What a profile is called when its agent did not say: the name that its value types imply.

Names are those that Pyroscope gives, so that saved dashboards and links go on working.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# What value types mean where the agent sends no display names along.
_SHOWN_AS = {
    "samples": "cpu",
    "goroutine": "goroutines",
    "contentions": "mutex_count",  # block profiles look alike; an agent that cares says which
    "delay": "mutex_duration",
}
_PREFIXES = (
    ("mutex_", "mutex"),
    ("block_", "block"),
    ("alloc_", "memory"),
    ("inuse_", "memory"),
)
_WORDS = {
    "wall": "wall",
    "space": "memory",
    "objects": "memory",
    "exceptions": "exceptions",
    "goroutines": "goroutines",
}
UNNAMED = "unknown"


def profile_name(sample_types: Iterable[str], shown_as: Mapping[str, str] | None = None) -> str:
    """The `__name__` for these value types.

    `shown_as` are the display names that some agents send along; they say more than the types do.
    """
    names = shown_as or _SHOWN_AS
    shown = tuple(names.get(name, name) for name in sample_types)
    if "wall" in shown:  # a wall profile may count cpu beside it
        return "wall"
    for name in shown:
        if "cpu" in name:
            return "process_cpu"
    for name in shown:
        for prefix, meaning in _PREFIXES:
            if name.startswith(prefix):
                return meaning
        if name in _WORDS:
            return _WORDS[name]
    return _label_safe(shown[-1]) if shown else UNNAMED


def _label_safe(text: str) -> str:
    safe = "".join(char if char.isascii() and char.isalnum() else "_" for char in text)
    return safe or UNNAMED
