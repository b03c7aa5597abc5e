"""A log in an etcd of its own: one that is too small, one with locks, and one that is too old."""

from __future__ import annotations

import asyncio
from operator import attrgetter
from pathlib import Path

import grpc.aio
import pytest
from aetcd import rpc
from aetcd.rpc import rpc_pb2_grpc
from prometheus_client import CollectorRegistry

from maar.adapters.etcd.connection import EtcdConnection
from maar.adapters.etcd.log import EtcdLog
from maar.adapters.etcd.settings import EtcdSettings
from maar.model.errors import InvalidInput, Rejected, StoreFull, Unavailable
from maar.ports.metastore.log import EMPTY, Candidate
from support.etcd.cluster import EtcdCluster, apart, running
from support.etcd.logs import PATIENCE_S, at, leading_log, open_log, until

pytestmark = pytest.mark.component

MIB = 1 << 20


# ── room ───────────────────────────────────────────────────────────────────────────────────────


def test_appends_are_refused_before_etcd_refuses_and_taken_again(tmp_path: Path) -> None:
    async def test(cluster: EtcdCluster) -> None:
        registry = CollectorRegistry()
        async with leading_log(cluster.settings(election_s=10), registry) as (log, term):
            head = EMPTY
            refusals: list[StoreFull] = []
            while len(refusals) < 20:  # in a row: the first may be a guess between two looks
                try:
                    head = await log.append([b"x" * 250_000] * 2, term=term, head=head)
                    refusals.clear()
                except StoreFull as error:
                    refusals.append(error)
                await asyncio.sleep(0.05 if not refusals else 0.2)
            refusal = refusals[-1]
            assert "of its quota" in str(refusal) or "of etcd's quota" in str(refusal)
            assert "runbook" in str(refusal)
            assert refusal.retry_after_s
            assert registry.get_sample_value("maar_log_etcd_refusing") == 1
            used = registry.get_sample_value("maar_log_etcd_in_use_bytes") or 0
            assert 0.5 * cluster.quota_bytes < used < cluster.quota_bytes
            assert cluster.etcdctl("alarm", "list") == ""
            assert head.index * 250_000 > 0.5 * cluster.quota_bytes
            head = await log.append([b"a state's hash"], term=term, head=head, reserve=True)
            log.hold(term)
            await log.truncate(before=head.index, term=term)

            async def taken() -> bool:
                nonlocal head
                try:
                    head = await log.append([b"x" * 250_000], term=term, head=head)
                except StoreFull:
                    return False
                return True

            await until(taken, "appends are taken again")

            async def known() -> bool:
                return registry.get_sample_value("maar_log_etcd_refusing") == 0

            await until(known, "the metric says so")
            for _ in range(20):  # and so on, for ever: history does not pile up
                for _ in range(4):
                    await until(taken, "appends are taken")
                await log.truncate(before=head.index, term=term)
            assert cluster.etcdctl("alarm", "list") == ""

    with running(tmp_path, quota_bytes=38 * MIB) as cluster:
        asyncio.run(test(cluster))


def test_an_alarm_of_etcd_stops_appends_and_is_taken_back(tmp_path: Path) -> None:
    """Somebody else fills the cluster. Leadership is kept meanwhile, and can be won."""

    async def test(cluster: EtcdCluster) -> None:
        settings = cluster.settings(election_s=6)  # a busy disk takes its time over the filling
        stranger = EtcdConnection(settings)
        put, delete = attrgetter("kv.Put"), attrgetter("kv.DeleteRange")
        async with leading_log(settings) as (log, term):
            head = await log.append([b"before"], term=term, head=EMPTY)
            for n in range(100):
                request = rpc.PutRequest(key=b"/other/%d" % n, value=b"x" * MIB)
                try:
                    await stranger.call(put, request)
                except StoreFull:
                    break
            assert "NOSPACE" in cluster.etcdctl("alarm", "list")
            with pytest.raises(StoreFull):
                await log.append([b"no"], term=term, head=head)
            await asyncio.sleep(1.1 * settings.election_s)
            log.hold(term)
            assert await log.head() == head
            await log.resign(term)
            request = rpc.DeleteRangeRequest(key=b"/other/", range_end=b"/other0")
            await stranger.call(delete, request)
            async with asyncio.timeout(PATIENCE_S):
                term = await log.campaign(Candidate("one"))

            async def taken() -> bool:
                log.hold(term)
                try:
                    await log.append([b"again"], term=term, head=await log.head())
                except StoreFull:
                    return False
                return True

            await until(taken, "appends are taken again")
            assert cluster.etcdctl("alarm", "list") == ""
        await stranger.close()

    with running(tmp_path, quota_bytes=16 * MIB) as cluster:
        asyncio.run(test(cluster))


