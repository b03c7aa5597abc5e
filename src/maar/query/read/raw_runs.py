"""Decoded level 0 as runs: the same that is read of blocks, from tables in memory. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from maar.query.decide.label_columns import SeriesLabels, labels_of_series
from maar.query.decide.stack_sums import StackFrames, StackSums, frames_of
from maar.query.decide.totals import COLUMNS, Int, Totals, runs_of, totals_of, words_of

RAW_ROW_BYTES = 40  # of what is made here, for each sample


@dataclass(frozen=True, slots=True)
class RawRuns:
    totals: Totals
    labels: SeriesLabels
    stacks: StackFrames
    stack: Int  # of each row, in the order of the runs
    value: Int

    def sums(self, runs: Int) -> StackSums:
        sums = StackSums(self.stacks)
        first = self.totals.start[runs]
        sums.add(self.stack, self.value, first, first + self.totals.rows[runs])
        return sums


def raw_runs(tables: Mapping[str, pa.Table]) -> RawRuns:
    """Decoded rows are in no order: they are put into that of their runs first."""
    samples = tables["samples"].combine_chunks()
    words = words_of(samples["profile_id"])
    keys = [
        words[:, 1],
        words[:, 0],
        samples["series_id"].to_numpy(),
        *(_codes(samples[name]) for name in ("profile_type", "service")),
    ]
    order = np.lexsort(keys)
    ordered = samples.take(pa.array(order))
    return RawRuns(
        totals_of([runs_of(ordered.select(COLUMNS), first_row=0)]),
        labels_of_series(tables["series"]),
        frames_of([tables["stacks"]]),
        np.array(ordered["stack_id"].to_numpy()),
        np.array(ordered["value"].to_numpy()),
    )


def _codes(column: pa.ChunkedArray) -> Int:
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    array = coded.unify_dictionaries().combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], array.type)
    codes: Int = array.indices.to_numpy()
    return codes
