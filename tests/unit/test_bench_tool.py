"""The runner of benchmarks: nothing is forgotten, and it takes half an hour at most."""

from __future__ import annotations

import runpy
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "bench.py"))
PLAN, BENCH, LINE, RESULT = (TOOL[name] for name in ("PLAN", "Bench", "Line", "Result"))
PAGE = "# Numbers\n\nText.\n"


def test_every_benchmark_has_its_turn_once() -> None:
    files = [bench.file for bench in PLAN]
    there = {path.name for path in (ROOT / "bench").glob("*.py")}
    helpers = {name for name in there if name.startswith(("synthetic", "fuzz_"))}
    assert len(files) == len(set(files))
    assert set(files) == there - helpers


def test_all_shares_together_are_half_an_hour() -> None:
    assert sum(bench.limit_s for bench in PLAN) <= TOOL["WHOLE_S"] == 1800


def test_some_of_the_plan_can_be_chosen_by_name() -> None:
    found = TOOL["choose"](["top", "bench/push.py"], compared=True)
    assert [bench.file for bench in found] == ["push.py", "top.py"], "in the order of the plan"
    assert all(bench.compared is not None for bench in TOOL["choose"]([], compared=True))
    with pytest.raises(SystemExit, match="nothing"):
        TOOL["choose"](["nothing"], compared=False)


def test_only_lines_of_numbers_are_read() -> None:
    said = "# 12 of a b\npush 20.5 MB/s 0.61 zlib\nnot a line\nfive words but no number\n"
    assert TOOL["lines_of"](said) == [LINE("push", 20.5, "MB/s", "0.61", "zlib")]


def test_a_table_becomes_the_last_section_and_replaces_the_one_before() -> None:
    results = [
        RESULT("push.py", [LINE("push", 20.5, "MB/s", "0.61", "zlib")], True, "", 1.0, 2.0),
        RESULT("top.py", [], False, "was ended after its 80 s", 1.0, 2.0),
    ]
    about = {"date": "2026-11-17", "commit": "abc1234", "machine": "2 cores"}
    section = TOOL["section_of"](TOOL["table_of"](results, **about))
    assert "| `bench/push.py` | push | 20.5 MB/s | 0.61 | zlib |" in section
    assert "2026-11-17, commit abc1234" in section
    assert "- push.py: others ran too; do not quote it" in section
    assert "- top.py: was ended after its 80 s" in section
    first = TOOL["with_section"](PAGE, "## Old")
    again = TOOL["with_section"](first, section)
    assert again.startswith(PAGE)
    assert again.count("## ") == 1
    assert "## Old" not in again
    assert TOOL["with_section"](again, section) == again


def test_ratios_are_of_medians_of_what_both_revisions_measure() -> None:
    def results(*values: float, name: str = "push") -> list[object]:
        return [
            RESULT("push.py", [LINE(name, value, "ms", "1", "x")], False, "", 2 * value, 1.0)
            for value in values
        ]

    found = TOOL["ratios_of"](results(1, 9, 2), results(4, 4, 100))
    assert found == [("push", "2", "4 ms", "0.500"), ("push_whole_cpu", "4", "8 s", "0.500")]
    (only_cpu,) = TOOL["ratios_of"](results(1), results(1, name="other"))
    assert only_cpu[0] == "push_whole_cpu"
    assert TOOL["turns"](3) == [(0, 1), (1, 0), (0, 1)]


def tree(path: Path, script: str) -> Path:
    (path / "bench").mkdir(parents=True)
    (path / "bench" / "one.py").write_text(script)
    return path


def test_a_benchmark_runs_with_its_own_sources(tmp_path: Path) -> None:
    script = "import os, sys; print('one', len(sys.argv), os.environ['PYTHONPATH'], 1, 'x')"
    made = tree(tmp_path / "made", script)
    result = TOOL["run"](made, BENCH("one.py", 60), "--a 1", limit_s=60)
    assert result.failure == ""
    assert result.lines == [LINE("one", 3.0, str(made / "src"), "1", "x")]
    assert result.cpu_s > 0
    missing = TOOL["run"](made, BENCH("two.py", 60), "", limit_s=60)
    assert missing.failure == "is not in this revision"
    broken = tree(tmp_path / "broken", "raise ValueError('no such thing')")
    assert "no such thing" in TOOL["run"](broken, BENCH("one.py", 60), "", limit_s=60).failure


def test_what_takes_too_long_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    script = f"""
import pathlib, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
child, server = subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True)
pathlib.Path({str(tmp_path / "started")!r}).write_text(f"{{child.pid}} {{server.pid}}")
print("one 1 s 1 x", flush=True)
time.sleep(600)
"""
    result = TOOL["run"](tree(tmp_path / "made", script), BENCH("one.py", 3), "", limit_s=3)
    assert result.failure == "was ended after its 3 s"
    started = tmp_path / "started"
    deadline = time.monotonic() + 60
    while started.exists() and any(_runs(int(pid)) for pid in started.read_text().split()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_benchmark_that_says_no_number_has_failed(tmp_path: Path) -> None:
    made = tree(tmp_path / "made", "print('all is well')")
    result = TOOL["run"](made, BENCH("one.py", 60), "", limit_s=60)
    assert result.failure == "said no number"


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
