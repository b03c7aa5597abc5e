"""Merging sorted runs: in order, without repeats, in little memory, ids of one content each."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from maar.block.decode.interning import SeenIds
from maar.block.decode.to_tables import decode_profiles
from maar.block.format import writer
from maar.block.format.dictionary import text_bytes, trim, trim_coded
from maar.block.format.order import same_as_before, sorted_table
from maar.block.format.tables import DIMENSIONS, LAYOUTS
from maar.block.format.writer import GroupBounds, TableWriter
from maar.block.merge.build import BuiltBlock, MergeSizes, build
from maar.block.merge.duplicates import id_words, later_ones
from maar.block.merge.run import ROWS_MIN, CutPoint, Run
from maar.block.merge.sorted_runs import merge_runs
from maar.block.merge.split import places
from maar.model.errors import Corrupt
from maar.pprof.columns import NONE
from maar.pprof.plain import (
    PlainFunction,
    PlainLine,
    PlainLocation,
    PlainProfile,
    PlainSample,
)
from support.lake.block_plans import NOON_NS, TENANT, raw_profile
from support.load.pprof_scramble import random_profile

SERVICES = ("a", "b", "c", "d")


def some_runs(
    seed: int = 1, runs: int = 3, profiles: int = 8, rows_min: int = ROWS_MIN
) -> list[Run]:
    random = Random(seed)
    made = []
    for number in range(runs):
        raws = [
            raw_profile(
                random_profile(random),
                service=random.choice(SERVICES),
                time_ns=NOON_NS + random.randrange(1_000) * 1_000,
                client_id=f"{number}/{place}",
            )
            for place in range(profiles)
        ]
        tables = dict(decode_profiles(raws).tables)
        made.append(Run(name=f"Run {number}", tables=tables, rows_min=rows_min))
    return made


def held(run: Run, table: str) -> pa.Table:
    found = run.tables[table]
    assert not isinstance(found, Path)
    return found


def rows(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return found


def sort_key(table: str, row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple((row[key] is not None, row[key]) for key in LAYOUTS[table].key)


def test_the_merge_holds_everything_once_and_in_order(tmp_path: Path) -> None:
    runs = some_runs(rows_min=2)
    many_small_pieces = MergeSizes(budget=1)
    built = build(runs, tmp_path / "out", tenant=TENANT, sizes=many_small_pieces)
    for table in LAYOUTS:
        found = rows(built.paths[table])
        assert [sort_key(table, row) for row in found] == sorted(
            sort_key(table, row) for row in found
        )
        came = [repr(row) for run in runs for row in held(run, table).to_pylist()]
        expected = set(came) if table in DIMENSIONS else came
        assert sorted(repr(row) for row in found) == sorted(expected)
        assert built.rows[table] == len(found)


def test_a_dimension_has_one_row_for_each_id(tmp_path: Path) -> None:
    built = build([*some_runs(2), *some_runs(2)], tmp_path / "out", tenant=TENANT)
    for table in DIMENSIONS:
        ids = pq.read_table(built.paths[table])[LAYOUTS[table].unique].to_pylist()
        assert len(ids) == len(set(ids))


def test_files_merge_like_memory(tmp_path: Path) -> None:
    runs = some_runs(3)
    files = []
    for place, run in enumerate(runs):
        one = build([run], tmp_path / str(place), tenant=TENANT, compression=writer.SCRATCH)
        files.append(Run(name=run.name, tables=dict(one.paths)))
    memory = build(runs, tmp_path / "memory", tenant=TENANT)
    merged = build(files, tmp_path / "files", tenant=TENANT)
    for table in LAYOUTS:
        assert rows(memory.paths[table]) == rows(merged.paths[table])
    sizeless = [[replace(each, size=0) for each in built.datasets] for built in (memory, merged)]
    assert sizeless[0] == sizeless[1]


def test_memory_is_given_back_by_what_was_written_and_not_by_row_groups(tmp_path: Path) -> None:
    table = held(some_runs(4, runs=1, profiles=30)[0], "samples")

    def releases(release_values: int) -> tuple[int, int]:
        bounds = GroupBounds(rows=2, release_values=release_values)
        with TableWriter(tmp_path / "t.parquet", "samples", bounds=bounds) as written:
            written.add(table)
        return written.releases, len(written.groups)

    values = table.num_rows * table.num_columns
    many, groups = releases(1)
    assert many == groups > 20
    assert releases(GroupBounds().release_values) == (0, groups)
    assert 1 <= releases(values // 4)[0] <= 8


@pytest.mark.parametrize("entries", [20, 1_000])
def test_dictionaries_are_cut_down_to_what_is_used(entries: int) -> None:
    words = pa.array([f"word-{entry:04}" for entry in range(entries)])
    codes = pa.array([3, None, 1, 3, 1, None], pa.int32())
    coded = pa.DictionaryArray.from_arrays(codes, words)
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 2, 6], pa.int32()), coded)
    for column in (coded, coded.slice(2), lists, lists.slice(1)):
        table = pa.table({"words": column})
        cut = trim(table)
        assert cut.schema == table.schema
        assert cut.to_pylist() == table.to_pylist()
        (chunk,) = cut["words"].chunks
        kept = chunk.values if pa.types.is_list(chunk.type) else chunk
        assert kept.dictionary.to_pylist() == ["word-0001", "word-0003"]


def test_a_short_dictionary_is_cut_down_only_where_it_is_written() -> None:
    coded = pa.DictionaryArray.from_arrays(pa.array([1, 1], pa.int32()), ["a", "b", "c"])
    table = pa.table({"words": coded})
    (dragged,), (cut,) = trim(table)["words"].chunks, trim_coded(table)["words"].chunks
    assert (len(dragged.dictionary), len(cut.dictionary)) == (3, 1)
    assert dragged.to_pylist() == cut.to_pylist() == ["b", "b"]


def test_a_dictionary_that_chunks_share_is_counted_once() -> None:
    words = pa.array(["w" * 1_000, "v"])
    coded = pa.DictionaryArray.from_arrays(pa.array([0, 1] * 8, pa.int32()), words)
    lists = pa.ListArray.from_arrays(pa.array(range(17), pa.int32()), coded)
    other = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), ["u" * 500])
    for column, more in ((coded, other), (lists, pa.ListArray.from_arrays([0, 1], other))):
        table = pa.table({"words": column})
        pieces = [table.slice(0, 3), table.slice(3, 5), table.slice(8)]
        assert text_bytes(pa.concat_tables(pieces)) == text_bytes(table) > 1_000
        another = pa.concat_tables([*pieces, pa.table({"words": more})])
        assert text_bytes(another) >= text_bytes(table) + 500


def test_row_groups_hold_one_service_and_the_index_knows_which(tmp_path: Path) -> None:
    sizes = MergeSizes(group=GroupBounds(rows=7))
    built = build(some_runs(4, profiles=12), tmp_path / "out", tenant=TENANT, sizes=sizes)
    samples = pq.ParquetFile(built.paths["samples"])
    assert [dataset.service for dataset in built.datasets] == list(SERVICES)
    seen = 0
    for dataset in built.datasets:
        groups = list(
            range(dataset.row_group_first, dataset.row_group_first + dataset.row_group_count)
        )
        part = samples.read_row_groups(groups)
        assert set(part["service"].to_pylist()) == {dataset.service}
        assert tuple(sorted(set(part["profile_type"].to_pylist()))) == dataset.types
        seen += len(groups)
    assert seen == samples.num_row_groups
    assert all(samples.metadata.row_group(g).num_rows <= 7 for g in range(seen))
    profiles = rows(built.paths["profiles"])
    for dataset in built.datasets:
        times = [row["time_nanos"] for row in profiles if row["service"] == dataset.service]
        assert (len(times), min(times), max(times)) == (
            dataset.profiles,
            dataset.min_time_ns,
            dataset.max_time_ns,
        )


def test_a_dropped_profile_takes_its_samples_along(tmp_path: Path) -> None:
    runs = some_runs(5, runs=2)
    gone = held(runs[1], "profiles")["profile_id"].combine_chunks()[:3]
    runs[1].dropped = gone
    built = build(runs, tmp_path / "out", tenant=TENANT)
    kept = {row["profile_id"] for row in rows(built.paths["profiles"])}
    assert len(kept) == 13
    assert {row["profile_id"] for row in rows(built.paths["samples"])} <= kept
    assert kept.isdisjoint(gone.to_pylist())


def joined(built: BuiltBlock) -> list[str]:
    """Every sample with what its ids stand for."""
    tables = {name: rows(path) for name, path in built.paths.items()}
    frames = {row.pop("location_id"): row for row in tables["locations"]}
    stacks = {
        row["stack_id"]: (row["functions"], [frames[i] for i in row["location_ids"]])
        for row in tables["stacks"]
    }
    series = {row["series_id"]: row["labels"] for row in tables["series"]}
    return sorted(
        repr(
            (
                row["profile_id"],
                row["profile_type"],
                row["sample"],
                row["value"],
                stacks[row["stack_id"]],
                series[row["series_id"]],
            )
        )
        for row in tables["samples"]
    )


def test_ids_that_clash_between_runs_are_given_others(tmp_path: Path) -> None:
    random = Random(6)
    raws = [raw_profile(random_profile(random, size=8), client_id=str(n)) for n in range(6)]
    halves = [decode_profiles(half, mask=0x3).tables for half in (raws[:2], raws[2:4], raws[4:])]
    weak = build(
        [Run(name="weak", tables=dict(half)) for half in halves], tmp_path / "weak", tenant=TENANT
    )
    good = build(
        [Run(name="good", tables=dict(decode_profiles(raws).tables))],
        tmp_path / "good",
        tenant=TENANT,
    )
    assert weak.collisions > 0
    assert good.collisions == 0
    for table in DIMENSIONS:
        ids = pq.read_table(weak.paths[table])[LAYOUTS[table].unique].to_pylist()
        assert len(ids) == len(set(ids))
    assert joined(weak) == joined(good)


@pytest.mark.parametrize("moved_rows", [1, 20, 65_536])
def test_what_was_given_other_ids_is_in_order_and_can_be_merged_again(
    tmp_path: Path, moved_rows: int
) -> None:
    sizes = MergeSizes(budget=1, moved_rows=moved_rows)
    random = Random(11)
    plain = [random_profile(random, size=4) for _ in range(6)]
    level = []
    for number in range(8):
        raws = [
            raw_profile(
                random.choice(plain),
                service=random.choice("ab"),
                time_ns=NOON_NS + random.randrange(3) * 500,
                client_id=f"{number}/{place}",
                labels=(("pod", str(random.randrange(6))),),
            )
            for place in range(4)
        ]
        tables = decode_profiles(raws, mask=0xFF).tables
        level.append(Run(name=f"Run {number}", tables=dict(tables), rows_min=2))
    collisions = 0
    while len(level) > 1:
        pairs, level = list(zip(level[::2], level[1::2], strict=True)), []
        for place, pair in enumerate(pairs):
            out = tmp_path / f"{len(pairs)}-{place}"
            built = build(pair, out, tenant=TENANT, sizes=sizes)
            collisions += built.collisions
            for table, layout in LAYOUTS.items():
                found = [sort_key(table, row) for row in rows(built.paths[table])]
                assert found == sorted(found), table
                ids = pq.read_table(built.paths[table], columns=[layout.unique or "stack_id"])
                if table in DIMENSIONS:
                    assert len(ids) == len(set(ids[layout.unique].to_pylist())), table
            level.append(Run(name=out.name, tables=dict(built.paths), rows_min=2))
    assert collisions


def test_a_row_group_ends_before_its_text_is_too_much(tmp_path: Path) -> None:
    sizes = MergeSizes(budget=1, group=GroupBounds(bytes=1_000))
    built = build(some_runs(rows_min=2), tmp_path / "out", tenant=TENANT, sizes=sizes)
    locations = pq.ParquetFile(built.paths["locations"])
    assert locations.num_row_groups > 3
    assert locations.metadata.num_rows == built.rows["locations"]


def test_a_row_group_has_no_more_text_in_its_dictionaries_either(tmp_path: Path) -> None:
    """A thousand names in one piece, of which each row has its own."""
    functions = [PlainFunction(f"{name:04}" + "f" * 1_000) for name in range(1_000)]
    profile = PlainProfile(
        sample_types=[("cpu", "ns")],
        functions=functions,
        locations=[PlainLocation(NONE, 0, (PlainLine(row, 1),)) for row in range(1_000)],
        samples=[PlainSample([row], [1]) for row in range(1_000)],
    )
    stacks = decode_profiles([raw_profile(profile)]).tables["stacks"]
    with TableWriter(
        tmp_path / "stacks", "stacks", bounds=GroupBounds(bytes=100_000)
    ) as table_writer:
        table_writer.add(stacks)
    lengths = [group.rows for group in table_writer.groups]
    assert sum(lengths) == 1_000
    assert max(lengths) < 200
    assert min(lengths) > 10
    assert pq.read_table(tmp_path / "stacks")["leaf"].to_pylist() == stacks["leaf"].to_pylist()


def test_one_long_text_that_all_rows_have_makes_no_row_group_for_each(tmp_path: Path) -> None:
    profile = PlainProfile(
        sample_types=[("cpu", "ns")],
        functions=[PlainFunction("f" * 200_000)],
        locations=[PlainLocation(NONE, 0, (PlainLine(0, 1),))],
        samples=[PlainSample([0] * depth, [1]) for depth in range(1, 100)],
    )
    stacks = decode_profiles([raw_profile(profile)]).tables["stacks"]
    with TableWriter(tmp_path / "stacks", "stacks", bounds=GroupBounds(bytes=100_000)) as one:
        one.add(stacks)
    assert [group.rows for group in one.groups] == [99]


def test_a_deep_recursion_of_a_long_name_is_compared_in_little_memory() -> None:
    """As many copies of the name as the stack is deep would be 40 MB, for every row looked at."""
    profiles = [
        PlainProfile(
            sample_types=[("cpu", "ns")],
            functions=[PlainFunction("f" * 10_000)],
            locations=[PlainLocation(NONE, 0, (PlainLine(0, 1),))],
            samples=[PlainSample([0] * (4_000 - number - place), [1]) for place in range(3)],
        )
        for number in range(2)
    ]
    runs = [
        Run(name=str(number), tables=dict(decode_profiles([raw_profile(each)]).tables))
        for number, each in enumerate(profiles)
    ]
    tracemalloc.start()
    try:
        found = [row for piece in merge_runs("stacks", runs) for row in piece["stack_id"]]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found) == 4
    assert peak < 5_000_000


def test_outputs_are_cut_between_profiles(tmp_path: Path) -> None:
    runs = some_runs(7, profiles=20)
    cuts = places(runs, size=1_000, target=300)
    assert 1 <= len(cuts) <= 2
    assert cuts == sorted(cuts)
    parts = [
        build(runs, tmp_path / str(number), tenant=TENANT, first=first, end=end)
        for number, (first, end) in enumerate(zip([None, *cuts], [*cuts, None], strict=True))
    ]
    whole = build(runs, tmp_path / "whole", tenant=TENANT)
    owners: dict[bytes, int] = {}
    for number, part in enumerate(parts):
        for table in ("profiles", "samples"):
            for row in rows(part.paths[table]):
                assert owners.setdefault(row["profile_id"], number) == number
        used = {i for row in rows(part.paths["stacks"]) for i in row["location_ids"]}
        assert used == {row["location_id"] for row in rows(part.paths["locations"])}
    assert sorted(line for part in parts for line in joined(part)) == joined(whole)


def test_a_missing_line_is_not_the_least_line() -> None:
    lines = pa.table({"line": pa.array([-(2**63), None, 5, None], pa.int64())})
    ordered = sorted_table(lines, ("line",))
    assert ordered["line"].to_pylist() == [None, None, -(2**63), 5]
    assert same_as_before(ordered).tolist() == [False, True, False, False]


def test_one_block_is_not_cut() -> None:
    assert places(some_runs(8), size=599, target=300) == []
    assert CutPoint("a", 2) < CutPoint("b", 1)


def test_the_first_of_equal_ids_stays() -> None:
    columns = [
        pa.array([bytes([n]) * 16 for n in numbers], pa.binary(16))
        for numbers in ([1, 2], [3, 1], [2, 4, 3])
    ]
    flags = [flag.tolist() for flag in later_ones([id_words(column) for column in columns])]
    assert flags == [[False, False], [False, True], [True, False, True]]
    assert later_ones([]) == []
    halves = [bytes([n]) * 8 for n in (1, 2)]
    alike = pa.array([one + other for one in halves for other in halves], pa.binary(16))
    assert not later_ones([id_words(alike)])[0].any(), "an id is all of its bytes"
    assert np.array(id_words(columns[0][1:])).shape == (1, 2)


def test_ids_that_come_one_after_the_other_are_fresh_once() -> None:
    """The oracle is a set of Python's; some ids differ in one half only."""
    random = Random(5)
    halves = [random.randbytes(8) for _ in range(60)]
    seen, met = SeenIds(seed="any"), set[bytes]()
    for size in (0, 1, 700, 3, 2_000):
        ids = [random.choice(halves) + random.choice(halves) for _ in range(size)]
        expected = [one not in met and not met.add(one) for one in ids]  # type: ignore[func-returns-value]
        assert seen.add(id_words(pa.array(ids, pa.binary(16)))).tolist() == expected
    assert len(met) > 1_500, "the table has grown, and ids came again"


