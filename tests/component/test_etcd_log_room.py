"""Logs in etcd that are large, truncated, full, or not to be used."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from aetcd import rpc

from maar.adapters.etcd import connection
from maar.adapters.etcd.log import EtcdLog
from maar.adapters.etcd.room import MemberStatus
from maar.adapters.etcd.settings import EtcdSettings
from maar.adapters.etcd.tuning import Tuning
from maar.adapters.etcd.values import pack
from maar.model.errors import (
    NotFound,
    Rejected,
    TermLost,
)
from maar.ports.metastore.log import EMPTY, Candidate, verify
from support.etcd.cluster import EtcdCluster
from support.etcd.logs import PATIENCE_S, leading_log, open_log, until
from support.etcd.three_members import all_of, settings, store_entry

__all__ = ["settings"]

pytestmark = pytest.mark.component


def test_many_small_batches_and_then_large_ones_are_read_in_bounded_pages(
    settings: EtcdSettings,
) -> None:
    async def test() -> None:
        async with leading_log(settings, tuning=Tuning(message_bytes_max=3 << 20)) as (log, term):
            head = EMPTY
            for n in range(600):
                head = await log.append([b"%d" % n] * (1 + n % 3), term=term, head=head)
            for _ in range(8):
                head = await log.append([b"x" * 500_000] * 2, term=term, head=head)
            records = await all_of(log)
            assert verify(EMPTY, records) == head
            assert len(records) == head.index
            for after in (1, 2, 700, head.index - 3, head.index - 1):
                assert (await log.read(after=after))[0] == records[after]

    asyncio.run(test())


def test_truncation_goes_in_steps_and_keeps_a_batch_that_is_needed(settings: EtcdSettings) -> None:
    async def test() -> None:
        async with leading_log(settings) as (log, term):
            head = EMPTY
            for n in range(1_200):
                head = await log.append([b"%d" % n] * (1 + n % 4), term=term, head=head)
            records = await all_of(log)
            for before in (2, 3, 7, 1_300, 2_000, 2_001, head.index, head.index + 1):
                await log.truncate(before=before, term=term)
                assert await log.first() == (before if before <= head.index else 0)
                assert await log.read(after=before - 1, limit_bytes=1) == records[before - 1 :][:1]
                with pytest.raises(NotFound):
                    await log.read(after=before - 2)
                assert await log.head() == head
            await log.truncate(before=5, term=term)  # long gone
            assert await log.read(after=head.index) == []

    asyncio.run(test())


def test_a_long_truncation_asks_little_of_etcd_at_a_time(
    cluster: EtcdCluster, tmp_path: Path
) -> None:
    """A log that could not be truncated for long is large; to forget it must not stop etcd."""
    tuning = Tuning(keys_at_once=20, forget_at_once=40)
    listed: list[int] = []
    deleted: list[int] = []
    compacted: list[int] = []  # what was deleted by then

    async def test() -> None:
        # A disk that stalls for seconds costs neither leadership nor a call: only sizes count here.
        settings = cluster.settings(f"/{tmp_path.name}", election_s=PATIENCE_S)
        async with leading_log(settings, tuning=tuning) as (log, term):
            head = EMPTY
            for n in range(160):
                head = await store_entry(log, b"%d" % n, term=term, head=head)
            asked, compact = log.connection.call, log.upkeep.compact

            async def call(ask: connection.Ask, request: Any, *, within_s: float = 0.0) -> Any:
                reply = await asked(ask, request, within_s=PATIENCE_S)
                for response in getattr(reply, "responses", ()):
                    listed.append(len(response.response_range.kvs))
                    deleted.append(response.response_delete_range.deleted)
                return reply

            async def counted(**given: float) -> None:
                compacted.append(sum(deleted))
                await compact(**given)

            log.connection.call = call  # type: ignore[method-assign]
            log.upkeep.compact = counted  # type: ignore[method-assign]
            await log.truncate(before=head.index, term=term)
            assert await log.first() == head.index
            assert 1 < max(deleted) <= 20
            assert max(listed) <= 64, "etcd reads the values of all keys that it lists"
            freed = [after - before for before, after in pairwise([0, *compacted])]
            assert max(freed) < 60, "it frees what was deleted a part at a time"

    asyncio.run(test())


def test_history_is_dropped_before_it_is_much(settings: EtcdSettings) -> None:
    """Not only once a minute, in which a busy log writes more than etcd drops in a moment."""
    tuning = Tuning(compact_bytes=20_000, compact_looks=1_000)

    async def test() -> None:
        async with leading_log(settings, tuning=tuning) as (log, term):

            async def compacted() -> bool:
                return log.upkeep.compacted > 0

            head = EMPTY
            for _ in range(5):
                head = await log.append([b"x" * 5_000], term=term, head=head)
            await until(compacted, "history is dropped")

    asyncio.run(test())


def test_a_truncation_that_lost_leadership_on_the_way_deletes_nothing(
    settings: EtcdSettings,
) -> None:
    async def test() -> None:
        async with leading_log(settings) as (log, term), open_log(settings) as other:
            head = await log.append([b"x"] * 5, term=term, head=EMPTY)
            asked = log.connection.call

            async def call(ask: connection.Ask, request: Any, *, within_s: float = 8.0) -> Any:
                if getattr(request, "compare", None):
                    revoked = rpc.LeaseRevokeRequest(ID=log.election.tenure(term).lease)
                    await asked(connection.REVOKE, revoked)
                    await other.campaign(Candidate("two"))
                return await asked(ask, request, within_s=within_s)

            log.connection.call = call  # type: ignore[method-assign]
            with pytest.raises(TermLost):
                await log.truncate(before=4, term=term)
            log.connection.call = asked  # type: ignore[method-assign]
            assert await other.first() == 1
            assert await other.head() == head

    asyncio.run(test())


def test_what_an_earlier_term_knew_of_the_room_does_not_bind_the_next(
    settings: EtcdSettings,
) -> None:
    """A term without its first entry is over, and nobody would ever look again."""

    async def test() -> None:
        async with open_log(settings) as log:
            term = await log.campaign(Candidate("one"))
            head = await log.append([b"one"], term=term, head=EMPTY)
            await log.resign(term)
            full = settings.quota_bytes
            log.upkeep.judge([MemberStatus("long ago", "3.5.9", full, full)], alarm=True)
            log.upkeep.wrote(full)
            term = await log.campaign(Candidate("one"))
            head = await log.append([b"two"], term=term, head=head)
            assert head.index == 2

    asyncio.run(test())


def test_a_log_of_a_newer_format_is_refused(cluster: EtcdCluster, settings: EtcdSettings) -> None:
    async def test() -> None:
        async with open_log(settings) as log:
            put = attrgetter("kv.Put")
            request = rpc.PutRequest(key=log.keys.format, value=pack(2))
            await log.connection.call(put, request)
        with pytest.raises(Rejected, match="format 2"):
            await EtcdLog.open(settings)

    asyncio.run(test())


def test_a_reader_needs_a_log(settings: EtcdSettings) -> None:
    async def test() -> None:
        with pytest.raises(NotFound, match="start a metastore"):
            await EtcdLog.open_reader(settings)

    asyncio.run(test())
