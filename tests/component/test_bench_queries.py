"""Benchmarks of queries run, in small, and print what they promise. Nothing is timed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.runs.benchmark import by_name, run

pytestmark = [pytest.mark.component, pytest.mark.long(70), pytest.mark.timeout(900)]

LOADS = ("steady", "tenants", "bursts", "tail")


def test_read_amplification_of_a_few_minutes(tmp_path: Path) -> None:
    lines, said = run(
        "read_amplification.py",
        *("--minutes", "2", "--merges", "2", "--workers", "1"),
        temporary=tmp_path,
    )
    found = by_name(lines)
    late = {"opened_late_blocks", "opened_late_blocks_by_day", "opened_late_day_blocks"}
    assert set(found) == late | {
        f"opened_{load}_{what}" for load in LOADS for what in ("segments", "blocks", "files")
    }
    assert all(found[name].value > 0 for name in late)
    for load in LOADS:
        segments, blocks, files = (
            found[f"opened_{load}_{what}"].value for what in ("segments", "blocks", "files")
        )
        assert 0 <= segments <= blocks <= files
        assert blocks > 0, f"{load}: nothing was asked, or nothing was there\n{said}"
        assert re.search(rf"# {load}, ours: \d+ segments, [1-9]\d* jobs", said), said
        assert re.search(rf"# {load}, peer: \d+ segments, [1-9]\d* jobs", said), said
    idle = found["opened_tail_segments"]
    assert idle.value == 0, "an idle system merges its last segments, too"
    assert idle.baseline != "peer_rules_0.0", "the peer's rules leave them"


def test_top_over_a_small_fleet(tmp_path: Path) -> None:
    lines, said = run("top.py", "--services", "40", "--profiles", "200", temporary=tmp_path)
    found = by_name(lines)
    questions = [f"top_{scope}{mark}" for scope in ("fleet", "small") for mark in ("", "_tenth")]
    assert set(found) == {
        *(
            f"{name}{cold}{cpu}"
            for name in questions
            for cold in ("", "_cold")
            for cpu in ("", "_cpu")
        ),
        "top_fleet_growth",
        "top_small_growth",
    }
    assert all(line.value > 0 for line in lines), said
    assert re.findall(r"# 200 profiles of (\d+) services: [1-9]\d* blocks", said) == ["40", "4"]


def test_small_queries_of_a_few_profiles(tmp_path: Path) -> None:
    lines, said = run(
        "small_queries.py",
        *("--profiles", "40", "--rounds", "1", "--age", "2", "--services", "30", "--days", "3"),
        *("--fresh", "5", "--tenfold"),
        temporary=tmp_path,
    )
    found = by_name(lines)
    graphs = {f"flamegraph_{scope}" for scope in ("pod", "5min", "service", "fleet")}
    series = {f"series_{scope}" for scope in ("service_by_pod", "by_service", "by_pod")}
    labels = {"label_names", "label_values", "series_of_service", "types", "empty"}
    asked = graphs | series | labels
    assert set(found) - {f"{name}_cpu" for name in asked} == {
        *(f"{name}{state}" for name in asked for state in ("", "_fresh", "_tenfold")),
        *(f"{name}_fresh_cpu" for name in asked),
        *(
            f"{name}{state}"
            for name in ("push_and_merge_cpu", "index", "memory")
            for state in ("", "_tenfold")
        ),
    }
    assert all(line.value > 0 for line in lines if not line.name.endswith("_cpu")), said


def test_clustering_of_a_small_day(tmp_path: Path) -> None:
    lines, said = run(
        "cluster.py",
        *("--profiles", "96", "--shards", "2", "--rounds", "1"),
        temporary=tmp_path,
    )
    found = by_name(lines)
    assert set(found) == {
        "cluster",
        "day_bytes",
        "flamegraph_files",
        "flamegraph_bytes",
        "flamegraph_time",
    }
    assert found["cluster"].baseline == "bare_duckdb_script"
    assert float(found["flamegraph_files"].ratio) < 1, said


def test_joining_a_small_backlog(tmp_path: Path) -> None:
    few = ("--segments", "300", "--shards", "1", "--profiles", "2", "--cost-segments", "40")
    lines, said = run("logcompact.py", *few, temporary=tmp_path)
    opened = by_name(lines)["logcompact_opened"]
    assert opened.baseline == "before_150", "every second segment has the service"
    assert opened.value < 15, "the joined ones, and the few that are left to compaction"
    assert by_name(lines).keys() == {
        "logcompact_opened",
        "logcompact_flamegraph",
        "logcompact_cost",
    }
    assert "# 300 segments" in said
