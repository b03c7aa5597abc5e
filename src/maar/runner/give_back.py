"""Memory that was freed goes back to the system: a task's not to the next task of its process.

Allocators keep what is freed. A process that has merged large blocks would hold that much for as
long as the worker lives, in every slot.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import suppress


def give_back() -> None:
    """Also what only the garbage collector frees."""
    gc.collect()
    give_back_freed()


def give_back_freed() -> None:
    arrow = sys.modules.get("pyarrow")  # whoever has not loaded it, such as a driver, has none
    if arrow is not None:
        arrow.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
