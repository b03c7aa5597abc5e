"""A backfill of thousands of files, whole, and the same again; against reading them alone.

    python bench/backfill.py [--files 2000] [--days 20] [--samples 40] [--locations 200]

A server takes a directory of pprof files by `maar backfill` on Spark with two slots, and once more:
the second time nothing may be added. Its baseline is one process that reads, unpacks and admits the
same files, and writes nothing. Counted is the time from the command's start to its answer, that of
Spark's own start included. Prints: name value unit ratio baseline.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import synthetic
from maar.distributor.admit import admit_file
from maar.distributor.settings import Limits
from maar.model.time import DAY_NS, SECOND_NS
from maar.pprof import gzip
from maar.runner.bulk import read_local
from maar.services.ingest.source import FileState, Whose, read_files

READY_S = 300.0
TEMPLATES = 40  # profiles that differ in more than their time
KEPT_DAYS = 90
WHOSE = Whose(synthetic.TENANT, "archive")


def write_files(directory: Path, *, files: int, days: int, samples: int, locations: int) -> int:
    """Profiles of the last days, each of its own second; the bytes of all of them."""
    directory.mkdir()
    today = time.time_ns() // DAY_NS * DAY_NS
    size = 0
    for number in range(files):
        at = today - (1 + number % days) * DAY_NS + number // days * SECOND_NS
        random = Random(number % TEMPLATES)
        raw = synthetic.pprof(random, time_ns=at, samples=samples, locations=locations)
        body = gzip.compress(raw)
        (directory / f"{number:06}.pb.gz").write_bytes(body)
        size += len(body)
    return size


@contextmanager
def server(directory: Path) -> Iterator[str]:
    """All but a worker, on a port of its own; its address."""
    log = directory / "server.log"
    command = [sys.executable, "-m", "maar.cli.main", "serve", "--listen", "127.0.0.1:0"]
    command += ["--roles", "metastore,query,front", "--data", str(directory / "data")]
    command += ["--set", f"retention.default_days={KEPT_DAYS}"]
    for role in ("metastore", "query", "segment_writer"):
        command += ["--set", f"roles.{role}=unix:{directory}/{role}"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield synthetic.url_when_ready(process, log, patience_s=READY_S)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def backfill(url: str, source: Path, scratch: Path) -> tuple[float, dict[str, Any]]:
    """How long the command took, and what it told."""
    command = [sys.executable, "-m", "maar.cli.main", "backfill", str(source), "--json"]
    command += ["--service", WHOSE.service, "--tenant", WHOSE.tenant, "--server", url]
    command += ["--spark-master", "local[2]", "--data", str(scratch)]
    began = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, env=os.environ, check=True)
    return time.perf_counter() - began, json.loads(done.stdout)


def read_alone(source: Path) -> float:
    """Seconds of one process."""
    admit = partial(
        admit_file,
        tenant=WHOSE.tenant,
        now_ns=time.time_ns(),
        limits=Limits(),
        kept_ns=KEPT_DAYS * DAY_NS,
    )
    rows = [(str(path), path.stat().st_size, None) for path in sorted(source.iterdir())]
    began = time.perf_counter()
    found = list(
        read_files(rows, whose=WHOSE, admit=admit, read=read_local, wall_ns=time.time_ns())
    )
    assert all(file.state is FileState.GOOD for file in found)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=2_000)
    parser.add_argument("--days", type=int, default=20)
    parser.add_argument("--samples", type=int, default=40, help="per profile")
    parser.add_argument("--locations", type=int, default=200, help="per profile")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="maar-") as name:
        directory = Path(name)
        source = directory / "source"
        size = write_files(
            source,
            files=given.files,
            days=given.days,
            samples=given.samples,
            locations=given.locations,
        )
        print(f"# {given.files} files of {given.days} days, {size / 1e6:.1f} MB")
        alone_s = read_alone(source)
        with server(directory) as url:
            first_s, told = backfill(url, source, directory / "scratch")
            assert (told["profiles"], told["duplicates"]) == (given.files, 0), told
            again_s, told = backfill(url, source, directory / "scratch")
            assert (told["profiles"], told["duplicates"]) == (0, given.files), told
    for what, taken_s in (("backfill", first_s), ("backfill_again", again_s)):
        speed, ratio = given.files / taken_s, alone_s / taken_s
        print(f"{what} {speed:.0f} files/s {ratio:.2f} one_process_that_only_reads_them")


if __name__ == "__main__":
    main()
