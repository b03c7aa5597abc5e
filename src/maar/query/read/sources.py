"""The parts of one query, each as runs: blocks by their files, level 0 by its decoded tables."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from maar.model.block import BlockMeta, Dataset
from maar.model.predicate import Mask
from maar.model.time import TimeRange
from maar.query.decide.label_columns import SeriesLabels
from maar.query.decide.select import Parts
from maar.query.decide.stack_sums import StackFrames, StackSums
from maar.query.decide.totals import RUN_BYTES, Int, Totals
from maar.query.read.block_reader import BlockReader
from maar.query.read.level0 import DecodedPart
from maar.query.read.sql import micros

SERIES_BYTES = 300  # of the labels of a series in memory, about
ROWS_MAX = 16_000_000  # samples that one query reads without DuckDB
STACKS_MAX = 500_000  # and stacks

Hidden = tuple[str, int, int]  # service or '', from and until in microseconds


class Source(Protocol):
    """One part. Of a profile in two of them, the first one counts."""

    @property
    def key(self) -> Hashable: ...

    @property
    def totals(self) -> Totals: ...

    @property
    def hidden(self) -> Sequence[Hidden]: ...

    @property
    def raw_stacks(self) -> int:
        """How many stacks a part of level 0 has; 0 of a block, whose index says it."""
        ...

    def labels(self) -> SeriesLabels: ...

    def sums(self, runs: Int) -> StackSums: ...

    def frames_at_hand(self, runs: Int) -> StackFrames | None:
        """All its stacks, when nothing has to be read for sums of these runs."""
        ...


@dataclass(frozen=True, slots=True)
class BlockSource:
    reader: BlockReader
    meta: BlockMeta
    service: str  # '': all of them
    totals: Totals
    hidden: Sequence[Hidden]
    check: Callable[[], None]

    @property
    def key(self) -> Hashable:
        return self.meta.id, self.service

    @property
    def raw_stacks(self) -> int:
        return 0

    def labels(self) -> SeriesLabels:
        return self.reader.labels(self.meta)

    def sums(self, runs: Int) -> StackSums:
        return self.reader.sums(self.meta, self.service, self.totals, runs, self.check)

    def frames_at_hand(self, runs: Int) -> StackFrames | None:
        return self.reader.frames_at_hand(self.meta, self.service, self.totals, runs)


@dataclass(frozen=True, slots=True)
class RawSource:
    part: DecodedPart
    hidden: Sequence[Hidden]

    @property
    def key(self) -> Hashable:
        return None  # its ids are compared each time: it is soon gone

    @property
    def raw_stacks(self) -> int:
        return int(self.part.tables["stacks"].num_rows)

    @property
    def totals(self) -> Totals:
        return self.part.runs.totals

    def labels(self) -> SeriesLabels:
        return self.part.runs.labels

    def sums(self, runs: Int) -> StackSums:
        return self.part.runs.sums(runs)

    def frames_at_hand(self, _runs: Int) -> StackFrames | None:
        return None


def sources_of(
    parts: Parts,
    *,
    service: str,
    reader: BlockReader,
    decode: Callable[[BlockMeta, Sequence[Dataset]], list[DecodedPart]],
    check: Callable[[], None],
) -> list[Source]:
    """In the order that decides which of two copies counts."""
    found: list[Source] = []
    for meta in parts.blocks:
        check()
        totals = reader.totals(meta, service)
        hidden = hidden_ranges(parts.masks.get(meta.id, ()))
        found.append(BlockSource(reader, meta, service, totals, hidden, check))
    for meta, datasets in parts.raw:
        hidden = hidden_ranges(parts.masks.get(meta.id, ()))
        found += [RawSource(part, hidden) for part in decode(meta, datasets)]
    return found


def hidden_ranges(masks: Sequence[Mask]) -> list[Hidden]:
    """Masks in microseconds, which their bounds are whole numbers of."""
    return [(mask.service, *micros(TimeRange(mask.from_ns, mask.until_ns))) for mask in masks]


def bytes_wanted(parts: Parts, *, service: str) -> int:
    """About how much of blocks would be held in memory: what does not fit is left to DuckDB."""
    runs = sum(
        dataset.profiles * max(len(dataset.types), 1)
        for meta in parts.blocks
        for dataset in meta.datasets
        if service in ("", dataset.service)
    )
    series = sum(meta.file("series").rows for meta in parts.blocks)
    return (RUN_BYTES + 16) * runs + SERIES_BYTES * series
