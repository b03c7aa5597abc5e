"""Sums that stay right: 64 bits where none can overflow, else Python's integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

ANSWER_MAX = 2**63 - 1  # the API's integers have 64 bits

# int64 or object. Both are added by the same NumPy calls; the second takes longer and cannot wrap.
Values = npt.NDArray[Any]

_LOW = np.int64(0xFFFFFFFF)


def integers(sums: pa.ChunkedArray) -> Values:
    """128-bit sums as DuckDB gives them. Whatever is added up of an int64 array fits int64."""
    bounds = pc.min_max(sums)
    largest = max(-int(bounds["min"].as_py() or 0), int(bounds["max"].as_py() or 0))
    if largest <= ANSWER_MAX:
        values: Values = sums.cast(pa.int64()).to_numpy()
        if largest * len(values) <= ANSWER_MAX or magnitude(values) <= ANSWER_MAX:
            return values
    return np.array([int(value) for value in sums.to_pylist()], dtype=object)


def magnitude(values: npt.NDArray[np.int64]) -> int:
    """The sum of absolute values, exact: in halves, each of which 2^31 rows cannot overflow."""
    sizes = np.abs(values)
    return (int((sizes >> 32).sum()) << 32) + int((sizes & _LOW).sum())
