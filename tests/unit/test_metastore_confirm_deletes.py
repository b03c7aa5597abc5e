"""A leader deletes only while the log itself names its term, and no other log has succeeded it."""

from __future__ import annotations

import asyncio

import pytest

from maar.metastore.leader.leader import Leader
from maar.metastore.recovery import restoring
from maar.metastore.replica.follower import Follower
from maar.model import keys
from maar.model.errors import NotLeading, Unavailable
from maar.model.ids import Incarnation
from maar.model.time import WallTime
from maar.ports.metastore.log import Candidate
from support.clock.fake_clock import FakeClock
from support.clock.virtual_time import run_virtually
from support.metastore.fold import INCARNATION
from support.metastore.logged import Logged
from support.metastore.memory_log import MemoryLog, SharedLog

NEW = Incarnation("00000002")


async def leading() -> tuple[Logged, Leader]:
    ours = Logged()
    await ours.begin()
    clock = FakeClock()
    follower = Follower(ours.log, clock, ours.replica, Candidate("one"))
    return ours, Leader(ours.log, ours.store, clock, follower, ours.term)


def test_a_leader_may_delete_until_its_log_names_another_term() -> None:
    async def test() -> None:
        ours, leader = await leading()
        await asyncio.to_thread(leader.confirm_deletes)
        ours.shared.depose()
        await MemoryLog(ours.shared).campaign(Candidate("two"))
        with pytest.raises(NotLeading):
            await asyncio.to_thread(leader.confirm_deletes)

    run_virtually(test())


def test_the_logs_word_counts_though_this_host_believes_that_it_leads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock of a machine that was paused as a whole shows nothing of it."""

    async def test() -> None:
        ours, leader = await leading()
        monkeypatch.setattr(ours.log, "hold", lambda _term: None)
        await asyncio.to_thread(leader.confirm_deletes)
        ours.shared.depose()
        with pytest.raises(NotLeading, match="its log names another term"):
            await asyncio.to_thread(leader.confirm_deletes)
        await MemoryLog(ours.shared).campaign(Candidate("two"))
        with pytest.raises(NotLeading, match="its log names another term"):
            await asyncio.to_thread(leader.confirm_deletes)
        ours.log.cut = True
        with pytest.raises(Unavailable):
            await asyncio.to_thread(leader.confirm_deletes)

    run_virtually(test())


def test_a_leader_whose_log_was_restored_elsewhere_deletes_nothing_any_more() -> None:
    """It still leads its own old log: only the store can tell it."""

    async def test() -> None:
        ours, leader = await leading()
        await ours.snapshot()
        log = MemoryLog(SharedLog())
        finish = log.finish

        async def look_then_finish() -> None:
            with pytest.raises(NotLeading, match="restored as another one"):
                await asyncio.to_thread(leader.confirm_deletes)  # before anybody can lead the new
            await finish()

        log.finish = look_then_finish  # type: ignore[method-assign]
        origin = await restoring.newest(ours.store)
        await restoring.restore(log, ours.store, origin, incarnation=NEW, wall=WallTime(1))
        assert ours.store.read(keys.successor(INCARNATION)) == NEW.encode()
        leader.confirm()  # by its own log it leads
        with pytest.raises(NotLeading, match="restored as another one"):
            await asyncio.to_thread(leader.confirm_deletes)

    run_virtually(test())
