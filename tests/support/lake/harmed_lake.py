"""A whole server over four stores, under load, harmed in every way; and what must hold afterwards.

The short form is tests/component/test_harmed_stores.py, the long one `make soak-stores`: both run
what is here.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from maar.cli.client import Server
from maar.cli.output.failure import EXIT_UNAVAILABLE, CommandFailed
from maar.ports.stores.stores import AWAY_S
from maar.pprof.plain import PlainSample
from support.load.crowd import profile
from support.oracles.copies_audit import Contents, audit
from support.oracles.pprof_reader import canonical
from support.processes.serving import Served, run_server, wait_for
from support.stores.harmed import HarmedStore, flip, wipe

PATIENCE_S = 200.0  # a slow machine may take long; it must get there
OVER = ("completed", "cancelled", "rolled_back")
FINISHED = 2  # the level at which blocks stay here
LIMIT_S = 25  # of a task; what it leaves is deleted later than that

SETTINGS = (
    "compaction.level_counts=8,8,100000",
    "compaction.level_ages_s=3,20,100000",
    "compaction.retry_s=0.2",
    "compaction.retire_delay_s=3",
    "ring.shards=2",
    f"compaction.leftovers_s={LIMIT_S + 5}",
    "services.clean.interval_s=1",
    "services.repair.lease_s=8",
    "services.compact.lease_s=8",
    *(f"services.{kind}.limit_s={LIMIT_S}" for kind in ("compact", "logcompact", "cluster")),
    *(f"services.{kind}.limit_s={LIMIT_S}" for kind in ("erase", "ingest", "repair")),
    "segment.flush_interval_ms=200",
    "worker.cancel_ms=2000",
    "spark.master=local[1]",
)
READERS = "metastore,query,front"
TESTS = Path(__file__).parents[2]


class Load:
    """Pushes small profiles without end, and remembers those that were acknowledged."""

    def __init__(self, url: str, *, pace_s: float) -> None:
        self.acknowledged: dict[str, bytes] = {}  # by profile id
        self.repeated = 0
        self._url, self._pace_s = url, pace_s
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._number = 0

    def start(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="load")
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(PATIENCE_S)
            assert not self._thread.is_alive(), "a push is never answered"

    def _run(self) -> None:
        while not self._stop.is_set():
            self._number += 1
            body = some_profile(self._number)
            while not self._push(body):  # the last one too: it may be stored already
                self.repeated += 1
                time.sleep(0.2)
            self._stop.wait(self._pace_s)

    def _push(self, body: bytes) -> bool:
        with contextlib.closing(Server(self._url)) as api:
            try:
                service = f"s{self._number % 3}"
                (name,) = api.push([("service_name", service)], body, client_id=str(self._number))
            except CommandFailed:
                return False
        self.acknowledged[name] = body
        return True


def some_profile(number: int) -> bytes:
    stacks = [PlainSample([each % 2], (number + each,), labels=()) for each in range(number % 9)]
    return profile(function=f"f{number}", value=number, more_samples=stacks)


class Workers:
    """One worker beside a server, without Spark, which is started again when it was killed."""

    def __init__(self, server: Served, settings: Sequence[str]) -> None:
        self._log = server.log_file
        self._settings = [*server.settings, *settings]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "support.worker.sparkless",
                    str(os.getpid()),
                    *self._settings,
                ],
                env=os.environ | {"PYTHONPATH": str(TESTS)},
                stdout=log,
                stderr=log,
            )

    def end(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(PATIENCE_S)


class HarmedLake:
    def __init__(
        self, server: Served, workers: Workers | None, stores: Sequence[HarmedStore], seed: int
    ) -> None:
        """Without `workers`, the server has one of its own, with Spark."""
        self.server = server
        self._workers = workers
        self.stores = {store.name: store for store in stores}
        self.home, *self.others = stores
        self.load = Load(server.url, pace_s=0.5)
        self.random = Random(seed)

    # ── what is done to it ─────────────────────────────────────────────────────────────────────

    def cut_off(self, store: HarmedStore, pushes: int = 5) -> None:
        """While the load goes on for so many pushes."""
        store.cut()
        try:
            self.goes_on(pushes)
        finally:
            store.heal()

    def cut_home_off(self) -> None:
        """Nothing can be pushed until it is back; what was acknowledged is read from elsewhere."""
        self.home.cut()
        try:
            time.sleep(self.random.uniform(1, 10))
        finally:
            self.home.heal()
        self.goes_on(5)

    def kill(self, role: str) -> None:
        """The leader is `metastore`; whoever started it starts it again."""
        if role == "worker" and self._workers is not None:
            self._workers.end(signal.SIGKILL)
            self._workers.start()
            return
        before = self.server.children()
        if role not in before:  # all roles are one process
            self.server.stop(signal.SIGKILL)
            self.server.start()
            self.goes_on(2)
            return
        os.kill(before[role], signal.SIGKILL)
        wait_for(
            lambda: self.server.children().get(role, before[role]) != before[role],
            PATIENCE_S,
            self.server.log,
        )
        self.goes_on(2)

    def wipe(self, store: HarmedStore) -> None:
        """And wait until maar has said so, and has marked it again."""
        wait_for(lambda: self.count_in(store), PATIENCE_S, self.server.log)
        said = f"store {store.name} was wiped"
        before = self.server.log().count(said)
        wipe(store)
        wait_for(lambda: self.server.log().count(said) > before, PATIENCE_S, self.server.log)
        wait_for(lambda: any("markers/" in key for key in store.list()), PATIENCE_S)

    def wipe_home(self) -> None:
        """When it is drained, and has nothing that is nowhere else."""
        self.load.stop()
        self.settle()
        self.wipe(self.home)
        self.load.start()

    def harm_files(self, share: float, least: int) -> int:
        """Flip a bit in some files and delete as many others, never all copies of one; of how many
        copies of blocks. Only what is in every store: a new block may be nowhere else yet.
        """
        copies = [
            (block["id"], [(at["store"], at["key"]) for at in file["locations"]])
            for block in self.blocks()
            for file in block["files"]
            if block["level"] and {at["store"] for at in file["locations"]} == self.stores.keys()
        ]
        files = sum(len(places) for _, places in copies)
        count = min(max(least, round(share * files)), len(copies) // 2)
        harmed = set()
        for number, (block, places) in enumerate(self.random.sample(copies, 2 * count)):
            name, key = self.random.choice(places)
            harmed.add((block, name))
            if number % 2:
                self.stores[name].delete(key)
            else:
                with contextlib.suppress(OSError):  # it was replaced meanwhile, and is deleted
                    flip(self.stores[name], key, self.random.getrandbits(30))
        return len(harmed)

    # ── what must be so ────────────────────────────────────────────────────────────────────────

    def goes_on(self, pushes: int) -> None:
        upto = len(self.load.acknowledged) + pushes
        wait_for(lambda: len(self.load.acknowledged) >= upto, PATIENCE_S, self.server.log)

    def count_in(self, store: HarmedStore) -> int:
        """How many blocks the index knows in it."""
        stores = self.server.get("/api/v1/stores")["stores"]
        return sum(each["blocks"] for each in stores if each["name"] == store.name)

    def blocks(self) -> list[Any]:
        return list(self.server.get("/api/v1/blocks", limit=10_000)["blocks"])

    def repair(self) -> Any:
        """A whole one, by hand: every copy is read."""
        said = self.server.cli("repair", "run", "--wait", "--json")
        assert said.returncode in (0, 1), (said, self.server.log()[-4000:])
        return json.loads(said.stdout)

    def settle(self) -> None:
        """Until all is merged, all copies are there, and what was replaced is deleted."""
        deadline = time.monotonic() + PATIENCE_S
        while left := self.left():
            assert time.monotonic() < deadline, f"not settled: {left}\n{self.server.log()[-8000:]}"
            time.sleep(0.2)
        # What repairs left in a store that was away is found by the search for orphans, which comes
        # every ten minutes, or when it is told to.
        said = self.server.cli("clean")
        assert said.returncode == 0, (said, self.server.log()[-4000:])

    def left(self) -> dict[str, Any]:
        """What is still to be done; nothing when all is settled."""
        status = self.server.get("/api/v1/status")
        stores = self.server.get("/api/v1/stores")["stores"]
        if "levels" not in status:
            return status if isinstance(status, dict) else {"status": status}
        blocks = {each["blocks"] for each in stores}
        found = {
            "levels": [each for each in status["levels"] if each["level"] < FINISHED],
            "plans": {k: v for k, v in status["plans"].items() if k not in OVER and v},
            "letters": status["letters"]["waiting"],
            **{name: status[name] for name in ("retired", "leftovers", "blocked")},
            **{
                f"{each['name']}.{what}": each[what]
                for each in stores
                for what in ("missing", "damaged", "tombstones")
            },
            "uneven": sorted(blocks) if len(blocks) > 1 else 0,
        }
        return {name: value for name, value in found.items() if value}

    def check_copies(self) -> None:
        faults = audit(self.blocks(), self.contents())
        segments = [text for text in faults if " has segments/" in text]
        if len(segments) <= self.load.repeated:  # of pushes that were refused, and came again
            faults = [text for text in faults if text not in segments]
        assert not faults, "\n".join(faults[:20])

    def contents(self) -> Contents:
        return {
            name: {key: store.read(key) for key in store.list()}
            for name, store in self.stores.items()
        }

    def check_each_alone(self) -> None:
        """Every acknowledged profile, while all other stores are cut off."""
        for name in self.stores:
            with self.only(name):
                check_profiles(self.server, self.load.acknowledged, name)

    @contextlib.contextmanager
    def only(self, name: str) -> Iterator[None]:
        others = [store for store in self.stores.values() if store.name != name]
        for store in others:
            store.cut()
        try:
            yield
        finally:
            for store in others:
                store.heal()


def check_profiles(server: Served, acknowledged: dict[str, bytes], where: str) -> None:
    back = server.directory / "back.pb.gz"
    for name, pushed in acknowledged.items():
        said = server.cli("get", name, "-o", str(back))
        until = time.monotonic() + 3 * AWAY_S
        while said.returncode == EXIT_UNAVAILABLE and time.monotonic() < until:
            said = server.cli("get", name, "-o", str(back))  # the store was away a moment ago
        assert said.returncode == 0, f"{name} from {where}: {said.stderr}\n{server.log()[-4000:]}"
        assert canonical(gzip.decompress(back.read_bytes())) == canonical(pushed), (name, where)
        back.unlink()


def check_manifests_alone(
    store: HarmedStore, directory: Path, acknowledged: dict[str, bytes]
) -> None:
    """A new log is made of what one store holds, by the documented command, and serves it."""
    directory.mkdir()
    server = Served(directory, *store.settings(), roles=READERS)
    settings = [text for pair in store.settings() for text in ("--set", pair)]
    command = ("metastore", "restore", "--without-snapshot", "--yes")
    said = server.command(*command, "--data", str(directory / "data"), *settings)
    assert said.returncode == 0, said.stderr
    with run_server(directory, *store.settings(), roles=READERS) as server:
        wait_for(lambda: not server.get("/api/v1/status")["adopting"], PATIENCE_S, server.log)
        check_profiles(server, acknowledged, f"the manifests of {store.name}")


@contextlib.contextmanager
def harmed_lake(
    directory: Path, stores: Sequence[HarmedStore], *, seed: int, spark: bool
) -> Iterator[HarmedLake]:
    names = ", ".join(f'"{store.name}"' for store in stores)
    given = [text for store in stores for text in store.settings()]
    settings = (*given, f"tenant_defaults.stores=[{names}]", *SETTINGS)
    with run_server(directory, *settings, roles="all" if spark else READERS) as server:
        workers = None if spark else Workers(server, settings)
        lake = HarmedLake(server, workers, stores, seed)
        often = ("--interval", "1s", "--backoff", "1s", "--warning", "10m", "--error", "1h")
        job = ("--kind", "repair", "--type", "incremental")
        assert server.cli("schedule", "set", *job, *often).returncode == 0
        if workers is not None:
            workers.start()
        lake.load.start()
        try:
            yield lake
        finally:
            lake.load.stop()
            if workers is not None:
                workers.end(signal.SIGTERM)
