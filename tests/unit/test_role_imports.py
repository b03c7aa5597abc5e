"""What a process loads before it can start: each role only what it works with."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "spared"),
    [
        ("maar.app.processes.supervisor", {"pyspark", "numba", "pyarrow", "httpx"}),
        ("maar.app.roles.metastore", {"pyspark", "numba", "duckdb", "uvicorn", "starlette"}),
        ("maar.app.roles.worker", {"numba", "pyarrow", "duckdb", "uvicorn", "starlette"}),
        ("maar.app.roles.query", {"pyspark", "duckdb", "fsspec", "uvicorn", "starlette"}),
        ("maar.app.roles.front", {"pyspark", "duckdb"}),
    ],
)
def test_a_process_does_not_load_what_only_others_need(module: str, spared: set[str]) -> None:
    """Each of these is a tenth of a second of CPU or more, in every process of every server."""
    asked = f"import sys, {module}; print(*sorted(sys.modules))"
    said = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, check=True
    ).stdout.split()
    assert module in said
    assert spared.isdisjoint(said)
