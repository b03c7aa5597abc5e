"""The table of owners: exact counts, the fewest moves, and neighbours on different nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maar.model.ids import NodeId
from maar.placement.table import change_table, new_table
from support.oracles.permutation import permutation

Counts = dict[NodeId, int]

NODES = [NodeId(f"writer-{number}") for number in range(12)]
counts_of_shards = st.dictionaries(st.sampled_from(NODES), st.integers(0, 9), max_size=12)


def even(names: str, shards: int = 4) -> Counts:
    return {NodeId(name): shards for name in names}


def came_and_went(before: Mapping[NodeId, int], after: Mapping[NodeId, int]) -> int:
    nodes = {*before, *after}
    return sum(abs(after.get(node, 0) - before.get(node, 0)) for node in nodes)


def moved(before: tuple[NodeId, ...], after: tuple[NodeId, ...]) -> int:
    """How many shards that stay have another owner."""
    return sum(was != now for was, now in zip(before, after, strict=False))


def holds(table: tuple[NodeId, ...], counts: Mapping[NodeId, int]) -> bool:
    return Counter(table) == Counter({node: count for node, count in counts.items() if count})


@given(st.lists(counts_of_shards, min_size=2, max_size=6))
def test_any_change_moves_at_most_as_many_shards_as_came_or_went(history: list[Counts]) -> None:
    table = new_table(history[0])
    assert holds(table, history[0])
    for before, after in pairwise(history):
        new = change_table(table, after)
        assert holds(new, after)
        assert moved(table, new) <= came_and_went(before, after)
        assert change_table(new, after) == new, "the same counts change nothing"
        table = new


@given(counts_of_shards, st.sampled_from(NODES), st.integers(1, 9))
def test_who_comes_and_goes_leaves_the_table_as_it_was(
    counts: Counts, node: NodeId, shards: int
) -> None:
    before = {**counts, node: 0}
    table = new_table(before)
    grown = change_table(table, {**counts, node: shards})
    assert moved(table, grown) <= shards
    assert change_table(grown, before) == table


@pytest.mark.parametrize("leaver", range(8))
def test_any_one_of_eight_nodes_leaves_and_at_most_its_four_shards_move(leaver: int) -> None:
    """The permutation made anew over the nodes by name would move up to 28 of 28."""
    counts = dict.fromkeys(NODES[:8], 4)
    table = new_table(counts)
    del counts[NODES[leaver]]
    left = change_table(table, counts)
    assert len(left) == 28
    assert holds(left, counts)
    assert moved(table, left) <= 4


def test_a_table_made_anew_would_move_nearly_everything() -> None:
    """What the rule is for: if this were small, no table would be needed."""
    counts = dict.fromkeys(NODES[:8], 4)
    table = new_table(counts)
    del counts[NODES[0]]
    assert moved(table, new_table(counts)) > 20


def test_a_replacement_takes_exactly_what_the_other_had() -> None:
    table = new_table(even("abc"))
    new = change_table(table, even("acd"))
    assert [was for was, now in zip(table, new, strict=True) if was != now] == [*"bbbb"]
    assert [now for was, now in zip(table, new, strict=True) if was != now] == [*"dddd"]


def test_nodes_that_come_in_order_of_their_names_make_the_permutation() -> None:
    """In whatever steps they come, the ring is the one that would have begun with all of them."""
    table = new_table(even("a"))
    for names in ("ab", "abc", "abcd"):
        table = change_table(table, even(names))
    named = [node for node in "abcd" for _ in range(4)]
    assert table == new_table(even("abcd")) == tuple(named[place] for place in permutation(16))


def test_a_node_may_hold_more_or_fewer_shards_than_before() -> None:
    counts = {NodeId("a"): 1, NodeId("b"): 8, NodeId("c"): 3}
    table = change_table(new_table(even("abc")), counts)
    assert holds(table, counts)
    assert moved(new_table(even("abc")), table) <= 8


def test_a_ring_that_loses_everybody_is_empty_and_begins_again() -> None:
    assert change_table(new_table(even("abc")), {}) == ()
    assert change_table((), even("abc")) == new_table(even("abc"))


def test_the_order_in_which_counts_are_given_does_not_matter() -> None:
    table = new_table(even("abcd"))
    assert new_table(even("dbca")) == table
    assert change_table(table, even("fbea")) == change_table(table, even("aebf"))


@given(st.integers(4, 40))
def test_four_neighbours_are_hardly_ever_on_one_node(nodes: int) -> None:
    """A dataset's shards are neighbours; on one node they would fail together."""
    table = new_table({NodeId(f"{number:02}"): 4 for number in range(nodes)})
    windows = [table[place : place + 4] for place in range(len(table) - 3)]
    together = sum(len(set(window)) == 1 for window in windows)
    assert together <= 1
    assert sum(len(set(window)) for window in windows) / len(windows) > 2.5
