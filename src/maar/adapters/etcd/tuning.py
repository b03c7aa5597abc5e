"""How often the log looks at etcd, and how much it asks of it at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


def boot_ns() -> int:
    """A clock that goes on while the process or the machine is stopped."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Tuning(NamedTuple):
    """No settings: these values fit every etcd we know. Tests use smaller ones."""

    look_s: float = 0.5  # a reader checks the head this often, beside the watch
    append_s: float = 2.5  # an append without an answer for so long has an unknown outcome
    leader_look_s: float = 1.0  # and a candidate whether the leader is gone
    watch_silent_s: float = 2.0  # a watch that lags behind what was read for so long is restarted
    message_bytes_max: int = 64 << 20
    keys_at_once: int = 500  # keys that one step of a truncation deletes
    forget_at_once: int = 20_000  # entries of a truncation between two compactions of history
    compact_looks: int = 20  # history is compacted every so many checks
    compact_bytes: int = 64 << 20  # or after so many written bytes
    boot_ns: Callable[[], int] = boot_ns


TUNING = Tuning()
