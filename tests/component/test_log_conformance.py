"""One suite for every log: ordered, durable, fenced, chained. A new adapter joins by a fixture."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

from maar.adapters.etcd.log import EtcdLog
from maar.adapters.sqlite.log import SqliteLog
from maar.model.errors import (
    Corrupt,
    HeadMoved,
    NotFound,
    Rejected,
    TermLost,
    TooLarge,
)
from maar.ports.log import (
    BATCH_BYTES_MAX,
    EMPTY,
    ENTRY_BYTES_MAX,
    Candidate,
    Head,
    Leadership,
    Log,
    LogCopy,
    Record,
    Term,
    follow,
    verify,
)
from support.etcd.cluster import EtcdCluster, etcd
from support.metastore.filled_log import filled
from support.metastore.memory_log import MemoryLog, SharedLog

__all__ = ["etcd"]

pytestmark = pytest.mark.component

T = TypeVar("T")
Opened = Callable[[], Awaitable[Log]]


class SqliteFactory:
    """Opens the same log again and again; the one before is closed first."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._open: SqliteLog | None = None

    async def __call__(self) -> SqliteLog:
        await self.close()
        self._open = SqliteLog.open(self.directory)
        return self._open

    async def reader(self) -> Log:
        return SqliteLog.open_reader(self.directory)

    async def depose(self) -> None:
        """The next campaign does that."""

    def another(self) -> SqliteFactory:
        return SqliteFactory(self.directory / "another")

    async def close(self) -> None:
        if self._open is not None:
            await self._open.close()


class MemoryFactory:
    """As many doors to one log as a test opens."""

    def __init__(self) -> None:
        self._shared = SharedLog()

    async def __call__(self) -> MemoryLog:
        return MemoryLog(self._shared)

    async def reader(self) -> Log:
        return MemoryLog(self._shared, writes=False)

    async def depose(self) -> None:
        self._shared.depose()

    def another(self) -> MemoryFactory:
        return MemoryFactory()

    async def close(self) -> None:
        self._shared.office = None  # whoever closes its log has left


class EtcdFactory:
    """The same prefix of one cluster again and again."""

    def __init__(self, cluster: EtcdCluster, prefix: str) -> None:
        self._cluster = cluster
        self._settings = cluster.settings(prefix, election_s=10)
        self._open: list[EtcdLog] = []

    async def __call__(self) -> EtcdLog:
        self._open.append(await EtcdLog.open(self._settings))
        return self._open[-1]

    async def reader(self) -> Log:
        return await EtcdLog.open_reader(self._settings)

    async def depose(self) -> None:
        """The lease runs out."""
        await asyncio.to_thread(self._cluster.revoke_leases)

    def another(self) -> EtcdFactory:
        return EtcdFactory(self._cluster, f"{self._settings.prefix}-another")

    async def close(self) -> None:
        while self._open:
            await self._open.pop().close()


Factory = SqliteFactory | MemoryFactory | EtcdFactory
Shared = MemoryFactory | EtcdFactory


