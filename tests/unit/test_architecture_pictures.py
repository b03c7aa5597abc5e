"""ARCHITECTURE.md shows the imports and the states of a plan as the code has them."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_pictures_are_those_of_the_code() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    drawn = runpy.run_path(str(ROOT / "tools" / "pictures.py"))["page"]
    assert drawn(page) == page, "run `make docs`"


def test_the_picture_of_a_plan_has_every_way_to_its_end() -> None:
    states = runpy.run_path(str(ROOT / "tools" / "pictures.py"))["plan_states"]().splitlines()
    assert "  inflight --> completed: PlanCompleted" in states
    assert "  parked --> requested: PlanRequeued, PlansUnparked" in states
    assert not [line for line in states if line.startswith(("  completed", "  cancelled"))]
