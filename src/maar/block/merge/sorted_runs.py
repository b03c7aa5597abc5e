"""Merges sorted runs into one sorted stream, with a small part of each run in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from maar.block.format.dictionary import trim
from maar.block.format.order import count_until, merge_sorted, row_key, same_as_before
from maar.block.format.tables import DIMENSIONS, LAYOUTS
from maar.block.merge.run import Run, RunShare
from maar.block.merge.streams import MOVED_ROWS, streams

BUDGET = 32 << 20  # bytes of all runs together that are in memory at a time


def merge_runs(
    table: str,
    runs: Sequence[Run],
    shares: Sequence[RunShare] | None = None,
    *,
    budget: int = BUDGET,
    moved_rows: int = MOVED_ROWS,
) -> Iterator[pa.Table]:
    """The rows of all runs in the table's order; of equal rows of a dimension, one."""
    layout = LAYOUTS[table]
    each = budget // max(len(runs), 1)
    cursors = [
        _Cursor(layout.key, stream)
        for place, run in enumerate(runs)
        for stream in streams(
            run,
            table,
            budget=each,
            share=shares[place] if shares else None,
            moved_rows=moved_rows,
        )
    ]
    stream = _in_order(layout.key, cursors)
    if table in DIMENSIONS:
        stream = _without_repeats(layout.unique, stream)
    return stream


class _Cursor:
    """What is read of one run and not yet given away."""

    def __init__(self, key: tuple[str, ...], pieces: Iterator[pa.Table]) -> None:
        self._key = key
        self._pieces = pieces
        self._read_on()

    def _read_on(self) -> None:
        self.held: pa.Table | None = next(self._pieces, None)
        if self.held is not None:
            self.first = row_key(self.held, self._key, 0)
            self.last = row_key(self.held, self._key, self.held.num_rows - 1)

    def until(self, horizon: tuple[Any, ...]) -> pa.Table:
        """Give away the rows up to a key (included), of which there are some, and read on when
        nothing is left.
        """
        assert self.held is not None
        if self.last <= horizon:
            given = self.held
            self._read_on()
            return given
        rows = count_until(self.held, self._key, horizon)
        given = self.held.slice(0, rows)
        self.held = self.held.slice(rows)
        self.first = row_key(self.held, self._key, 0)
        return given

    def rest(self) -> Iterator[pa.Table]:
        if self.held is not None:
            yield self.held
            yield from self._pieces


def _in_order(key: tuple[str, ...], cursors: list[_Cursor]) -> Iterator[pa.Table]:
    while True:
        cursors = [cursor for cursor in cursors if cursor.held is not None]
        if len(cursors) < 2:
            break
        # No run can still bring a row before the least of the last rows that we hold.
        horizon = min(cursor.last for cursor in cursors)
        parts = [cursor.until(horizon) for cursor in cursors if cursor.first <= horizon]
        if len(parts) == 1:
            yield parts[0]
        else:
            yield merge_sorted(parts, key)
    for cursor in cursors:
        yield from cursor.rest()


def _without_repeats(unique: str, stream: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Leave out rows that equal the row before them, also across pieces.

    Rows with the same id and other content stay: they are found and re-keyed when the block is
    written, by one who sees all of them.
    """
    before: pa.Table | None = None  # the last row
    for piece in stream:
        ids = piece[unique].to_numpy()
        repeated = np.zeros(ids.size, np.bool_)
        repeated[1:] = ids[1:] == ids[:-1]
        if repeated.any():
            piece = piece.combine_chunks()
            repeated &= same_as_before(piece)
        repeated[0] = before is not None and _repeats(piece, before, unique)
        before = trim(piece.slice(ids.size - 1))
        if repeated.any():
            piece = piece.filter(pa.array(~repeated))
        if piece.num_rows:
            yield piece


def _repeats(piece: pa.Table, before: pa.Table, unique: str) -> bool:
    """Whether its first row equals the one before it."""
    if piece[unique][0] != before[unique][0]:
        return False
    both = pa.concat_tables([before, piece.slice(0, 1)]).combine_chunks()
    return bool(same_as_before(both)[1])
