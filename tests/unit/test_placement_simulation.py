"""The simulation replays real placement: what it says of load, moves and switches holds."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import msgspec
import pytest

from maar.model.ids import TenantId
from maar.placement.rules import Balancing, PlacementSettings, TenantLimits
from maar.tools.simulate.fleet import Event, Fleet, Happening, after, fleet_of, node_name
from maar.tools.simulate.plain import Plain
from maar.tools.simulate.replay import Replay
from maar.tools.simulate.report import SimulationReport, Switch, skew, switch_counts
from maar.tools.simulate.scenarios import (
    HOUR,
    KIB,
    MIB,
    SCENARIOS,
    DatasetPushes,
    Scenario,
    background,
    between,
    flat,
    load,
    scenario,
    spikes,
)

SETTINGS = PlacementSettings()


def replayed(
    loads: list[DatasetPushes], *, seconds: float = 600, focus: tuple[str, ...] = (),
    nodes: int = 3,
    events: tuple[Event, ...] = (), settings: PlacementSettings = SETTINGS,
) -> SimulationReport:  # fmt: skip
    made = Scenario("made", "", tuple(loads), focus, duration_s=seconds, nodes=nodes, events=events)
    return Replay(made, settings, Random(7)).report(7)


# ── the fleet, and what it is compared with ────────────────────────────────────────────────────


def test_the_dead_keep_their_shards_and_those_who_leave_do_not() -> None:
    three = fleet_of(3, 4)
    dead = after(three, Event(0, node_name(2), Happening.DIES), 4)
    assert dead.owners == three.owners
    assert dead.alive == ["writer-1", "writer-3"]
    assert after(dead, Event(0, node_name(2), Happening.RETURNS), 4) == three
    left = after(three, Event(0, node_name(2), Happening.LEAVES), 4)
    assert left.nodes == ["writer-1", "writer-3"]
    assert len(left.owners) == 8
    assert after(left, Event(0, node_name(9), Happening.JOINS), 4).owners.count(node_name(9)) == 4


def test_plain_hashing_moves_only_what_the_node_that_comes_or_goes_has() -> None:
    marks = [Random(3).getrandbits(64) for _ in range(3000)]
    marks = [mark * 0x9E3779B97F4A7C15 * (place + 1) % 2**64 for place, mark in enumerate(marks)]
    four = fleet_of(4, 4)
    before, now = Plain(fleet_of(3, 4)), Plain(four)
    moves = [(before.place(mark), now.place(mark)) for mark in marks]
    assert {to.node for was, to in moves if was != to} == {node_name(4)}
    assert 0.15 < sum(was != to for was, to in moves) / len(marks) < 0.35
    without = Plain(Fleet(four.owners, frozenset([node_name(4)])))
    assert [without.place(mark) for mark in marks] == [before.place(mark) for mark in marks]


# ── replays ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_replays_and_its_report_is_json(name: str) -> None:
    whole = scenario(name, 1)
    loads = [one for one in whole.loads if one.service in whole.focus]
    few = whole._replace(loads=(*whole.loads[:10], *loads), duration_s=10 * whole.push_every_s)
    report = Replay(few, SETTINGS, Random(1)).report(1)
    assert report.scenario == name
    assert set(report.allotted) == set(whole.focus)
    assert report.profiles == 10 * sum(len(one.fingerprints) for one in few.loads)
    assert msgspec.json.decode(msgspec.json.encode(report), type=SimulationReport) == report


def test_the_same_seed_gives_the_same_report_and_another_one_another() -> None:
    def made(seed: int) -> SimulationReport:
        whole = scenario("noisy-neighbours", seed)
        few = whole._replace(loads=(whole.loads[0], *whole.loads[-10:]), duration_s=120)
        return Replay(few, SETTINGS, Random(seed)).report(0)

    assert made(1) == made(1) != made(2)


def test_all_that_is_pushed_is_on_the_nodes_in_both_ways() -> None:
    report = replayed(background(Random(1), MIB, services=20), seconds=300)
    for sample in report.samples:
        assert sum(sample.nodes.values()) == pytest.approx(sum(sample.plain_nodes.values()))
        assert sum(sample.nodes.values()) == pytest.approx(MIB, rel=0.05)


def test_a_dataset_keeps_to_few_shards_where_hashing_of_labels_uses_many() -> None:
    loads = [load(Random(n), f"s{n}", flat(40 * KIB), series=20) for n in range(12)]
    report = replayed(loads, seconds=300)
    assert report.ours.shards_touched == 1
    assert report.plain.shards_touched > 7


def test_shards_come_only_after_the_lag_of_the_loop_and_then_soon() -> None:
    """The load comes at 300 s. A node's view of it is at least one look and one reload old."""
    rate = between([(300, 8 * KIB), (301, 40 * MIB)])
    report = replayed([load(Random(1), "front", rate, series=90)], focus=("front",), nodes=20)
    shards = {sample.at_s: sample.focus["front"].shards for sample in report.samples}
    assert [shards[at_s] for at_s in (60, 120, 180, 240, 300)] == [1] * 5
    assert shards[360] > 10
    needed = {sample.at_s: sample.focus["front"].ideal for sample in report.samples}
    assert needed[240] == 1
    assert needed[420] == 80, "all that there are; it could use 321"