def written(table: pa.Table, path: Path) -> Run:
    with TableWriter(path, "samples") as writer:
        writer.add(table)
    return Run(name="Run", tables={"samples": path})


def with_column(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.column_names.index(name), table.schema.field(name), values)


@pytest.mark.parametrize("column", ["sample", "span_id", "sample_labels"])
def test_what_a_row_group_does_not_have_comes_back_as_nulls(tmp_path: Path, column: str) -> None:
    """Once no service has the column, and once one of several."""
    table = held(some_runs(4, runs=1, profiles=30)[0], "samples")
    spans = pa.array(["a span"] * table.num_rows, pa.string())
    whole = with_column(table, "span_id", spans)
    none = with_column(whole, column, pa.nulls(whole.num_rows, whole[column].type))
    assert whole[column].null_count < whole.num_rows, "the test needs some"
    first = whole["service"][0].as_py()
    others = pc.not_equal(whole["service"].cast(pa.string()), first)
    mixed = pa.concat_tables([whole.filter(pc.invert(others)), none.filter(others)])
    for number, table in enumerate((none, mixed)):
        run = written(table.unify_dictionaries(), tmp_path / f"{number}.parquet")
        for names in (None, ("service", column), (column,)):
            read = pa.concat_tables(run.read("samples", budget=1 << 20, columns=names))
            expected = table.select(names) if names else table
            assert read.to_pylist() == expected.to_pylist()


def test_hashes_have_no_statistics_and_all_else_has(tmp_path: Path) -> None:
    """Whoever prunes finds bounds, and nobody pays for those that exclude nothing."""
    run = some_runs(4, runs=1, profiles=30)[0]
    for name, layout in LAYOUTS.items():
        with TableWriter(tmp_path / name, name) as writer:
            writer.add(held(run, name))
        group = pq.read_metadata(tmp_path / name).row_group(0)
        columns = [group.column(leaf) for leaf in range(group.num_columns)]
        without = {each.path_in_schema.split(".")[0] for each in columns if not each.statistics}
        assert without == set(layout.hashes)


def test_a_file_of_another_format_is_corrupt_and_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "x.parquet")
    run = Run(name="Block 17", tables={"series": tmp_path / "x.parquet"})
    with pytest.raises(Corrupt, match=r"Block 17: table series should be of format block/1"):
        list(run.read("series", budget=1))
