"""What only a log in etcd can suffer: members that die, hang, lie or are full, lost replies."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from aetcd import rpc
from prometheus_client import CollectorRegistry

from maar.adapters.etcd import connection, election, hints, truncation, upkeep
from maar.adapters.etcd import log as etcd_log
from maar.adapters.etcd.connection import EtcdConnection
from maar.adapters.etcd.log import EtcdLog
from maar.adapters.etcd.room import MemberStatus
from maar.adapters.etcd.settings import EtcdSettings
from maar.adapters.etcd.values import batches, packed
from maar.model.errors import (
    Corrupt,
    HeadMoved,
    NotFound,
    OutcomeUnknown,
    Rejected,
    TermLost,
    Unavailable,
)
from maar.ports.log import EMPTY, Candidate, Head, Leadership, Log, Record, Term, follow, verify
from support.etcd.cluster import EtcdCluster, Member, apart, running
from support.etcd.logs import PATIENCE_S, at, hold, led, opened, until
from support.network.cut import Way, lines

pytestmark = pytest.mark.component


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """Three members; each test takes a prefix of its own and leaves them healthy."""
    with running(tmp_path_factory.mktemp("etcd"), members=3) as made:
        yield made


@pytest.fixture
def settings(cluster: EtcdCluster, tmp_path: Path) -> EtcdSettings:
    return cluster.settings(f"/{tmp_path.name}", election_s=6)


async def settled(log: Log, wanted: Head, before: Head) -> bool:
    """Whether an append whose outcome is unknown was stored."""
    while True:
        try:
            head = await log.head()
        except Unavailable:
            continue
        assert head in (wanted, before)
        return head == wanted


async def all_of(log: Log) -> list[Record]:
    records: list[Record] = []
    while some := await log.read(after=records[-1].index if records else 0):
        records += some
    return records


# ── members that die or hang ───────────────────────────────────────────────────────────────────


def test_nothing_acknowledged_is_lost_when_members_are_killed(
    cluster: EtcdCluster, settings: EtcdSettings
) -> None:
    async def test() -> None:
        acknowledged: dict[int, bytes] = {}
        running_ = True

        async def load() -> None:
            """Leads, appends, settles what is unknown, and leads again when office was lost."""
            n = 0
            while running_:
                async with led(settings) as (log, term):
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

        async def tormented() -> None:
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
        await tormented()
        running_ = False
        await loading
        async with opened(settings) as log:
            records = await all_of(log)
        verify(EMPTY, records)
        bodies = [record.body for record in records]
        assert len(set(bodies)) == len(bodies)
        for index, body in acknowledged.items():
            assert records[index - 1].body == body

    asyncio.run(test())


async def stored(log: EtcdLog, body: bytes, *, term: Term, head: Head) -> Head:
    """As a leader does it: what a slow disk leaves open is settled, and sent again."""
    while True:
        try:
            return await log.append([body], term=term, head=head)
        except OutcomeUnknown:
            if (now := await log.head()) != head:
                return now


def test_a_member_that_hangs_is_not_waited_for(
    cluster: EtcdCluster, settings: EtcdSettings
) -> None:
    async def test() -> None:
        silent = (await asyncio.to_thread(cluster.followers))[0]
        others = [member.endpoint for member in cluster.members if member is not silent]
        async with led(at(settings, silent.endpoint, *others)) as (log, term):
            head = await log.append([b"before"], term=term, head=EMPTY)
            log._connection._at = 0
            silent.pause()
            try:
                began = time.monotonic()
                assert await log.head() == head
                assert time.monotonic() - began < 2 * connection.TRY_S
                assert (await stored(log, b"after", term=term, head=head)).index == head.index + 1
                log.hold(term)
            finally:
                silent.resume()
                await apart(cluster.wait)

    asyncio.run(test())


def test_a_cluster_without_a_majority_says_so_and_comes_back(
    cluster: EtcdCluster, settings: EtcdSettings
) -> None:
    async def test() -> None:
        async with led(settings) as (log, term):
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
            async with opened(cluster.settings()) as log:
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
        doors = led(at(settings, *others)), opened(at(settings, silent.endpoint, *others))
        async with doors[0] as (log, term), doors[1] as follower:
            head = await log.append([b"before"], term=term, head=EMPTY)
            follower._connection._at = 0
            await follower.changed(after=1)  # the watch is at the member that will hang
            silent.pause()
            try:
                seen = 1

                async def hinted() -> bool:
                    nonlocal head, seen
                    head = await log.append([b"on"], term=term, head=head)
                    await follower.changed(after=seen)
                    seen += len(await follower.read(after=seen))
                    return follower._hints._index >= head.index - 1 > 1

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
    monkeypatch.setattr(hints, "SILENT_S", 0.2)
    monkeypatch.setattr(etcd_log, "LOOK_S", 0.05)

    async def test() -> None:
        async with led(settings) as (log, term), opened(settings) as follower:
            head = await log.append([b"x"] * 5, term=term, head=EMPTY)
            turns = 0
            turn = follower._connection.turn

            def counted(failed: connection.Member) -> None:
                nonlocal turns
                turns += 1
                turn(failed)

            monkeypatch.setattr(follower._connection, "turn", counted)
            loop = asyncio.get_running_loop()
            end = loop.time() + 10 * hints.SILENT_S
            while loop.time() < end:  # as a follower that has read everything
                await follower.changed(after=head.index)
                assert await follower.head() == head
            assert turns <= 2
            head = await log.append([b"y"], term=term, head=head)

            async def hinted() -> bool:
                await follower.changed(after=head.index - 1)
                return follower._hints._index == head.index

            await until(hinted, "the watch tells what comes")

    asyncio.run(test())


# ── bytes that changed ─────────────────────────────────────────────────────────────────────────


async def flipped(cluster: EtcdCluster, victim: Member, known: bytes) -> None:
    await apart(victim.stop)
    await apart(lambda: victim.flip(known))
    victim.start()
    await apart(cluster.wait)


def test_a_bit_flipped_in_one_member_is_noticed_and_read_elsewhere(
    cluster: EtcdCluster, settings: EtcdSettings, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with led(settings) as (log, term):
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
        async with opened(suspicious, registry) as log:
            assert await all_of(log) == records
            assert await log.head() == head
        assert f"{victim.endpoint} served damaged bytes" in caplog.text
        labels = {"member": victim.endpoint}
        assert registry.get_sample_value("maar_log_etcd_damaged_reads_total", labels) == 1
        async with opened(at(settings, victim.endpoint)) as log:
            with pytest.raises(Corrupt):
                await all_of(log)
            assert len(await log.read(after=0, limit_bytes=1)) == 1

    with caplog.at_level(logging.ERROR):
        asyncio.run(test())


def test_a_bit_flipped_in_the_head_is_noticed_too(
    cluster: EtcdCluster, settings: EtcdSettings
) -> None:
    async def test() -> None:
        async with led(settings) as (log, term):
            head = await log.append([b"one", b"two"], term=term, head=EMPTY)
        victim = (await asyncio.to_thread(cluster.followers))[0]
        await flipped(cluster, victim, head.hash)
        good = [member.endpoint for member in cluster.members if member is not victim]
        async with opened(at(settings, victim.endpoint)) as log:
            with pytest.raises(Corrupt):
                await log.head()
        async with led(at(settings, victim.endpoint, *good)) as (log, term):
            log._connection._at = 0
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
        async with opened(settings) as log:
            await log.resign(await log.campaign(Candidate("one")))
            key: bytes = getattr(log._keys, name)
        first = settings.endpoints[0]
        ill(monkeypatch, damaged=first, key=key)
        registry = CollectorRegistry()
        async with opened(settings, registry) as log:
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
        async with led(settings) as (log, term), opened(settings, registry) as follower:
            head = await log.append([b"x"], term=term, head=EMPTY)
            dead, damaged, _ = settings.endpoints
            ill(monkeypatch, damaged=damaged, key=log._keys.head, dead=dead)
            follower._connection._at = 0
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
        async with led(settings) as (log, term):
            head = EMPTY
            for _ in range(3):
                head = await log.append([b"x", b"y"], term=term, head=head)
            key = log._keys.batch(3).decode()
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
        async with led(settings) as (log, term):
            head = EMPTY
            for _ in range(3):
                head = await log.append([b"x", b"y"], term=term, head=head)
            assert len(await log.read(after=0, limit_bytes=2)) == 2
            elsewhere = Head(2, b"\7" * 32)
            ((first, forged),) = batches(elsewhere, follow(elsewhere, [b"x", b"z"], term))
            request = rpc.PutRequest(key=log._keys.batch(first), value=packed(forged))
            await log._connection.call(attrgetter("kv.Put"), request)
            with pytest.raises(Corrupt, match="does not follow from entry 2"):
                await log.read(after=2)  # it was read up to there before
            with pytest.raises(Corrupt, match="does not follow from entry 2"):
                await all_of(log)

    asyncio.run(test())


# ── replies that stay away ─────────────────────────────────────────────────────────────────────


def test_an_append_that_lands_without_a_reply_is_found_by_the_head(
    cluster: EtcdCluster, settings: EtcdSettings
) -> None:
    async def test() -> None:
        with lines() as opened_:
            line = opened_.open(cluster.members[0].endpoint)
            others = cluster.endpoints[1:]
            async with led(at(settings, line.address, *others)) as (log, term):
                log._connection._at = 0
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
            async with led(at(settings, line.address, *others)) as (log, term):
                log._connection._at = 0
                head = await log.append([b"one"], term=term, head=EMPTY)
                line.delay(4.0)
                with pytest.raises(OutcomeUnknown):
                    await log.append([b"late"], term=term, head=head)
                assert await log.head() == head  # by now it is settled: not stored
                await asyncio.sleep(4.0)  # it has arrived
                assert await log.head() == head
                line.heal()
                assert (await log.append([b"two"], term=term, head=head)).index == 2
                assert [r.body for r in await log.read(after=0)] == [b"one", b"two"]

    asyncio.run(test())


def test_a_cancelled_append_is_unknown(settings: EtcdSettings) -> None:
    async def test() -> None:
        async with led(settings) as (log, term):
            appending = asyncio.create_task(log.append([b"one"], term=term, head=EMPTY))
            while log._seen is None:
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
        async with led(settings) as (log, term):
            head = await log.append([b"one"], term=term, head=EMPTY)
            line = log._connection
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
            assert await log.head() == head  # the leader is told: not stored
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
        async with opened(settings) as next_, led(settings) as (log, term):
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
        async with led(settings) as (log, term):
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


# ── office ─────────────────────────────────────────────────────────────────────────────────────


def test_office_is_kept_by_holding_and_lost_by_silence(
    cluster: EtcdCluster, tmp_path: Path
) -> None:
    settings = cluster.settings(f"/{tmp_path.name}", election_s=3)

    async def test() -> None:
        async with opened(settings) as other, opened(settings) as log:
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


Work = Callable[[], Awaitable[object]]


def between(log: EtcdLog, *, before: Work | None = None, lost: bool = False) -> None:
    """Let something happen before the next write of a log, or its answer be lost."""
    asked = log._connection.once

    async def once(ask: connection.Ask, request: object, *, within_s: float) -> object:
        log._connection.once = asked  # type: ignore[method-assign]
        if before is not None:
            await before()
        reply = await asked(ask, request, within_s=within_s)
        if lost:
            raise OutcomeUnknown("no reply")
        return reply

    log._connection.once = once  # type: ignore[method-assign]


def test_a_campaign_that_was_won_without_a_reply_is_stood_again(
    cluster: EtcdCluster, tmp_path: Path
) -> None:
    async def test() -> None:
        async with opened(cluster.settings(f"/{tmp_path.name}", election_s=300)) as log:
            between(log, lost=True)
            async with asyncio.timeout(PATIENCE_S):  # it does not wait for its own lease to end
                term = await log.campaign(Candidate("one"))
            assert await log.office() == Leadership(term, Candidate("one"))
            assert (await log.append([b"x"], term=term, head=EMPTY)).index == 1

    asyncio.run(test())


def test_a_candidate_waits_for_the_leaders_end_and_does_not_ask_at_every_append(
    settings: EtcdSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(election, "LOOK_S", 10 * PATIENCE_S)  # by itself it does not look again

    async def test() -> None:
        async with led(settings) as (log, term), opened(settings) as next_:
            asked = 0
            call = next_._connection.call

            async def counted(*request: Any, **how: Any) -> Any:
                nonlocal asked
                asked += 1
                return await call(*request, **how)

            monkeypatch.setattr(next_._connection, "call", counted)
            standing = asyncio.create_task(next_.campaign(Candidate("two")))
            head = EMPTY

            async def heard() -> bool:
                return next_._hints._index >= head.index

            async def begun() -> bool:
                nonlocal head
                head = await log.append([b"before"], term=term, head=head)
                return next_._hints._index > 0

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
        async with opened(settings) as log, opened(settings) as other:

            async def lead() -> None:
                terms.append(await other.campaign(Candidate("two")))
                await other.resign(terms[-1])

            between(log, before=lead)
            terms.append(await log.campaign(Candidate("one")))
        assert terms == [1, 2]

    asyncio.run(test())


def test_nobody_is_elected_in_a_log_that_was_just_sealed(settings: EtcdSettings) -> None:
    async def test() -> None:
        async with opened(settings) as log, opened(settings) as other:
            between(log, before=lambda: other.seal("elsewhere"))
            with pytest.raises(Rejected, match="elsewhere"):
                await log.campaign(Candidate("one"))
            assert await log.office() is None

    asyncio.run(test())


def test_nobody_is_elected_in_a_log_that_is_just_copied_into(settings: EtcdSettings) -> None:
    async def test() -> None:
        async with opened(settings) as log, opened(settings) as other:
            between(log, before=lambda: other.begin(Head(5, b"\1" * 32), term=Term(3)))
            with pytest.raises(Rejected, match="copied"):
                await log.campaign(Candidate("one"))
            await other.finish()
            assert await log.campaign(Candidate("one")) == 4

    asyncio.run(test())


def test_two_copies_at_once_do_not_mix(settings: EtcdSettings) -> None:
    async def test() -> None:
        records = follow(EMPTY, [b"a", b"b", b"c"], Term(1))
        async with opened(settings) as log, opened(settings) as other:
            await log.begin(EMPTY, term=Term(1))
            between(log, before=lambda: other.add(records[:2]))
            with pytest.raises(HeadMoved):
                await log.add(records[:1])
            assert (await log.add(records[2:])).index == 3
            await log.finish()
            assert await all_of(log) == records

    asyncio.run(test())


def test_a_leader_that_slept_is_told_at_once(
    settings: EtcdSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        real = election.boot_ns
        async with opened(settings) as log:
            term = await log.campaign(Candidate("one"))
            log.hold(term)
            monkeypatch.setattr(election, "boot_ns", lambda: real() + 20_000_000_000)
            with pytest.raises(TermLost, match="may be over"):
                log.hold(term)
            monkeypatch.setattr(election, "boot_ns", real)
            with pytest.raises(TermLost):  # and it does not come back, whatever etcd says
                await log.append([b"zombie"], term=term, head=EMPTY)

    asyncio.run(test())


def test_logs_under_different_prefixes_do_not_meet(
    cluster: EtcdCluster, settings: EtcdSettings
) -> None:
    async def test() -> None:
        beside = cluster.settings(f"{settings.prefix}2", election_s=6)
        async with led(settings) as (log, term), led(beside) as (other, other_term):
            await log.append([b"mine"], term=term, head=EMPTY)
            await other.append([b"theirs", b"too"], term=other_term, head=EMPTY)
            assert [r.body for r in await all_of(log)] == [b"mine"]
            assert [r.body for r in await all_of(other)] == [b"theirs", b"too"]
            assert (await log.head()).index == 1

    asyncio.run(test())


# ── large logs ─────────────────────────────────────────────────────────────────────────────────


def test_many_small_batches_and_then_large_ones_are_read_in_bounded_pages(
    settings: EtcdSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tuple(
        (name, 3 << 20 if name == "grpc.max_receive_message_length" else value)
        for name, value in connection._OPTIONS
    )
    monkeypatch.setattr(connection, "_OPTIONS", small)

    async def test() -> None:
        async with led(settings) as (log, term):
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
        async with led(settings) as (log, term):
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
    settings: EtcdSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that could not be truncated for long is large; to forget it must not stop etcd."""
    monkeypatch.setattr(truncation, "KEYS_AT_ONCE", 50)
    monkeypatch.setattr(etcd_log, "REACH", 100)
    listed: list[int] = []
    deleted: list[int] = []
    compacted: list[int] = []  # what was deleted by then

    async def test() -> None:
        async with led(settings) as (log, term):
            head = EMPTY
            for n in range(400):
                head = await log.append([b"%d" % n], term=term, head=head)
            asked, compact = log._connection.call, log._upkeep.compact

            async def call(ask: connection.Ask, request: Any, *, within_s: float = 8.0) -> Any:
                reply = await asked(ask, request, within_s=within_s)
                for response in getattr(reply, "responses", ()):
                    listed.append(len(response.response_range.kvs))
                    deleted.append(response.response_delete_range.deleted)
                return reply

            async def counted(**given: float) -> None:
                compacted.append(sum(deleted))
                await compact(**given)

            log._connection.call = call  # type: ignore[method-assign]
            log._upkeep.compact = counted  # type: ignore[method-assign]
            await log.truncate(before=head.index, term=term)
            assert sum(deleted) == head.index - 1
            assert max(deleted) <= 50
            assert max(listed) <= 64, "etcd reads the values of all keys that it lists"
            freed = [after - before for before, after in pairwise([0, *compacted])]
            assert max(freed) < 150, "it frees what was deleted a part at a time"

    asyncio.run(test())


