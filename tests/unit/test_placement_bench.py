"""The benchmarks of placement run, in small, and print what they promise. Nothing is timed."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from itertools import permutations
from pathlib import Path
from random import Random

import pytest

from maar.model.ids import TenantId
from maar.placement.locate import Placement
from maar.placement.rules import Rules, TenantLimits
from maar.tools.simulate.fleet import fleet_of, ring_of

BENCH = Path(__file__).parents[2] / "bench"


def lines_of(
    name: str, *arguments: str, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[str, list[str]]:
    patch.syspath_prepend(str(BENCH))
    patch.setattr(sys, "argv", [name, *arguments])
    importlib.import_module(name).main()
    said = capsys.readouterr().out.splitlines()
    found = {words[0]: words[1:] for words in map(str.split, said) if words[0] != "#"}
    assert all(len(words) == 4 for words in found.values()), said
    return found


def test_speed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--placements", "3000", "--rounds", "1")
    found = lines_of("placement", *options, patch=monkeypatch, capsys=capsys)
    assert set(found) == {"place", "place_first", "writers"}
    assert all(float(value) > 0 for value, *_ in found.values())
    assert found["place"][3].startswith("label_hashing_")


def test_quality(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--minutes", "5", "--scenarios", "steady")
    found = lines_of("placement_quality", *options, patch=monkeypatch, capsys=capsys)
    assert set(found) == {
        f"steady_{what}"
        for what in (
            *("shards_touched", "node_skew", "shard_skew", "shards"),
            *("moved_shard", "moved_node", "moved_by_rules"),
        )
    }
    assert float(found["steady_shards_touched"][2]) < 0.5, "as a ratio to hashing of labels"


def test_moves(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What docs/placement.md says of tables: only neighbours in one hand move as little as hashing
    of labels, only small datasets do, and a fleet with a large one is uneven then.
    """
    found = lines_of("placement_moves", patch=monkeypatch, capsys=capsys)
    value = {name: float(words[0]) for name, words in found.items()}
    hashing = float(found["moved_1_all"][3].removeprefix("label_hashing_"))
    assert value["moved_1_least"] == value["moved_1_none"] < hashing + 1
    assert value["moved_1_all"] > value["moved_1_half"] > 80
    assert all(value[f"moved_{size}_least"] > hashing + 4 for size in (2, 4, 6))
    assert value["lost_none"] > 1.6 * value["lost_all"]
    assert value["survivor_none"] > 1.5 > value["survivor_all"]
    assert all(value[f"heir_{way}"] < 1.2 for way in ("all", "half", "none", "least"))


def test_the_moves_that_are_reckoned_with_are_those_of_real_datasets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    flow = importlib.import_module("placement_moves").flow
    limits = TenantLimits(dataset_shards=3)
    before, after = (
        Placement(ring_of(fleet_of(nodes, 4)), Rules(), lambda _: limits, Random(1).randrange)
        for nodes in (3, 4)
    )
    counted = Counter[tuple[int, int]]()
    for number in range(4000):
        for mark in range(3):
            name = TenantId("acme"), f"service-{number}", mark
            counted[before.place(*name).shard - 1, after.place(*name).shard - 1] += 1
    expected = flow(12, 16, 3)
    assert sum(expected.values()) == pytest.approx(1)
    assert set(counted) <= set(expected)
    for pair, part in expected.items():
        assert counted[pair] / counted.total() == pytest.approx(part, abs=0.008)


def test_an_assignment_has_the_least_cost_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    assign = importlib.import_module("placement_moves").assign
    for seed in range(30):
        chance = Random(seed)
        costs = [[chance.randrange(9) for _ in range(5)] for _ in range(5)]
        chosen = assign(costs)
        assert sorted(chosen) == list(range(5))
        assert sum(costs[row][chosen[row]] for row in range(5)) == min(
            sum(costs[row][order[row]] for row in range(5)) for order in permutations(range(5))
        )
