"""`maar simulate placement`: a table, JSON or a picture; and what it says when it cannot draw."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from random import Random

import pytest

from maar.cli.main import run
from maar.placement.rules import PlacementSettings
from maar.tools.simulate.plot import draw
from maar.tools.simulate.replay import Replay
from maar.tools.simulate.scenarios import SCENARIOS, scenario

SHORT = ("simulate", "placement", "--scenario", "uneven", "--minutes", "10")


def test_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SHORT]) == 0
    said = capsys.readouterr().out
    assert "uneven (seed 1)" in said
    for line in ("shards touched by a dataset", "node load, max/mean", "moved to another node"):
        assert re.search(rf"^{line}.*\d", said, re.MULTILINE), said
    assert re.search(r"^hot-for-ever +[\d.]+ +7\.0", said, re.MULTILINE), said
    assert re.search(r"balancing: switches \d+, most of one dataset 1$", said, re.MULTILINE), said


def test_json_for_scripts_is_the_same_for_the_same_seed(capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for seed in ("4", "4", "5"):
        assert run([*SHORT, "--seed", seed, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    assert found[0]["bytes"] != found[2]["bytes"]
    assert found[0]["duration_s"] == 600
    assert set(found[0]["samples"][0]["nodes"]) == {f"writer-{number}" for number in range(1, 7)}


def test_settings_count(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "maar.toml"
    config.write_text("[placement.tenant]\ndataset_shards_min = 3\n")
    options = ("--config", str(config), "--set", "placement.tenant.dataset_shards_max=5", "--json")
    assert run([*SHORT, *options]) == 0
    allotted = json.loads(capsys.readouterr().out)["allotted"]
    assert allotted["hot-for-ever"]["most"] == 5
    assert allotted["small"]["most"] == 3


def test_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "out.png"
    assert run([*SHORT, "--plot", str(picture)]) == 0
    assert f"drawn: {picture}" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 80_000


def test_events_are_drawn_too(tmp_path: Path) -> None:
    whole = scenario("scale-out", 1)
    few = whole._replace(loads=(*whole.loads[:3], whole.loads[-1]), duration_s=1020)
    picture = tmp_path / "out.svg"
    draw(Replay(few, PlacementSettings(), Random(1)).report(1), picture)
    assert "<!-- writer-4 joins -->" in picture.read_text()


def test_without_matplotlib_it_says_how_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert run([*SHORT, "--plot", str(tmp_path / "out.png")]) == 2
    said = capsys.readouterr()
    assert "pip install 'maar[plot]'" in said.err
    assert not said.out, "it says so before the work, not after"


@pytest.mark.parametrize(
    ("plot", "words"), [("out.gif", "which kind of picture"), ("none/out.png", "is no directory")]
)
def test_a_place_where_nothing_can_be_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], plot: str, words: str
) -> None:
    assert run([*SHORT, "--plot", str(tmp_path / plot)]) == 2
    assert words in capsys.readouterr().err


def test_an_unknown_scenario_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "placement", "--scenario", "storm"]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in SCENARIOS)
