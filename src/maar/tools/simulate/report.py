"""The result of a replay: a sample about every minute, and summaries of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

import msgspec

from maar.model.ids import NodeId, TenantId
from maar.placement.rules import Balancing

WARM_S = 300.0  # before that, nothing is known of any dataset


class Skew(msgspec.Struct, frozen=True):
    """The largest load as a multiple of the mean."""

    mean: float
    worst: float


class Way(msgspec.Struct, frozen=True):
    """How well one way to place profiles did. Moves are multiples of one round's pushes."""

    shards_touched: float  # by a dataset, between two samples
    node_skew: Skew
    shard_skew: Skew
    moved_shard_by_ring: float  # series that went to another shard when nodes came or went
    moved_node_by_ring: float  # or to another node
    moved_shard_by_rules: float = 0.0  # when their dataset got another number of shards
    by_chance: float = 0.0  # bytes of datasets whose series have no shard of their own


class Focus(msgspec.Struct, frozen=True):
    """One dataset at the time of a sample."""

    rate: float  # bytes a second
    ideal: int
    shards: int
    by_chance: bool


class LoadSample(msgspec.Struct, frozen=True):
    at_s: float
    shards: int  # given to all datasets
    ideal: int
    focus: Mapping[str, Focus]
    nodes: Mapping[NodeId, float]  # bytes a second of those that answer
    plain_nodes: Mapping[NodeId, float]
    shard_skew: float
    plain_shard_skew: float
    touched: float
    plain_touched: float


class Switch(msgspec.Struct, frozen=True):
    """A dataset is spread in another way from now on."""

    at_s: float
    tenant: TenantId
    service: str
    balancing: Balancing


class Allotted(msgspec.Struct, frozen=True):
    """Shards against the ideal, over time."""

    given: float  # mean
    ideal: float
    most: int
    ideal_most: int
    short: float  # share of samples with fewer than the ideal
    changes: int


class SimulationReport(msgspec.Struct, frozen=True):
    scenario: str
    about: str
    seed: int
    duration_s: float
    profiles: int
    bytes: int
    datasets: int
    ours: Way
    plain: Way
    allotted: Mapping[str, Allotted]  # of the services in focus
    shards_given: float  # to all datasets, mean
    shards_ideal: float
    switches: tuple[Switch, ...]
    most_switches: int  # of one dataset
    shortest_s: float | None  # that one was spread by chance
    events: tuple[tuple[float, str], ...]
    samples: tuple[LoadSample, ...]


@dataclass(slots=True)
class Moves:
    """Bytes of series that went to another place than the time before."""

    shard_by_ring: int = 0
    node_by_ring: int = 0
    shard_by_rules: int = 0
    by_chance: int = 0  # not moved, but without a place of their own

    def note(self, size: int, shard: bool, node: bool, *, by_ring: bool) -> None:
        if by_ring:
            self.shard_by_ring += size * shard
            self.node_by_ring += size * node
        else:
            self.shard_by_rules += size * shard


def skew(loads: Iterable[float]) -> float:
    """The largest as a multiple of the mean; 1 when there is nothing."""
    found = list(loads)
    total = sum(found)
    return max(found) * len(found) / total if total else 1.0


def way(
    samples: Sequence[LoadSample], moved: Moves, a_round: float, pushed: int, *, plain: bool
) -> Way:
    warm = [one for one in samples if one.at_s > WARM_S] or samples
    nodes = [skew((one.plain_nodes if plain else one.nodes).values()) for one in warm]
    shards = [one.plain_shard_skew if plain else one.shard_skew for one in warm]
    return Way(
        fmean(one.plain_touched if plain else one.touched for one in warm),
        Skew(fmean(nodes), max(nodes)),
        Skew(fmean(shards), max(shards)),
        moved.shard_by_ring / a_round,
        moved.node_by_ring / a_round,
        moved.shard_by_rules / a_round,
        moved.by_chance / pushed,
    )


def allotment_of(samples: Sequence[LoadSample], service: str) -> Allotted:
    focus = [one.focus[service] for one in samples]
    return Allotted(
        given=fmean(one.shards for one in focus),
        ideal=fmean(one.ideal for one in focus),
        most=max(one.shards for one in focus),
        ideal_most=max(one.ideal for one in focus),
        short=fmean(one.shards < one.ideal for one in focus),
        changes=sum(left.shards != right.shards for left, right in pairwise(focus)),
    )


def switch_counts(switches: Sequence[Switch]) -> tuple[int, float | None]:
    """The most switches of one dataset, and the shortest time that one was spread by chance."""
    found: dict[tuple[TenantId, str], list[Switch]] = {}
    for one in switches:
        found.setdefault((one.tenant, one.service), []).append(one)
    stays = [
        right.at_s - left.at_s
        for each in found.values()
        for left, right in pairwise(each)
        if left.balancing is Balancing.ROUND_ROBIN
    ]
    return max(map(len, found.values()), default=0), min(stays, default=None)
