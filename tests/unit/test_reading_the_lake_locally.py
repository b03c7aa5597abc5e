"""Why docs/reading-the-lake.md joins as it does: what happens when its SQL is changed."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from maar.model.ids import ANONYMOUS
from maar.model.plain import plain
from support.docs.reading_the_lake import STRANGER, DocumentedLake, documented_lake, programs

PROFILE_TYPE = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"
DAY = "2026-09-21"
Files = dict[str, list[str]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="module")
def lake(directory: Path) -> DocumentedLake:
    return documented_lake(directory)


@pytest.fixture(scope="module")
def files(lake: DocumentedLake, directory: Path) -> Files:
    return live_files(lake, directory, ANONYMOUS)


def live_files(lake: DocumentedLake, directory: Path, tenant: str) -> Files:
    defined: dict[str, object] = {}
    exec(compile(programs()["lake_files.py"], "lake_files.py", "exec"), defined)
    listed = [plain(block) for block in lake.blocks]
    root = str(directory / ".maar" / "store")
    found: Files = defined["live_files"](listed, tenant, DAY, root)  # type: ignore[operator]
    return found


def sql() -> str:
    return programs()["top_duckdb.py"].split('"""')[1]


def with_duckdb(text: str, files: Files) -> list[tuple[str, int, int]]:
    tables = {name: files[name] for name in ("samples", "stacks", "profiles")}
    with duckdb.connect() as connection:
        found = connection.execute(text, {**tables, "profile_type": PROFILE_TYPE}).fetchall()
    return [(str(row[0]), int(row[1]), int(row[2])) for row in found]


def test_the_files_are_of_one_tenant_and_day(lake: DocumentedLake, directory: Path) -> None:
    own = live_files(lake, directory, ANONYMOUS)
    assert {name: len(paths) for name, paths in own.items()} == dict.fromkeys(own, 2)
    assert all(Path(path).exists() for paths in own.values() for path in paths)
    others = live_files(lake, directory, STRANGER)
    assert not {*own["samples"]} & {*others["samples"]}
    assert live_files(lake, directory, "nobody") == {}


def test_the_sql_finds_the_top_functions(lake: DocumentedLake, files: Files) -> None:
    assert with_duckdb(sql(), files) == lake.top


def test_a_join_by_the_id_alone_counts_too_much(lake: DocumentedLake, files: Files) -> None:
    wrong = sql().replace("JOIN stacks USING (block, stack_id)", "JOIN stacks USING (stack_id)")
    assert wrong != sql()
    assert with_duckdb(wrong, files)[0][2] > lake.top[0][2]


def test_without_the_home_of_profiles_a_retry_counts_twice(
    lake: DocumentedLake, files: Files
) -> None:
    wrong = sql().replace("FROM samples JOIN home USING (block, profile_id)", "FROM samples")
    assert wrong != sql()
    assert with_duckdb(wrong, files)[0][2] > lake.top[0][2]


def test_tenants_that_are_mixed_count_together(
    lake: DocumentedLake, files: Files, directory: Path
) -> None:
    others = live_files(lake, directory, STRANGER)
    mixed = {name: paths + others[name] for name, paths in files.items()}
    assert with_duckdb(sql(), mixed)[0][2] > lake.top[0][2]
