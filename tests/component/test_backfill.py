"""Backfills against a real server, with Spark: old profiles come in whole, once, or not at all."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import maar.spark
from maar.adapters.stores.open import open_store
from maar.app.backfill import list_files
from maar.model.errors import InvalidInput
from support.load.crowd import profile
from support.processes import dying_backfill
from support.processes.serving import Served, run_server, wait_for
from support.soak.checks import COUNTING, crashes
from support.spark.owned import owned_session
from support.stores.s3_server import S3Server

pytestmark = [pytest.mark.component, pytest.mark.long(100), pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0
NOON = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
SETTINGS = (
    "services.ingest.lease_s=10",
    "services.clean.interval_s=0",
    "retention.default_days=90",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """All but a worker, so that blocks stay as they were written."""
    directory = tmp_path_factory.mktemp("backfill")
    with run_server(directory, *SETTINGS, roles="metastore,query,front") as running:
        yield running


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with owned_session() as session:
        yield session


def files(directory: Path, *, days: int, each: int, ago: int = 3, word: str = "old") -> Path:
    """Profiles of so many days, the newest some days ago, each with a function of its own."""
    directory.mkdir()
    for day in range(days):
        for number in range(each):
            at = NOON - timedelta(days=ago + day) + timedelta(seconds=number)
            body = profile(
                function=f"{word}_{day}_{number}", value=1, time_ns=int(at.timestamp()) * 10**9
            )
            (directory / f"{word}-{day:02}-{number:03}.pb.gz").write_bytes(body)
    return directory


def started(
    server: Served, *arguments: str, program: str = "maar.cli.main"
) -> subprocess.Popen[str]:
    script = [program] if program.endswith(".py") else ["-m", program]
    return subprocess.Popen(
        [sys.executable, *script, "backfill", *arguments, "--spark-master", "local[2]", "--json"],
        env={
            **os.environ,
            "MAAR_SERVER": server.url,
            "MAAR_SERVER__DATA_DIR": str(server.directory / "executor"),
            "PYTHONPATH": str(ROOT / "tests"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def backfilled(server: Served, *arguments: str) -> tuple[int, dict[str, Any]]:
    process = started(server, *arguments)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert not crashes(err, spared=COUNTING), err
    return process.returncode, json.loads(out or json.dumps({"said": err}))


def functions(server: Served, service: str) -> dict[str, int]:
    """What a query finds, by function."""
    said = server.cli(
        "query", "top", "--service", service, "--type", "cpu", "--from", "now-89d",
        "--limit", "1000", "--json",
    )  # fmt: skip
    rows = json.loads(said.stdout)["rows"] if said.returncode == 0 else []
    return {name: int(own) for name, own, _ in rows if name != "main"}


def blocks(server: Served, service: str) -> list[dict[str, Any]]:
    found = server.get("/api/v1/blocks", service=service)["blocks"]
    return sorted(found, key=lambda block: (block["kind"], block["day"]))


def answer(server: Served, plan: str) -> str:
    """What somebody who wants to execute a plan now is told."""
    return str(server.get(f"/api/v1/plans/{plan}")["execution"]["answer"])


def commits(server: Served, plan: str) -> list[Path]:
    return list((server.directory / "data" / "store" / "commits" / "v1").glob(f"{plan}-*"))


def lake(server: Served) -> set[str]:
    """All objects that plans wrote."""
    store = server.directory / "data" / "store"
    return {
        str(path.relative_to(store))
        for part in ("lake", "quarantine")
        for path in (store / part).rglob("*")
        if path.is_file() and ".maar-" not in str(path)
    }


def test_old_files_become_blocks_of_their_days_and_the_same_again_adds_nothing(
    server: Served, spark: SparkSession, tmp_path: Path
) -> None:
    """By the command first, then from a program: whoever repeats it, it is the same."""
    source = files(tmp_path / "source", days=4, each=5)
    bad, ancient = source / "bad.pb.gz", source / "ancient.pb.gz"
    bad.write_bytes(b"\x1f\x8bthis is no profile")
    long_ago = int((NOON - timedelta(days=400)).timestamp()) * 10**9
    ancient.write_bytes(profile(function="ancient", time_ns=long_ago))
    (source / "copy.pb.gz").write_bytes((source / "old-00-000.pb.gz").read_bytes())

    code, found = backfilled(server, str(source), "--service", "archive", "--label", "zone=a")
    assert code == 0, found
    assert (found["files"], found["profiles"], found["duplicates"]) == (23, 20, 1)
    assert [each["file"] for each in found["quarantined"]] == [str(bad)]
    assert [each["file"] for each in found["refused"]] == [str(ancient)]
    age = re.search(r"is (\d+) days old", found["refused"][0]["cause"])
    assert age is not None, found["refused"]
    assert age[1] in ("399", "400"), "before noon, and after it"

    made = blocks(server, "archive")
    good = [block for block in made if block["kind"] == "block"]
    today = (NOON - datetime(1970, 1, 1, tzinfo=UTC)).days
    assert [block["day"] for block in good] == [today - 6, today - 5, today - 4, today - 3]
    assert [block["profiles"] for block in good] == [5, 5, 5, 5]
    assert [block["kind"] for block in made if block not in good] == ["quarantine"]
    wanted = {f"old_{day}_{number}": 1 for day in range(4) for number in range(5)}
    assert functions(server, "archive") == wanted

    shown = server.get(f"/api/v1/plans/{found['plan']}")
    assert (shown["kind"], shown["state"], shown["removable"]) == ("ingest", "completed", True)
    objects = lake(server)

    again = maar.spark.backfill(
        spark, str(source), url=server.url, service="archive", labels={"zone": "a"}
    )
    assert (again["files"], again["profiles"], again["duplicates"]) == (23, 0, 21)
    assert again["quarantined"] == found["quarantined"]
    assert lake(server) == objects
    assert blocks(server, "archive") == made
    assert functions(server, "archive") == wanted


def killed_backfill(server: Served, source: Path, service: str) -> str:
    """The plan of one that was killed when all its blocks were written, once its lease is over."""
    before = lake(server)
    dying = started(server, str(source), "--service", service, program=str(dying_backfill.__file__))

    def both_days_are_written() -> bool:
        written = lake(server) - before
        return sum("/manifests/" in key for key in written) == 2

    wait_for(both_days_are_written, PATIENCE_S, server.log)
    (plan,) = server.get("/api/v1/plans", kind="ingest", state="inflight")["plans"]
    os.killpg(dying.pid, signal.SIGKILL)
    dying.communicate(timeout=PATIENCE_S)
    assert answer(server, plan["id"]) == "lease_live"
    assert blocks(server, service) == []
    assert functions(server, service) == {}
    wait_for(lambda: answer(server, plan["id"]) != "lease_live", PATIENCE_S, server.log)
    return str(plan["id"])


def test_a_backfill_that_is_killed_shows_nothing_is_cleaned_up_and_can_be_repeated(
    server: Served, spark: SparkSession, tmp_path: Path
) -> None:
    """What the first leaves is undone by a cleaning, what the second leaves by the third."""
    source = files(tmp_path / "source", days=2, each=3, word="killed")
    before = lake(server)
    first = killed_backfill(server, source, "mortal")
    cleaned = json.loads(server.cli("clean", "--json").stdout)["executed"]
    assert [each["target"] for each in cleaned] == [first], "the delay is not waited for"
    assert lake(server) == before

    second = killed_backfill(server, source, "mortal")
    found = maar.spark.backfill(spark, str(source), url=server.url, service="mortal")
    assert (found["profiles"], found["duplicates"]) == (6, 0)
    assert len({first, second, found["plan"]}) == 3
    for plan in (first, second):
        assert server.get(f"/api/v1/plans/{plan}")["state"] == "rolled_back"
        assert not any(f"-{plan}-" in key for key in lake(server))
        assert commits(server, plan) == []
    assert len(functions(server, "mortal")) == 6
    (commit,) = commits(server, found["plan"])
    manifests = {key for key in lake(server) - before if "/manifests/" in key}
    assert set(commit.read_text().split()) == manifests


def test_a_data_frame_is_backfilled_on_the_session_that_somebody_owns(
    server: Served, spark: SparkSession, tmp_path: Path
) -> None:
    source = files(tmp_path / "source", days=3, each=4, word="framed")
    frame = spark.read.format("binaryFile").load(str(source))
    found = maar.spark.backfill(
        spark, frame, url=server.url, service="frame", labels={"from": "notebook"}
    )
    assert (found["files"], found["profiles"], found["quarantined"]) == (12, 12, [])
    again = maar.spark.backfill(
        spark, str(source), url=server.url, service="frame", labels={"from": "notebook"}
    )
    assert (again["profiles"], again["duplicates"]) == (0, 12)
    assert len(functions(server, "frame")) == 12
    assert spark.range(3).count() == 3


def test_a_worker_is_never_given_a_backfill_and_nobody_executes_one_without_its_files(
    server: Served,
) -> None:
    opened = json.loads(
        server.cli("plans", "schedule", "ingest", "--tenant", "anonymous", "--json").stdout
    )
    said = server.cli("plans", "execute", opened["plan"])
    assert said.returncode == 1
    assert "whoever has its source" in said.stderr
    skipped = json.loads(server.cli("clean", "--dry-run", "--json").stdout)["skipped"]
    assert {"plan": opened["plan"], "why": "too_young"} in skipped


def test_the_files_of_a_bucket_are_found_by_a_pattern_and_read(s3_server: S3Server) -> None:
    bucket = s3_server.bucket()
    store = open_store(bucket)
    for key in ("old/2026/a.pb.gz", "old/2026/b.pb.gz", "old/2026/notes.txt", "new/c.pb.gz"):
        store.create(key, key.encode())
    for pattern in ("old/2026/*.pb.gz", "old/*/*.pb.gz"):
        found = list_files([f"{bucket.url}/{pattern}"], bucket)
        assert {file.name: found.read(file.name) for file in found.files} == {
            f"{bucket.url}/old/2026/a.pb.gz": b"old/2026/a.pb.gz",
            f"{bucket.url}/old/2026/b.pb.gz": b"old/2026/b.pb.gz",
        }
    with pytest.raises(InvalidInput, match="no file matches"):
        list_files([f"{bucket.url}/old/*.gone"], bucket)


def test_a_bucket_is_backfilled_with_credentials_of_the_commands_own(
    server: Served, s3_server: S3Server, tmp_path: Path
) -> None:
    """The tasks read the objects themselves; the server knows nothing of that bucket."""
    bucket = s3_server.bucket(prefix="archive")
    store = open_store(bucket)
    for path in files(tmp_path / "source", days=3, each=40, word="far").iterdir():
        store.create(f"2026/{path.name}", path.read_bytes())
    store.create("2026/bad.pb.gz", b"\x1f\x8bthis is no profile")
    store.create("2026/notes.txt", b"no file of the pattern")
    options = [("allow_http", "true"), *bucket.options]
    given = [text for name, value in options for text in ("--set", f"store.{name}={value}")]
    source = (f"{bucket.url}/2026/*.pb.gz", "--service", "far", *given)
    code, found = backfilled(server, *source)
    assert code == 0, found
    assert (found["files"], found["profiles"], found["refused"]) == (121, 120, [])
    assert [each["file"] for each in found["quarantined"]] == [f"{bucket.url}/2026/bad.pb.gz"]
    assert functions(server, "far") == {
        f"far_{day}_{number}": 1 for day in range(3) for number in range(40)
    }
    code, again = backfilled(server, *source)
    assert (code, again["profiles"], again["duplicates"]) == (0, 0, 120)
