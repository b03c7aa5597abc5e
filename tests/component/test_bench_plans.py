"""Benchmarks of what workers do run, in small, and print what they promise. Nothing is timed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.runs.benchmark import by_name, run

pytestmark = [pytest.mark.component, pytest.mark.long(110), pytest.mark.timeout(900)]


def test_a_backfill_of_a_few_files(tmp_path: Path) -> None:
    lines, said = run("backfill.py", "--files", "60", "--days", "3", temporary=tmp_path)
    found = by_name(lines)
    assert found.keys() == {"backfill", "backfill_again"}
    assert {line.baseline for line in lines} == {"one_process_that_only_reads_them"}
    assert "# 60 files of 3 days" in said


def test_replication_lag_of_a_few_segments(tmp_path: Path) -> None:
    few = ("--seconds", "2", "--warm", "0", "--tail", "1", "--rate", "10")
    lines, said = run("replication_lag.py", *few, "--soon", temporary=tmp_path)
    found = by_name(lines)
    assert set(found) == {f"replication_{n}_{q}" for n in ("lag", "copy") for q in ("p50", "p99")}
    assert 0 < found["replication_copy_p50"].value <= found["replication_lag_p50"].value, said


def test_compaction_at_every_level(tmp_path: Path) -> None:
    lines, said = run(
        "compaction.py",
        *("--jobs", "2", "--rounds", "1", "--slots", "1", "--profiles", "1", "--batches", "1"),
        temporary=tmp_path,
    )
    found = by_name(lines)
    assert set(found) == {
        f"compaction_level_{level}_{way}{what}"
        for level in range(3)
        for way in ("pool", "spark")
        for what in ("", "_peak")
    }
    for name, line in found.items():
        assert line.value > 0, said
        if name.endswith("_peak"):
            assert 50 < line.value < 4096, "MiB of a process that has loaded all it needs"
    assert [int(inputs) for inputs in re.findall(r"MB in (\d+) inputs", said)] == [20, 10, 10]


def test_the_cpu_of_merging(tmp_path: Path) -> None:
    lines, said = run(
        "merging.py",
        *("--plans", "2", "--segments", "2", "--profiles", "2", "--rounds", "1"),
        temporary=tmp_path,
    )
    assert [line.name for line in lines] == [
        f"merging_level_{level}_{builds}"
        for builds in ("one_build", "new_builds")
        for level in range(2)
    ]
    assert all(line.value > 0 and line.baseline == "zlib_and_protobuf" for line in lines), said
    assert re.findall(r"# (\d+) profiles", said) == ["8", "8"]


def test_first_compaction(tmp_path: Path) -> None:
    lines, said = run(
        "first_compaction.py",
        *("--warm", "0.2", "--seconds", "1", "--count", "4"),
        temporary=tmp_path,
    )
    rule = [line for line in lines if line.baseline.startswith("count_rule")]
    assert [line.name for line in rule] == [f"first_compaction_{q}" for q in ("p50", "p90", "max")]
    waits = [line.value for line in rule]
    assert 0 < waits[0] <= waits[1] <= waits[2]
    assert lines[-1].baseline == "peer_claim_below_15_s"
    counts = re.search(r"# (\d+) segments, .* (\d+) of them merged", said)
    assert counts is not None, said
    assert int(counts[1]) == int(counts[2]) > 0, said


def test_repair_of_a_small_block(tmp_path: Path) -> None:
    lines, _ = run("repair.py", "--mb", "2", temporary=tmp_path)
    found = by_name(lines)
    assert set(found) == {"repair_copy", "repair_check"}
    assert all(line.value > 0 for line in found.values())
