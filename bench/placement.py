"""Placements per second on one core, against plain consistent hashing of labels.

    python bench/placement.py [--placements 400000] [--rounds 5]

The same profiles are placed both ways: 400 services of 8 tenants with 25 series each, over 16
nodes of 4 shards; every fourth service has 4 shards of its own, every sixteenth is spread by
chance. The baseline looks a series' fingerprint up in a sorted ring of 128 tokens a shard, as
consistent hashing of labels does. Fingerprints are there already, for both.

    place          a shard for a profile, from what is remembered of its dataset
    place_first    for a dataset that was never placed before (a new ring or new rules)
    writers        who takes it, in order of failover, all 16 of them

Each line: name value unit ratio baseline.
"""

from __future__ import annotations

import argparse
import bisect
import time
from collections.abc import Callable
from random import Random

from maar.model.ids import HOME, NodeId, TenantId
from maar.model.ring import Ring, Writer, WriterState
from maar.placement.locate import Place, Placement
from maar.placement.rules import Balancing, Rules, Share, TenantLimits
from maar.placement.table import new_table

NODES, SHARDS = 16, 4
TENANTS, SERVICES, SERIES = 8, 400, 25
TOKENS = 128

Key = tuple[TenantId, str, int]


def ring() -> Ring:
    names = [NodeId(f"writer-{number:02}") for number in range(NODES)]
    table = new_table(dict.fromkeys(names, SHARDS))
    writers = tuple(Writer(name, "", "", SHARDS, WriterState.ACTIVE) for name in names)
    return Ring(HOME, 1, writers, tuple(names.index(owner) for owner in table))


def rules() -> Rules:
    shares = {}
    for service in range(0, SERVICES, 4):
        way = Balancing.ROUND_ROBIN if service % 16 == 0 else Balancing.FINGERPRINT
        shares[dataset(service)] = Share(0, 4, way)
    return Rules(1, shares)


def dataset(service: int) -> tuple[TenantId, str]:
    return TenantId(f"tenant-{service % TENANTS}"), f"service-{service}"


def profiles(count: int, chance: Random) -> list[Key]:
    """The strings are made anew for each, as they come from requests."""
    series = [
        (*dataset(service), chance.getrandbits(64))
        for service in range(SERVICES)
        for _ in range(SERIES)
    ]
    drawn = chance.choices(series, k=count)
    return [(TenantId("".join(t)), "".join(s), mark) for t, s, mark in drawn]


def fresh(chance: Random) -> Placement:
    return Placement(ring(), rules(), lambda _: TenantLimits(), lambda n: int(chance.random() * n))


def time_placing(keys: list[Key], chance: Random) -> float:
    place = fresh(chance).place
    for tenant, service, mark in keys[: SERVICES * SERIES]:
        place(tenant, service, mark)
    began = time.perf_counter()
    for tenant, service, mark in keys:
        place(tenant, service, mark)
    return len(keys) / (time.perf_counter() - began)


def placed_first(keys: list[Key], chance: Random) -> float:
    distinct = list({(tenant, service): mark for tenant, service, mark in keys}.items())
    place = fresh(chance).place
    began = time.perf_counter()
    for (tenant, service), mark in distinct:
        place(tenant, service, mark)
    return len(distinct) / (time.perf_counter() - began)


def time_hashing(keys: list[Key], chance: Random) -> float:
    tokens = sorted(
        (chance.getrandbits(64), shard) for shard in range(NODES * SHARDS) for _ in range(TOKENS)
    )
    starts, shards = [token for token, _ in tokens], [shard for _, shard in tokens]
    found = bisect.bisect_right
    began = time.perf_counter()
    for _, _, mark in keys:
        shards[found(starts, mark) % len(shards)]
    return len(keys) / (time.perf_counter() - began)


def time_ordering(keys: list[Key], chance: Random) -> float:
    placement = fresh(chance)
    places: list[Place] = [placement.place(*key) for key in keys[:2000]]
    began = time.perf_counter()
    for place in places:
        list(placement.writers(place))
    return len(places) / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--placements", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    ways: dict[str, Callable[[list[Key], Random], float]] = {
        "place": time_placing,
        "place_first": placed_first,
        "writers": time_ordering,
    }
    best = {name: 0.0 for name in (*ways, "hashed")}
    for turn in range(given.rounds):  # in turns, so that a busy machine slows all of them
        for name, way in (*ways.items(), ("hashed", time_hashing)):
            keys = profiles(given.placements, Random(turn))
            best[name] = max(best[name], way(keys, Random(turn)))
    print(
        f"# {given.placements} profiles of {SERVICES} services over {NODES * SHARDS} shards, "
        f"best of {given.rounds}"
    )
    for name in ways:
        ratio = best[name] / best["hashed"]
        print(f"{name} {best[name]:.0f} per_s {ratio:.2f} label_hashing_{best['hashed']:.0f}")


if __name__ == "__main__":
    main()
