"""Every benchmark runs, in small, and prints what it promises. Nothing is timed.

bench/failover.py runs in test_replicated_metastore.py, on the replicas that are there already.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

pytestmark = [pytest.mark.component, pytest.mark.long, pytest.mark.timeout(900)]

BENCH = Path(__file__).parents[2] / "bench"
MARK = "MAAR_BENCH_RUN"
LOADS = ("steady", "tenants", "bursts", "tail")


class Line(NamedTuple):
    """What a benchmark says of one number."""

    name: str
    value: float
    unit: str
    ratio: str
    baseline: str


def run(name: str, *arguments: str, temporary: Path) -> tuple[list[Line], str]:
    """The lines of a benchmark and all that it said; nothing of it is left on the machine."""
    mark = uuid.uuid4().hex
    done = subprocess.run(
        [sys.executable, str(BENCH / name), *arguments],
        env={**os.environ, MARK: mark, "TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    wait_until_gone(mark)
    assert not list(temporary.glob("maar-*")), "its directory was left behind"
    said = [line.split() for line in done.stdout.splitlines() if not line.startswith("#")]
    assert all(len(words) == 5 for words in said), done.stdout
    lines = [Line(name, float(value), *rest) for name, value, *rest in said]
    return lines, done.stdout


def wait_until_gone(mark: str) -> None:
    """Servers, JVMs and their children carry the mark of the run in their environment."""
    deadline = time.monotonic() + 60
    while left := marked(mark):
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.1)


def marked(mark: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


def by_name(lines: list[Line]) -> dict[str, Line]:
    return {line.name: line for line in lines}


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


def test_logs_for_a_moment(tmp_path: Path) -> None:
    lines, said = run("log.py", "--seconds", "0.3", "--members", "1", temporary=tmp_path)
    found = by_name(lines)
    appends = [f"{log}_{batch}" for log in ("sqlite", "etcd") for batch in (1, 10, 100)]
    latencies = [f"{name}_{part}" for name in appends for part in ("p50", "p99")]
    assert set(found) == {*appends, *latencies, "sqlite_read", "etcd_read"}
    assert all(line.baseline == "sqlite" for line in lines), said
    assert all(float(found[name].ratio) == 1 for name in appends if name.startswith("sqlite"))
    assert all(line.value > 0 for line in lines), said


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


def test_a_turn_of_the_schedule(tmp_path: Path) -> None:
    lines, said = run("schedule.py", "--jobs", "200", "1000", temporary=tmp_path)
    assert set(by_name(lines)) == {
        f"turn_{jobs}_{kind}_jobs{what}"
        for jobs in (200, 1_000)
        for kind in ("waiting", "repair")
        for what in ("", "_p99", "_max")
    }, said


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


def test_one_front_and_two_for_a_moment(tmp_path: Path) -> None:
    few = ("--rounds", "1", "--seconds", "0.5", "--warm", "0.5", "--connections", "20")
    lines, said = run("fronts.py", *few, temporary=tmp_path)
    found = by_name(lines)
    assert set(found) == {
        f"{name}_{fronts}" for name in ("taken", "cpu", "front_cpu", "puts") for fronts in (1, 2)
    }
    assert all(line.value > 0 for line in lines), said
    assert "refused" not in said


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


# ── the model of the peer keeps to what it says ────────────────────────────────────────────────


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    import synthetic_peer

    return synthetic_peer


SECOND = 1_000_000_000


def segments(peer: ModuleType, system: object, count: int, *, at_s: float, shard: int = 1) -> None:
    for _ in range(count):
        system.add(peer.Block(0, shard, 1, {"acme": (0, 1)}), int(at_s * SECOND))  # type: ignore[attr-defined]


def test_the_peer_hands_new_jobs_out_by_the_next_poll(peer: ModuleType) -> None:
    system = peer.Peer()
    segments(peer, system, 45, at_s=0)
    assert system.poll(1, [], SECOND) == []
    (first,) = system.poll(1, [], 6 * SECOND)
    (second,) = system.poll(4, [], 11 * SECOND)
    assert [len(first.blocks), len(second.blocks)] == [20, 20]
    assert system.poll(4, [], 16 * SECOND) == []
    assert len(system.live) == 45
    outputs = [peer.Block(1, 1, 1, {"acme": (0, 1)})]
    system.poll(0, [(first, outputs)], 17 * SECOND)
    assert len(system.live) == 45 - 20 + 1


def test_the_peer_closes_old_batches_only_when_something_arrives(peer: ModuleType) -> None:
    system = peer.Peer()
    for shard in (1, 2, 3):
        segments(peer, system, 5, at_s=0, shard=shard)
    for at_s in (60, 65, 3600):
        assert system.poll(9, [], at_s * SECOND) == []
    segments(peer, system, 1, at_s=3601, shard=3)  # its own, and the one touched longest ago
    system.poll(9, [], 3602 * SECOND)
    jobs = system.poll(9, [], 3607 * SECOND)
    assert sorted((job.blocks[0].shard, len(job.blocks)) for job in jobs) == [(1, 5), (3, 6)]
    segments(peer, system, 1, at_s=3610, shard=3)  # one more for each push
    system.poll(9, [], 3611 * SECOND)
    (late,) = system.poll(9, [], 3616 * SECOND)
    assert (late.blocks[0].shard, len(late.blocks)) == (2, 5)


def test_the_peer_fills_a_job_from_later_batches(peer: ModuleType) -> None:
    system = peer.Peer()
    segments(peer, system, 5, at_s=0)
    segments(peer, system, 1, at_s=40)  # closes six
    segments(peer, system, 20, at_s=41)
    system.poll(9, [], 42 * SECOND)
    (job,) = system.poll(9, [], 47 * SECOND)
    assert len(job.blocks) == 20
    assert system.poll(9, [], 52 * SECOND) == [], "six of the second batch wait for more, or age"


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


def test_repair_of_a_small_block(tmp_path: Path) -> None:
    lines, _ = run("repair.py", "--mb", "2", temporary=tmp_path)
    found = by_name(lines)
    assert set(found) == {"repair_copy", "repair_check"}
    assert all(line.value > 0 for line in found.values())


def test_replication_lag_of_a_few_segments(tmp_path: Path) -> None:
    few = ("--seconds", "2", "--warm", "0", "--tail", "1", "--rate", "10")
    lines, said = run("replication_lag.py", *few, "--soon", temporary=tmp_path)
    found = by_name(lines)
    assert set(found) == {f"replication_{n}_{q}" for n in ("lag", "copy") for q in ("p50", "p99")}
    assert 0 < found["replication_copy_p50"].value <= found["replication_lag_p50"].value, said


def test_a_backfill_of_a_few_files(tmp_path: Path) -> None:
    lines, said = run("backfill.py", "--files", "60", "--days", "3", temporary=tmp_path)
    found = by_name(lines)
    assert found.keys() == {"backfill", "backfill_again"}
    assert {line.baseline for line in lines} == {"one_process_that_only_reads_them"}
    assert "# 60 files of 3 days" in said
