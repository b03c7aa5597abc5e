"""Replays a scenario second by second, with the lag of the loop from statistics to rules.

A push is registered a second later. Rules are made every `interval_s`; distributors look for them
every `reload_s`, just before the next ones are made, which is the longest that they can lag.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from random import Random
from statistics import fmean
from typing import NamedTuple

from maar.model.ids import HOME, NodeId, Shard, TenantId
from maar.model.time import SECOND_NS
from maar.placement.adaptive.builder import RulesBuilder, Surroundings
from maar.placement.adaptive.statistics import WriteSource
from maar.placement.locate import Place, Placement
from maar.placement.rules import Balancing, PlacementSettings, Rules, TenantLimits
from maar.tools.simulate import report
from maar.tools.simulate.fleet import after, fleet_of, ring_of
from maar.tools.simulate.plain import Home, Plain
from maar.tools.simulate.report import Focus, LoadSample, Moves, SimulationReport, Switch
from maar.tools.simulate.scenarios import DatasetPushes, Scenario

ROUNDS = 4  # pushes of a series between two samples, at least
SAMPLES_MAX = 240
NOISE = 0.15  # of the size of a profile
BEGAN_S = 1_000_000  # lease time at the beginning


class Put(NamedTuple):
    """Where a profile was put, in both ways, and under which fleet."""

    shard: Shard
    node: NodeId
    home: Home
    turn: int


@dataclass(slots=True, eq=False)
class Series:
    load: DatasetPushes
    place: int  # in its dataset
    fingerprint: int
    last: Put | None = None


class SampleWindow:
    """What happened since the last sample."""

    def __init__(self) -> None:
        self.shards: Counter[Shard] = Counter()
        self.nodes: Counter[NodeId] = Counter()
        self.homes: Counter[Home] = Counter()
        self.touched: defaultdict[tuple[TenantId, str], set[Shard]] = defaultdict(set)
        self.plain_touched: defaultdict[tuple[TenantId, str], set[Home]] = defaultdict(set)


class Replay:
    """One run; `report` is the only way in."""

    def __init__(self, scenario: Scenario, settings: PlacementSettings, chance: Random) -> None:
        self._scenario = scenario
        self._settings = settings
        self._chance = chance
        self._builder = RulesBuilder(settings)
        self._newest = self._rules = Rules()
        self._fleet = fleet_of(scenario.nodes, scenario.shards)
        self._turn = 0  # how often the fleet has changed
        self._make_at = self._look_at = 0.0
        self._moved, self._plain_moved = Moves(), Moves()
        self._switches: list[Switch] = []
        self._profiles = self._bytes = 0
        self._plain = Plain(self._fleet)
        self._resettle()

    def report(self, seed: int) -> SimulationReport:
        samples = tuple(self._run())
        most, shortest_s = report.switch_counts(self._switches)
        pushed = self._bytes
        a_round = pushed / self._scenario.duration_s * self._scenario.push_every_s
        return SimulationReport(
            scenario=self._scenario.name,
            about=self._scenario.about,
            seed=seed,
            duration_s=self._scenario.duration_s,
            profiles=self._profiles,
            bytes=self._bytes,
            datasets=len(self._scenario.loads),
            ours=report.way(samples, self._moved, a_round, pushed, plain=False),
            plain=report.way(samples, self._plain_moved, a_round, pushed, plain=True),
            allotted={name: report.allotment_of(samples, name) for name in self._scenario.focus},
            shards_given=sum(one.shards for one in samples) / len(samples),
            shards_ideal=sum(one.ideal for one in samples) / len(samples),
            switches=tuple(self._switches),
            most_switches=most,
            shortest_s=shortest_s,
            events=tuple((one.at_s, f"{one.node} {one.what}") for one in self._scenario.events),
            samples=samples,
        )

    def _run(self) -> Iterator[LoadSample]:
        turns = self._turns()
        every = len(turns) * max(ROUNDS, ceil(self._scenario.duration_s / SAMPLES_MAX / len(turns)))
        window, since = SampleWindow(), 0
        events = list(self._scenario.events)
        for second in range(int(self._scenario.duration_s)):
            while events and events[0].at_s <= second:
                self._fleet = after(self._fleet, events.pop(0), self._scenario.shards)
                self._turn += 1
                self._plain = Plain(self._fleet)
                self._resettle()
            self._follow_rules(second)
            for series in turns[second % len(turns)]:
                self._push(series, second, window)
            if second + 1 - since == every:
                yield self._sample(second + 1, second + 1 - since, window)
                window, since = SampleWindow(), second + 1
        if not since:  # a run too short for a whole sample
            seconds = int(self._scenario.duration_s)
            yield self._sample(seconds, seconds, window)

    def _turns(self) -> list[list[Series]]:
        """Who pushes in which second of a round: every series once."""
        turns: list[list[Series]] = [[] for _ in range(self._scenario.push_every_s)]
        for load in self._scenario.loads:
            for place, mark in enumerate(load.fingerprints):
                turns[self._chance.randrange(len(turns))].append(Series(load, place, mark))
        return turns

    # ── the loop from statistics to rules ───────────────────────────────────────────────────────

    def _follow_rules(self, second: int) -> None:
        if second >= self._look_at:  # before the new ones are made: the longest lag
            self._look_at += max(1.0, self._settings.reload_s)
            self._look()
        if second >= self._make_at:
            self._make_at += max(1.0, self._settings.interval_s)
            self._make(second)

    def _look(self) -> None:
        if self._newest is not self._rules:
            self._rules = self._newest
            self._resettle()

    def _make(self, second: int) -> None:
        around = Surroundings(self._limits, shards={HOME: len(self._fleet.owners)})
        built = self._builder.build(around, _now_ns(second))
        self._newest = built.rules
        self._switches += [
            Switch(second, tenant, service, balancing)
            for (tenant, service), balancing in built.switched.items()
        ]

    def _limits(self, tenant: TenantId) -> TenantLimits:
        return self._scenario.limits.get(tenant, self._settings.tenant)

    def _resettle(self) -> None:
        """Another ring or other rules."""
        self._ring = ring_of(self._fleet)
        self._placement = Placement(self._ring, self._rules, self._limits, self._chance.randrange)
        self._stand_in: dict[Place, NodeId] = {}

    # ── pushes ──────────────────────────────────────────────────────────────────────────────────

    def _push(self, series: Series, second: int, window: SampleWindow) -> None:
        load = series.load
        weight = load.weights(second)[series.place]
        amount = load.rate(second) * weight * self._scenario.push_every_s
        size = round(amount * self._chance.uniform(1 - NOISE, 1 + NOISE))
        place = self._placement.place(load.tenant, load.service, series.fingerprint)
        node = self._taker(place)
        home = self._plain.place(series.fingerprint)
        self._profiles += 1
        self._bytes += size
        self._builder.record(
            load.tenant, load.service, WriteSource(place.shard, node), size, _now_ns(second + 1)
        )
        window.shards[place.shard] += size
        window.nodes[node] += size
        window.homes[home] += size
        window.touched[load.tenant, load.service].add(place.shard)
        window.plain_touched[load.tenant, load.service].add(home)
        self._note_moves(series, Put(place.shard, node, home, self._turn), size)

    def _taker(self, place: Place) -> NodeId:
        """The owner of the shard, or who takes it while that is dead."""
        node = self._fleet.owners[place.shard - 1]
        if node not in self._fleet.dead:
            return node
        found = self._stand_in.get(place)
        if found is None:
            writers = (writer.node for writer in self._placement.writers(place))
            found = next(node for node in writers if node not in self._fleet.dead)
            self._stand_in[place] = found
        return found

    def _note_moves(self, series: Series, now: Put, size: int) -> None:
        last, series.last = series.last or now, now
        by_ring = last.turn != now.turn
        home, other = last.home, now.home
        self._plain_moved.note(size, home != other, home.node != other.node, by_ring=by_ring)
        if self._by_chance(series.load):
            self._moved.by_chance += size
        else:
            shard, node = last.shard != now.shard, last.node != now.node
            self._moved.note(size, shard, node, by_ring=by_ring)

    def _by_chance(self, load: DatasetPushes) -> bool:
        share = self._rules.datasets.get((load.tenant, load.service))
        return share is not None and share.balancing is Balancing.ROUND_ROBIN

    # ── samples ─────────────────────────────────────────────────────────────────────────────────

    def _sample(self, second: int, seconds: int, window: SampleWindow) -> LoadSample:
        alive, shards = self._fleet.alive, len(self._fleet.owners)
        focus = [(load, self._focus(load, second, seconds)) for load in self._scenario.loads]
        homes: Counter[NodeId] = Counter()
        for home, size in window.homes.items():
            homes[home.node] += size
        return LoadSample(
            at_s=second,
            shards=sum(one.shards for _, one in focus),
            ideal=sum(one.ideal for _, one in focus),
            focus={
                load.service: one for load, one in focus if load.service in self._scenario.focus
            },
            nodes={node: window.nodes[node] / seconds for node in alive},
            plain_nodes={node: homes[node] / seconds for node in alive},
            shard_skew=report.skew(window.shards[Shard(shard)] for shard in range(1, shards + 1)),
            plain_shard_skew=report.skew(
                [*window.homes.values(), *[0] * (shards - len(window.homes))]
            ),
            touched=_mean_size(window.touched),
            plain_touched=_mean_size(window.plain_touched),
        )

    def _focus(self, load: DatasetPushes, second: int, seconds: int) -> Focus:
        limits = self._limits(load.tenant)
        rate = fmean(load.rate(second - seconds * part / 8) for part in range(1, 8))
        spot = self._placement.place(load.tenant, load.service, 0).spot
        ideal = min(int(rate / limits.unit_bytes) + 1, limits.dataset_shards_max)
        return Focus(
            rate,
            min(spot.tenant_shards, max(limits.dataset_shards_min, ideal)),
            spot.dataset_shards,
            self._by_chance(load),
        )


def _mean_size(touched: Mapping[tuple[TenantId, str], Collection[object]]) -> float:
    return sum(map(len, touched.values())) / max(1, len(touched))


def _now_ns(second: int) -> int:
    return (BEGAN_S + second) * SECOND_NS
