"""One suite for every log: who leads, who waits, who is notified, and sealing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from maar.model.errors import (
    Rejected,
    TermLost,
)
from maar.ports.metastore.log import (
    EMPTY,
    Candidate,
    Head,
    Leadership,
    Log,
    Term,
)
from support.metastore.filled_log import fill
from support.metastore.log_factories import (
    Both,
    EtcdFactory,
    Factory,
    MemoryFactory,
    SqliteFactory,
    factory,
    make_factory,
    run,
)

__all__ = ["factory"]

pytestmark = pytest.mark.component
Shared = MemoryFactory | EtcdFactory


@pytest.fixture(params=["memory", "etcd"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Shared:
    """A log that several replicas have open at once."""
    found = make_factory(request.param, request, tmp_path)
    assert not isinstance(found, SqliteFactory)
    return found


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


def test_the_log_says_who_leads(factory: Factory) -> None:
    async def test(log: Both) -> None:
        assert await log.leadership() is None
        term = await log.campaign(Candidate("one", "10.0.0.1:4041"))
        assert await log.leadership() == Leadership(term, Candidate("one", "10.0.0.1:4041"))
        log.hold(term)
        await log.resign(term)
        assert await log.leadership() is None
        assert not holds(log, term)

    run(factory, test)


def test_whoever_resigned_appends_nothing(factory: Factory) -> None:
    async def test(log: Both) -> None:
        term, head = await fill(log, 1)
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
        first, head = await fill(log, 1)
        other = await shared()
        waiting = asyncio.create_task(other.campaign(Candidate("two", "there:1")))
        for n in range(5):
            log.hold(first)
            head = await log.append([b"%d" % n], term=first, head=head)
            await asyncio.sleep(0.05)
        assert not waiting.done()
        await log.resign(first)
        async with asyncio.timeout(60):
            second = await waiting
        assert second > first
        assert await log.leadership() == Leadership(second, Candidate("two", "there:1"))
        assert not holds(log, first)
        with pytest.raises(TermLost):
            await log.append([b"zombie"], term=first, head=head)
        assert (await other.append([b"new"], term=second, head=head)).index == head.index + 1

    run(shared, test)


def test_a_deposed_leader_is_refused_and_told(shared: Shared) -> None:
    async def test(log: Both) -> None:
        old, head = await fill(log, 1)
        other = await shared()
        await shared.depose()
        async with asyncio.timeout(60):
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
        term, _ = await fill(log, 1)
        other = await shared()
        waiting = asyncio.create_task(other.campaign(Candidate("two")))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
        await log.resign(term)
        assert await log.leadership() is None
        assert await log.campaign(Candidate("one")) > term

    run(shared, test)


def test_a_change_is_hinted_and_silence_ends(factory: Factory) -> None:
    async def test(log: Both) -> None:
        term, head = await fill(log, 2)
        reader = await factory.reader()
        try:
            async with asyncio.timeout(60):
                await reader.wait_change(after=1)
                await reader.wait_change(after=2)

            async def follow() -> None:
                seen = 2
                while seen < 12:
                    await reader.wait_change(after=seen)
                    seen += len(await reader.read(after=seen))

            following = asyncio.create_task(follow())
            for n in range(10):
                log.hold(term)
                head = await log.append([b"%d" % n], term=term, head=head)
                await asyncio.sleep(0.02)
            async with asyncio.timeout(60):
                await following
        finally:
            await reader.close()

    run(factory, test)


def test_a_sealed_log_is_read_and_never_led_again(factory: Factory) -> None:
    async def seal(log: Both) -> Head:
        term, head = await fill(log, 3)
        assert await log.seal_note() == ""
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
        assert await log.seal_note() == "etcd://elsewhere"
        assert await log.head() == sealed
        assert len(await log.read(after=0)) == 3
        assert await log.leadership() is None

    sealed = run(factory, seal)
    run(factory, test)


def test_sealing_ends_a_campaign(shared: Shared) -> None:
    async def test(log: Both) -> None:
        term, _ = await fill(log, 1)
        other = await shared()
        await log.resign(term)
        await log.seal("gone")
        async with asyncio.timeout(60):
            with pytest.raises(Rejected, match="gone"):
                await other.campaign(Candidate("two"))

    run(shared, test)
