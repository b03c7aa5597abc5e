"""A run as streams that are in their table's order, also where ids were given anew (S17)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from maar.block.format.dictionary import trim
from maar.block.format.order import row_key, same_as_before, sorted_table
from maar.block.format.tables import DIMENSIONS, LAYOUTS
from maar.block.merge.run import Run, RunShare

MOVED_ROWS = 65_536  # samples of re-keyed series that are sorted in memory

_SERIES = ("service", "profile_type", "series_id")  # samples of one series and type are together
_INSTANT = (*_SERIES, "time")
_SHARED = (*_INSTANT, "profile_id")  # what decides whether a row is in a share

Part = tuple[Any, ...]  # the key of one series and type


def streams(
    run: Run,
    table: str,
    *,
    budget: int,
    share: RunShare | None = None,
    moved_rows: int = MOVED_ROWS,
) -> list[Iterator[pa.Table]]:
    """What a run has of a table: one stream, and one more when re-keyed rows belong elsewhere."""
    if table in DIMENSIONS and run.rekeyed.get(table):
        there = _rows(run, table, budget, share, moved=False)
        return [there, _moved_symbols(run, table, budget, share)]
    if table != "samples":
        return [run.read(table, budget=budget, share=share)]
    found = [run.read(table, budget=budget, share=share)]
    if run.rekeyed.get("series"):
        there = _rows(run, table, budget, share, moved=False)
        found = [there, _moved_samples(run, budget, share, moved_rows)]
    if run.rekeyed.get("stacks"):
        found = [_by_stack(stream) for stream in found]
    return found


def _rows(
    run: Run,
    table: str,
    budget: int,
    share: RunShare | None,
    *,
    moved: bool,
    columns: tuple[str, ...] | None = None,
) -> Iterator[pa.Table]:
    """The rows whose id is new, or the others. A new id is one that no run came with."""
    column, target = (
        ("series_id", "series") if table == "samples" else (LAYOUTS[table].unique, table)
    )
    new = pa.array(sorted(run.rekeyed[target].values()), pa.int64())
    for piece in run.read(table, budget=budget, share=share, columns=columns):
        renamed = pc.is_in(piece[column], new)
        kept = piece.filter(renamed if moved else pc.invert(renamed))
        if kept.num_rows:
            yield kept


def _moved_symbols(run: Run, table: str, budget: int, share: RunShare | None) -> Iterator[pa.Table]:
    """Few enough for memory: each was compared by its content when it got its id."""
    found = [trim(piece) for piece in _rows(run, table, budget, share, moved=True)]
    if found:
        yield sorted_table(pa.concat_tables(found), LAYOUTS[table].key)


def _moved_samples(
    run: Run, budget: int, share: RunShare | None, moved_rows: int
) -> Iterator[pa.Table]:
    """Samples of re-keyed series in the order of the new ids: small series together, large alone.

    A series may have any number of samples, so they are read once more for each group of series.
    """
    sizes: Counter[Part] = Counter()
    for piece in _rows(run, "samples", budget, share, moved=True, columns=_SHARED):
        for part, rows in _parts(piece):
            sizes[part] += rows.num_rows
    for group in _groups(sizes, moved_rows):
        found = (
            rows
            for piece in _rows(run, "samples", budget, share, moved=True)
            for part, rows in _parts(piece)
            if part in group
        )
        if len(group) == 1:
            yield from found  # in order by itself
        else:
            held = pa.concat_tables([trim(rows) for rows in found])
            yield sorted_table(held, LAYOUTS["samples"].key)


def _groups(sizes: Counter[Part], moved_rows: int) -> list[Collection[Part]]:
    groups: list[set[Part]] = []
    room = 0
    for part in sorted(sizes):
        if not groups or sizes[part] > room:
            groups.append(set())
            room = moved_rows
        groups[-1].add(part)
        room -= sizes[part]
    return list(groups)


def _parts(piece: pa.Table) -> Iterator[tuple[Part, pa.Table]]:
    """Each series and type of a piece, and its rows."""
    piece = piece.combine_chunks()
    starts = np.flatnonzero(~same_as_before(piece.select(_SERIES))).tolist()
    for start, end in pairwise([*starts, piece.num_rows]):
        yield row_key(piece, _SERIES, start), piece.slice(start, end - start)


def _by_stack(stream: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The stack comes last in the order, so that no more than one instant must be put right."""
    key = LAYOUTS["samples"].key
    held: list[pa.Table] = []
    for piece in stream:
        held.append(piece)
        last = row_key(piece, _INSTANT, piece.num_rows - 1)
        if row_key(held[0], _INSTANT, 0) == last:
            continue
        whole = sorted_table(pa.concat_tables(held), key)
        start = int(np.flatnonzero(~same_as_before(whole.select(_INSTANT)))[-1])
        yield whole.slice(0, start)
        held = [trim(whole.slice(start))]
    if held:
        yield sorted_table(pa.concat_tables(held), key)
