"""Loads that fleets really have, made up from a seed: who pushes how much, and what happens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import cos, pi
from random import Random
from typing import NamedTuple

from maar.model.ids import NodeId, TenantId
from maar.placement.rules import TenantLimits
from maar.tools.simulate.fleet import Event, Happening, node_name

KIB, MIB = 1 << 10, 1 << 20
MINUTE, HOUR = 60.0, 3600.0

Rate = Callable[[float], float]  # bytes a second at a time
Weights = Callable[[float], Sequence[float]]  # of the series at a time; they sum up to 1


class DatasetPushes(NamedTuple):
    """One dataset: series that push in turn."""

    tenant: TenantId
    service: str
    fingerprints: tuple[int, ...]
    weights: Weights
    rate: Rate


class Scenario(NamedTuple):
    name: str
    about: str
    loads: tuple[DatasetPushes, ...]
    focus: tuple[str, ...]  # the services whose shards are drawn
    duration_s: float = HOUR
    nodes: int = 6
    shards: int = 4  # of a node
    push_every_s: int = 15  # by each series
    events: tuple[Event, ...] = ()
    limits: Mapping[TenantId, TenantLimits] = {}


def scenario(name: str, seed: int) -> Scenario:
    return SCENARIOS[name](Random(f"{name}/{seed}"))


# ── what loads are made of ─────────────────────────────────────────────────────────────────────


def load(
    chance: Random, service: str, rate: Rate, *, tenant: str = "", series: int = 24
) -> DatasetPushes:
    """A dataset whose pods differ, but not by much; where it lies is another with every seed."""
    return DatasetPushes(
        TenantId(tenant or f"tenant-{chance.getrandbits(32):08x}"),
        service,
        tuple(chance.getrandbits(64) for _ in range(series)),
        always(alike(chance, series)),
        rate,
    )


def background(
    chance: Random, total: float, *, services: int = 120, daily: bool = False
) -> list[DatasetPushes]:
    """Services of five tenants, a few large and many small."""
    tenants = [f"tenant-{chance.getrandbits(32):08x}" for _ in range(5)]
    sizes = [1 / (rank + 1) ** 0.8 for rank in range(services)]
    return [
        load(
            chance,
            f"service-{rank:02}",
            day(total * size / sum(sizes)) if daily else flat(total * size / sum(sizes)),
            tenant=tenants[rank % 5],
            series=chance.randint(3, 9),
        )
        for rank, size in enumerate(sizes)
    ]


def alike(chance: Random, series: int) -> list[float]:
    return normal([chance.lognormvariate(0, 0.4) for _ in range(series)])


def one_of_them(series: int, share: float) -> list[float]:
    """The first series has that share, the others the rest in equal parts."""
    return [share, *[(1 - share) / (series - 1)] * (series - 1)]


def normal(weights: Sequence[float]) -> list[float]:
    total = sum(weights)
    return [weight / total for weight in weights]


def always(weights: Sequence[float]) -> Weights:
    return lambda _: weights


def flat(rate: float) -> Rate:
    return lambda _: rate


def between(points: Sequence[tuple[float, float]]) -> Rate:
    """Straight lines from point to point (time, rate), level before and after them."""

    def rate(at_s: float) -> float:
        if at_s <= points[0][0]:
            return points[0][1]
        for (left, low), (right, high) in pairwise(points):
            if at_s < right:
                return low + (high - low) * (at_s - left) / (right - left)
        return points[-1][1]

    return rate


def day(peak: float) -> Rate:
    """Least at midnight, most at noon."""
    return lambda at_s: peak * (0.15 + 0.85 * (1 - cos(2 * pi * at_s / (24 * HOUR))) / 2)


def spikes(chance: Random, low: float, high: float, until_s: float, *, every_s: float) -> Rate:
    """Half a minute to three minutes each, with up to twice the mean pause between them."""
    bursts: list[tuple[float, float, float]] = []
    at_s = every_s
    while at_s < until_s:
        lasts_s = chance.uniform(30, 180)
        bursts.append((at_s, at_s + lasts_s, chance.uniform(high / 2, high)))
        at_s += lasts_s + chance.uniform(every_s / 4, 1.75 * every_s)

    def rate(at_s: float) -> float:
        return max((top for begin, end, top in bursts if begin <= at_s < end), default=low)

    return rate


# ── the scenarios ──────────────────────────────────────────────────────────────────────────────


def steady(chance: Random) -> Scenario:
    """One service is just as large as four shards, where a little noise asks for a fifth."""
    return Scenario(
        "steady",
        "120 services of five tenants, each with a load that does not change",
        (*background(chance, 1.7 * MIB), load(chance, "four-shards", flat(512 * KIB), series=60)),
        ("service-00", "service-20", "four-shards"),
        duration_s=90 * MINUTE,
    )


def steady_front(chance: Random) -> Scenario:
    front = [(10 * MINUTE, 64 * KIB), (11 * MINUTE, 1.6 * MIB)]
    return Scenario(
        "steady-front",
        "A service is rolled out everywhere within a minute and stays",
        (*background(chance, MIB), load(chance, "front", between(front), series=240)),
        ("front",),
        duration_s=90 * MINUTE,
    )


def ramp(chance: Random) -> Scenario:
    points = [(0, 32 * KIB), (60 * MINUTE, 1.6 * MIB), (120 * MINUTE, 32 * KIB)]
    return Scenario(
        "ramp",
        "A service grows for an hour and shrinks for an hour",
        (*background(chance, MIB), load(chance, "ramp", between(points), series=240)),
        ("ramp",),
        duration_s=3 * HOUR,
    )


def diurnal(chance: Random) -> Scenario:
    return Scenario(
        "diurnal",
        "A day: all services follow the same sun",
        (
            *background(chance, 1.2 * MIB, services=40, daily=True),
            load(chance, "shop", day(1.4 * MIB), series=160),
        ),
        ("shop", "service-00"),
        duration_s=24 * HOUR,
        push_every_s=120,
    )


def extreme_spikes(chance: Random) -> Scenario:
    duration_s = 2 * HOUR
    rate = spikes(chance, 48 * KIB, 2 * MIB, 80 * MINUTE, every_s=8 * MINUTE)
    return Scenario(
        "extreme-spikes",
        "A service that is up to forty times its size for one to three minutes, again and again",
        (*background(chance, MIB), load(chance, "spikes", rate, series=160)),
        ("spikes",),
        duration_s=duration_s,
    )


def noisy_neighbours(chance: Random) -> Scenario:
    duration_s = 90 * MINUTE
    noisy = TenantId("noisy")
    loud = [
        load(
            chance,
            f"batch-{number}",
            spikes(chance, 8 * KIB, 512 * KIB, duration_s, every_s=9 * MINUTE),
            tenant=noisy,
            series=30,
        )
        for number in range(10)
    ]
    return Scenario(
        "noisy-neighbours",
        "A tenant with ten bursting services, bound to 8 of the 24 shards, beside quiet ones",
        (*background(chance, 1.2 * MIB), *loud),
        ("batch-0", "batch-1", "service-00"),
        duration_s=duration_s,
        limits={noisy: TenantLimits(tenant_shards=8)},
    )


def uneven(chance: Random) -> Scenario:
    """Three ways to be uneven; only the first two are a reason to spread by chance."""
    series = 40
    hot, calm = one_of_them(series, 0.6), alike(chance, series)
    at_times = [one_of_them(series, 0.34), one_of_them(series, 0.2)]

    def weights_at(at_s: float) -> Sequence[float]:
        return hot if 30 * MINUTE <= at_s < 100 * MINUTE else calm

    def on_the_edge(at_s: float) -> Sequence[float]:
        return at_times[int(at_s // (7 * MINUTE)) % 2]

    def make(service: str, weights: Weights, rate: float) -> DatasetPushes:
        return load(chance, service, flat(rate), series=series)._replace(weights=weights)

    return Scenario(
        "uneven",
        "Series unlike each other: one hot for a while, for ever, around the threshold, and small",
        (
            *background(chance, 512 * KIB, services=10),
            make("hot-for-a-while", weights_at, 1088 * KIB),
            make("hot-for-ever", always(hot), 832 * KIB),
            make("on-the-edge", on_the_edge, 1344 * KIB),
            make("small", always(hot), 96 * KIB),
        ),
        ("hot-for-a-while", "hot-for-ever", "on-the-edge", "small"),
        duration_s=8 * HOUR,
        push_every_s=20,
    )


def node_loss(chance: Random) -> Scenario:
    lost = node_name(2)
    return Scenario(
        "node-loss",
        "One of six writers is dead for half an hour; its shards fail over and come back",
        (*background(chance, 1.5 * MIB), load(chance, "shop", flat(1088 * KIB), series=120)),
        ("shop",),
        duration_s=90 * MINUTE,
        events=(
            Event(30 * MINUTE, lost, Happening.DIES),
            Event(60 * MINUTE, lost, Happening.RETURNS),
        ),
    )


def scale_out(chance: Random) -> Scenario:
    return _scale_scenario(chance, "scale-out", "Three writers become six, one every 15 minutes", 3,
                   Happening.JOINS, [node_name(number) for number in (4, 5, 6)])  # fmt: skip


def scale_in(chance: Random) -> Scenario:
    return _scale_scenario(chance, "scale-in", "Six writers become three, one every 15 minutes", 6,
                   Happening.LEAVES, [node_name(number) for number in (2, 5, 1)])  # fmt: skip


def _scale_scenario(
    chance: Random, name: str, about: str, nodes: int, what: Happening, who: Sequence[NodeId]
) -> Scenario:
    return Scenario(
        name,
        about,
        (*background(chance, MIB), load(chance, "shop", flat(576 * KIB), series=120)),
        ("shop",),
        duration_s=75 * MINUTE,
        nodes=nodes,
        events=tuple(Event((15 + 15 * turn) * MINUTE, node, what) for turn, node in enumerate(who)),
    )


SCENARIOS: Mapping[str, Callable[[Random], Scenario]] = {
    "steady": steady,
    "steady-front": steady_front,
    "ramp": ramp,
    "diurnal": diurnal,
    "extreme-spikes": extreme_spikes,
    "noisy-neighbours": noisy_neighbours,
    "uneven": uneven,
    "node-loss": node_loss,
    "scale-out": scale_out,
    "scale-in": scale_in,
}