# ── locks and keys ─────────────────────────────────────────────────────────────────────────────


def test_tls_with_certificates_of_both_sides(tmp_path: Path) -> None:
    async def test(cluster: EtcdCluster) -> None:
        settings = cluster.settings(election_s=2)
        async with leading_log(settings) as (log, term):
            assert (await log.append([b"secret"], term=term, head=EMPTY)).index == 1
        plain = at(settings, *cluster.endpoints)
        async with open_log(plain) as log:
            with pytest.raises(Unavailable):
                await log.head()
        nameless = EtcdSettings(
            endpoints=cluster.endpoints, prefix=settings.prefix, ca_file=settings.ca_file
        )
        async with open_log(nameless) as log:
            with pytest.raises(Unavailable):
                await log.head()
        with pytest.raises(InvalidInput, match="no-such-file"):
            await EtcdLog.open(
                EtcdSettings(endpoints=cluster.endpoints, prefix="/x", ca_file="/no-such-file")
            )

    with running(tmp_path, tls=True) as cluster:
        asyncio.run(test(cluster))


def test_user_and_password_with_rights_on_the_prefix_alone(tmp_path: Path) -> None:
    async def test(cluster: EtcdCluster) -> None:
        settings = cluster.settings(election_s=2)
        async with leading_log(settings) as (log, term):
            head = await log.append([b"one"] * 3, term=term, head=EMPTY)
            (member,) = cluster.members
            await apart(member.stop)  # it forgets the tokens that it gave
            await apart(cluster.start)

            async def known() -> bool:
                return await log.head() == head

            await until(known, "the token was renewed")
            await log.resign(term)
            term = await log.campaign(Candidate("one"))
            head = await log.append([b"two"], term=term, head=head)
            await log.truncate(before=3, term=term)
            assert [r.index for r in await log.read(after=2)] == [3, 4]
            async with asyncio.timeout(PATIENCE_S):
                await log.wait_change(after=1)
        for user, password, said in (
            ("maar", "wrong", "log.password"),
            ("nobody", "x", "log.user"),
            ("", "", "log.user"),
        ):
            stranger = EtcdSettings(
                endpoints=cluster.endpoints, prefix="/maar", user=user, password=password
            )
            with pytest.raises(Rejected, match=said):
                await EtcdLog.open(stranger)
        elsewhere = EtcdSettings(
            endpoints=cluster.endpoints,
            prefix="/elsewhere",
            user=settings.user,
            password=settings.password,
        )
        with pytest.raises(Rejected, match="readwrite on the log's prefix"):
            await EtcdLog.open(elsewhere)

    with running(tmp_path, auth=True) as cluster:
        asyncio.run(test(cluster))


class OldMember(rpc_pb2_grpc.MaintenanceServicer):  # type: ignore[misc]
    def __init__(self, version: str) -> None:
        self._version = version

    async def Status(self, *_: object) -> object:
        return rpc.StatusResponse(version=self._version)


def test_a_release_that_loses_entries_is_refused() -> None:
    async def test() -> None:
        server = grpc.aio.server()
        rpc_pb2_grpc.add_MaintenanceServicer_to_server(OldMember("3.5.1"), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            with pytest.raises(Rejected, match=r"version 3\.5\.1"):
                await EtcdLog.open(EtcdSettings(endpoints=(f"127.0.0.1:{port}",), prefix="/maar"))
        finally:
            await server.stop(None)

    asyncio.run(test())
