"""The list of planted mistakes stays alive: each still has its place, and tests that are there."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "mutants.py"))
MUTANTS = TOOL["read"]()


def test_there_are_enough_of_them_and_no_name_stands_for_two() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 61


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mistake_can_still_be_planted(mutant: object) -> None:
    """When this fails, the code has moved: give the mutant its new place in tools/mutants.toml."""
    text = (ROOT / mutant.file).read_text()  # type: ignore[attr-defined]
    made = mutant.apply(text)  # type: ignore[attr-defined]
    assert made != text
    compile(made, mutant.file, "exec")  # type: ignore[attr-defined]
    assert all((ROOT / test).exists() for test in mutant.tests)  # type: ignore[attr-defined]
