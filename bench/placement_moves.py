"""What a fleet moves that grows from three writers to six, whoever gets the new shards.

    python bench/placement_moves.py

Equal datasets of one to six shards, exactly: in the mean over all names that they could have. The
published order says which shard a dataset goes to when the ring has four more; only who owns which
shard can be chosen. The choices, as each of three writers joins:

    all      each new shard is exchanged for an older one, as `maar.placement.table` does
    half     every second one
    none     the newcomer keeps its new shards, which are neighbours
    least    of all tables with four shards a writer, one after which least has moved in this join

Each line: name value unit ratio baseline.

    moved_SHARDS_CHOICE    of datasets of so many shards, what went to another writer, in percent,
                           against plain consistent hashing of labels, counted
    lost_CHOICE            what the writer that has most of a dataset of four shards has of it, in
                           percent: what of it fails over at once; against one shard of four
    survivor_CHOICE        the heaviest writer's load over the mean while one of six is dead, where
                           one service of four shards has a third of the load and the rest is even
    heir_CHOICE            the heaviest heir's part of a dead writer's load, by its fair share
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from random import Random
from statistics import fmean
from typing import NamedTuple

from maar.model.ids import NodeId, TenantId
from maar.placement.locate import PARTS, Placement
from maar.placement.permutation import step
from maar.placement.rules import Rules, TenantLimits
from maar.placement.table import change_table
from maar.tools.simulate.fleet import Fleet, fleet_of, node_name, ring_of
from maar.tools.simulate.plain import Plain

EACH = 4  # shards of a writer
FIRST, LAST = 3, 6  # writers
SIZES = (1, 2, 4, 6)  # shards of a dataset
SERVICES = 240  # of which the means of survivors are made
DATASETS = 1000  # of a dead writer
LARGE = 1 / 3  # of the load: the large service

Table = tuple[NodeId, ...]
Flow = Mapping[tuple[int, int], float]  # from a shard to a shard, from 0; all of them make 1
Choice = Callable[[Table, NodeId, Flow], Table]


def flow(before: int, after: int, size: int) -> Flow:
    """Where datasets of so many shards go when the ring grows: jump hash says how many begin anew.

    A beginning stays or goes to a new shard, to each alike; the rest of the dataset follows it,
    and wraps around another end.
    """
    found = defaultdict[tuple[int, int], float](float)
    for start in range(before):
        for begins in (start, *range(before, after)):
            weight = (before if begins == start else 1) / before / after / size
            for offset in range(size):
                found[(start + offset) % before, (begins + offset) % after] += weight
    return found


def moves(before: Table, after: Table, flows: Flow) -> float:
    return sum(part for (was, now), part in flows.items() if before[was] != after[now])


# ── who gets the new shards ────────────────────────────────────────────────────────────────────


def exchanging_all(table: Table, node: NodeId, _: Flow) -> Table:
    return change_table(table, {**Counter(table), node: EACH})


def exchanging_half(table: Table, node: NodeId, _: Flow) -> Table:
    grown = list(table)
    for turn in range(EACH):
        grown.append(node)
        other = step(len(grown) - 1)
        if turn % 2:
            grown[-1], grown[other] = grown[other], node
    return tuple(grown)


def exchanging_none(table: Table, node: NodeId, _: Flow) -> Table:
    return (*table, *[node] * EACH)


def moving_least(table: Table, node: NodeId, flows: Flow) -> Table:
    """Every shard to who had most of what is in it now, as far as four for each allow that."""
    had = defaultdict[tuple[int, NodeId], float](float)
    for (was, now), part in flows.items():
        had[now, table[was]] += part
    slots = [owner for owner in (*sorted(set(table)), node) for _ in range(EACH)]
    chosen = assign([[-had[shard, owner] for owner in slots] for shard in range(len(slots))])
    return tuple(slots[slot] for slot in chosen)


CHOICES: Mapping[str, Choice] = {
    "all": exchanging_all,
    "half": exchanging_half,
    "none": exchanging_none,
    "least": moving_least,
}


def assign(costs: Sequence[Sequence[float]]) -> list[int]:
    """A column for each row, each once, of the least cost in all: by shortest augmenting paths."""
    size = len(costs)
    row_price, column_price = [0.0] * size, [0.0] * (size + 1)
    row_of: list[int | None] = [None] * (size + 1)  # the last column is where a search begins
    for row in range(size):
        row_of[size] = row
        column, seen = size, set[int]()
        distance, came_from = [float("inf")] * size, [size] * size
        while (at := row_of[column]) is not None:
            seen.add(column)
            for other in range(size):
                cost = costs[at][other] - row_price[at] - column_price[other]
                if other not in seen and cost < distance[other]:
                    distance[other], came_from[other] = cost, column
            nearest = min((o for o in range(size) if o not in seen), key=distance.__getitem__)
            step_cost = distance[nearest]
            for other in seen:
                owner = row_of[other]
                assert owner is not None
                row_price[owner] += step_cost
                column_price[other] -= step_cost
            distance = [
                far if other in seen else far - step_cost for other, far in enumerate(distance)
            ]
            column = nearest
        while column != size:
            row_of[column] = row_of[came_from[column]]
            column = came_from[column]
    columns = {row: column for column, row in enumerate(row_of[:size])}
    return [columns[row] for row in range(size)]


# ── what it comes to ───────────────────────────────────────────────────────────────────────────


class Grown(NamedTuple):
    moved: float
    table: Table


def grow(choice: Choice, size: int) -> Grown:
    table, total = fleet_of(FIRST, EACH).owners, 0.0
    for nodes in range(FIRST, LAST):
        flows = flow(EACH * nodes, EACH * (nodes + 1), size)
        new = choice(table, node_name(nodes + 1), flows)
        total += moves(table, new, flows)
        table = new
    return Grown(total, table)


def moves_by_label_hashing(series: int = 20_000) -> float:
    chance, total = Random(1), 0
    marks = [chance.getrandbits(64) for _ in range(series)]
    circles = [Plain(fleet_of(nodes, EACH)) for nodes in range(FIRST, LAST + 1)]
    for before, after in pairwise(circles):
        total += sum(before.place(mark).node != after.place(mark).node for mark in marks)
    return total / series


def loss(table: Table) -> float:
    """Of a dataset of four shards, the part that the writer has which has most of it."""
    twice = table + table
    windows = (twice[start : start + 4] for start in range(len(table)))
    return fmean(max(Counter(window).values()) for window in windows) / 4


def heirs(table: Table, limits: TenantLimits) -> Iterator[Mapping[tuple[NodeId, NodeId], float]]:
    """Of each service in turn, which part has which owner and heir."""
    placement = Placement(ring_of(Fleet(table)), Rules(), lambda _: limits, Random(1).randrange)
    marks = range(PARTS * limits.dataset_shards)
    for number in range(SERVICES * DATASETS):
        found = defaultdict[tuple[NodeId, NodeId], float](float)
        for mark in marks:
            place = placement.place(TenantId("tenant"), f"service-{number}", mark)
            owner, heir, *_ = placement.writers(place)
            found[owner.node, heir.node] += 1 / len(marks)
        yield found


def heaviest_survivor(table: Table) -> float:
    """In the mean over services and over the writers that may be dead."""
    nodes, found = sorted(set(table)), []
    services = heirs(table, TenantLimits(dataset_shards=4))
    for _, parts in zip(range(SERVICES), services, strict=False):
        for dead in nodes:
            loads = {node: (1 - LARGE) / (LAST - 1) for node in nodes if node != dead}
            for (owner, heir), part in parts.items():
                loads[heir if owner == dead else owner] += LARGE * part
            found.append(max(loads.values()) * (LAST - 1))
    return fmean(found)


def heaviest_heir(table: Table) -> float:
    """The worst of all writers that may be dead, of so many datasets of one shard."""
    taken, had = defaultdict[NodeId, Counter[NodeId]](Counter), Counter[NodeId]()
    for parts in heirs(table, TenantLimits()):
        dead = next(owner for owner, _ in parts)
        if had[dead] < DATASETS:
            had[dead] += 1
            for (_, heir), part in parts.items():
                taken[dead][heir] += round(PARTS * part)
        if had.total() == DATASETS * LAST:
            break
    return max(max(found.values()) * (LAST - 1) / (PARTS * DATASETS) for found in taken.values())


def main() -> None:
    hashing = 100 * moves_by_label_hashing()
    for size in SIZES:
        for name, choice in CHOICES.items():
            value = 100 * grow(choice, size).moved
            print(
                f"moved_{size}_{name} {value:.1f} % {value / hashing:.2f} "
                f"label_hashing_{hashing:.1f}"
            )
    tables = {name: grow(choice, 4).table for name, choice in CHOICES.items()}
    for name, table in tables.items():
        print(f"lost_{name} {100 * loss(table):.0f} % {4 * loss(table):.2f} one_shard_25")
    for name, table in tables.items():
        value = heaviest_survivor(table)
        print(f"survivor_{name} {value:.2f} max/mean {value:.2f} even_1.00")
    for name, table in tables.items():
        value = heaviest_heir(table)
        print(f"heir_{name} {value:.2f} x_fair {value:.2f} fair_1.00")


if __name__ == "__main__":
    main()
