"""Every section of docs/runbook.md, followed to the letter on real processes, loses no profile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from maar.adapters.etcd.log import EtcdLog, EtcdSettings
from maar.adapters.rpc import Channel, serve_metastore
from maar.adapters.stores.open import open_store
from maar.adapters.system_clock import SystemClock
from maar.app.roles.wiring import RoleStatus
from maar.cli.client import Server
from maar.cli.output.failure import EXIT_UNAVAILABLE, CommandFailed
from maar.metastore.records.entries import VERSION
from maar.metastore.replica import snapshot
from maar.metastore.service import MetastoreService
from maar.model.ids import MAIN_STORE
from maar.model.policy import Policy
from maar.ports.metastore.log import Candidate
from maar.ports.stores.object_store import ObjectStore, StoreSettings
from support.docs.runbook import Runbook, maar, section, sections
from support.etcd.cluster import PREFIX, EtcdCluster, running, until
from support.lake.fold_and_store import put
from support.load.crowd import profile
from support.metastore.fold import entropy, segment
from support.network.ports import free_port
from support.processes.serving import Served, living, wait_for

pytestmark = [pytest.mark.component, pytest.mark.long(120), pytest.mark.timeout(280)]

REPLICAS = "meta1:4041,meta2:4041,meta3:4041"
LOG = "etcd://etcd1:2379,etcd2:2379,etcd3:2379/maar"
STORE = "s3://profiles/maar"
BACKUP = "/var/backups/maar.backup"
DATA = "/var/lib/maar"

QUOTA = 64 << 20
FOREIGN = 50  # MiB of somebody else: too much for entries, little enough for what makes room
SETTINGS = (
    "log.election_s=2",
    "segment.flush_interval_ms=50",
    "compaction.snapshot_entries=100000",
)

FOLLOWED = [
    "Look first",
    "A replica has stopped",
    "All replicas are lost, etcd is there",
    "etcd has lost its quorum",
    "etcd is lost, the snapshots are there",
    "The log is lost, and there is no snapshot",
    "An older maar wrote the log",  # in test_older_log.py, for which no server is needed
    "From SQLite to etcd",
    "etcd is at its quota",
]


def test_every_section_with_commands_is_followed() -> None:
    assert sections() == FOLLOWED


class Site:
    """A server whose log may be anywhere, the profiles that it acknowledged, and its runbook."""

    def __init__(self, directory: Path, log: str = "", *settings: str) -> None:
        self.directory = directory
        self._settings = (*SETTINGS, *settings)
        self.address = f"127.0.0.1:{free_port()}"
        self.store = directory / "store"
        self.log = log
        self.pushed: list[str] = []
        self.server: Served | None = None
        self._lives = 0

    @property
    def data(self) -> Path:
        assert self.server is not None
        return self.server.directory / "data"

    def start(self) -> None:
        """With a data directory of its own: all that must last is in log and store."""
        self._lives += bool(self.log) or not self._lives
        home = self.directory / f"life-{self._lives}"
        home.mkdir(exist_ok=True)
        log = (f"log.url={self.log}",) if self.log else ()
        self.server = Served(
            home,
            *self._settings,
            *log,
            f"roles.metastore={self.address}",
            f"store.url={self.store.as_uri()}",
            roles="metastore,query,front",
        )
        self.server.start()

    def stop(self, how: int = signal.SIGTERM) -> None:
        if self.server is not None and self.server.exit_code() is None:
            everyone = self.server.everyone()
            self.server.stop(how)
            wait_for(lambda: not living(everyone), 60)

    def push(self, count: int = 3) -> None:
        assert self.server is not None
        for _ in range(count):
            name = f"function{len(self.pushed)}"
            file = self.directory / f"{name}.pb"
            file.write_bytes(profile(function=name, time_ns=time.time_ns()))
            said = self.server.cli("push", str(file), "--service", "shop")
            assert said.returncode == 0, (said, self.server.log()[-4000:])
            self.pushed += said.stdout.split()

    def check(self) -> None:
        """Every profile that was acknowledged is there, and deleting is allowed again."""
        assert self.server is not None
        server = self.server
        wait_for(lambda: not server.get("/api/v1/status")["adopting"], 60, server.log)
        for each in self.pushed:
            said = server.cli("get", each, "-o", str(self.directory / "got.pb"))
            assert said.returncode == 0, (each, said, server.log()[-4000:])

    def status(self) -> Any:
        assert self.server is not None
        return self.server.get("/api/v1/status")

    def ready(self) -> str:
        assert self.server is not None
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(
                f"{self.server.url}/ready", trust_env=False, verify=False, timeout=60
            ).text
        return ""

    def runbook(self, names: dict[str, str] | None = None, **others: Any) -> Runbook:
        known = {
            REPLICAS: self.address,
            STORE: self.store.as_uri(),
            BACKUP: str(self.directory / "maar.backup"),
        }
        acts = {
            "systemctl start maar-metastore": self.start,
            "systemctl stop maar-metastore": self.stop,
            **others,
        }
        return Runbook({**(names or {}), **known}, acts)


@contextmanager
def site(directory: Path, log: str = "", *settings: str) -> Iterator[Site]:
    made = Site(directory, log, *settings)
    made.start()
    try:
        yield made
    finally:
        made.stop(signal.SIGKILL)


def put_foreign(etcd: EtcdCluster, key: str, size: int) -> None:
    """Something of somebody else, too large for a command line."""
    subprocess.run(
        ["etcdctl", "--endpoints", etcd.endpoints[0], "put", key],
        env={"PATH": os.environ["PATH"], "ETCDCTL_API": "3"},
        input=b"x" * size,
        capture_output=True,
        check=True,
    )


def test_all_replicas_are_lost_and_etcd_is_there(tmp_path: Path) -> None:
    with running(tmp_path / "etcd") as etcd, site(tmp_path, etcd.url) as ours:
        ours.push()
        ours.runbook({LOG: etcd.url}).follow("Look first")
        ours.stop(signal.SIGKILL)
        assert ours.server is not None
        shutil.rmtree(ours.data)
        maar("metastore", "status", "--metastore", ours.address, code=3)
        book = ours.runbook()
        book.follow("All replicas are lost, etcd is there")
        assert "leader" in book.said[-1]
        ours.check()
        ours.push()


def test_etcd_is_lost_and_the_snapshots_are_there(tmp_path: Path) -> None:
    with running(tmp_path / "one") as etcd, site(tmp_path, etcd.url) as ours:
        ours.push()
        maar("metastore", "snapshot", "--metastore", ours.address)
        before = ours.status()
        ours.push()  # known to the lost log alone
        etcd.kill()
        wait_for(lambda: ours.server is not None and not ours.server.is_ready(), 60)
        with running(tmp_path / "two") as new:
            ours.log = new.url
            book = ours.runbook({LOG: new.url})
            book.follow("etcd is lost, the snapshots are there")
            ours.check()
            ours.push()
            ours.check()
            after = ours.status()
            assert after["incarnation"] != before["incarnation"]
            assert after["index"] > before["index"] + 10**9
            found = maar(
                *("metastore", "verify", "--objects", "--json"),
                *("--log", new.url, "--store", ours.store.as_uri()),
            )
            assert json.loads(found.stdout)["blocks"] == len(ours.pushed)


def test_the_log_is_lost_and_there_is_no_snapshot(tmp_path: Path) -> None:
    with site(tmp_path) as ours:
        ours.push()
        before, data = ours.status(), ours.data
        ours.stop(signal.SIGKILL)
        shutil.rmtree(data / "log")
        shutil.rmtree(ours.store / "metastore" / "v1" / before["incarnation"], ignore_errors=True)
        assert ours.server is not None
        ours.server.launch()
        wait_for(lambda: "maar metastore restore --log" in ours.ready(), 60, ours.server.log)
        book = ours.runbook({DATA: str(data)})
        book.follow("The log is lost, and there is no snapshot")
        ours.check()
        ours.push()
        ours.check()
        assert ours.status()["incarnation"] != before["incarnation"]
        assert ours.status()["index"] > before["index"] + 10**9


def test_etcd_has_lost_its_quorum(tmp_path: Path) -> None:
    """The member that is left slept while the last profiles were acknowledged."""
    with running(tmp_path / "old", members=3) as etcd, site(tmp_path, etcd.url) as ours:
        ours.push()
        left = etcd.followers()[0]
        left.pause()
        ours.push()
        for member in etcd.members:
            if member is not left:
                member.kill()
        left.resume()
        ours.stop(signal.SIGKILL)

        def alone() -> None:
            left.stop()
            left.arguments += ("--force-new-cluster",)
            left.start()
            until(lambda: left.healthy, "a member is a cluster of its own")

        with running(tmp_path / "new") as new:
            ours.log = new.url
            names = {LOG: new.url, "etcd://etcd1:2379/maar": f"etcd://{left.endpoint}{PREFIX}"}
            ours.runbook(names, **{"etcd --name": alone}).follow("etcd has lost its quorum")
            ours.check()
            ours.push()
            ours.check()


def test_from_sqlite_to_etcd_and_back(tmp_path: Path) -> None:
    with running(tmp_path / "etcd") as etcd, site(tmp_path) as ours:
        ours.push()
        refused = maar(
            *("metastore", "migrate", "--data", str(ours.data)),
            *("--store", ours.store.as_uri(), "--to", etcd.url),
            code=1,
        )
        assert "already runs" in refused.stderr
        before = ours.status()
        data = ours.data
        back = tmp_path / "back"
        names = {LOG: etcd.url, f"sqlite://{DATA}/log2": f"sqlite://{back}", DATA: str(data)}

        def start() -> None:
            ours.log = ours.log or etcd.url
            ours.start()
            ours.check()
            assert ours.status()["incarnation"] == before["incarnation"]
            assert ours.status()["index"] > before["index"]
            ours.push()

        book = ours.runbook(names, **{"systemctl start maar-metastore": start})
        book.follow("From SQLite to etcd")  # there, and back again
        elsewhere = f"roles.metastore=127.0.0.1:{free_port()}"
        sealed = Served(data.parent, *SETTINGS, elsewhere, roles="metastore")
        sealed.launch()
        try:
            wait_for(lambda: f"the log was moved to {etcd.url}" in sealed.log(), 60, sealed.log)
        finally:
            sealed.stop(signal.SIGKILL)
        ours.log = f"sqlite://{back}"
        ours.start()
        ours.check()
        ours.push()


def test_etcd_is_at_its_quota(tmp_path: Path) -> None:
    """Somebody else has filled it: the log is truncated, what is foreign goes, and pushes come."""
    with (
        running(tmp_path / "etcd", quota_bytes=4 * QUOTA) as etcd,
        site(tmp_path, etcd.url, f"log.quota_bytes={QUOTA}") as ours,
    ):
        ours.push()
        for number in range(FOREIGN):
            put_foreign(etcd, f"/other/{number}", 1 << 20)
        etcd.etcdctl("defrag")  # else its file may reach the quota by holes alone
        file = tmp_path / "function0.pb"
        assert ours.server is not None
        server = ours.server

        def refused(cause: str = "") -> bool:
            """One try: `maar push` tries again by itself, and every try makes the file larger."""
            try:
                with contextlib.closing(Server(server.url)) as api:
                    api.push([("service_name", "shop")], file.read_bytes())
            except CommandFailed as error:
                return error.exit_code == EXIT_UNAVAILABLE and cause in str(error)
            return False

        wait_for(lambda: refused("quota are in use"), 60, server.log)

        def make_room() -> None:
            assert etcd.etcdctl("endpoint", "status", "--write-out=table")
            etcd.etcdctl("del", "--prefix", "/other/")

        ours.runbook({}, **{"etcdctl endpoint status": make_room}).follow("etcd is at its quota")
        wait_for(lambda: not refused(), 60, server.log)
        ours.push()
        ours.check()


# ── several replicas in this process ───────────────────────────────────────────────────────────


class Replica:
    """One of three, over a real etcd, asked by RPC like any other."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.service: MetastoreService
        self.server: Any = None


