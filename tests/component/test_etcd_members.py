"""A log in etcd while members die, hang, or are not there yet."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from maar.adapters.etcd import connection
from maar.adapters.etcd.settings import EtcdSettings
from maar.adapters.etcd.tuning import Tuning
from maar.model.errors import (
    HeadMoved,
    OutcomeUnknown,
    TermLost,
    Unavailable,
)
from maar.ports.metastore.log import EMPTY, Candidate, verify
from support.etcd.cluster import EtcdCluster, apart, running
from support.etcd.logs import at, leading_log, open_log, until
from support.etcd.three_members import all_of, settings, store_entry

__all__ = ["settings"]

pytestmark = pytest.mark.component


def test_nothing_acknowledged_is_lost_when_members_are_killed(
    cluster: EtcdCluster, settings: EtcdSettings
) -> None:
    async def test() -> None:
        acknowledged: dict[int, bytes] = {}
        running_ = True

        async def load() -> None:
            """Leads, appends, settles what is unknown, and leads again when leadership was lost."""
            n = 0
            while running_:
                async with leading_log(settings) as (log, term):
                    head = await log.head()
                    while running_:
                        n += 1
                        body = b"entry %d" % n
                        try:
                            head = await log.append([body], term=term, head=head)
                        except OutcomeUnknown:
                            now = await log.head()
                            stored = now.index == head.index + 1
                            assert stored or now == head
                            head = now
                            if not stored:
                                continue
                        except (TermLost, HeadMoved, Unavailable):
                            break
                        acknowledged[head.index] = body

        async def disturb() -> None:
            for _ in range(2):
                victim = await asyncio.to_thread(cluster.leader)
                victim.kill()
                await grown()
                victim.start()
                await apart(cluster.wait)
            await apart(cluster.kill)
            await apart(cluster.start)
            await grown()

        async def grown() -> None:
            enough = len(acknowledged) + 20

            async def more() -> bool:
                return len(acknowledged) >= enough or loading.done()

            await until(more, "appends go on")

        loading = asyncio.create_task(load())
        await grown()
        await disturb()
        running_ = False
        await loading
        async with open_log(settings) as log:
            records = await all_of(log)
        verify(EMPTY, records)
        bodies = [record.body for record in records]
        assert len(set(bodies)) == len(bodies)
        for index, body in acknowledged.items():
            assert records[index - 1].body == body

    asyncio.run(test())


def test_a_member_that_hangs_is_not_waited_for(
    cluster: EtcdCluster, settings: EtcdSettings
) -> None:
    async def test() -> None:
        silent = (await asyncio.to_thread(cluster.followers))[0]
        others = [member.endpoint for member in cluster.members if member is not silent]
        async with leading_log(at(settings, silent.endpoint, *others)) as (log, term):
            head = await log.append([b"before"], term=term, head=EMPTY)
            log.connection.at = 0
            silent.pause()
            try:
                began = time.monotonic()
                assert await log.head() == head
                assert time.monotonic() - began < connection.CALL_S, "it asked another in time"
                assert (
                    await store_entry(log, b"after", term=term, head=head)
                ).index == head.index + 1
                log.hold(term)
            finally:
                silent.resume()
                await apart(cluster.wait)

    asyncio.run(test())


def test_a_cluster_without_a_majority_says_so_and_comes_back(
    cluster: EtcdCluster, settings: EtcdSettings
) -> None:
    async def test() -> None:
        async with leading_log(settings) as (log, term):
            head = await log.append([b"before"], term=term, head=EMPTY)
            victims = cluster.members[:2]
            for member in victims:
                member.kill()
            with pytest.raises(Unavailable, match="etcd at"):
                await log.head()
            with pytest.raises((OutcomeUnknown, TermLost)):
                await log.append([b"nowhere"], term=term, head=head)
            for member in victims:
                member.start()
            await apart(cluster.wait)

            async def answers() -> bool:
                try:
                    return (await log.head()).index >= 1
                except Unavailable:
                    return False

            await until(answers, "the log answers again")
            assert (await log.read(after=0))[0].body == b"before"

    asyncio.run(test())


def test_a_log_may_be_opened_before_its_cluster_is_there(tmp_path: Path) -> None:
    async def test() -> None:
        with running(tmp_path) as cluster:
            (member,) = cluster.members
            await apart(member.stop)
            async with open_log(cluster.settings()) as log:
                for call in (log.head(), log.read(after=0), log.campaign(Candidate("early"))):
                    with pytest.raises(Unavailable, match=member.endpoint):
                        await call
                await apart(cluster.start)
                assert await log.head() == EMPTY
                assert await log.campaign(Candidate("one")) == 1

    asyncio.run(test())


def test_a_watch_at_a_member_that_hangs_is_made_anew_elsewhere(
    cluster: EtcdCluster, settings: EtcdSettings
) -> None:
    async def test() -> None:
        silent = (await asyncio.to_thread(cluster.followers))[0]
        others = [member.endpoint for member in cluster.members if member is not silent]
        doors = leading_log(at(settings, *others)), open_log(at(settings, silent.endpoint, *others))
        async with doors[0] as (log, term), doors[1] as follower:
            head = await log.append([b"before"], term=term, head=EMPTY)
            follower.connection.at = 0
            await follower.wait_change(after=1)  # the watch is at the member that will hang
            silent.pause()
            try:
                seen = 1

                async def hinted() -> bool:
                    nonlocal head, seen
                    head = await log.append([b"on"], term=term, head=head)
                    await follower.wait_change(after=seen)
                    seen += len(await follower.read(after=seen))
                    return follower.hints.index >= head.index - 1 > 1

                await until(hinted, "the watch tells again what comes")
                assert seen >= head.index - 1
            finally:
                silent.resume()
                await apart(cluster.wait)

    asyncio.run(test())


def test_an_idle_log_does_not_make_the_watch_turn_from_member_to_member(
    settings: EtcdSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch tells only what comes after it: that it says nothing is no sign that it hangs."""
    tuning = Tuning(watch_silent_s=0.2, look_s=0.05)

    async def test() -> None:
        async with (
            leading_log(settings) as (log, term),
            open_log(settings, tuning=tuning) as follower,
        ):
            head = await log.append([b"x"] * 5, term=term, head=EMPTY)
            turns = 0
            turn = follower.connection.turn

            def counted(failed: connection.Member) -> None:
                nonlocal turns
                turns += 1
                turn(failed)

            monkeypatch.setattr(follower.connection, "turn", counted)
            loop = asyncio.get_running_loop()
            end = loop.time() + 10 * tuning.watch_silent_s
            while loop.time() < end:  # as a follower that has read everything
                await follower.wait_change(after=head.index)
                assert await follower.head() == head
            assert turns <= 2
            head = await log.append([b"y"], term=term, head=head)

            async def hinted() -> bool:
                await follower.wait_change(after=head.index - 1)
                return follower.hints.index == head.index

            await until(hinted, "the watch tells what comes")

    asyncio.run(test())
