"""One suite for every log: a copy is the same log, and goes on after an interruption."""

from __future__ import annotations

import pytest

from maar.model.errors import (
    Corrupt,
    NotFound,
    Rejected,
)
from maar.ports.metastore.log import (
    EMPTY,
    Candidate,
    Head,
    Log,
    Record,
    Term,
    follow,
)
from support.metastore.filled_log import fill
from support.metastore.log_factories import Both, Factory, factory, run

__all__ = ["factory"]

pytestmark = pytest.mark.component


async def all_of(log: Log, *, after: int = 0) -> list[Record]:
    records: list[Record] = []
    while some := await log.read(after=records[-1].index if records else after):
        records += some
    return records


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
        term, _ = await fill(log, 1)
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
        term, head = await fill(log, 60, size=30_000, batch=4)
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
