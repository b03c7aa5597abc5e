"""Which profiles came more than once: the first in queue order stays (S9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa


def id_words(ids: Any) -> Any:
    """A column of 16-byte ids as an array of pairs of words."""
    array = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
    if not len(array):
        return np.empty((0, 2), np.uint64)
    words = np.frombuffer(array.buffers()[1], np.uint64).reshape(-1, 2)
    return words[array.offset : array.offset + len(array)]


def later_ones(columns: Sequence[Any]) -> list[Any]:
    """Per column of ids, flags of those that were met before, in this column or an earlier one."""
    words = np.concatenate([np.empty((0, 2), np.uint64), *columns])
    order = np.lexsort((words[:, 1], words[:, 0]))  # stable: the first of equals comes first
    ordered = words[order]
    flags = np.zeros(len(words), np.bool_)
    flags[order[1:]] = (ordered[1:] == ordered[:-1]).all(axis=1)
    ends = np.cumsum([len(column) for column in columns])
    return np.split(flags, ends[:-1]) if len(columns) else []
