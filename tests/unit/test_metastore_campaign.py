"""Campaigns: patient with the log; a term that was won and must not be used is resigned."""

from __future__ import annotations

import asyncio

import pytest

from maar.background import run_until_first_ends
from maar.metastore.leader.campaign import Campaign, resign
from maar.model.errors import Rejected, Unavailable
from maar.ports.metastore.log import Candidate, Term
from support.clock.virtual_time import run_virtually, until
from support.metastore.memory_log import MemoryLog, SharedLog

ME, RIVAL = Candidate("me", "me:1"), Candidate("rival", "rival:1")


def test_it_waits_for_the_rival_and_tells_the_term_once() -> None:
    async def test() -> None:
        shared = SharedLog()
        log = MemoryLog(shared)
        held = await log.campaign(RIVAL)
        campaign = Campaign(log, ME)
        campaign.stand()
        campaign.stand()  # it stands already
        await asyncio.sleep(0)
        assert campaign.won() is None
        await log.resign(held)
        async with asyncio.timeout(30):
            await campaign.wait_end()
        assert campaign.won() == Term(held + 1)
        assert campaign.won() is None
        assert shared.leader_term is not None
        await campaign.withdraw()
        assert shared.leader_term.holder == ME, "whoever took the term has to resign it"

    run_virtually(test())


def test_a_candidate_that_withdraws_leaves_no_leadership_behind() -> None:
    async def test() -> None:
        shared = SharedLog()
        campaign = Campaign(MemoryLog(shared), ME)
        campaign.stand()
        await until(lambda: shared.leader_term is not None)
        await campaign.withdraw()
        assert shared.leader_term is None
        await campaign.withdraw()
        held = await MemoryLog(shared).campaign(RIVAL)
        campaign.stand()
        await asyncio.sleep(0)
        await campaign.withdraw()
        await MemoryLog(shared).resign(held)
        await asyncio.sleep(60)
        assert shared.leader_term is None

    run_virtually(test())


def test_a_log_that_does_not_answer_is_asked_again() -> None:
    async def test() -> None:
        log = MemoryLog(SharedLog())
        log.cut = True
        campaign = Campaign(log, ME)
        campaign.stand()
        await asyncio.sleep(60)
        assert campaign.won() is None
        log.cut = False
        async with asyncio.timeout(30):
            await campaign.wait_end()
        assert campaign.won() == 1

    run_virtually(test())


def test_a_log_in_which_nobody_may_lead_says_so() -> None:
    async def test() -> None:
        campaign = Campaign(MemoryLog(SharedLog(sealed="it moved")), ME)
        campaign.stand()
        async with asyncio.timeout(30):
            await campaign.wait_end()
        with pytest.raises(Rejected, match="it moved"):
            campaign.won()

    run_virtually(test())


def test_a_term_that_cannot_be_resigned_expires(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Deaf(MemoryLog):
        async def resign(self, term: Term) -> None:
            if term == 1:
                raise Unavailable("no answer from etcd")
            await asyncio.Event().wait()

    for term in (1, 2):
        run_virtually(resign(Deaf(SharedLog()), Term(term)))
    assert "term=1 cause=no answer from etcd" in caplog.text
    assert "term=2 cause=no answer" in caplog.text


def test_the_first_that_ends_ends_all_and_none_outlives_it() -> None:
    ended: list[str] = []

    async def lasting(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.append(name)

    async def failing() -> None:
        await asyncio.sleep(0)
        raise Unavailable("enough")

    async def test() -> None:
        with pytest.raises(Unavailable, match="enough"):
            await run_until_first_ends(lambda: lasting("a"), failing, lambda: lasting("b"))
        assert sorted(ended) == ["a", "b"]
        ended.clear()
        task = asyncio.create_task(run_until_first_ends(lambda: lasting("a"), lambda: lasting("b")))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert sorted(ended) == ["a", "b"]

    run_virtually(test())
