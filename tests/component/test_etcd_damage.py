"""Bytes that changed in one member of etcd are noticed, and read elsewhere."""

from __future__ import annotations

import asyncio
import logging
from operator import attrgetter
from typing import Any

import pytest
from aetcd import rpc
from prometheus_client import CollectorRegistry

from maar.adapters.etcd import connection
from maar.adapters.etcd.connection import EtcdConnection
from maar.adapters.etcd.settings import EtcdSettings
from maar.adapters.etcd.values import batches, pack
from maar.model.errors import (
    Corrupt,
    Unavailable,
)
from maar.ports.metastore.log import EMPTY, Candidate, Head, follow
from support.etcd.cluster import EtcdCluster, Member, apart
from support.etcd.logs import PATIENCE_S, at, leading_log, open_log
from support.etcd.three_members import all_of, settings

__all__ = ["settings"]

pytestmark = pytest.mark.component


async def flipped(cluster: EtcdCluster, victim: Member, known: bytes) -> None:
    await apart(victim.stop)
    await apart(lambda: victim.flip(known))
    victim.start()
    await apart(cluster.wait)


def test_a_bit_flipped_in_one_member_is_noticed_and_read_elsewhere(
    cluster: EtcdCluster, settings: EtcdSettings, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with leading_log(settings) as (log, term):
            head = EMPTY
            for n in range(5):
                known = [b"a", b"a known entry, number %d" % n, b"z"]
                head = await log.append(known, term=term, head=head)
            records = await all_of(log)
        victim = (await asyncio.to_thread(cluster.followers))[0]
        await flipped(cluster, victim, b"a known entry, number 3")
        good = [member.endpoint for member in cluster.members if member is not victim]
        registry = CollectorRegistry()
        suspicious = at(settings, victim.endpoint, *good)
        async with open_log(suspicious, registry) as log:
            assert await all_of(log) == records
            assert await log.head() == head
        assert f"served damaged bytes endpoint={victim.endpoint}" in caplog.text
        labels = {"member": victim.endpoint}
        assert registry.get_sample_value("maar_log_etcd_damaged_reads_total", labels) == 1
        async with open_log(at(settings, victim.endpoint)) as log:
            with pytest.raises(Corrupt):
                await all_of(log)
            assert len(await log.read(after=0, limit_bytes=1)) == 1

    with caplog.at_level(logging.ERROR):
        asyncio.run(test())


def test_a_bit_flipped_in_the_head_is_noticed_too(
    cluster: EtcdCluster, settings: EtcdSettings
) -> None:
    async def test() -> None:
        async with leading_log(settings) as (log, term):
            head = await log.append([b"one", b"two"], term=term, head=EMPTY)
        victim = (await asyncio.to_thread(cluster.followers))[0]
        await flipped(cluster, victim, head.hash)
        good = [member.endpoint for member in cluster.members if member is not victim]
        async with open_log(at(settings, victim.endpoint)) as log:
            with pytest.raises(Corrupt):
                await log.head()
        async with leading_log(at(settings, victim.endpoint, *good)) as (log, term):
            log.connection.at = 0
            assert (await log.append([b"three"], term=term, head=head)).index == 3

    asyncio.run(test())


def ill(monkeypatch: pytest.MonkeyPatch, *, damaged: str, key: bytes = b"", dead: str = "") -> None:
    """One member serves a value with a flipped bit, and another may not answer at all."""
    asked = EtcdConnection.ask

    async def ask(
        self: EtcdConnection,
        member: connection.Member,
        ask: connection.Ask,
        request: object,
        **how: Any,
    ) -> Any:
        if member.endpoint == dead:
            raise Unavailable(f"{dead} is dead")
        reply = await asked(self, member, ask, request, **how)
        if ask is connection.TXN and member.endpoint == damaged:
            for kv in (kv for one in reply.responses for kv in one.response_range.kvs):
                if kv.key == key:
                    kv.value = kv.value[:-1] + bytes([kv.value[-1] ^ 1])
        return reply

    monkeypatch.setattr(EtcdConnection, "ask", ask)


@pytest.mark.parametrize("name", ["term", "format"])
def test_a_value_damaged_at_one_member_does_not_stop_a_campaign(
    settings: EtcdSettings, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    async def test() -> None:
        async with open_log(settings) as log:
            await log.resign(await log.campaign(Candidate("one")))
            key: bytes = getattr(log.keys, name)
        first = settings.endpoints[0]
        ill(monkeypatch, damaged=first, key=key)
        registry = CollectorRegistry()
        async with open_log(settings, registry) as log:
            async with asyncio.timeout(PATIENCE_S):
                assert await log.campaign(Candidate("two")) == 2
        labels = {"member": first}
        assert registry.get_sample_value("maar_log_etcd_damaged_reads_total", labels) == 1

    asyncio.run(test())


def test_with_one_member_dead_and_one_damaged_the_third_is_read(
    settings: EtcdSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        registry = CollectorRegistry()
        async with leading_log(settings) as (log, term), open_log(settings, registry) as follower:
            head = await log.append([b"x"], term=term, head=EMPTY)
            dead, damaged, _ = settings.endpoints
            ill(monkeypatch, damaged=damaged, key=log.keys.head, dead=dead)
            follower.connection.at = 0
            assert await follower.head() == head
        found = {
            member: registry.get_sample_value(
                "maar_log_etcd_damaged_reads_total", {"member": member}
            )
            for member in settings.endpoints
        }
        assert found == {**dict.fromkeys(settings.endpoints), damaged: 1}

    asyncio.run(test())


def test_a_batch_that_is_gone_is_corrupt(cluster: EtcdCluster, settings: EtcdSettings) -> None:
    async def test() -> None:
        async with leading_log(settings) as (log, term):
            head = EMPTY
            for _ in range(3):
                head = await log.append([b"x", b"y"], term=term, head=head)
            key = log.keys.batch(3).decode()
            await asyncio.to_thread(cluster.etcdctl, "del", key)
            with pytest.raises(Corrupt, match=r"follows 2|after 2|lost"):
                await all_of(log)
            for after in (2, 3):
                with pytest.raises(Corrupt, match=r"after \d|lost"):
                    await log.read(after=after)

    asyncio.run(test())


def test_a_batch_of_another_history_is_corrupt(settings: EtcdSettings) -> None:
    """Whole in itself, and not what followed."""

    async def test() -> None:
        async with leading_log(settings) as (log, term):
            head = EMPTY
            for _ in range(3):
                head = await log.append([b"x", b"y"], term=term, head=head)
            assert len(await log.read(after=0, limit_bytes=2)) == 2
            elsewhere = Head(2, b"\7" * 32)
            ((first, forged),) = batches(elsewhere, follow(elsewhere, [b"x", b"z"], term))
            request = rpc.PutRequest(key=log.keys.batch(first), value=pack(forged))
            await log.connection.call(attrgetter("kv.Put"), request)
            with pytest.raises(Corrupt, match="does not follow from entry 2"):
                await log.read(after=2)  # it was read up to there before
            with pytest.raises(Corrupt, match="does not follow from entry 2"):
                await all_of(log)

    asyncio.run(test())