def test_the_loop_lags_by_one_look_of_the_manager_and_one_of_the_distributor() -> None:
    """The load comes at 61 s, rules know of it at 120 s, and distributors of them at 180 s."""
    rate = between([(61, 8 * KIB), (62, 40 * MIB)])
    loads = [load(Random(1), "front", rate, series=20)]
    minutes = PlacementSettings(interval_s=60, reload_s=60)
    report = replayed(loads, seconds=240, focus=("front",), nodes=20, settings=minutes)
    shards = {sample.at_s: sample.focus["front"].shards for sample in report.samples}
    assert [shards[at_s] for at_s in (60, 120, 180)] == [1, 1, 1]
    assert shards[240] > 10


def test_rules_are_made_and_looked_for_as_often_as_the_settings_say() -> None:
    rate = between([(60, 8 * KIB), (61, 40 * MIB)])
    loads = [load(Random(1), "front", rate, series=20)]
    slow = PlacementSettings(interval_s=400, reload_s=400)
    report = replayed(loads, focus=("front",), nodes=20, settings=slow)
    shards = [sample.focus["front"].shards for sample in report.samples]
    assert shards[5] == 1, "made at 0 and 400 s, looked for just before"
    assert max(shards) == 1
    quick = PlacementSettings(interval_s=0.5, reload_s=0.5)
    report = replayed(loads, focus=("front",), nodes=20, settings=quick)
    assert report.samples[1].focus["front"].shards > 10


def test_a_load_on_the_edge_of_one_more_shard_does_not_change_them_again_and_again() -> None:
    report = replayed(
        [load(Random(1), "edge", flat(512 * KIB), series=40)], seconds=3600, focus=("edge",)
    )
    edge = report.allotted["edge"]
    assert edge.changes <= 4
    assert edge.most <= 10


def test_tenants_keep_within_their_shards_whatever_they_push() -> None:
    loud = [
        load(Random(n), f"batch-{n}", flat(2 * MIB), tenant="noisy", series=20) for n in range(4)
    ]
    made = Scenario("made", "", tuple(loud), (), 600, limits={
        TenantId("noisy"): TenantLimits(tenant_shards=2),
    })  # fmt: skip
    report = Replay(made, SETTINGS, Random(1)).report(1)
    assert report.ours.shards_touched <= 2
    assert report.ours.shard_skew.mean >= 24 / 2


def test_a_dead_node_takes_nothing_its_shards_fail_over_and_come_back() -> None:
    lost = node_name(2)
    events = (Event(300, lost, Happening.DIES), Event(600, lost, Happening.RETURNS))
    loads = [load(Random(n), f"s{n}", flat(32 * KIB), series=6) for n in range(40)]
    report = replayed(loads, seconds=900, nodes=4, events=events)
    for sample in report.samples:
        assert (lost in sample.nodes) == (not 300 < sample.at_s <= 600)
        assert sum(sample.nodes.values()) == pytest.approx(40 * 32 * KIB, rel=0.05)
    before, after_it = report.samples[4].nodes, report.samples[-1].nodes
    assert after_it[lost] == pytest.approx(before[lost], rel=0.1)
    assert report.ours.moved_shard_by_ring == 0, "the shards stay what they are"
    back_and_forth = 2 * before[lost] / sum(before.values())
    assert report.ours.moved_node_by_ring == pytest.approx(back_and_forth, rel=0.1)