def made(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Factory:
    if kind == "sqlite":
        return SqliteFactory(tmp_path / "log")
    if kind == "memory":
        return MemoryFactory()
    return EtcdFactory(request.getfixturevalue("etcd"), f"/{tmp_path.name}")


@pytest.fixture(params=["sqlite", "memory", "etcd"])
def factory(request: pytest.FixtureRequest, tmp_path: Path) -> Factory:
    return made(request.param, request, tmp_path)


@pytest.fixture(params=["memory", "etcd"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Shared:
    """A log that several replicas have open at once."""
    found = made(request.param, request, tmp_path)
    assert not isinstance(found, SqliteFactory)
    return found


class Both(Log, LogCopy, Protocol):
    """The adapters implement both in one class."""


def run(factory: Factory, test: Callable[[Both], Awaitable[T]]) -> T:
    async def opened() -> T:
        try:
            return await test(await factory())
        finally:
            await factory.close()

    return asyncio.run(opened())


async def all_of(log: Log, *, after: int = 0) -> list[Record]:
    records: list[Record] = []
    while some := await log.read(after=records[-1].index if records else after):
        records += some
    return records


def test_an_empty_log_has_a_head_and_nothing_else(factory: Factory) -> None:
    async def test(log: Both) -> None:
        assert await log.head() == EMPTY
        assert await log.first() == 0
        assert await log.read(after=0) == []

    run(factory, test)


def test_what_is_appended_is_read_in_order_and_chained(factory: Factory) -> None:
    async def test(log: Both) -> None:
        term = await log.campaign(Candidate("one"))
        head = await log.append([b"a", b""], term=term, head=EMPTY)
        head = await log.append([b"c"], term=term, head=head)
        records = await log.read(after=0)
        assert [(r.index, r.term, r.body) for r in records] == [
            (1, term, b"a"),
            (2, term, b""),
            (3, term, b"c"),
        ]
        assert verify(EMPTY, records) == head == await log.head()
        assert [r.index for r in await log.read(after=2)] == [3]
        assert await log.read(after=3) == []
        assert await log.first() == 1

    run(factory, test)


def test_an_append_presumes_the_head(factory: Factory) -> None:
    async def test(log: Both) -> None:
        term, head = await filled(log, 2)
        for wrong in (EMPTY, Head(2, b"\1" * 32), Head(3, head.hash)):
            with pytest.raises(HeadMoved):
                await log.append([b"late"], term=term, head=wrong)
        assert await log.head() == head

    run(factory, test)


def test_of_many_appenders_with_one_head_one_wins(factory: Factory) -> None:
    async def test(log: Both) -> None:
        term = await log.campaign(Candidate("one"))
        tries = [log.append([b"%d" % n], term=term, head=EMPTY) for n in range(20)]
        outcomes = await asyncio.gather(*tries, return_exceptions=True)
        assert sum(isinstance(outcome, Head) for outcome in outcomes) == 1
        assert sum(isinstance(outcome, HeadMoved) for outcome in outcomes) == 19
        assert (await log.head()).index == 1

    run(factory, test)


def test_a_new_term_fences_the_old_leader(factory: Factory) -> None:
    async def test(log: Both) -> None:
        old, head = await filled(log, 1)
        await factory.depose()
        new = await log.campaign(Candidate("two"))
        assert new > old
        with pytest.raises(TermLost):
            await log.append([b"zombie"], term=old, head=head)
        with pytest.raises(TermLost):
            await log.truncate(before=2, term=old)
        assert (await log.append([b"mine"], term=new, head=head)).index == 2

    run(factory, test)


def test_terms_grow_over_restarts(factory: Factory) -> None:
    async def campaign(log: Both) -> Term:
        return await log.campaign(Candidate("again"))

    assert run(factory, campaign) < run(factory, campaign) < run(factory, campaign)


def test_limits_are_those_of_the_port(factory: Factory) -> None:
    async def test(log: Both) -> None:
        term = await log.campaign(Candidate("one"))
        with pytest.raises(TooLarge, match="entry"):
            await log.append([b"x" * (ENTRY_BYTES_MAX + 1)], term=term, head=EMPTY)
        half = b"x" * ENTRY_BYTES_MAX
        with pytest.raises(TooLarge, match="batch"):
            await log.append([half, half, b"x"], term=term, head=EMPTY)
        head = await log.append([half, half], term=term, head=EMPTY)
        assert head.index == 2
        assert 2 * len(half) == BATCH_BYTES_MAX

    run(factory, test)


def test_a_read_returns_what_fits_and_at_least_one(factory: Factory) -> None:
    async def test(log: Both) -> None:
        await filled(log, 10, size=100)
        assert [r.index for r in await log.read(after=0, limit_bytes=1)] == [1]
        assert [r.index for r in await log.read(after=3, limit_bytes=310)] == [4, 5, 6]
        seen: list[int] = []
        while some := await log.read(after=seen[-1] if seen else 0, limit_bytes=250):
            seen += [r.index for r in some]
        assert seen == list(range(1, 11))

    run(factory, test)


def test_what_was_acknowledged_is_there_after_a_restart(factory: Factory) -> None:
    async def write(log: Both) -> Head:
        return (await filled(log, 5))[1]

    async def read(log: Both) -> Head:
        assert len(await log.read(after=0)) == 5
        return await log.head()

    assert run(factory, write) == run(factory, read)


def test_truncation_keeps_the_chain_and_the_head(factory: Factory) -> None:
    async def test(log: Both) -> None:
        term, head = await filled(log, 2_500, size=1, batch=3)
        await log.truncate(before=2_400, term=term)
        assert await log.first() == 2_400
        assert await log.head() == head
        assert len(await log.read(after=2_399)) == 101
        with pytest.raises(NotFound):
            await log.read(after=2_398)
        await log.truncate(before=head.index + 1, term=term)
        assert await log.head() == head
        assert await log.first() == 0
        assert await log.read(after=head.index) == []
        assert (await log.append([b"on"], term=term, head=head)).index == head.index + 1

    run(factory, test)


def test_a_reader_sees_what_the_writer_appends_and_writes_nothing(factory: Factory) -> None:
    async def test(log: Both) -> None:
        term, head = await filled(log, 3)
        reader = await factory.reader()
        try:
            assert await reader.head() == head
            head = await log.append([b"more"], term=term, head=head)
            assert [r.body for r in await reader.read(after=3)] == [b"more"]
            with pytest.raises(Rejected, match="reading only"):
                await reader.append([b"no"], term=term, head=head)
        finally:
            await reader.close()

    run(factory, test)


def test_a_reader_changes_nothing(factory: Factory) -> None:
    async def test(log: Both) -> None:
        term, head = await filled(log, 3)
        reader = await factory.reader()
        assert isinstance(reader, SqliteLog | MemoryLog | EtcdLog)
        try:
            for refused in (
                lambda: reader.append([b"no"], term=term, head=head),
                lambda: reader.campaign(Candidate("reader")),
                lambda: reader.truncate(before=2, term=term),
                lambda: reader.seal("elsewhere"),
                lambda: reader.begin(EMPTY, term=term),
            ):
                with pytest.raises(Rejected, match="reading only"):
                    await refused()
            assert await reader.office() == Leadership(term, Candidate("one"))
        finally:
            await reader.close()
        assert await log.head() == head

    run(factory, test)


# ── office ─────────────────────────────────────────────────────────────────────────────────────


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await condition():
            await asyncio.sleep(0.02)


def holds(log: Log, term: Term) -> bool:
    try:
        log.hold(term)
    except TermLost:
        return False
    return True


def test_the_office_says_who_leads(factory: Factory) -> None:
    async def test(log: Both) -> None:
        assert await log.office() is None
        term = await log.campaign(Candidate("one", "10.0.0.1:4041"))
        assert await log.office() == Leadership(term, Candidate("one", "10.0.0.1:4041"))
        log.hold(term)
        await log.resign(term)
        assert await log.office() is None
        assert not holds(log, term)

    run(factory, test)


def test_whoever_resigned_appends_nothing(factory: Factory) -> None:
    async def test(log: Both) -> None:
        term, head = await filled(log, 1)
        await log.resign(term)
        with pytest.raises(TermLost):
            await log.append([b"late"], term=term, head=head)
        with pytest.raises(TermLost):
            await log.truncate(before=2, term=term)
        later = await log.campaign(Candidate("one"))
        await log.resign(term)  # a term that was lost already: nothing happens
        log.hold(later)
        assert (await log.append([b"on"], term=later, head=head)).index == 2

    run(factory, test)


def test_a_term_that_nobody_has_is_not_held(factory: Factory) -> None:
    async def test(log: Both) -> None:
        term = await log.campaign(Candidate("one"))
        for other in (Term(term - 1), Term(term + 1)):
            with pytest.raises(TermLost):
                log.hold(other)
        log.hold(term)

    run(factory, test)


def test_a_candidate_waits_until_the_leader_is_gone(shared: Shared) -> None:
    async def test(log: Both) -> None:
        first, head = await filled(log, 1)
        other = await shared()
        waiting = asyncio.create_task(other.campaign(Candidate("two", "there:1")))
        for n in range(5):
            log.hold(first)
            head = await log.append([b"%d" % n], term=first, head=head)
            await asyncio.sleep(0.05)
        assert not waiting.done()
        await log.resign(first)
        async with asyncio.timeout(10):
            second = await waiting
        assert second > first
        assert await log.office() == Leadership(second, Candidate("two", "there:1"))
        assert not holds(log, first)
        with pytest.raises(TermLost):
            await log.append([b"zombie"], term=first, head=head)
        assert (await other.append([b"new"], term=second, head=head)).index == head.index + 1

    run(shared, test)


def test_a_deposed_leader_is_refused_and_told(shared: Shared) -> None:
    async def test(log: Both) -> None:
        old, head = await filled(log, 1)
        other = await shared()
        await shared.depose()
        async with asyncio.timeout(10):
            new = await other.campaign(Candidate("two"))
        with pytest.raises(TermLost):
            await log.append([b"zombie"], term=old, head=head)
        head = await other.append([b"mine"], term=new, head=head)
        with pytest.raises(TermLost):
            await log.append([b"zombie"], term=old, head=head)
        with pytest.raises(TermLost):
            await log.truncate(before=2, term=old)

        async def told() -> bool:
            other.hold(new)
            return not holds(log, old)

        await until(told)
        assert await log.head() == head

    run(shared, test)


def test_of_many_candidates_one_leads_at_a_time(shared: Shared) -> None:
    async def test(log: Both) -> None:
        terms: list[Term] = []
        leading = 0

        async def stand(name: str) -> None:
            nonlocal leading
            door = await shared()
            term = await door.campaign(Candidate(name))
            leading += 1
            assert leading == 1
            terms.append(term)
            head = await door.head()
            await door.append([name.encode()], term=term, head=head)
            leading -= 1
            await door.resign(term)

        async with asyncio.timeout(60):
            await asyncio.gather(*(stand(f"r{n}") for n in range(6)))
        assert terms == sorted(set(terms))
        assert sorted(r.body for r in await log.read(after=0)) == [b"r%d" % n for n in range(6)]

    run(shared, test)


def test_a_candidate_may_give_up(shared: Shared) -> None:
    async def test(log: Both) -> None:
        term, _ = await filled(log, 1)
        other = await shared()
        waiting = asyncio.create_task(other.campaign(Candidate("two")))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
        await log.resign(term)
        assert await log.office() is None
        assert await log.campaign(Candidate("one")) > term

    run(shared, test)


# ── hints ──────────────────────────────────────────────────────────────────────────────────────


def test_a_change_is_hinted_and_silence_ends(factory: Factory) -> None:
    async def test(log: Both) -> None:
        term, head = await filled(log, 2)
        reader = await factory.reader()
        try:
            async with asyncio.timeout(10):
                await reader.changed(after=1)
                await reader.changed(after=2)

            async def follow() -> None:
                seen = 2
                while seen < 12:
                    await reader.changed(after=seen)
                    seen += len(await reader.read(after=seen))

            following = asyncio.create_task(follow())
            for n in range(10):
                log.hold(term)
                head = await log.append([b"%d" % n], term=term, head=head)
                await asyncio.sleep(0.02)
            async with asyncio.timeout(10):
                await following
        finally:
            await reader.close()

    run(factory, test)


# ── sealing ────────────────────────────────────────────────────────────────────────────────────


def test_a_sealed_log_is_read_and_never_led_again(factory: Factory) -> None:
    async def seal(log: Both) -> Head:
        term, head = await filled(log, 3)
        assert await log.sealed() == ""
        with pytest.raises(Rejected, match=r"led|leads"):
            await log.seal("etcd://elsewhere")
        await log.resign(term)
        await log.seal("etcd://elsewhere")
        await log.seal("nowhere")
        with pytest.raises(Rejected):
            await log.append([b"late"], term=term, head=head)
        return head

    async def test(log: Both) -> None:
        with pytest.raises(Rejected, match="etcd://elsewhere"):
            await log.campaign(Candidate("one"))
        with pytest.raises(Rejected):
            await log.begin(EMPTY, term=Term(9))
        assert await log.sealed() == "etcd://elsewhere"
        assert await log.head() == sealed
        assert len(await log.read(after=0)) == 3
        assert await log.office() is None

    sealed = run(factory, seal)
    run(factory, test)


def test_sealing_ends_a_campaign(shared: Shared) -> None:
    async def test(log: Both) -> None:
        term, _ = await filled(log, 1)
        other = await shared()
        await log.resign(term)
        await log.seal("gone")
        async with asyncio.timeout(10):
            with pytest.raises(Rejected, match="gone"):
                await other.campaign(Candidate("two"))

    run(shared, test)


# ── copying ────────────────────────────────────────────────────────────────────────────────────


def records_of(*terms: int, base: Head = EMPTY) -> list[Record]:
    """Entries of several terms, as another log would have them."""
    made_: list[Record] = []
    for n, term in enumerate(terms):
        made_ += follow(base, [b"%d" % n + b"y" * (n % 50)], Term(term))
        base = Head(made_[-1].index, made_[-1].hash)
    return made_


def test_a_copy_is_the_same_log(factory: Factory) -> None:
    records = records_of(*([1] * 5 + [3] * 300 + [4] + [7] * 20))

    async def copy(log: Both) -> None:
        assert await log.begin(EMPTY, term=Term(9)) == EMPTY
        for start in range(0, len(records), 100):
            head = await log.add(records[start : start + 100])
            assert head == Head(records[start : start + 100][-1].index, head.hash)
        with pytest.raises(Rejected, match="copied"):
            await log.campaign(Candidate("early"))
        await log.finish()

    async def test(log: Both) -> None:
        assert await all_of(log) == records
        assert await all_of(log, after=7) == records[7:]
        head = await log.head()
        assert head == Head(records[-1].index, records[-1].hash)
        term = await log.campaign(Candidate("first"))
        assert term > 9
        assert (await log.append([b"on"], term=term, head=head)).index == len(records) + 1

    run(factory, copy)
    run(factory, test)


def test_a_copy_begins_behind_a_snapshot(factory: Factory) -> None:
    base = Head(1_000, b"\7" * 32)
    records = records_of(5, 5, 6, base=base)

    async def test(log: Both) -> None:
        assert await log.begin(base, term=Term(2)) == base
        await log.add(records)
        await log.finish()
        assert await log.first() == 1_001
        assert await log.read(after=1_000) == records
        with pytest.raises(NotFound):
            await log.read(after=999)
        assert await log.campaign(Candidate("one")) > 6  # above the terms of its entries, too

    run(factory, test)


def test_an_empty_copy_is_a_log_behind_its_base(factory: Factory) -> None:
    base = Head(77, b"\1" * 32)

    async def test(log: Both) -> None:
        await log.begin(base, term=Term(4))
        await log.finish()
        assert await log.head() == base
        assert await log.first() == 0
        assert await log.read(after=77) == []
        term = await log.campaign(Candidate("one"))
        assert term > 4
        assert (await log.append([b"x"], term=term, head=base)).index == 78

    run(factory, test)


def test_an_interrupted_copy_goes_on(factory: Factory) -> None:
    records = records_of(1, 1, 2, 2, 2)

    async def begun(log: Both) -> None:
        await log.begin(EMPTY, term=Term(3))
        await log.add(records[:2])

    async def resumed(log: Both) -> None:
        with pytest.raises(Rejected, match="another copy"):
            await log.begin(Head(1, b"\1" * 32), term=Term(3))
        head = await log.begin(EMPTY, term=Term(3))
        assert head.index == 2
        await log.add(records[2:])
        await log.finish()
        assert await all_of(log) == records

    run(factory, begun)
    run(factory, resumed)


def test_a_copy_takes_only_what_follows(factory: Factory) -> None:
    records = records_of(1, 1, 1, 1)

    async def test(log: Both) -> None:
        with pytest.raises(Rejected):
            await log.add(records)
        await log.begin(EMPTY, term=Term(1))
        with pytest.raises(Corrupt):
            await log.add(records[1:])
        changed = Record(1, Term(1), b"other", records[0].hash)
        with pytest.raises(Corrupt):
            await log.add([changed, *records[1:]])
        await log.add(records[:2])
        with pytest.raises(Corrupt):
            await log.add(records[:2])
        assert (await log.add(records[2:])).index == 4

    run(factory, test)


def test_a_log_that_holds_something_is_not_copied_into(factory: Factory) -> None:
    async def test(log: Both) -> None:
        term, _ = await filled(log, 1)
        await log.resign(term)
        with pytest.raises(Rejected, match="empty"):
            await log.begin(EMPTY, term=Term(0))

    run(factory, test)


def test_a_log_that_was_led_and_holds_nothing_is_copied_into(factory: Factory) -> None:
    """As by a server that was refused by its store; terms go on above the one that it had."""
    base = Head(77, b"\1" * 32)

    async def test(log: Both) -> None:
        led = Term(0)
        for _ in range(3):
            led = await log.campaign(Candidate("one"))
            with pytest.raises(Rejected, match="empty"):
                await log.begin(base, term=Term(1))
            await log.resign(led)
        assert await log.begin(base, term=Term(1)) == base
        await log.finish()
        assert await log.campaign(Candidate("two")) > led

    run(factory, test)


def test_a_whole_log_moves_to_another(factory: Factory) -> None:
    async def test(log: Both) -> None:
        term, head = await filled(log, 60, size=30_000, batch=4)
        elsewhere = factory.another()
        there: Both = await elsewhere()
        try:
            await there.begin(EMPTY, term=term)
            at = 0
            while some := await log.read(after=at):
                at = (await there.add(some)).index
            await there.finish()
            assert await there.head() == head
            assert await all_of(there) == await all_of(log)
        finally:
            await elsewhere.close()

    run(factory, test)
