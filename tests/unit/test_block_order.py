"""Rows in the order of their table, whether they came in runs or not. The oracle sorts tuples."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from maar.block.format.order import RUN_ROWS_MIN, count_until, merge_sorted, row_key, sorted_table

KEY = ("service", "profile_type", "series_id", "time", "stack_id")
Row = tuple[str, str, int, int, int]


def table_of(rows: list[Row], first: int = 0) -> pa.Table:
    """The rows, and behind the key where each came from."""
    service, kind, series, time, stack = zip(*rows, strict=True)
    columns = {
        "service": pa.array(service).dictionary_encode(),
        "profile_type": pa.array(kind).dictionary_encode(),
        "series_id": pa.array(series, pa.int64()),
        "time": pa.array(time, pa.timestamp("us", tz="UTC")),
        "stack_id": pa.array(stack, pa.int64()),
        "came": pa.array(range(first, first + len(rows)), pa.int64()),
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


def inputs(runs: list[list[Row]], count: int) -> list[list[Row]]:
    """The rows of some inputs, each in order; the runs go round."""
    return [sorted(row for run in runs[place::count] for row in run) for place in range(count)]


def long_run(chance: Random, time: int, rows: int) -> list[Row]:
    key = (f"s{time % 3}", ("cpu", "space")[time % 2], time % 5 - 2, time)
    return [(*key, chance.randrange(-99, 99)) for _ in range(rows)]


def merge_of(parts: list[list[Row]]) -> pa.Table:
    """What is made of inputs, the first of which came in two chunks."""
    tables, first = [], 0
    for rows in parts:
        tables.append(table_of(rows, first))
        first += len(rows)
    tables[0] = pa.concat_tables([tables[0].slice(0, 7), tables[0].slice(7)])
    return merge_sorted(tables, KEY)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_long_runs_of_several_inputs_are_moved_and_not_copied(seed: int, count: int) -> None:
    chance = Random(seed)
    times = [2**40 + chance.randrange(99) - each * 2**33 for each in range(40)]
    runs = [long_run(chance, time, chance.randrange(1, 8 * RUN_ROWS_MIN)) for time in times]
    parts = inputs(runs, count)
    table = merge_of(parts)
    rows = [row for part in parts for row in part]
    assert table["came"].to_pylist() == came(rows)
    assert table.select(KEY).to_pylist() == table_of(sorted(rows)).select(KEY).to_pylist()
    assert 1 < table["came"].num_chunks <= 2 * len(runs)
    places = {chunk.buffers()[1].address for chunk in table["came"].chunks}
    assert len(places) == count  # of the inputs


def test_runs_that_are_neighbours_in_their_input_stay_in_one_chunk() -> None:
    chance = Random(1)
    early = [long_run(chance, 30 * time, 1_000) for time in range(20)]
    late = [long_run(chance, 30 * time, 1_000) for time in range(20, 40)]
    parts = [[row for run in runs for row in sorted(run)] for runs in (late, early)]
    table = merge_of(parts)
    assert table["came"].to_pylist() == came([row for part in parts for row in part])
    assert table["came"].num_chunks == 3  # of one input two, as it came


@pytest.mark.parametrize("rows", [1, RUN_ROWS_MIN // 2, 4 * RUN_ROWS_MIN])
@pytest.mark.parametrize("meeting", [0, 1, 20])
def test_inputs_with_short_runs_or_with_rows_of_one_run_are_sorted(rows: int, meeting: int) -> None:
    chance = Random(rows + meeting)
    runs = [long_run(chance, time, rows) for time in (*range(40), *range(meeting))]
    chance.shuffle(runs)
    parts = inputs(runs, 2)
    table = merge_of(parts)
    assert table["came"].to_pylist() == came([row for part in parts for row in part])


def no_null_last(row: tuple[object, ...]) -> list[tuple[bool, object]]:
    """Something that Python compares: nulls come before values."""
    return [(value is not None, value if value is not None else 0) for value in row]


@pytest.mark.parametrize("seed", range(8))
def test_rows_until_a_place_are_those_that_are_no_greater(seed: int) -> None:
    """Columns are numbers, times, text, coded text and lists, with nulls and without."""
    chance = Random(seed)

    def value(number: int, *, null: bool) -> int | None:
        return None if null and not number else number

    rows = [
        (
            f"s{chance.randrange(2)}",
            chance.randrange(3),
            value(chance.randrange(3), null=seed % 2 == 0),
            [chr(97 + chance.randrange(3)) for _ in range(chance.randrange(3))],
            value(chance.randrange(3), null=True),
        )
        for _ in range(200)
    ]
    rows.sort(key=no_null_last)
    service, time, line, functions, file = zip(*rows, strict=True)
    columns = {
        "service": pa.array(service).dictionary_encode(),
        "time": pa.array(time, pa.timestamp("us", tz="UTC")),
        "line": pa.array(line, pa.int64()),
        "functions": pa.array(functions, pa.list_(pa.string())),
        "file": pa.array([each if each is None else str(each) for each in file]),
    }
    table, key = pa.table(columns), tuple(columns)
    for at in chance.sample(range(len(rows)), 40):
        expected = sum(no_null_last(row) <= no_null_last(rows[at]) for row in rows)
        assert count_until(table, key, row_key(table, key, at)) == expected
        part = table.slice(at // 2)
        assert count_until(part, key, row_key(table, key, at)) == expected - at // 2
    lines = pa.table({"line": pa.array([-1, 2], pa.int64())})
    nothing = pa.table({"line": pa.array([None], pa.int64())})
    assert count_until(lines, ("line",), row_key(nothing, ("line",), 0)) == 0
