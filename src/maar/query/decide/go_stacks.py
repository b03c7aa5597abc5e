# mypy: disallow-untyped-decorators=False
"""Stacks of Go programs as people read them: without type parameters, and with their roots. Pure.

Go tells any of a function's type instances in a profile, whichever was called, so that they only
divide what belongs together. And it keeps at most 32 frames of an allocation (before Go 1.23) and
64 of CPU time, those nearest to the leaf. The roots that a stack has lost are taken from another
one of the same answer: one in which the 16 frames that are its first are found one to eight frames
further from the root. That is a guess, which only answers make: profiles stay as they were pushed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from maar.pprof.kernel import allocating_kernel
from maar.query.decide.budget import FRAME_BYTES, STACKS, AnswerBudget
from maar.query.decide.flamegraph import Stacks
from maar.query.decide.frame_names import SHAPE, fold, names_of_go
from maar.query.decide.totals import Flags, Int, Int32

HEAP_TYPES = ("alloc_objects", "alloc_space", "inuse_objects", "inuse_space")
HEAP_FRAMES_MAX = 32
CPU_FRAMES_MAX = 64
HIDDEN_MAX = 4  # frames of the allocator itself, which Go counts and does not write
COMMON = 16  # frames that two stacks must share
SHIFT_MAX = 8
ROOTS = COMMON + SHIFT_MAX
CHAIN_MAX = 16  # stacks of which each tells the roots of the next


def tidy_stacks(stacks: Stacks, *, profile_type: str, drawn: bool, budget: AnswerBudget) -> Stacks:
    """Of stacks that are to be drawn, only those with a value tell anything of others."""
    stacks = without_type_parameters(stacks)
    if not (frames_max := frames_max_of(profile_type)):
        return stacks
    return with_roots(stacks, frames_max=frames_max, drawn=drawn, budget=budget)


def without_type_parameters(stacks: Stacks) -> Stacks:
    if stacks.known is not None or not any(SHAPE in name for name in stacks.names):
        return stacks
    number: dict[str, int] = {}
    codes = [number.setdefault(fold(name), len(number)) for name in stacks.names]
    frame = np.array(codes, np.int32)[stacks.frame]
    return replace(stacks, names=list(number), frame=frame)


def frames_max_of(profile_type: str) -> int:
    """How many frames Go keeps of a stack of this type; 0 when it is not known to cut any."""
    _, sample_type, _, period_type, *_ = [*profile_type.split(":"), "", "", "", ""]
    if sample_type in HEAP_TYPES:
        return HEAP_FRAMES_MAX
    if sample_type == "cpu" or (sample_type, period_type) == ("samples", "cpu"):
        return CPU_FRAMES_MAX
    return 0


def with_roots(stacks: Stacks, *, frames_max: int, drawn: bool, budget: AnswerBudget) -> Stacks:
    """With the roots that stacks of about `frames_max` frames have lost, where others tell them.

    It does not depend on the order of stacks, nor on the numbers of names, nor on how often a
    stack is there: of several that fit, the one that adds the most counts, then the order of names.
    """
    length = np.diff(stacks.offset)
    fits: Flags = (length >= ROOTS) & (length <= frames_max)
    if drawn:
        fits &= stacks.value > 0
    if not (fits & (length >= frames_max - HIDDEN_MAX)).any():
        return stacks
    of_go = names_of_go(stacks.names) if stacks.known is None else stacks.known.of_go
    _leave_go(stacks.offset, stacks.frame, of_go, fits)
    chosen = np.flatnonzero(fits)
    if not chosen.size:
        return stacks
    codes = stacks.frame[stacks.offset[chosen][:, None] + np.arange(ROOTS)]
    is_used = np.zeros(len(stacks.names), np.bool_)
    is_used[codes] = True
    used = np.flatnonzero(is_used).astype(np.int32)
    if stacks.known is None:
        used = np.array(sorted(used.tolist(), key=stacks.names.__getitem__), np.int32)
    rank = np.zeros(len(stacks.names), np.int32)
    rank[used] = np.arange(used.size)
    of_stack, first, roots = _lost_roots(rank[codes])
    added = np.zeros(length.size, np.int64)
    cut = length[chosen] >= frames_max - HIDDEN_MAX
    added[chosen[cut]] = np.diff(first)[of_stack[cut]]
    if not added.any():
        return stacks
    budget.take(int(added.sum()) * FRAME_BYTES, STACKS)
    source = np.zeros(length.size, np.int64)
    source[chosen] = first[of_stack]
    return _longer(stacks, added, source, used[roots])


def warm() -> None:
    """Load the compiled code, or have it compiled: DuckDB's frames have more bits."""
    _lost_roots(np.zeros((1, ROOTS), np.int32))
    for kind in (np.int32, np.int64):
        offset, frame, one = np.arange(2), np.zeros(2, kind), np.ones(1, np.int64)
        _put_before(offset, frame, one, one * 0, np.zeros(1, np.int32), frame)
        _leave_go(offset, frame, np.ones(1, np.bool_), np.ones(1, np.bool_))


