"""The shard→node table: it begins as a fixed permutation and changes by the fewest moves (S16).

A newcomer does not get the new shards, which are neighbours: they go to owners of older ones, and
the newcomer takes over as many of those, from all over the ring. So neighbours, which a dataset
uses together, stay on different nodes. A leaver's shards go back the same way: who comes and goes
leaves the table as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from maar.model.ids import NodeId
from maar.placement.permutation import step


def new_table(counts: Mapping[NodeId, int]) -> tuple[NodeId, ...]:
    """The owner of each shard of a new ring: the nodes by name, shuffled by a fixed seed."""
    return change_table((), counts)


def change_table(owners: Sequence[NodeId], counts: Mapping[NodeId, int]) -> tuple[NodeId, ...]:
    """The table for other nodes or counts; of the shards that stay, only as many move as came
    or went.
    """
    held = Counter(owners)
    table = list(owners)
    surplus = Counter({node: held[node] - counts.get(node, 0) for node in held})
    surplus = +surplus  # only those above 0
    coming = [node for node in sorted(counts) for _ in range(counts[node] - held[node])]
    _replace(table, surplus, coming)
    _shrink(table, surplus)
    _grow(table, coming)
    return tuple(table)


def _replace(table: list[NodeId], surplus: Counter[NodeId], coming: list[NodeId]) -> None:
    """Who comes takes the shards of who goes, as far as there are any: no other one moves."""
    for shard, owner in enumerate(table):
        if not coming:
            return
        if surplus[owner]:
            surplus[owner] -= 1
            table[shard] = coming.pop(0)


def _grow(table: list[NodeId], coming: Sequence[NodeId]) -> None:
    for node in coming:
        table.append(node)
        other = step(len(table) - 1)
        table[-1] = table[other]
        table[other] = node


def _shrink(table: list[NodeId], surplus: Counter[NodeId]) -> None:
    """The last shards go; an owner of one that stays in the ring gets one of who has too many."""
    for _ in range(surplus.total()):
        owner = table.pop()
        if not surplus[owner]:
            other = _next_surplus(table, surplus, step(len(table)))
            owner, table[other] = table[other], owner
        surplus[owner] -= 1


def _next_surplus(table: Sequence[NodeId], surplus: Counter[NodeId], start: int) -> int:
    """Where growth began, if it still holds; else the next such shard around the ring."""
    return next(
        place % len(table)
        for place in range(start, start + len(table))
        if surplus[table[place % len(table)]]
    )
