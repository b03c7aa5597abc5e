"""Stacks with values as the levels that a flame graph draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from maar.ports.reader.query import FlameGraph
from maar.query.decide import tree
from maar.query.decide.exact import Values
from maar.query.decide.frame_names import FrameNames

Int = npt.NDArray[np.int64]

ROOT = "total"
OTHER = "other"  # where children go that are too small to be drawn
_OPENING, _CLOSING = (np.array(bytearray(text)) for text in (b'{"values":[', b"]}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """Stack i has the frames frame[offset[i]:offset[i + 1]], root first, as indexes of names."""

    names: Sequence[str]
    offset: Int
    frame: Int | npt.NDArray[np.int32]
    value: Values
    known: FrameNames | None = None  # the same names, when they are sorted and tidied already


def flamegraph(stacks: Stacks, *, max_nodes: int, most: int) -> FlameGraph:
    """Siblings by name; past max_nodes (0: no bound) the small ones become one 'other' each. Those
    that equal the smallest that is drawn are drawn too, as Pyroscope does, the nearest to the root
    first: often many are equal, so there are never more than `most`.

    A stack whose values, all equal stacks together, are not greater than 0 is not drawn. Absolute
    values of all of them together fit int64.
    """
    names: Sequence[str]
    if stacks.known is not None:
        names, frame = stacks.names, stacks.frame
    else:
        names, rank = _by_name(stacks.names)
        frame = rank[stacks.frame] if len(rank) else np.zeros(0, np.int32)
    parent, name, own = tree.grow(_own(stacks.offset), frame, _own(stacks.value))
    total = tree.weigh(parent, own)
    threshold, ties, other = 0, 0, -1
    drawn = int(np.count_nonzero(total[1:])) + 1
    if 0 < max_nodes < drawn:
        names = [*names, OTHER] if OTHER not in names else names
        threshold, other = int(np.partition(total, -max_nodes)[-max_nodes]), names.index(OTHER)
        ties = max(most, max_nodes) - int(np.count_nonzero(total > threshold))
        ties -= int(total[0]) == threshold  # the root is always drawn
    rows, levels = tree.draw(parent, name, own, total, len(names), threshold, ties, other)
    return _number_names(rows, levels, names)


def warm() -> None:
    """Load the compiled code, or have it compiled."""
    one = np.ones(1, np.int64)
    flamegraph(
        Stacks(names=["a"], offset=np.array([0, 1]), frame=one * 0, value=one), max_nodes=1, most=1
    )


def _own(numbers: Int) -> Int:
    """Arrow's numbers cannot be written to, and would need compiled code of their own."""
    return np.array(numbers, np.int64)


def _by_name(names: Sequence[str]) -> tuple[list[str], npt.NDArray[np.int32]]:
    """Names sorted and unique, and where each given one went: then siblings sort by number."""
    ordered = sorted(dict.fromkeys(names))  # in their order, which is nearly sorted
    if ordered == list(names):
        return ordered, np.arange(len(ordered), dtype=np.int32)
    place = {name: index for index, name in enumerate(ordered)}
    return ordered, np.array([place[name] for name in names], dtype=np.int32)


def _number_names(rows: Int, levels: Int, names: Sequence[str]) -> FlameGraph:
    """Of all names, those that are drawn, by number and in order; 0 is the root's."""
    drawn = np.zeros(len(names), np.bool_)
    drawn[rows[1:, 3]] = True
    used = np.flatnonzero(drawn).tolist()
    if used and names[used[-1]] == OTHER:  # it may have come last
        used.sort(key=names.__getitem__)
    number = np.zeros(len(names), np.int64)
    number[used] = np.arange(len(used)) + 1
    rows[1:, 3] = number[rows[1:, 3]]
    return FlameGraph(
        names_json=msgspec.json.encode([ROOT, *map(names.__getitem__, used)]),
        levels_json=tree.write(rows, levels, _OPENING, _CLOSING).tobytes(),
        total=int(rows[0, 1]),
        max_self=int(rows[:, 2].max()),
    )
