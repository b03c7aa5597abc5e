"""A metastore in a process of its own: how it starts, what it says of itself, how it ends."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import httpx
import pytest

from maar.adapters.rpc import Channel, MetastoreClient, serve_role
from maar.app.health.readiness import MetastoreRole
from maar.model import keys
from maar.model.errors import MaarError, Unavailable, Unreachable
from maar.model.ids import Incarnation
from maar.ports.metastore.log_time import GetNow
from maar.ports.metastore.replica import GetReplica, TakeSnapshot
from maar.ports.operator.operator import GetStatus
from support.etcd.cluster import EtcdCluster, running
from support.network.ports import free_port
from support.processes.serving import Served, wait_for

pytestmark = [pytest.mark.component, pytest.mark.timeout(400)]

PATIENCE_S = 120.0
T = TypeVar("T")


class Metastore(Served):
    """`maar serve --roles metastore`, with its health on a port of its own."""

    def __init__(self, directory: Path, *settings: str) -> None:
        directory.mkdir(exist_ok=True)
        self.address = f"127.0.0.1:{free_port()}"
        own = () if _has(settings, "metastore.listen") else (f"metastore.listen={self.address}",)
        super().__init__(directory, *own, *settings, roles="metastore")
        self.url = f"http://127.0.0.1:{free_port()}"

    def ready(self) -> tuple[int, str]:
        """(0, '') while nobody listens yet."""
        try:
            answer = httpx.get(f"{self.url}/ready", trust_env=False, verify=False, timeout=30)
        except httpx.HTTPError:
            self.must_live()
            return 0, ""
        return answer.status_code, answer.text

    def page(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", trust_env=False, verify=False, timeout=60)

    def until(self, said: Callable[[int, str], bool]) -> None:
        wait_for(lambda: said(*self.ready()), PATIENCE_S, self.log)

    def until_ready(self) -> None:
        self.until(lambda status, _: status == 200)

    def replica(self, ask: Callable[[Channel], Awaitable[T]]) -> T:
        async def run() -> T:
            client = Channel(self.address)
            try:
                return await ask(client)
            finally:
                await client.close()

        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return asyncio.run(run())
            except Unreachable:  # a busy machine may be late with the connection
                assert time.monotonic() < deadline, self.log()


def _has(settings: tuple[str, ...], name: str) -> bool:
    return any(text.startswith(f"{name}=") for text in settings)


@contextmanager
def launched(metastore: Metastore) -> Iterator[Metastore]:
    metastore.launch()
    try:
        yield metastore
    finally:
        if metastore.exit_code() is None:
            metastore.stop(signal.SIGKILL)


def test_it_tells_how_it_is_before_its_log_answers_and_ends_when_it_is_told(tmp_path: Path) -> None:
    with running(tmp_path / "etcd") as etcd:
        etcd.stop()
        metastore = Metastore(tmp_path / "m", f"log.url={etcd.url}", "log.election_s=2")
        with launched(metastore):
            metastore.until(lambda status, _: status == 503)
            assert metastore.page("/healthz").status_code == 200
            assert "maar_metastore_stopped 0.0" in metastore.page("/metrics").text
            status = metastore.replica(lambda client: client.call(GetReplica()))
            assert (status.standing, status.address) == ("starting", metastore.address)
            assert status.log == etcd.url
            assert metastore.stop(signal.SIGTERM, PATIENCE_S) == 0, metastore.log()
            metastore.launch()
            metastore.until(lambda status, _: status == 503)
            for member in etcd.members:
                member.start()
            metastore.until_ready()
            assert metastore.replica(lambda client: client.call(GetReplica())).standing == "leader"
            assert metastore.stop(signal.SIGTERM, PATIENCE_S) == 0, metastore.log()


def test_the_settings_of_the_log_reach_etcd_and_the_snapshot_process(tmp_path: Path) -> None:
    """Certificates, user and password; a snapshot is made by a process that has only settings."""
    with running(tmp_path / "etcd", tls=True, auth=True) as etcd:
        own = etcd.settings()
        metastore = Metastore(
            tmp_path / "m",
            f"log.url={etcd.url}",
            *(f"log.{name}={getattr(own, name)}" for name in ("user", "password", "ca_file")),
            *(f"log.{name}={getattr(own, name)}" for name in ("cert_file", "key_file")),
        )
        with launched(metastore):
            metastore.until_ready()
            index = metastore.replica(lambda client: client.call(TakeSnapshot()))
            assert index > 0
            store = tmp_path / "m" / "data" / "store"
            assert any("snapshot" in str(path) for path in store.rglob("*")), "none in the store"
            assert own.password not in metastore.log()


def test_one_of_several_that_is_not_named_is_refused_with_a_sentence(tmp_path: Path) -> None:
    several = "roles.metastore=127.0.0.1:1,127.0.0.1:2"
    metastore = Metastore(tmp_path / "m", several)
    metastore.launch()
    assert metastore.stop(0, PATIENCE_S) != 0
    assert "which roles.metastore" in metastore.log()
    assert "Traceback" not in metastore.log()


def test_a_damaged_log_leaves_a_process_that_says_so(tmp_path: Path) -> None:
    """A restart loop would tell nobody anything, and rebuild could not be ordered."""
    metastore = Metastore(tmp_path / "m")
    with launched(metastore):
        metastore.until_ready()
        metastore.stop(signal.SIGKILL, PATIENCE_S)  # it leaves no snapshot that knows the entry
        with sqlite3.connect(tmp_path / "m" / "data" / "log" / "log.db") as db:
            db.execute("UPDATE log SET body = zeroblob(length(body)) WHERE idx = 1")
        db.close()
        metastore.launch()
        metastore.until(lambda status, text: status == 503 and "stopped" in text)
        assert "not what was written" in metastore.ready()[1]
        assert metastore.page("/healthz").status_code == 200
        assert "maar_metastore_stopped 1.0" in metastore.page("/metrics").text
        status = metastore.replica(lambda client: client.call(GetReplica()))
        assert status.standing == "stopped"
        assert "not what was written" in status.fault
        assert metastore.exit_code() is None
        assert metastore.stop(signal.SIGTERM, PATIENCE_S) == 0, metastore.log()


def test_an_empty_log_over_a_used_store_leaves_a_process_that_says_so(tmp_path: Path) -> None:
    snapshots = tmp_path / "store" / keys.snapshot_prefix(Incarnation("0badcafe"))
    snapshots.mkdir(parents=True)
    (snapshots / "snapshot-0000000000000007.maar").write_bytes(b"of a log that was lost")
    store = f"store.url={(tmp_path / 'store').as_uri()}"
    with launched(Metastore(tmp_path / "one", store)) as metastore:
        metastore.until(lambda status, text: status == 503 and "has stopped" in text)
        assert "the snapshots of log 0badcafe (to entry 7)" in metastore.ready()[1]
        assert metastore.replica(lambda replica: replica.call(GetReplica())).standing == "stopped"
        assert metastore.exit_code() is None
    with launched(Metastore(tmp_path / "two", store, "metastore.begin_anew=true")) as metastore:
        metastore.until_ready()


def test_a_log_that_was_restored_elsewhere_ends(tmp_path: Path) -> None:
    """Also when its replica came to lead again before anybody told it."""
    store = f"store.url={(tmp_path / 'store').as_uri()}"
    metastore = Metastore(tmp_path / "one", store)
    with launched(metastore):
        metastore.until_ready()
        life = metastore.replica(lambda replica: replica.call(GetReplica())).incarnation
        successor = tmp_path / "store" / keys.successor(Incarnation(life))
        successor.parent.mkdir(parents=True, exist_ok=True)
        successor.write_text("feedbeef")
        wait_for(lambda: metastore.exit_code() is not None, PATIENCE_S, metastore.log)
        assert "it was restored as feedbeef" in metastore.log()


def test_a_store_that_is_away_is_waited_for(tmp_path: Path) -> None:
    """A replica that is started while the store is gone says what it waits for."""
    metastore = Metastore(
        tmp_path / "m",
        "store.url=s3://nobody/there",
        f"store.endpoint=http://127.0.0.1:{free_port()}",
        "store.allow_http=true",
        "store.access_key_id=x",
        "store.secret_access_key=y",
        "store.region=here",
    )
    with launched(metastore):
        metastore.until(lambda status, text: status == 503 and "object store" in text)
        assert metastore.stop(signal.SIGTERM, 120) == 0, metastore.log()


def test_calls_go_on_while_leaders_are_killed_and_a_restart_finds_its_place(
    tmp_path: Path,
) -> None:
    with running(tmp_path / "etcd") as etcd:
        replicas = cluster(tmp_path, etcd)
        addresses = ",".join(each.address for each in replicas)
        try:
            for each in replicas:
                each.launch()
            for each in replicas:
                each.until_ready()

            async def story() -> None:
                client = MetastoreClient(addresses, deadline_s=PATIENCE_S)
                before = await client.call(GetNow())
                status = await client.call(GetStatus())
                (leader,) = (each for each in replicas if each.address == status.leader)
                leader.stop(signal.SIGKILL)
                after = await client.call(GetNow())
                assert after.incarnation == before.incarnation
                assert after.index > before.index
                assert after.lease_time >= before.lease_time
                status = await client.call(GetStatus())
                assert status.leader != leader.address
                leader.launch()
                await asyncio.to_thread(leader.until_ready)
                own = Channel(leader.address)
                assert (await own.call(GetReplica())).leader == status.leader
                await own.close()
                await client.close()

            asyncio.run(story())
            for each in replicas:
                assert each.stop(signal.SIGTERM, PATIENCE_S) == 0, each.log()
        finally:
            for each in replicas:
                if each.launched and each.exit_code() is None:
                    each.stop(signal.SIGKILL)


def test_replicas_that_do_not_name_each_other_are_warned(tmp_path: Path) -> None:
    with running(tmp_path / "etcd") as etcd:
        store = f"store.url={(tmp_path / 'store').as_uri()}"
        one = Metastore(tmp_path / "one", f"log.url={etcd.url}", store)
        two = Metastore(tmp_path / "two", f"log.url={etcd.url}", store)
        with launched(one):
            one.until_ready()
            with launched(two):
                two.until_ready()
                sentence = "not one of the replicas in roles.metastore"
                wait_for(lambda: sentence in two.log(), PATIENCE_S, two.log)
                assert sentence not in one.log()


def cluster(directory: Path, etcd: EtcdCluster) -> list[Metastore]:
    store = directory / "store"
    store.mkdir()
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    members = []
    for number, address in enumerate(addresses):
        member = Metastore(
            directory / f"r{number}",
            f"log.url={etcd.url}",
            "log.election_s=2",
            f"metastore.listen={address}",
            f"roles.metastore={','.join(addresses)}",
            f"store.url={store.as_uri()}",
        )
        member.address = address
        members.append(member)
    return members


# ── what a front makes of it ───────────────────────────────────────────────────────────────────


class Told:
    def __init__(self, ready: str | MaarError) -> None:
        self._ready = ready

    async def ready(self) -> str:
        if isinstance(self._ready, MaarError):
            raise self._ready
        return self._ready

    async def metrics(self) -> str:
        return f"maar_up {len(str(self._ready))}\n"


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (("", "", ""), ""),
        (("reading", Unavailable("away"), ""), ""),
        (("reading", "reading", Unavailable("away")), "away|reading"),
    ],
)
def test_the_metastore_is_ready_when_one_of_its_replicas_is(
    tmp_path: Path, told: tuple[str | MaarError, ...], reason: str
) -> None:
    async def story() -> None:
        addresses = [f"unix:{tmp_path}/r{number}" for number in range(4)]
        servers = [
            await serve_role(address, Told(ready))
            for address, ready in zip(addresses, told, strict=False)
        ]  # nobody is at the last address
        role = MetastoreRole(",".join(addresses))
        said = await role.ready()
        assert bool(said) is bool(reason)
        assert all(word in said for word in reason.split("|"))
        assert said.count("reading") <= 1, "the same reason is said once"
        assert "maar_up" not in await role.metrics(), "of which replica?"
        own = MetastoreRole(",".join(addresses), own=addresses[1])
        assert (await own.metrics()).startswith("maar_up")
        for each in (role, own):
            await each.close()
        for server in servers:
            await server.stop(0)

    asyncio.run(story())
