"""A short run of the fuzz target, with bounds checks in the compiled code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.component

FUZZ = Path(__file__).parents[2] / "bench" / "fuzz_pprof.py"


def test_a_short_fuzz_run_with_bounds_checks_finds_nothing() -> None:
    run = subprocess.run(
        [sys.executable, str(FUZZ), "--seconds", "3", "--seed", "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "nothing found" in run.stdout
