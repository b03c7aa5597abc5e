"""Memory that a task has freed goes back to the system, not to the next task of this process.

Allocators keep what is freed. A process that has merged large blocks would hold that much for as
long as the worker lives, in every slot.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress


def give_back() -> None:
    import pyarrow as pa  # not before a task has run: whoever imports us may be a driver

    gc.collect()
    pa.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
