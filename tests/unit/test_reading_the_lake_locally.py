"""The DuckDB and pyarrow examples of docs/reading-the-lake.md give the right answer."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from support.lake_doc import PROFILE_TYPE, DocumentedLake, documented_lake, example, names_of

TITLE = "top functions of a day"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> DocumentedLake:
    directory: Path = tmp_path_factory.mktemp("lake")
    return documented_lake(directory)


def with_duckdb(sql: str, lake: DocumentedLake) -> list[tuple[str, int, int]]:
    tables = {name: lake.files[name] for name in ("samples", "stacks", "profiles")}
    with duckdb.connect() as connection:
        found = connection.execute(sql, {**tables, "profile_type": PROFILE_TYPE}).fetchall()
    return [(str(row[0]), int(row[1]), int(row[2])) for row in found]


def test_duckdb_finds_the_top_functions(lake: DocumentedLake) -> None:
    assert with_duckdb(example(f"duckdb: {TITLE}"), lake) == lake.top


def test_pyarrow_finds_the_top_functions(lake: DocumentedLake) -> None:
    assert names_of(f"pyarrow: {TITLE}")["top"](lake.files, PROFILE_TYPE) == lake.top


def test_a_join_by_the_id_alone_counts_too_much(lake: DocumentedLake) -> None:
    sql = example(f"duckdb: {TITLE}")
    wrong = sql.replace("JOIN stacks USING (block, stack_id)", "JOIN stacks USING (stack_id)")
    assert wrong != sql
    assert with_duckdb(wrong, lake)[0][2] > lake.top[0][2]


def test_without_the_home_of_profiles_a_retry_counts_twice(lake: DocumentedLake) -> None:
    sql = example(f"duckdb: {TITLE}")
    wrong = sql.replace("FROM samples JOIN home USING (block, profile_id)", "FROM samples")
    assert wrong != sql
    assert with_duckdb(wrong, lake)[0][2] > lake.top[0][2]
