# mypy: disallow-untyped-decorators=False
"""Values added up by stack, without a query engine. Pure, and compiled."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from maar.pprof.kernel import allocating_kernel
from maar.query.decide.totals import Flags, Int, Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFrames:
    """Stack i has the frames from offset[i] to offset[i + 1], root first, as places in `names`."""

    ids: Int
    offset: Int
    frame: Int32
    names: tuple[str, ...]  # sorted: then those of all parts are nearly in order
    slots: Int32  # a hash table of places in `ids`, -1 where it is free
    size: int  # bytes in memory
    key: Hashable = None  # what it was read from, if that never changes


class StackSums:
    """The values of one part, by the places of its stacks."""

    def __init__(self, stacks: StackFrames) -> None:
        self.stacks = stacks
        self.value = np.zeros(stacks.ids.size, np.int64)
        self.seen: Flags = np.zeros(stacks.ids.size, np.bool_)
        self.weight = 0.0  # of absolute values; wrong only in the last places
        self.complete = True  # no stack was missing

    def add(self, ids: Int, values: Int, first: Int, end: Int) -> None:
        """Rows first[i] to end[i], for every i."""
        weight = _add(
            ids,
            values,
            first,
            end,
            self.stacks.ids,
            self.stacks.slots,
            self.value,
            self.seen,
        )
        self.complete = self.complete and weight >= 0
        self.weight += weight

    def count_frames(self) -> int:
        """Of all stacks that were seen."""
        return int(_frames_seen(self.seen, self.stacks.offset))

    def gather(self, rank: Int32) -> tuple[Int, Int32, Int]:
        """Lengths, frames and values of the stacks that were seen; `rank` says which number each
        name has now.
        """
        stacks, frames = self.stacks, self.count_frames()
        return _gather(self.seen, self.value, stacks.offset, stacks.frame, rank, frames)  # type: ignore[no-any-return]


def frames_of(pieces: Iterable[pa.Table], *, key: Hashable = None) -> StackFrames:
    """From the columns stack_id and functions; a stack that is there twice counts once."""
    number: dict[str, int] = {}
    ids, lengths, frames = [np.zeros(0, np.int64)], [np.zeros(1, np.int64)], [np.zeros(0, np.int32)]
    for piece in pieces:
        for batch in piece.to_batches():
            lists = batch.column("functions")
            flat = lists.flatten()
            coded = flat if pa.types.is_dictionary(flat.type) else flat.dictionary_encode()
            names = coded.dictionary.to_pylist()
            shared = np.array([number.setdefault(n, len(number)) for n in names], np.int32)
            ids.append(batch.column("stack_id").to_numpy())
            lengths.append(lists.value_lengths().fill_null(0).to_numpy().astype(np.int64))
            frames.append(shared[coded.indices.to_numpy()] if len(coded) else frames[0])
    known = np.concatenate(ids)
    slots = _table(known)
    names, frame = _sort_names(number, np.concatenate(frames))
    text = sum(map(len, names))
    return StackFrames(
        ids=known,
        offset=np.cumsum(np.concatenate(lengths)),
        frame=frame,
        names=names,
        slots=slots,
        size=16 * known.size + 4 * (frame.size + slots.size) + 2 * text + 80 * len(number) + 1024,
        key=key,
    )


def _sort_names(number: dict[str, int], frame: Int32) -> tuple[tuple[str, ...], Int32]:
    names = tuple(sorted(number))
    rank = np.zeros(len(names), np.int32)
    rank[[number[name] for name in names]] = np.arange(len(names), dtype=np.int32)
    return names, rank[frame]


def warm() -> None:
    """Load the compiled code, or have it compiled: numbers of Arrow cannot be written to."""
    one = pa.array([1], pa.int64())
    table = pa.table({"stack_id": one, "functions": pa.array([["a"]])})
    sums = StackSums(frames_of([table]))
    place = np.zeros(1, np.int64)
    sums.add(one.to_numpy(), one.to_numpy(), place, place + 1)
    sums.add(np.ones(1, np.int64), np.ones(1, np.int64), place, place + 1)
    sums.gather(np.zeros(1, np.int32))


@allocating_kernel
def _table(ids: Any) -> Any:
    size = 8
    while size < 2 * ids.size:
        size *= 2
    slots = np.full(size, -1, np.int32)
    for place in range(ids.size):
        slot = ids[place] & (size - 1)
        while slots[slot] >= 0 and ids[slots[slot]] != ids[place]:
            slot = (slot + 1) & (size - 1)
        if slots[slot] < 0:
            slots[slot] = place
    return slots


@allocating_kernel
def _add(
    ids: Any, values: Any, first: Any, end: Any, known: Any, slots: Any, sums: Any, seen: Any
) -> Any:
    """The weight of what was added, or -1 when a stack is not known."""
    mask = slots.size - 1
    weight = 0.0
    for part in range(first.size):
        for row in range(first[part], end[part]):
            slot = ids[row] & mask
            place = slots[slot]
            while place >= 0 and known[place] != ids[row]:
                slot = (slot + 1) & mask
                place = slots[slot]
            if place < 0:
                return -1.0
            sums[place] += values[row]
            seen[place] = True
            weight += abs(float(values[row]))
    return weight


@allocating_kernel
def _frames_seen(seen: Any, offset: Any) -> Any:
    frames = 0
    for stack in range(seen.size):
        if seen[stack]:
            frames += offset[stack + 1] - offset[stack]
    return frames


@allocating_kernel
def _gather(seen: Any, value: Any, offset: Any, frame: Any, rank: Any, frames: int) -> Any:
    count = 0
    for stack in range(seen.size):
        count += seen[stack]
    lengths = np.zeros(count, np.int64)
    values = np.zeros(count, np.int64)
    ranked = np.zeros(frames, np.int32)
    at, number = 0, 0
    for stack in range(seen.size):
        if seen[stack]:
            lengths[number] = offset[stack + 1] - offset[stack]
            values[number] = value[stack]
            number += 1
            for place in range(offset[stack], offset[stack + 1]):
                ranked[at] = rank[frame[place]]
                at += 1
    return lengths, ranked, values
