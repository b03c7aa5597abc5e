"""How compiled functions are compiled: without the interpreter's lock, and kept on disk.

They allocate nothing, so reference counting is off: counting the arrays would double the time. Keep
all functions that call each other in one file, because the cache notices a change in the file of
the function that is called, and not in the files of those that it calls in turn.
"""

from __future__ import annotations

from typing import Any

from numba import njit

_OPTIONS = {"nogil": True, "_nrt": False}


def kernel(function: Any) -> Any:
    """A function that Python calls."""
    try:
        return njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # no directory for the cache can be written: compile for this process
        return njit(**_OPTIONS)(function)


# A part of kernels. A call would cost as much as the work, since each array is passed in parts.
inline: Any = njit(forceinline=True, **_OPTIONS)