def test_a_new_node_moves_few_datasets_and_gets_its_part() -> None:
    events = (Event(300, node_name(4), Happening.JOINS),)
    loads = [load(Random(n), f"s{n}", flat(16 * KIB), series=2) for n in range(150)]
    report = replayed(loads, seconds=420, nodes=3, events=events)
    assert 0.15 < report.ours.moved_shard_by_ring < 0.35, "a quarter of the shards are new"
    assert report.ours.moved_node_by_ring < 0.5
    last = report.samples[-1].nodes
    assert 0.1 < last[node_name(4)] / sum(last.values()) < 0.4


# ── switches of balancing ──────────────────────────────────────────────────────────────────────


def switches_of(report: SimulationReport, service: str) -> list[Switch]:
    return [one for one in report.switches if one.service == service]


def test_balancing_does_not_flap() -> None:
    """By chance while a series is hot, by fingerprint after; trials that fail become rare."""
    whole = scenario("uneven", 1)
    few = whole._replace(
        loads=tuple(one for one in whole.loads if one.service in whole.focus),
        duration_s=5 * HOUR,
        push_every_s=120,
    )
    report = Replay(few, SETTINGS, Random(1)).report(1)
    assert not switches_of(report, "small"), "too small to trouble anybody"
    ends = {name: switches_of(report, name)[-1].balancing for name in whole.focus[:3]}
    assert ends["hot-for-ever"] is Balancing.ROUND_ROBIN
    assert ends["hot-for-a-while"] is Balancing.FINGERPRINT
    assert report.shortest_s is not None
    assert report.shortest_s >= SETTINGS.tenant.decay_window_s
    for name in ("hot-for-ever", "on-the-edge"):
        begun = [
            one.at_s for one in switches_of(report, name) if one.balancing is Balancing.FINGERPRINT
        ]
        pauses = [right - left for left, right in pairwise(begun)]
        assert all(right > 1.5 * left for left, right in pairwise(pauses)), pauses
        assert 2 <= len(begun) <= 4, "in five hours"


def test_restlessness_is_of_one_dataset_and_counts_time_by_chance() -> None:
    def at(at_s: float, service: str, balancing: Balancing) -> Switch:
        return Switch(at_s, TenantId("acme"), service, balancing)

    chance, fingerprint = Balancing.ROUND_ROBIN, Balancing.FINGERPRINT
    assert switch_counts([]) == (0, None)
    assert switch_counts([at(1, "a", chance), at(5, "b", chance)]) == (1, None)
    history = [at(1, "a", chance), at(9, "a", fingerprint), at(10, "a", chance), at(2, "b", chance)]
    assert switch_counts(history) == (3, 8)


# ── what loads are made of ─────────────────────────────────────────────────────────────────────


def test_skew_is_the_largest_over_the_mean() -> None:
    assert skew([3, 1, 2]) == 1.5
    assert skew([0, 0]) == skew([]) == 1.0


def test_rates_go_in_straight_lines_and_spikes_end() -> None:
    rate = between([(10, 0), (20, 100), (40, 50)])
    assert [rate(at_s) for at_s in (0, 10, 15, 20, 30, 99)] == [0, 0, 50, 100, 75, 50]
    bursts = spikes(Random(1), 1, 100, 3600, every_s=300)
    seen = [bursts(at_s) for at_s in range(3600)]
    assert min(seen) == 1
    assert 50 <= max(seen) <= 100
    assert 0.1 < sum(value > 1 for value in seen) / 3600 < 0.5


@pytest.mark.parametrize("name", SCENARIOS)
def test_weights_of_series_sum_up_to_one(name: str) -> None:
    made = scenario(name, 3)
    for one in made.loads:
        for at_s in (0.0, made.duration_s / 3, made.duration_s):
            weights = one.weights(at_s)
            assert len(weights) == len(one.fingerprints)
            assert sum(weights) == pytest.approx(1)
            assert one.rate(at_s) > 0
