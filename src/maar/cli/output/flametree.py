"""A flame graph as indented lines: who calls whom, with shares and bars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Node:
    name: str
    start: int
    total: int
    own: int
    children: list[Node] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TreeLine:
    """One frame as it is drawn: `guide` is the tree to its left."""

    guide: str
    node: Node


def tree(names: Sequence[str], levels: Sequence[Sequence[int]]) -> Node | None:
    """Undo the level form: offsets are deltas from the end of the neighbour to the left."""
    above: list[Node] = []
    root: Node | None = None
    for values in levels:
        level: list[Node] = []
        end = parent = 0
        for at in range(0, len(values), 4):
            offset, total, own, name = values[at : at + 4]
            node = Node(names[name], end + offset, total, own)
            end = node.start + total
            if root is None:
                root = node
            while parent < len(above) and node.start >= above[parent].start + above[parent].total:
                parent += 1
            if parent < len(above):
                above[parent].children.append(node)
            level.append(node)
        above = level
    return root


def lines(root: Node, *, least: float, depth: int) -> Iterator[TreeLine]:
    """Frames of at least a share of the total, heaviest first, a chain of only children inline."""
    floor = max(1, least * root.total)

    def walk(node: Node, guide: str, below: str, level: int) -> Iterator[TreeLine]:
        yield TreeLine(guide, node)
        if level >= depth:
            return
        shown = sorted(
            (child for child in node.children if child.total >= floor), key=lambda n: -n.total
        )
        for number, child in enumerate(shown):
            last = number == len(shown) - 1
            if len(shown) == 1:  # an only child needs no branch: deep stacks stay on the page
                yield from walk(child, below, below, level + 1)
            else:
                turn, rail = ("└ ", "  ") if last else ("├ ", "│ ")
                yield from walk(child, below + turn, below + rail, level + 1)

    yield from walk(root, "", "", 0)
