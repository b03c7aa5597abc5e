"""Flame graphs against a tree that is built the obvious way."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from maar.ports.reader.query import FlameGraph
from maar.query.decide.flamegraph import Stacks, flamegraph
from support.oracles.graphs import graph_of

MOST = 1 << 20
Sums = list[tuple[tuple[str, ...], int]]


@dataclass
class Node:
    own: int = 0
    children: dict[str, Node] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return self.own + sum(child.total for child in self.children.values())

    def nodes(self) -> list[Node]:
        return [self, *(node for child in self.children.values() for node in child.nodes())]


def plainly(sums: Sums, max_nodes: int = 0, most: int = MOST) -> FlameGraph:
    """The same picture, node by node."""
    root = Node()
    for stack, value in sums:
        node = root
        for name in stack:
            node = node.children.setdefault(name, Node())
        node.own += value
    cutting = 0 < max_nodes < len(root.nodes())
    if cutting:
        totals = sorted((node.total for node in root.nodes()), reverse=True)
        threshold = totals[max_nodes - 1]
        larger = sum(total > threshold for total in totals)
        cut(root, threshold, max(most, max_nodes) - larger - (root.total == threshold))
    drawn: list[list[tuple[int, int, int, str]]] = []

    def draw(name: str, node: Node, left: int, depth: int) -> None:
        if depth == len(drawn):
            drawn.append([])
        drawn[depth].append((left, node.total, node.own, name))
        left += node.own
        for child in sorted(node.children, key=lambda name: (name == "other" and cutting, name)):
            draw(child, node.children[child], left, depth + 1)
            left += node.children[child].total

    draw("total", root, 0, 0)
    used = sorted({name for level in drawn[1:] for _, _, _, name in level})
    levels = []
    for depth, level in enumerate(drawn):
        end, quads = 0, []
        for left, total, own, name in level:
            quads += [left - end, total, own, used.index(name) + 1 if depth else 0]
            end = left + total
        levels.append(tuple(quads))
    most = max(own for level in drawn for _, _, own, _ in level)
    return graph_of(("total", *used), levels, root.total, most)


def cut(root: Node, threshold: int, ties: int) -> None:
    """Level by level, since of equal ones those near to the root stay."""
    level = [root]
    while level:
        below = []
        for node in level:
            lost = 0
            for name in sorted(node.children):
                total = node.children[name].total
                if name != "other" and (total > threshold or (total == threshold and ties)):
                    ties -= total == threshold
                    below.append(node.children[name])
                else:
                    lost += node.children.pop(name).total
            if lost:
                node.children["other"] = Node(lost)
        level = below


def arrays(sums: Sums) -> Stacks:
    names = sorted({name for stack, _ in sums for name in stack}, reverse=True)
    frames = [names.index(name) for stack, _ in sums for name in stack]
    lengths = [len(stack) for stack, _ in sums]
    return Stacks(
        names=names,
        offset=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        frame=np.array(frames, dtype=np.int64),
        value=np.array([value for _, value in sums], dtype=np.int64),
    )


def test_children_begin_behind_their_parents_own_value() -> None:
    sums: Sums = [(("a", "b"), 3), (("a",), 2), (("a", "c"), 5), (("d",), 1), ((), 4)]
    graph = flamegraph(arrays(sums), max_nodes=0, most=MOST)
    assert graph.names == ("total", "a", "b", "c", "d")
    assert graph.levels == (
        (0, 15, 4, 0),
        (4, 10, 2, 1, 0, 1, 1, 4),
        (6, 3, 3, 2, 0, 5, 5, 3),
    )
    assert (graph.total, graph.max_self) == (15, 5)


def test_what_is_too_small_becomes_other() -> None:
    sums: Sums = [(("a", "b"), 100), (("a", "c"), 3), (("a", "d"), 2), (("e", "f"), 1)]
    graph = flamegraph(arrays(sums), max_nodes=3, most=MOST)
    assert graph.names == ("total", "a", "b", "other")
    assert graph.levels == (
        (0, 106, 0, 0),
        (0, 105, 0, 1, 0, 1, 1, 3),
        (0, 100, 100, 2, 0, 5, 5, 3),
    )


def test_what_equals_the_smallest_that_is_drawn_is_drawn_too() -> None:
    sums: Sums = [(("a", "b"), 5), (("c",), 2), (("d", "e"), 2), (("f",), 1)]
    graph = flamegraph(arrays(sums), max_nodes=4, most=MOST)
    assert graph.names == ("total", "a", "b", "c", "d", "e", "other")
    assert graph.levels[1] == (0, 5, 0, 1, 0, 2, 2, 3, 0, 2, 0, 4, 0, 1, 1, 6)


def test_there_is_a_bound_also_when_all_are_equal() -> None:
    """As goroutines are, whose stacks are there once each. Those near to the root stay."""
    sums: Sums = [((f"{n}", "x"), 1) for n in range(1000)]
    graph = flamegraph(arrays(sums), max_nodes=2, most=3)
    assert graph.names == ("total", "0", "1", "other")
    assert graph.levels == (
        (0, 1000, 0, 0),
        (0, 1, 0, 1, 0, 1, 0, 2, 0, 998, 998, 3),
        (0, 1, 1, 3, 0, 1, 1, 3),
    )


def test_the_largest_numbers_are_written_in_full() -> None:
    most = (1 << 63) - 1
    graph = flamegraph(arrays([(("a", "b"), 1), (("c",), most - 1)]), max_nodes=0, most=MOST)
    assert (
        graph.levels_json
        == (
            f'[{{"values":["0","{most}","0","0"]}},'
            f'{{"values":["0","1","0","1","0","{most - 1}","{most - 1}","3"]}},'
            '{"values":["0","1","1","2"]}]'
        ).encode()
    )


def test_no_stacks_give_a_root_alone() -> None:
    assert flamegraph(arrays([]), max_nodes=10, most=MOST) == graph_of(
        ["total"], [(0, 0, 0, 0)], 0, 0
    )


def test_a_graph_within_the_bound_is_not_cut() -> None:
    sums: Sums = [(("other", "x"), 1), (("y",), 9)]
    assert flamegraph(arrays(sums), max_nodes=4, most=MOST) == plainly(sums)


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(["a", "b", "c", "other", "ä"]), max_size=6).map(tuple),
            st.integers(1, 1000),
        ),
        max_size=30,
    ),
    st.integers(0, 40),
    st.integers(0, 40),
)
@example([(("a", "b"), 1), (("a", "ä"), 2)], 3, 3)  # a name that sorts behind 'other'
def test_every_graph_equals_the_one_built_node_by_node(
    sums: Sums, max_nodes: int, most: int
) -> None:
    graph = flamegraph(arrays(sums), max_nodes=max_nodes, most=most)
    assert graph == plainly(sums, max_nodes, most)


@pytest.mark.parametrize("max_nodes", [0, 2])
def test_sums_beyond_53_bits_stay_exact(max_nodes: int) -> None:
    sums: Sums = [(("a",), 2**60 + 1), (("a", "b"), 2**60 + 1), (("c",), 1)]
    assert flamegraph(arrays(sums), max_nodes=max_nodes, most=MOST).total == 2**61 + 3
