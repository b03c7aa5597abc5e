"""docs/reading-the-lake.md, done as a reader would: saved as printed, run as printed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.docs.reading_the_lake import DocumentedLake, commands, documented_lake, programs
from support.http.front import Front
from support.http.front_served import serve_front
from support.spark.cluster import QUICK_JVM

pytestmark = [pytest.mark.component, pytest.mark.timeout(240)]

# The site's own settings, not the program's: for a few rows, and a JVM that lives for seconds.
SMALL_SPARK = f"""spark.driver.extraJavaOptions {QUICK_JVM}
spark.sql.shuffle.partitions 2
spark.ui.enabled false
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `maar serve` runs: its data directory, and the programs of the page beside it."""
    directory = tmp_path_factory.mktemp("reader")
    for name, program in programs().items():
        (directory / name).write_text(program)
    spark = directory / "spark"
    spark.mkdir()
    (spark / "spark-defaults.conf").write_text(SMALL_SPARK)
    return directory


@pytest.fixture(scope="module")
def lake(directory: Path) -> DocumentedLake:
    return documented_lake(directory)


@pytest.fixture(scope="module")
def server(lake: DocumentedLake) -> Iterator[str]:
    front = Front()
    front.metastore.index = {block.id: block for block in lake.blocks}
    with serve_front(front) as url:
        yield url


@pytest.mark.parametrize("command", commands(), ids=lambda command: command[1])
def test_a_program_of_the_page_runs_as_printed(
    command: list[str], directory: Path, lake: DocumentedLake, server: str
) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    spark = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_CONF_DIR": str(directory / "spark")}
    environment = os.environ | {"PATH": path, "MAAR_SERVER": server, **spark}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [" ".join(map(str, row)) for row in lake.top]


def test_the_page_has_a_command_for_each_program() -> None:
    assert {command[1] for command in commands()} | {"lake_files.py"} == set(programs())
