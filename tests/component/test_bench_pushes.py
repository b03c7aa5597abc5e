"""Benchmarks of pushes run, in small, and print what they promise. Nothing is timed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.runs.benchmark import by_name, run

pytestmark = [pytest.mark.component, pytest.mark.long(40), pytest.mark.timeout(900)]


def test_distributor_and_writer_together_and_apart(tmp_path: Path) -> None:
    lines, said = run(
        "distribution.py",
        *("--seconds", "0.3", "--rounds", "1", "--latency-seconds", "0.5", "--warm", "0"),
        temporary=tmp_path,
    )
    found = by_name(lines)
    ways = ("together", "apart")
    assert set(found) == {
        *(f"push_{way}{what}" for way in ways for what in ("", "_most")),
        *(
            f"latency_{way}_{share}_{q}"
            for way in ways
            for share in (30, 90)
            for q in ("p50", "p99")
        ),
    }
    assert found["push_together"].ratio == "1.00"
    assert all(line.value > 0 for line in lines), said
    steady = re.findall(r"(\d+) of (\d+) acknowledged", said)
    assert len(steady) == 4, said
    assert all(int(came) > 0 for came, _ in steady), said
    assert "segment-writer" in said, "whose CPU it was"


def test_one_front_and_two_for_a_moment(tmp_path: Path) -> None:
    few = ("--rounds", "1", "--seconds", "2", "--warm", "0.5", "--connections", "20")
    lines, said = run("fronts.py", *few, temporary=tmp_path)
    found = by_name(lines)
    assert set(found) == {
        f"{name}_{fronts}" for name in ("taken", "cpu", "front_cpu", "puts") for fronts in (1, 2)
    }
    assert all(line.value > 0 for line in lines), said
    assert "refused" not in said


def test_puts_of_a_few_minutes(tmp_path: Path) -> None:
    lines, said = run("puts.py", "--minutes", "30", temporary=tmp_path)
    found = by_name(lines)
    loads = ("ten", "idle", "trickle", "steady", "busy", "bursts", "answered")
    assert set(found) == {
        f"{what}_{load}{form}"
        for load in loads
        for form in ("", "_saved")
        for what in ("puts", "volume", "wait_p50", "wait_p99")
    }
    for line in lines:
        of = "flush_interval_500" if line.name.startswith("wait") else "fixed_500_ms_"
        assert line.baseline.startswith(of), said
    assert float(found["puts_trickle_saved"].ratio) < 0.6, "pushes that trickle in share PUTs"
    for load in loads:
        assert float(found[f"puts_{load}_saved"].ratio) <= 1
        assert float(found[f"puts_{load}"].ratio) <= 1.06, "five percent, and one to begin with"
        assert float(found[f"wait_p99_{load}"].ratio) <= 1.03
    assert float(found["wait_p50_ten"].ratio) <= 0.55
    assert found["puts_idle"].value == 240, "one for each push, four a minute"
    assert found["volume_busy"].value < found["volume_trickle"].value
