"""The Spark example of docs/reading-the-lake.md gives the right answer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.lake_doc import PROFILE_TYPE, documented_lake, names_of

pytestmark = pytest.mark.component


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.warehouse.dir", str(tmp_path / "warehouse"))
        .config("spark.local.dir", str(tmp_path / "local"))
        .config("spark.pyspark.python", sys.executable)
        .getOrCreate()
    )
    yield session
    session.stop()


def test_spark_finds_the_top_functions(spark: Any, tmp_path: Path) -> None:
    lake = documented_lake(tmp_path)
    top = names_of("spark: top functions of a day")["top"]
    assert top(spark, lake.files, PROFILE_TYPE) == lake.top
