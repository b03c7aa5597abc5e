"""One suite for every log: ordered, durable, fenced, chained."""

from __future__ import annotations

import asyncio

import pytest

from maar.adapters.etcd.log import EtcdLog
from maar.adapters.sqlite.log import SqliteLog
from maar.model.errors import (
    HeadMoved,
    NotFound,
    Rejected,
    TermLost,
    TooLarge,
)
from maar.ports.metastore.log import (
    BATCH_BYTES_MAX,
    EMPTY,
    ENTRY_BYTES_MAX,
    Candidate,
    Head,
    Leadership,
    Term,
    verify,
)
from support.metastore.filled_log import fill
from support.metastore.log_factories import Both, Factory, factory, run
from support.metastore.memory_log import MemoryLog

__all__ = ["factory"]

pytestmark = pytest.mark.component


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
        term, head = await fill(log, 2)
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
        old, head = await fill(log, 1)
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
        await fill(log, 10, size=100)
        assert [r.index for r in await log.read(after=0, limit_bytes=1)] == [1]
        assert [r.index for r in await log.read(after=3, limit_bytes=310)] == [4, 5, 6]
        seen: list[int] = []
        while some := await log.read(after=seen[-1] if seen else 0, limit_bytes=250):
            seen += [r.index for r in some]
        assert seen == list(range(1, 11))

    run(factory, test)


def test_what_was_acknowledged_is_there_after_a_restart(factory: Factory) -> None:
    async def write(log: Both) -> Head:
        return (await fill(log, 5))[1]

    async def read(log: Both) -> Head:
        assert len(await log.read(after=0)) == 5
        return await log.head()

    assert run(factory, write) == run(factory, read)


def test_truncation_keeps_the_chain_and_the_head(factory: Factory) -> None:
    async def test(log: Both) -> None:
        term, head = await fill(log, 2_500, size=1, batch=3)
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
        term, head = await fill(log, 3)
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
        term, head = await fill(log, 3)
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
            assert await reader.leadership() == Leadership(term, Candidate("one"))
        finally:
            await reader.close()
        assert await log.head() == head

    run(factory, test)
