# mypy: disallow-untyped-decorators=False
"""Stacks with values become a tree, and the tree becomes the levels that a flame graph draws.

Compiled: a small tree has dozens of levels of a few nodes, where every call of NumPy would cost
more than the work that it does. The work grows with the number of frames.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from maar.pprof.kernel import allocating_kernel

_NODES_FIRST = 1024
_MIX = np.uint64(0x9E3779B185EBCA87)
_DIGITS_MAX = 19  # of 64 bits with a sign


@allocating_kernel
def _slot(parent: Any, name: Any, slots: int) -> Any:
    mixed = (np.uint64(parent) * _MIX ^ np.uint64(name)) * _MIX
    return np.int64((mixed >> np.uint64(17)) & np.uint64(slots - 1))


@allocating_kernel
def grow(offset: Any, frame: Any, value: Any) -> Any:
    """The nodes of a tree, each behind its parent: parent, name and own value.

    Stack i has the frames frame[offset[i]:offset[i + 1]], root first; node 0 is the root.
    """
    room = _NODES_FIRST
    parent = np.zeros(room, np.int32)
    name = np.zeros(room, np.int32)
    own = np.zeros(room, np.int64)
    table = np.zeros(2 * room, np.int32)  # of nodes by parent and name; 0 is free
    path = np.zeros(64, np.int32)  # the nodes of the stack before: neighbours share most of them
    shared = 0
    nodes = 1
    before = 0  # where the stack before begins
    for stack in range(offset.size - 1):
        first, end = offset[stack], offset[stack + 1]
        depth = 0
        at = 0
        while depth < shared and first + depth < end:
            if frame[first + depth] != frame[before + depth]:
                break
            at = path[depth]
            depth += 1
        if end - first > path.size:
            longer = np.zeros(2 * (end - first), np.int32)
            longer[:depth] = path[:depth]
            path = longer
        for place in range(first + depth, end):
            wanted = frame[place]
            slot = _slot(at, wanted, table.size)
            node = table[slot]
            while node and (parent[node] != at or name[node] != wanted):
                slot = (slot + 1) & (table.size - 1)
                node = table[slot]
            if not node:
                if nodes == room:
                    room *= 2
                    parent = np.concatenate((parent, np.zeros(nodes, np.int32)))
                    name = np.concatenate((name, np.zeros(nodes, np.int32)))
                    own = np.concatenate((own, np.zeros(nodes, np.int64)))
                    table = np.zeros(2 * room, np.int32)
                    for old in range(1, nodes):
                        slot = _slot(parent[old], name[old], table.size)
                        while table[slot]:
                            slot = (slot + 1) & (table.size - 1)
                        table[slot] = old
                    slot = _slot(at, wanted, table.size)
                    while table[slot]:
                        slot = (slot + 1) & (table.size - 1)
                node = nodes
                nodes += 1
                parent[node] = at
                name[node] = wanted
                table[slot] = node
            at = node
            path[place - first] = node
        shared = end - first
        before = first
        own[at] += value[stack]
    return parent[:nodes], name[:nodes], own[:nodes]


@allocating_kernel
def weigh(parent: Any, own: Any) -> Any:
    """The total of every node. What is not greater than 0 by itself cannot be drawn, and is 0."""
    for node in range(own.size):
        if own[node] < 0:
            own[node] = 0
    total = own.copy()
    for node in range(own.size - 1, 0, -1):
        total[parent[node]] += total[node]
    return total


@allocating_kernel
def draw(
    parent: Any, name: Any, own: Any, total: Any, width: int, threshold: int, ties: int, other: int
) -> Any:
    """Rows of (gap, total, own value, name), level by level, and where each level begins.

    Siblings are in the order of their names. Those below the threshold, or named `other`, become
    one node of that name, the last of its siblings; of those at the threshold only the first `ties`
    are drawn, level by level. Nodes without a value are left out.
    """
    nodes = parent.size
    # Children in the order of their names: nodes are put before their siblings, the last name
    # first, so that nothing has to be sorted.
    begin = np.zeros(width + 1, np.int64)
    for node in range(1, nodes):
        begin[name[node] + 1] += 1
    for each in range(width):
        begin[each + 1] += begin[each]
    by_name = np.zeros(nodes, np.int32)
    for node in range(1, nodes):
        by_name[begin[name[node]]] = node
        begin[name[node]] += 1
    child = np.zeros(nodes, np.int32)
    sibling = np.zeros(nodes, np.int32)
    for place in range(nodes - 2, -1, -1):
        node = by_name[place]
        sibling[node] = child[parent[node]]
        child[parent[node]] = node
    larger, equal = 1, 0  # the root is drawn, whatever it has
    for node in range(1, nodes):
        larger += total[node] > threshold
        equal += total[node] == threshold
    most = 2 * (larger + min(ties, equal))  # below each may be what was cut together
    rows = np.zeros((most, 4), np.int64)
    drawn = np.zeros(most, np.int32)  # the node of each row; -1 for what was cut together
    left = np.zeros(most, np.int64)
    levels = [0]
    rows[0, 1], rows[0, 2] = total[0], own[0]
    first, end = 0, 1  # rows of the level above
    while end > first:
        levels.append(end)
        count = end
        right = np.int64(0)  # end of the row before
        for above in range(first, end):
            if drawn[above] < 0:
                continue
            at = left[above] + rows[above, 2]
            lost = np.int64(0)
            node = child[drawn[above]]
            while node:
                if total[node] > 0:
                    tied = total[node] == threshold and ties > 0
                    if (total[node] > threshold or tied) and name[node] != other:
                        ties -= tied
                        rows[count, 0] = at - right
                        rows[count, 1], rows[count, 2] = total[node], own[node]
                        rows[count, 3] = name[node]
                        drawn[count], left[count] = node, at
                        at += total[node]
                        right = at
                        count += 1
                    else:
                        lost += total[node]
                node = sibling[node]
            if lost:
                rows[count, 0] = at - right
                rows[count, 1], rows[count, 2], rows[count, 3] = lost, lost, other
                drawn[count], left[count] = -1, at
                right = at + lost
                count += 1
        first, end = end, count
    return rows[:end], np.array(levels)


@allocating_kernel
def _put(text: Any, end: int, piece: Any) -> Any:
    """Write a piece before a place; where it begins."""
    first = end - piece.size
    for place in range(piece.size):
        text[first + place] = piece[place]
    return first


@allocating_kernel
def write(rows: Any, levels: Any, opening: Any, closing: Any) -> Any:
    """The rows as a list of levels in JSON, each between `opening` and `closing`. Their numbers,
    none of which is below 0, are text: ["0","15","4","0"].

    Written from the end, so that nobody has to count the digits of a number before they are there.
    """
    size = 2 + (levels.size - 1) * (opening.size + closing.size + 1)
    size += rows.size * (_DIGITS_MAX + 3)  # with quotes and a comma; what is not written to is free
    text = np.empty(size, np.uint8)
    at = size - 1
    text[at] = 93  # ]
    for level in range(levels.size - 2, -1, -1):
        at = _put(text, at, closing)
        for row in range(levels[level + 1] - 1, levels[level] - 1, -1):
            for column in range(3, -1, -1):
                at -= 1
                text[at] = 34  # "
                number = np.uint64(rows[row, column])
                while True:
                    rest = number // np.uint64(10)
                    at -= 1
                    text[at] = np.uint8(np.uint64(48) + number - rest * np.uint64(10))
                    number = rest
                    if number == np.uint64(0):
                        break
                at -= 1
                text[at] = 34
                if row > levels[level] or column:
                    at -= 1
                    text[at] = 44  # ,
        at = _put(text, at, opening)
        if level:
            at -= 1
            text[at] = 44
    at -= 1
    text[at] = 91  # [
    return text[at:]
