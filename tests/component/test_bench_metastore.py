"""Benchmarks of the metastore run, in small, and print what they promise. Nothing is timed.

bench/failover.py runs in test_replicated_metastore.py, on the replicas that are there already.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.runs.benchmark import by_name, run

pytestmark = [pytest.mark.component, pytest.mark.long(30), pytest.mark.timeout(900)]


def test_replicas_of_a_short_log(tmp_path: Path) -> None:
    few = ("--registrations", "100", "--entries", "600", "--etcd-entries", "200", "--quiet", "0.2")
    lines, said = run("replicas.py", *few, "--here", temporary=tmp_path)
    found = by_name(lines)
    for name in ("register_sqlite", "register_etcd", "register_p50_etcd", "register_p99_etcd"):
        assert found[name].value > 0
    for kind in ("registrations", "pipeline"):
        for where in ("sqlite_600", "etcd_200"):
            assert found[f"replay_{kind}_{where}"].unit == "s"
        assert found[f"replay_{kind}_etcd"].baseline == "from_sqlite"
    for where in ("sqlite", "etcd"):
        assert 0 < found[f"snapshot_size_{where}"].value < 2_000
        for name in ("snapshot", "stall", "pause"):
            assert found[f"{name}_{where}"].value > 0
    assert "# 597 blocks" in said


def test_prepare_with_a_few_polls(tmp_path: Path) -> None:
    lines, said = run("prepare.py", "--polls", "30", temporary=tmp_path)
    found = by_name(lines)
    assert set(found) == {
        "log_head",
        *(
            f"poll_{kind}_{way}_{what}"
            for kind in ("idle", "renew", "work")
            for way in ("append", "head", "entry")
            for what in ("appends", "bytes", "p50", "p99")
        ),
    }
    for kind, least in (("idle", 0), ("renew", 1), ("work", 1)):
        read, entry = (found[f"poll_{kind}_{way}_appends"].value for way in ("append", "entry"))
        assert read >= least, said
        assert entry - read > 0.5, f"{kind}: the read-only entry is an append of its own\n{said}"
        size, more = (found[f"poll_{kind}_{way}_bytes"].value for way in ("append", "entry"))
        assert more > size, said
    assert found["poll_idle_append_appends"].value < 0.5, "a poll that changes nothing is a read"


def test_the_metastore_beside_small_queues(tmp_path: Path) -> None:
    sizes = (200, 600)
    lines, said = run(
        "metastore.py",
        *("--sizes", *map(str, sizes), "--registrations", "100", "--polls", "5"),
        temporary=tmp_path,
    )
    found = by_name(lines)
    names = ("register", "register_cpu", "poll_p50", "poll_p99", "memory", "snapshot", "restart")
    phases = ("fill", "register", "poll", "snapshot")
    assert set(found) == {
        f"{name}_{size}"
        for name in (*names, *(f"pause_{phase}" for phase in phases))
        for size in sizes
    }
    for size in sizes:
        (kept,) = re.findall(rf"# {size}: (\d+) blocks after the restart", said)
        assert int(kept) > size, "what was registered survives the restart"
        assert found[f"poll_p99_{size}"].baseline == f"beside_{sizes[0]}"
        assert found[f"register_{size}"].value > 0


def test_logs_for_a_moment(tmp_path: Path) -> None:
    lines, said = run("log.py", "--seconds", "0.3", "--members", "1", temporary=tmp_path)
    found = by_name(lines)
    appends = [f"{log}_{batch}" for log in ("sqlite", "etcd") for batch in (1, 10, 100)]
    latencies = [f"{name}_{part}" for name in appends for part in ("p50", "p99")]
    assert set(found) == {*appends, *latencies, "sqlite_read", "etcd_read"}
    assert all(line.baseline == "sqlite" for line in lines), said
    assert all(float(found[name].ratio) == 1 for name in appends if name.startswith("sqlite"))
    assert all(line.value > 0 for line in lines), said


def test_a_turn_of_the_schedule(tmp_path: Path) -> None:
    given = ("--jobs", "200", "1000", "--blocks", "2000")
    lines, said = run("schedule.py", *given, temporary=tmp_path)
    sessions = {f"session_2000_blocks_{what}" for what in ("make", "hand_out")}
    assert set(by_name(lines)) - sessions == {
        f"turn_{jobs}_{kind}_jobs{what}"
        for jobs in (200, 1_000)
        for kind in ("waiting", "repair")
        for what in ("", "_p99", "_max")
    }, said
