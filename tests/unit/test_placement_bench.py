"""The benchmarks of placement run, in small, and print what they promise. Nothing is timed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

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
