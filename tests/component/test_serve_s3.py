"""The whole pipeline with S3 as the store: push, compaction by Spark, query, get."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from maar.pprof.encode import encode
from maar.pprof.plain import PlainFunction, PlainLine, PlainLocation, PlainProfile, PlainSample
from support.oracles.pprof_reader import canonical
from support.processes.serving import Served, run_server, wait_for
from support.stores.s3_server import S3Server

pytestmark = [pytest.mark.component, pytest.mark.timeout(200)]


def profile(time_ns: int) -> bytes:
    return encode(
        PlainProfile(
            sample_types=[("cpu", "nanoseconds")],
            samples=[PlainSample([0, 1], (5,))],
            locations=[PlainLocation(lines=(PlainLine(row),)) for row in (0, 1)],
            functions=[PlainFunction("fetch", "fetch", "s3.c", 2), PlainFunction("main")],
            period_type=("cpu", "nanoseconds"),
            period=10_000_000,
            time_ns=time_ns,
            duration_ns=1_000_000_000,
        )
    )


def test_push_compaction_and_query_work_with_s3_as_the_store(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = s3_server.bucket()
    monkeypatch.setenv("MAAR_STORE__URL", store.url)
    monkeypatch.setenv("MAAR_STORE__ALLOW_HTTP", "true")
    for name, value in store.options:
        monkeypatch.setenv(f"MAAR_STORE__{name.upper()}", value)
    with run_server(tmp_path, "compaction.level_ages_s=2,600,600", "spark.slots=1") as server:
        pushed = profile(server.get("/api/v1/status")["wall_time_ns"])
        file = tmp_path / "p.pb"
        file.write_bytes(pushed)
        said = server.cli("push", str(file), "--service", "far")
        assert said.returncode == 0, said.stderr
        check(server, said.stdout.strip(), pushed, tmp_path / "back.pb.gz")
        wait_for(lambda: levels(server) == [1], 90, server.log)
        check(server, said.stdout.strip(), pushed, tmp_path / "back.pb.gz")
        assert not (tmp_path / "data" / "store").exists()
        assert server.stop() == 0
        assert dict(store.options)["endpoint"] not in server.log(), "options are never logged"


def check(server: Served, identity: str, pushed: bytes, file: Path) -> None:
    assert server.cli("get", identity, "-o", str(file)).returncode == 0
    assert canonical(gzip.decompress(file.read_bytes())) == canonical(pushed)
    assert "fetch" in server.cli("query", "top", "--service", "far").stdout


def levels(server: Served) -> list[int]:
    return [block["level"] for block in server.get("/api/v1/blocks")["blocks"]]
