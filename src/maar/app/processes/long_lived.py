"""Keeps the garbage collector of a process away from what stays in memory for long."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def long_lived() -> Iterator[None]:
    """What is loaded within stays: the collector does not walk it (S15). What was loaded before may
    go. This concerns all of the process, so whoever owns the process decides it.
    """
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()