def _longer(stacks: Stacks, added: Int, source: Int, roots: Int32) -> Stacks:
    """Each stack with so many roots put before it, from their place in `roots`."""
    offset = np.concatenate(([0], np.cumsum(np.diff(stacks.offset) + added)))
    frame: npt.NDArray[Any] = np.empty(offset[-1], stacks.frame.dtype)
    _put_before(stacks.offset, stacks.frame, added, source, roots, frame)
    return replace(stacks, offset=offset, frame=frame)


@allocating_kernel
def _leave_go(offset: Any, frame: Any, of_go: Any, flags: Any) -> None:
    """Of the stacks with a flag, leave it to those with some name that only Go gives."""
    for stack in range(flags.size):
        if flags[stack]:
            flags[stack] = False
            for place in range(offset[stack], offset[stack + 1]):
                if of_go[frame[place]]:
                    flags[stack] = True
                    break


@allocating_kernel
def _put_before(offset: Any, frame: Any, added: Any, source: Any, roots: Any, longer: Any) -> None:
    at = 0
    for stack in range(added.size):
        for place in range(source[stack], source[stack] + added[stack]):
            longer[at] = roots[place]
            at += 1
        for place in range(offset[stack], offset[stack + 1]):
            longer[at] = frame[place]
            at += 1


@allocating_kernel
def _same(rows: Any, one: int, at: int, other: int, place: int) -> Any:
    for step in range(COMMON):  # noqa: SIM110 -- compiled
        if rows[one, at + step] != rows[other, place + step]:
            return False
    return True


@allocating_kernel
def _less(rows: Any, one: int, other: int, count: int) -> Any:
    """Whether the first frames of one row come before those of another."""
    for step in range(count):
        if rows[one, step] != rows[other, step]:
            return rows[one, step] < rows[other, step]
    return False


@allocating_kernel
def _lost_roots(rows: Any) -> Any:
    """What stacks have lost, by the frames that are now their first.

    A row has the first frames of a stack. Gives a number of these for each row, where the lost
    frames of a number begin, and the frames.
    """
    size = 16
    while size < 4 * rows.shape[0] * (SHIFT_MAX + 1):
        size *= 2
    slots = np.full(size, -1, np.int32)  # of numbers of 16 frames each
    row_of = np.zeros(rows.shape[0] * (SHIFT_MAX + 1), np.int32)  # where they were seen first
    shift_of = np.zeros(row_of.size, np.int32)
    best = np.full(row_of.size, -1, np.int32)  # the row that has most before them
    most = np.zeros(row_of.size, np.int32)  # how many that are
    head = np.zeros(rows.shape[0], np.int32)
    known = 0
    for row in range(rows.shape[0]):
        for shift in range(SHIFT_MAX + 1):
            mixed = np.uint64(0)
            for step in range(COMMON):
                mixed = (mixed ^ np.uint64(rows[row, shift + step])) * np.uint64(0x9E3779B185EBCA87)
                mixed ^= mixed >> np.uint64(29)
            slot = np.int64(mixed & np.uint64(size - 1))
            number = slots[slot]
            while number >= 0 and not _same(rows, row_of[number], shift_of[number], row, shift):
                slot = (slot + 1) & (size - 1)
                number = slots[slot]
            if number < 0:
                number = known
                known += 1
                slots[slot] = number
                row_of[number], shift_of[number] = row, shift
            if shift == 0:
                head[row] = number
            elif shift > most[number] or (
                shift == most[number] and _less(rows, row, best[number], shift)
            ):
                best[number], most[number] = row, shift
    first = np.zeros(known + 1, np.int64)
    links = np.zeros(known, np.int64)
    for row in range(rows.shape[0]):
        number = head[row]
        if links[number]:
            continue  # another row has the same ones
        at = number
        while most[at] and links[number] < CHAIN_MAX:
            first[number + 1] += most[at]
            links[number] += 1
            at = head[best[at]]
        if most[at]:  # recursion: it leads to no root
            first[number + 1], links[number] = 0, 0
    for number in range(known):
        first[number + 1] += first[number]
    found = np.zeros(first[known], np.int32)
    for number in range(known):
        at, place = number, first[number + 1]
        for _ in range(links[number]):  # from the nearest to the root
            place -= most[at]
            for step in range(most[at]):
                found[place + step] = rows[best[at], step]
            at = head[best[at]]
    return head, first, found
