"""Rows in the order of their table, whether they came in runs or not. The oracle sorts tuples."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from maar.block.format.order import sorted_table

KEY = ("service", "profile_type", "series_id", "time", "stack_id")
Row = tuple[str, str, int, int, int]


def table_of(rows: list[Row]) -> pa.Table:
    """The rows, and behind the key where each came from."""
    service, kind, series, time, stack = zip(*rows, strict=True)
    columns = {
        "service": pa.array(service).dictionary_encode(),
        "profile_type": pa.array(kind).dictionary_encode(),
        "series_id": pa.array(series, pa.int64()),
        "time": pa.array(time, pa.timestamp("us", tz="UTC")),
        "stack_id": pa.array(stack, pa.int64()),
        "came": pa.array(range(len(rows)), pa.int64()),
    }
    return pa.table(columns)


def came(rows: list[Row]) -> list[int]:
    """In which order a sort takes them that leaves equal rows as they are."""
    return sorted(range(len(rows)), key=lambda row: rows[row])


def profile(chance: Random, *, instants: int, stacks: int) -> list[Row]:
    """The rows of a profile, in order: of each type a run."""
    service, series = f"s{chance.randrange(2)}", chance.randrange(-2, 2)
    time = chance.randrange(instants)
    return [
        (service, kind, series, time, stack)
        for kind in ("cpu", "space")
        for stack in sorted(chance.randrange(-stacks, stacks) for _ in range(chance.randrange(40)))
    ]


@pytest.mark.parametrize("instants", [1, 5, 10_000])
@pytest.mark.parametrize("seed", range(5))
def test_runs_of_several_inputs_are_in_order_as_if_every_row_was_sorted(
    instants: int, seed: int
) -> None:
    chance = Random(seed)
    rows: list[Row] = [("s0", "cpu", 0, 0, 0)]
    for _ in range(4):
        profiles = [profile(chance, instants=instants, stacks=50) for _ in range(30)]
        rows += sorted(row for some in profiles for row in some)
    assert sorted_table(table_of(rows), KEY)["came"].to_pylist() == came(rows)


@pytest.mark.parametrize("seed", range(5))
def test_rows_in_no_order_at_all_are_sorted_too(seed: int) -> None:
    chance = Random(seed)
    rows = [row for _ in range(30) for row in profile(chance, instants=3, stacks=4)]
    chance.shuffle(rows)
    assert sorted_table(table_of(rows), KEY)["came"].to_pylist() == came(rows)


def test_a_run_whose_last_key_falls_is_no_run() -> None:
    rows: list[Row] = [("s", "cpu", 0, time, stack) for time in (1, 0) for stack in (*range(9), 3)]
    assert sorted_table(table_of(rows), KEY)["came"].to_pylist() == came(rows)
