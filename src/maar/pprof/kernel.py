"""How compiled functions are compiled: without the interpreter's lock, and kept on disk.

Keep all functions that call each other in one file, because the cache notices a change in the file
of the function that is called, and not in the files of those that it calls in turn.
"""

from __future__ import annotations

from typing import Any

from numba import njit
from numba.core.caching import FunctionCache
from numba.core.runtime import rtsys

_OPTIONS = {"nogil": True, "_nrt": False}


def kernel(function: Any) -> Any:
    """A function that Python calls. It allocates nothing, so reference counting is off: counting
    the arrays would double the time.
    """
    return _keep_on_disk(njit(**_OPTIONS)(function))


def allocating_kernel(function: Any) -> Any:
    """The same for one that makes arrays."""
    return _keep_on_disk(njit(nogil=True)(function))


# A part of kernels. A call would cost as much as the work, since each array is passed in parts.
inline: Any = njit(forceinline=True, **_OPTIONS)


class _Cache(FunctionCache):  # type: ignore[misc]  # Numba has no types
    """Numba's cache, which needs the compiler only for what it does not have.

    Numba fills the compiler's tables before it looks: a tenth of a second and 10 MB for each
    process, of which hardly any compiles. Machine code needs no more than the runtime it calls.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)


def _keep_on_disk(compiled: Any) -> Any:
    try:
        compiled._cache = _Cache(compiled.py_func)
    except RuntimeError:  # no directory for the cache can be written: compile for this process
        pass
    return compiled
