"""An append or a campaign whose reply stays away is settled, once and for all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from maar.adapters.etcd import connection
from maar.adapters.etcd.settings import EtcdSettings
from maar.adapters.etcd.tuning import Tuning
from maar.model.errors import (
    HeadMoved,
    OutcomeUnknown,
)
from maar.ports.metastore.log import EMPTY, Candidate, Head
from support.etcd.cluster import EtcdCluster
from support.etcd.logs import PATIENCE_S, at, leading_log, open_log
from support.etcd.three_members import between, settings, store_entry
from support.network.cut import Way, lines

__all__ = ["settings"]

pytestmark = pytest.mark.component


def test_an_append_that_lands_without_a_reply_is_found_by_the_head(
    cluster: EtcdCluster, settings: EtcdSettings
) -> None:
    async def test() -> None:
        with lines() as opened_:
            line = opened_.open(cluster.members[0].endpoint)
            others = cluster.endpoints[1:]
            async with leading_log(at(settings, line.address, *others)) as (log, term):
                log.connection.at = 0
                head = await log.append([b"one"], term=term, head=EMPTY)
                line.silence(Way.BACK)
                with pytest.raises(OutcomeUnknown):
                    await log.append([b"two"], term=term, head=head)
                with pytest.raises(OutcomeUnknown, match="ask for the head"):
                    await log.append([b"other"], term=term, head=head)
                assert (await log.head()).index == 2
                assert (await log.read(after=1))[0].body == b"two"
                head = await log.append([b"three"], term=term, head=await log.head())
                assert head.index == 3

    asyncio.run(test())


def test_an_append_that_arrives_after_it_was_settled_is_refused(
    cluster: EtcdCluster, settings: EtcdSettings
) -> None:
    """Whoever was told that it is not stored may rely on it."""

    async def test() -> None:
        with lines() as opened_:
            line = opened_.open(cluster.members[0].endpoint)
            others = cluster.endpoints[1:]
            hasty = Tuning(append_s=0.7)
            async with leading_log(at(settings, line.address, *others), tuning=hasty) as (
                log,
                term,
            ):
                head = await store_entry(log, b"one", term=term, head=EMPTY)
                log.connection.at = 0
                line.delay(1.5)
                with pytest.raises(OutcomeUnknown):
                    await log.append([b"late"], term=term, head=head)
                assert await log.head() == head  # by now it is settled: not stored
                await asyncio.sleep(1.5)  # it has arrived
                assert await log.head() == head
                line.heal()
                assert (await store_entry(log, b"two", term=term, head=head)).index == 2
                assert [r.body for r in await log.read(after=0)] == [b"one", b"two"]

    asyncio.run(test())


def test_a_cancelled_append_is_unknown(settings: EtcdSettings) -> None:
    async def test() -> None:
        async with leading_log(settings) as (log, term):
            appending = asyncio.create_task(log.append([b"one"], term=term, head=EMPTY))
            while log.seen is None:
                await asyncio.sleep(0)
            appending.cancel()
            await asyncio.wait([appending])
            if appending.cancelled():
                with pytest.raises(OutcomeUnknown):
                    await log.append([b"two"], term=term, head=EMPTY)
            head = await log.head()
            assert (await log.append([b"on"], term=term, head=head)).index == head.index + 1

    asyncio.run(test())


def test_who_settles_an_append_does_not_settle_a_later_one(
    settings: EtcdSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader's look at the head may take long; meanwhile the leader has gone on."""

    async def test() -> None:
        async with leading_log(settings) as (log, term):
            head = await log.append([b"one"], term=term, head=EMPTY)
            line = log.connection
            call, once = line.call, line.once
            late: list[Any] = []
            answered, may_go_on = asyncio.Event(), asyncio.Event()

            async def under_way(_: connection.Ask, request: object, **__: float) -> object:
                late.append(request)
                raise OutcomeUnknown("it is still under way")

            async def slow(ask: connection.Ask, request: object, **how: float) -> object:
                reply = await call(ask, request, **how)
                if ask is connection.TXN:
                    answered.set()
                    await may_go_on.wait()
                return reply

            monkeypatch.setattr(line, "once", under_way)
            with pytest.raises(OutcomeUnknown):
                await log.append([b"lost"], term=term, head=head)
            monkeypatch.setattr(line, "call", slow)
            reading = asyncio.create_task(log.head())
            async with asyncio.timeout(PATIENCE_S):
                await answered.wait()
            monkeypatch.setattr(line, "call", call)
            assert await log.head() == head  # the leader learns that it was not stored
            with pytest.raises(OutcomeUnknown):
                await log.append([b"late"], term=term, head=head)
            may_go_on.set()
            await reading
            assert await log.head() == head  # and again: not stored
            monkeypatch.setattr(line, "once", once)
            reply = await once(connection.TXN, late[-1], within_s=PATIENCE_S)
            assert not reply.succeeded, "what was said not to be stored arrived afterwards"
            assert await log.head() == head
            assert (await log.append([b"two"], term=term, head=head)).index == 2

    asyncio.run(test())


def test_what_one_leader_settled_does_not_hinder_the_next(settings: EtcdSettings) -> None:
    async def test() -> None:
        async with open_log(settings) as next_, leading_log(settings) as (log, term):
            head = await log.append([b"one"], term=term, head=EMPTY)
            assert await next_.head() == head

            async def away() -> None:
                raise OutcomeUnknown("it never left")

            between(log, before=away)
            with pytest.raises(OutcomeUnknown):
                await log.append([b"two"], term=term, head=head)
            assert await log.head() == head
            await log.resign(term)
            later = await next_.campaign(Candidate("two"))
            assert (await next_.append([b"two"], term=later, head=head)).index == 2

    asyncio.run(test())


def test_of_three_hundred_racing_appends_one_wins_each_time(settings: EtcdSettings) -> None:
    async def test() -> None:
        async with leading_log(settings) as (log, term):
            head = EMPTY
            for round_ in range(3):
                tries = [
                    log.append([b"%d of %d" % (n, round_)], term=term, head=head)
                    for n in range(100)
                ]
                outcomes = await asyncio.gather(*tries, return_exceptions=True)
                won = [outcome for outcome in outcomes if isinstance(outcome, Head)]
                assert len(won) == 1
                assert sum(isinstance(outcome, HeadMoved) for outcome in outcomes) == 99
                head = won[0]
            assert await log.head() == head
            assert head.index == 3

    asyncio.run(test())