@asynccontextmanager
async def three(etcd: EtcdSettings, store: ObjectStore) -> AsyncIterator[list[Replica]]:
    members = [Replica(f"meta{n}", f"127.0.0.1:{free_port()}") for n in (1, 2, 3)]
    clients: list[Channel] = []

    def connect(address: str) -> Channel:
        clients.append(Channel(address))
        return clients[-1]

    async def take() -> int:
        log = await EtcdLog.open_reader(etcd)
        try:
            return await snapshot.make(log, store)
        finally:
            await log.close()

    try:
        for member in members:
            registry = CollectorRegistry()
            member.service = MetastoreService(
                await EtcdLog.open(etcd),
                store,
                SystemClock(),
                Policy(),
                entropy=entropy(random.Random()),
                candidate=Candidate(member.name, member.address),
                take_snapshot=take,
                registry=registry,
                others=tuple(other.address for other in members if other is not member),
                connect=connect,
            )
            told = RoleStatus(registry, member.service.ready)
            member.server = await serve_metastore(member.address, member.service, told)
        await asyncio.gather(*(member.service.start() for member in members))
        yield members
    finally:
        for member in members:
            if member.server is not None:
                await member.server.stop()
                await member.service.stop()
        for client in clients:
            await client.close()


def test_a_replica_has_stopped(tmp_path: Path) -> None:
    store = open_store(StoreSettings(MAIN_STORE, (tmp_path / "store").as_uri()))

    async def test(etcd: EtcdCluster) -> None:
        async with three(etcd.settings(), store) as members:
            addresses = ",".join(member.address for member in members)
            names = {
                REPLICAS: addresses,
                LOG: etcd.url,
                STORE: (tmp_path / "store").as_uri(),
            }
            (leader,) = [m for m in members if (await m.service.replica()).standing == "leader"]
            bad = next(member for member in members if member is not leader)
            now = await leader.service.now()
            await until_async(lambda: all_know(members))
            for number in range(5):
                meta = segment(number, at=now.lease_time)
                put(store, meta)
                assert (await leader.service.add_blocks((meta,))).refusals == ("",)
            assert bad.service.follower is not None
            await bad.service.blocks()
            bad.service.follower.replica.state.tally.profiles_added += 1  # a bit flips in memory
            await leader.service.snapshot()
            await until_async(lambda: standing(bad, "stopped"))
            said = await asyncio.to_thread(
                lambda: maar("metastore", "status", "--metastore", addresses, code=1)
            )
            assert "trouble: replica" in said.stdout
            assert bad.name in said.stdout
            _, verify, rebuild = section("A replica has stopped")
            book = Runbook(names, {})
            await asyncio.to_thread(lambda: book.carry_out(verify))
            await asyncio.to_thread(lambda: book.carry_out(rebuild))
            await until_async(lambda: standing(bad, "follower"))
            assert len(await bad.service.blocks()) == 5

    with running(tmp_path / "etcd") as etcd:
        asyncio.run(test(etcd))


async def all_know(members: list[Replica]) -> bool:
    """The newest version is active: hashes are voted on."""
    return all([(await member.service.replica()).version >= VERSION for member in members])


async def standing(member: Replica, wanted: str) -> bool:
    return (await member.service.replica()).standing == wanted


async def until_async(condition: Any, patience_s: float = 60) -> None:
    async with asyncio.timeout(patience_s):
        while not await condition():
            await asyncio.sleep(0.05)
