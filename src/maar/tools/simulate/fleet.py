"""The segment writers of a simulated zone, as they come, go, die and return."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import NamedTuple

from maar.model.ids import HOME, NodeId
from maar.model.ring import Ring, Writer, WriterState
from maar.placement.table import change_table, new_table


class Happening(StrEnum):
    JOINS = "joins"
    LEAVES = "leaves"
    DIES = "dies"
    RETURNS = "returns"


class Event(NamedTuple):
    at_s: float
    node: NodeId
    what: Happening


class Fleet(NamedTuple):
    """Who owns which shard, and who answers; the dead keep their shards."""

    owners: tuple[NodeId, ...]
    dead: frozenset[NodeId] = frozenset()

    @property
    def nodes(self) -> list[NodeId]:
        return sorted(set(self.owners))

    @property
    def alive(self) -> list[NodeId]:
        return [node for node in self.nodes if node not in self.dead]


def node_name(number: int) -> NodeId:
    return NodeId(f"writer-{number}")


def fleet_of(nodes: int, shards: int) -> Fleet:
    return Fleet(new_table({node_name(number): shards for number in range(1, nodes + 1)}))


def after(fleet: Fleet, event: Event, shards: int) -> Fleet:
    counts = Counter(fleet.owners)
    match event.what:
        case Happening.JOINS:
            counts[event.node] = shards
        case Happening.LEAVES:
            del counts[event.node]
        case Happening.DIES:
            return fleet._replace(dead=fleet.dead | {event.node})
        case Happening.RETURNS:
            return fleet._replace(dead=fleet.dead - {event.node})
    return Fleet(change_table(fleet.owners, counts), fleet.dead)


def ring_of(fleet: Fleet) -> Ring:
    nodes, counts = fleet.nodes, Counter(fleet.owners)
    writers = tuple(Writer(node, "", "", counts[node], WriterState.ACTIVE) for node in nodes)
    place_of = {node: place for place, node in enumerate(nodes)}
    return Ring(HOME, 1, writers, tuple(place_of[owner] for owner in fleet.owners))
