"""Stacks with values become a tree, and the tree becomes the levels that a flame graph draws.

All by whole arrays, depth by depth: the work grows with the number of frames, not of nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from maar.ports.query import FlameGraph
from maar.query.decide.exact import Values

Int = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

ROOT = "total"
OTHER = "other"  # where children go that are too small to be drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """Stack i has the frames frame[offset[i]:offset[i + 1]], root first, as indexes of names."""

    names: Sequence[str]
    offset: Int
    frame: Int
    value: Values


@dataclass(frozen=True, slots=True)
class _Level:
    """The nodes of one depth, in the order in which they are drawn."""

    parent: Int  # place in the level above
    name: Int
    total: Int
    self: Int


def flamegraph(stacks: Stacks, *, max_nodes: int) -> FlameGraph:
    """Siblings by name; past max_nodes (0: no bound) the small ones become one 'other' each.

    Every value is greater than 0, and all of them together fit int64.
    """
    names, rank = _by_name(stacks.names)
    levels = _tree(stacks, rank, len(names))
    if 0 < max_nodes < sum(len(level.total) for level in levels):
        names = [*names, OTHER] if OTHER not in names else names
        levels = _truncate(levels, _threshold(levels, max_nodes), names.index(OTHER))
    return _draw(levels, names)


def _by_name(names: Sequence[str]) -> tuple[list[str], Int]:
    """Names sorted and unique, and where each given one went: then siblings sort by number."""
    ordered = sorted(set(names))
    place = {name: index for index, name in enumerate(ordered)}
    return ordered, np.array([place[name] for name in names], dtype=np.int64)


def _tree(stacks: Stacks, rank: Int, width: int) -> list[_Level]:
    length = np.diff(stacks.offset)
    first, value = stacks.offset[:-1], stacks.value
    root_self = value[length == 0].sum(dtype=np.int64)
    zero = np.zeros(1, dtype=np.int64)
    levels = [_Level(zero, zero, np.array([value.sum(dtype=np.int64)]), np.array([root_self]))]
    alive = np.flatnonzero(length > 0)
    parent = np.zeros(len(alive), dtype=np.int64)
    depth = 0
    while len(alive):
        key = parent * width + rank[stacks.frame[first[alive] + depth]]
        order = np.argsort(key, kind="stable")  # nearly sorted after the first levels: cheap
        key, alive = key[order], alive[order]
        starts = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
        node = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(key))))
        ends = length[alive] == depth + 1
        held = value[alive]
        levels.append(
            _Level(
                key[starts] // width,
                key[starts] % width,
                np.add.reduceat(held, starts),
                np.add.reduceat(np.where(ends, held, 0), starts),
            )
        )
        alive, parent = alive[~ends], node[~ends]
        depth += 1
    return levels


def _threshold(levels: list[_Level], max_nodes: int) -> int:
    """The smallest total among the max_nodes largest."""
    totals = np.concatenate([level.total for level in levels])
    return int(np.partition(totals, len(totals) - max_nodes)[len(totals) - max_nodes])


def _truncate(levels: list[_Level], threshold: int, other: int) -> list[_Level]:
    kept_levels = [levels[0]]
    place = np.zeros(1, dtype=np.int64)  # of each node above in the new level, -1 when it is gone
    for level in levels[1:]:
        parent = place[level.parent]
        present = parent >= 0
        large = present & (level.total >= threshold) & (level.name != other)
        small = present & ~large
        lost = np.zeros(len(kept_levels[-1].total), dtype=np.int64)
        np.add.at(lost, parent[small], level.total[small])
        owners = np.unique(parent[small])
        parents = np.concatenate((parent[large], owners))
        # 'other' comes last among its siblings, which are in order already
        order = np.argsort(parents, kind="stable")
        kept_levels.append(
            _Level(
                parents[order],
                np.concatenate((level.name[large], np.full(len(owners), other)))[order],
                np.concatenate((level.total[large], lost[owners]))[order],
                np.concatenate((level.self[large], lost[owners]))[order],
            )
        )
        where = np.empty(len(order), dtype=np.int64)
        where[order] = np.arange(len(order))
        place = np.full(len(level.total), -1, dtype=np.int64)
        place[large] = where[: int(large.sum())]
    return [level for level in kept_levels if len(level.total)]


def _draw(levels: list[_Level], names: list[str]) -> FlameGraph:
    drawn = np.unique(np.concatenate([level.name for level in levels[1:]] or [np.empty(0, int)]))
    used = sorted(drawn.tolist(), key=names.__getitem__)  # 'other' was put behind the rest
    number = np.zeros(len(names) + 1, dtype=np.int64)
    number[used] = np.arange(len(used)) + 1  # 0 is the root's
    rows = []
    above = levels[0]
    left = np.zeros(1, dtype=np.int64)  # where each node of the level above begins
    for depth, level in enumerate(levels):
        if depth:
            before = np.cumsum(level.total) - level.total
            eldest = np.searchsorted(level.parent, level.parent)  # first of the same parent
            base = left[level.parent] + above.self[level.parent]
            left = base + before - before[eldest]
        end = left + level.total
        gap = left - np.concatenate(([0], end[:-1]))
        name = number[level.name] if depth else np.zeros(1, dtype=np.int64)
        quads = np.stack((gap, level.total, level.self, name), axis=1)
        rows.append(tuple(quads.ravel().tolist()))
        above = level
    return FlameGraph(
        names=(ROOT, *(names[index] for index in used)),
        levels=tuple(rows),
        total=int(levels[0].total[0]),
        max_self=max(int(level.self.max()) for level in levels),
    )
