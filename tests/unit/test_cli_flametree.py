"""A flame graph in its level form, drawn as a tree."""

from __future__ import annotations

from maar.cli.output import flametree

NAMES = ["total", "main", "idle", "parse", "match"]
# total 100: main 70 (own 10) and idle 30; under main: parse 40, match 20
LEVELS = [
    [0, 100, 0, 0],
    [0, 70, 10, 1, 0, 30, 30, 2],
    [10, 40, 40, 3, 0, 20, 20, 4],
]


def test_children_are_found_under_the_frame_above_them() -> None:
    root = flametree.tree(NAMES, LEVELS)
    assert root is not None
    assert (root.name, root.total) == ("total", 100)
    main, idle = root.children
    assert [child.name for child in main.children] == ["parse", "match"]
    assert idle.children == []
    assert main.own == 10


def test_a_frame_below_the_second_parent_skips_the_first() -> None:
    root = flametree.tree(
        ["total", "a", "b", "c"], [[0, 10, 0, 0], [0, 4, 4, 1, 0, 6, 0, 2], [4, 6, 6, 3]]
    )
    assert root is not None
    first, second = root.children
    assert first.children == []
    assert [child.name for child in second.children] == ["c"]


def test_no_levels_are_no_tree() -> None:
    assert flametree.tree([], []) is None


def test_small_and_deep_frames_are_hidden_and_the_heaviest_come_first() -> None:
    root = flametree.tree(NAMES, LEVELS)
    assert root is not None
    names = [line.node.name for line in flametree.lines(root, least=0.25, depth=9)]
    assert names == ["total", "main", "parse", "idle"]
    names = [line.node.name for line in flametree.lines(root, least=0, depth=1)]
    assert names == ["total", "main", "idle"]


def test_only_children_do_not_move_to_the_right() -> None:
    levels = [[0, 5, 0, 0], [0, 5, 0, 1], [0, 5, 5, 2]]
    root = flametree.tree(NAMES, levels)
    assert root is not None
    assert [line.guide for line in flametree.lines(root, least=0, depth=9)] == ["", "", ""]
