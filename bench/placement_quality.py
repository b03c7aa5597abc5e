"""What placement buys and costs, against plain consistent hashing of labels on the same pushes.

    python bench/placement_quality.py [--seeds 1] [--minutes 1440] [--scenarios steady …] [--heirs]

Every scenario of `maar simulate placement`, on a virtual clock; the mean over the seeds. Each line:
name value unit ratio baseline. Moved is in percent of the load: 25 means that a quarter of the
series, by bytes, was sent to another place once. `moved_shard` and `moved_node` are what nodes that
came, went or died moved; `moved_by_rules` has no counterpart, for label hashing has no rules.
With --heirs only this: how much more than its share the heaviest heir of a dead writer takes, of
1,000 equal datasets of six series each, and whichever writer dies; against the owner of the next
shard. Then of datasets of a single series, which have one heir; then where all writers together
have 1,000 datasets.
"""

from __future__ import annotations

import argparse
from collections import Counter
from random import Random
from statistics import fmean

import xxhash

from maar.model.ids import NodeId, TenantId
from maar.placement.locate import Placement
from maar.placement.rules import PlacementSettings, Rules, TenantLimits
from maar.tools.simulate.fleet import fleet_of, ring_of
from maar.tools.simulate.replay import Replay
from maar.tools.simulate.report import SimulationReport, Way
from maar.tools.simulate.scenarios import SCENARIOS, scenario

DATASETS = 1000  # of a dead writer
MANY = 100 * DATASETS  # among which every writer has so many
SERIES = 6  # of a dataset, as small services of the scenarios have


def replay(name: str, seed: int, minutes: float) -> SimulationReport:
    made = scenario(name, seed)
    made = made._replace(duration_s=min(made.duration_s, 60 * minutes))
    return Replay(made, PlacementSettings(), Random(seed)).report(seed)


def measures(way: Way) -> dict[str, tuple[float, str]]:
    return {
        "shards_touched": (way.shards_touched, "per_dataset"),
        "node_skew": (way.node_skew.mean, "max/mean"),
        "shard_skew": (way.shard_skew.mean, "max/mean"),
        "moved_shard": (100 * way.moved_shard_by_ring, "%"),
        "moved_node": (100 * way.moved_node_by_ring, "%"),
        "moved_by_rules": (100 * way.moved_shard_by_rules, "%"),
    }


def tell(name: str, reports: list[SimulationReport]) -> None:
    ours = [measures(report.ours) for report in reports]
    plain = [measures(report.plain) for report in reports]
    for what, (_, unit) in ours[0].items():
        value, other = (fmean(one[what][0] for one in way) for way in (ours, plain))
        ratio = f"{value / other:.2f}" if other else "-"
        print(f"{name}_{what} {value:.2f} {unit} {ratio} label_hashing_{other:.2f}")
    given, ideal = (
        fmean(getattr(one, part) for report in reports for one in report.allotted.values())
        for part in ("given", "ideal")
    )
    print(f"{name}_shards {given:.2f} shards {given / ideal:.2f} ideal_{ideal:.2f}")
    switches = [report.most_switches for report in reports]
    print(f"# {name}: at most {max(switches)} switches of balancing by one dataset")


def heaviest_heir(
    nodes: int, *, series: int = SERIES, in_all: int = MANY, next_shard: bool = False
) -> float:
    """As a multiple of the fair share, of 1,000 datasets each or so many in all."""
    ring = ring_of(fleet_of(nodes, 4))
    placement = Placement(ring, Rules(), lambda _: TenantLimits(), Random(1).randrange)
    had = Counter[NodeId]()
    taken = {writer.node: Counter[NodeId]() for writer in ring.writers}
    for number in range(in_all):
        tenant, service = TenantId(f"tenant-{number % 7}"), f"service-{number}"
        dead = ring.nodes()[placement.place(tenant, service, 0).shard - 1]
        if had[dead] == DATASETS:
            continue
        had[dead] += 1
        marks = (xxhash.xxh64_intdigest(f"{service}/{one}".encode()) for one in range(series))
        places = Counter(placement.place(tenant, service, mark) for mark in marks)
        for place, many in places.items():
            others = (
                (ring.writers[ring.owners[shard - 1]] for shard in placement.order(place))
                if next_shard
                else placement.writers(place)
            )
            taken[dead][next(one.node for one in others if one.node != dead)] += many
        if had.total() == DATASETS * nodes:
            break
    return max(max(heirs.values()) * (nodes - 1) / heirs.total() for heirs in taken.values())


def tell_heirs() -> None:
    for nodes in range(3, 33):
        value, other = (heaviest_heir(nodes, next_shard=way) for way in (False, True))
        print(f"heaviest_heir_of_{nodes} {value:.2f} x_fair {value / other:.2f} next_{other:.2f}")
    for nodes in range(3, 33):
        value = heaviest_heir(nodes, series=1)
        print(f"heaviest_heir_single_{nodes} {value:.2f} x_fair {value:.2f} fair_1.00")
    for nodes in (3, 4, 6, 8, 11, 16, 26, 32):
        value = heaviest_heir(nodes, in_all=DATASETS)
        fair = DATASETS / nodes / (nodes - 1)
        print(f"heaviest_heir_in_all_{nodes} {value:.2f} x_fair {value:.2f} datasets_{fair:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=24 * 60)
    parser.add_argument("--scenarios", nargs="+", choices=list(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--heirs", action="store_true")
    given = parser.parse_args()
    if given.heirs:
        tell_heirs()
        return
    for name in given.scenarios:
        tell(name, [replay(name, seed, given.minutes) for seed in range(1, given.seeds + 1)])


if __name__ == "__main__":
    main()
