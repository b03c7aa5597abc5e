"""Leadership in etcd: held by holding, lost by silence, never given twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from maar.adapters.etcd.settings import EtcdSettings
from maar.adapters.etcd.tuning import Tuning, boot_ns
from maar.model.errors import (
    HeadMoved,
    Rejected,
    TermLost,
)
from maar.ports.metastore.log import EMPTY, Candidate, Head, Leadership, Term, follow
from support.etcd.cluster import EtcdCluster
from support.etcd.logs import PATIENCE_S, hold, leading_log, open_log, until
from support.etcd.three_members import all_of, between, settings

__all__ = ["settings"]

pytestmark = pytest.mark.component


def test_leadership_is_kept_by_holding_and_lost_by_silence(
    cluster: EtcdCluster, tmp_path: Path
) -> None:
    settings = cluster.settings(f"/{tmp_path.name}", election_s=3)

    async def test() -> None:
        async with open_log(settings) as other, open_log(settings) as log:
            term = await log.campaign(Candidate("one"))
            holding = asyncio.create_task(hold(log, term))
            waiting = asyncio.create_task(other.campaign(Candidate("two")))
            await asyncio.sleep(2 * settings.election_s)
            assert not waiting.done()
            log.hold(term)
            holding.cancel()
            async with asyncio.timeout(PATIENCE_S):
                assert await waiting > term
            with pytest.raises(TermLost, match="in time"):
                log.hold(term)

    asyncio.run(test())


def test_a_campaign_that_was_won_without_a_reply_is_stood_again(
    cluster: EtcdCluster, tmp_path: Path
) -> None:
    async def test() -> None:
        async with open_log(cluster.settings(f"/{tmp_path.name}", election_s=300)) as log:
            between(log, lost=True)
            async with asyncio.timeout(PATIENCE_S):  # it does not wait for its own lease to end
                term = await log.campaign(Candidate("one"))
            assert await log.leadership() == Leadership(term, Candidate("one"))
            assert (await log.append([b"x"], term=term, head=EMPTY)).index == 1

    asyncio.run(test())


def test_a_candidate_waits_for_the_leaders_end_and_does_not_ask_at_every_append(
    settings: EtcdSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_by_its_watch = Tuning(leader_look_s=10 * PATIENCE_S)

    async def test() -> None:
        async with (
            leading_log(settings) as (log, term),
            open_log(settings, tuning=only_by_its_watch) as next_,
        ):
            asked = 0
            call = next_.connection.call

            async def counted(*request: Any, **how: Any) -> Any:
                nonlocal asked
                asked += 1
                return await call(*request, **how)

            monkeypatch.setattr(next_.connection, "call", counted)
            standing = asyncio.create_task(next_.campaign(Candidate("two")))
            head = EMPTY

            async def heard() -> bool:
                return next_.hints.index >= head.index

            async def begun() -> bool:
                nonlocal head
                head = await log.append([b"before"], term=term, head=head)
                return next_.hints.index > 0

            await until(begun, "the candidate's watch has begun")
            asked = 0
            for _ in range(10):
                head = await log.append([b"x"], term=term, head=head)
                await until(heard, "the candidate's watch has told it")
            assert asked <= 2  # its watch of the leader may have begun only now
            await log.resign(term)
            async with asyncio.timeout(PATIENCE_S):
                assert await standing == term + 1

    asyncio.run(test())


def test_no_term_is_given_twice(settings: EtcdSettings) -> None:
    """Another one leads and leaves between a candidate's look and its transaction."""

    async def test() -> None:
        terms: list[Term] = []
        async with open_log(settings) as log, open_log(settings) as other:

            async def lead() -> None:
                terms.append(await other.campaign(Candidate("two")))
                await other.resign(terms[-1])

            between(log, before=lead)
            terms.append(await log.campaign(Candidate("one")))
        assert terms == [1, 2]

    asyncio.run(test())


def test_nobody_is_elected_in_a_log_that_was_just_sealed(settings: EtcdSettings) -> None:
    async def test() -> None:
        async with open_log(settings) as log, open_log(settings) as other:
            between(log, before=lambda: other.seal("elsewhere"))
            with pytest.raises(Rejected, match="elsewhere"):
                await log.campaign(Candidate("one"))
            assert await log.leadership() is None

    asyncio.run(test())


def test_nobody_is_elected_in_a_log_that_is_just_copied_into(settings: EtcdSettings) -> None:
    async def test() -> None:
        async with open_log(settings) as log, open_log(settings) as other:
            between(log, before=lambda: other.begin(Head(5, b"\1" * 32), term=Term(3)))
            with pytest.raises(Rejected, match="copied"):
                await log.campaign(Candidate("one"))
            await other.finish()
            assert await log.campaign(Candidate("one")) == 4

    asyncio.run(test())


def test_two_copies_at_once_do_not_mix(settings: EtcdSettings) -> None:
    async def test() -> None:
        records = follow(EMPTY, [b"a", b"b", b"c"], Term(1))
        async with open_log(settings) as log, open_log(settings) as other:
            await log.begin(EMPTY, term=Term(1))
            between(log, before=lambda: other.add(records[:2]))
            with pytest.raises(HeadMoved):
                await log.add(records[:1])
            assert (await log.add(records[2:])).index == 3
            await log.finish()
            assert await all_of(log) == records

    asyncio.run(test())


def test_a_leader_that_slept_is_told_at_once(settings: EtcdSettings) -> None:
    slept_ns = 0

    async def test() -> None:
        nonlocal slept_ns
        tuning = Tuning(boot_ns=lambda: boot_ns() + slept_ns)
        async with open_log(settings, tuning=tuning) as log:
            term = await log.campaign(Candidate("one"))
            log.hold(term)
            slept_ns = 20_000_000_000
            with pytest.raises(TermLost, match="may be over"):
                log.hold(term)
            slept_ns = 0
            with pytest.raises(TermLost):  # and it does not come back, whatever etcd says
                await log.append([b"zombie"], term=term, head=EMPTY)

    asyncio.run(test())


def test_logs_under_different_prefixes_do_not_meet(
    cluster: EtcdCluster, settings: EtcdSettings
) -> None:
    async def test() -> None:
        beside = cluster.settings(f"{settings.prefix}2", election_s=6)
        async with leading_log(settings) as (log, term), leading_log(beside) as (other, other_term):
            await log.append([b"mine"], term=term, head=EMPTY)
            await other.append([b"theirs", b"too"], term=other_term, head=EMPTY)
            assert [r.body for r in await all_of(log)] == [b"mine"]
            assert [r.body for r in await all_of(other)] == [b"theirs", b"too"]
            assert (await log.head()).index == 1

    asyncio.run(test())