def test_history_is_dropped_before_it_is_much(
    settings: EtcdSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only once a minute, in which a busy log writes more than etcd drops in a moment."""
    monkeypatch.setattr(upkeep, "COMPACT_BYTES", 20_000)
    monkeypatch.setattr(upkeep, "COMPACT_LOOKS", 1_000)

    async def test() -> None:
        async with led(settings) as (log, term):

            async def compacted() -> bool:
                return log._upkeep._compacted > 0

            head = EMPTY
            for _ in range(5):
                head = await log.append([b"x" * 5_000], term=term, head=head)
            await until(compacted, "history is dropped")

    asyncio.run(test())


def test_a_truncation_that_lost_its_office_on_the_way_forgets_nothing(
    settings: EtcdSettings,
) -> None:
    async def test() -> None:
        async with led(settings) as (log, term), opened(settings) as other:
            head = await log.append([b"x"] * 5, term=term, head=EMPTY)
            asked = log._connection.call

            async def call(ask: connection.Ask, request: Any, *, within_s: float = 8.0) -> Any:
                if getattr(request, "compare", None):
                    revoked = rpc.LeaseRevokeRequest(ID=log._election.tenure(term).lease)
                    await asked(connection.REVOKE, revoked)
                    await other.campaign(Candidate("two"))
                return await asked(ask, request, within_s=within_s)

            log._connection.call = call  # type: ignore[method-assign]
            with pytest.raises(TermLost):
                await log.truncate(before=4, term=term)
            log._connection.call = asked  # type: ignore[method-assign]
            assert await other.first() == 1
            assert await other.head() == head

    asyncio.run(test())


# ── room ───────────────────────────────────────────────────────────────────────────────────────


def test_what_an_earlier_office_knew_of_the_room_does_not_bind_the_next(
    settings: EtcdSettings,
) -> None:
    """Without its first entry an office is none, and nobody would ever look again."""

    async def test() -> None:
        async with opened(settings) as log:
            term = await log.campaign(Candidate("one"))
            head = await log.append([b"one"], term=term, head=EMPTY)
            await log.resign(term)
            full = settings.quota_bytes
            log._upkeep._judge([MemberStatus("long ago", "3.5.9", full, full)], alarm=True)
            log._upkeep.wrote(full)
            term = await log.campaign(Candidate("one"))
            head = await log.append([b"two"], term=term, head=head)
            assert head.index == 2

    asyncio.run(test())


# ── what cannot be used ────────────────────────────────────────────────────────────────────────


def test_a_log_of_a_newer_format_is_refused(cluster: EtcdCluster, settings: EtcdSettings) -> None:
    async def test() -> None:
        async with opened(settings) as log:
            put = attrgetter("kv.Put")
            request = rpc.PutRequest(key=log._keys.format, value=packed(2))
            await log._connection.call(put, request)
        with pytest.raises(Rejected, match="format 2"):
            await EtcdLog.open(settings)

    asyncio.run(test())


def test_a_reader_needs_a_log(settings: EtcdSettings) -> None:
    async def test() -> None:
        with pytest.raises(NotFound, match="start a metastore"):
            await EtcdLog.open_reader(settings)

    asyncio.run(test())
