"""Dead letters as readers and operators meet them: real stores, a real leader (S4, S20)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from maar.adapters.rpc import MetastoreClient, serve_metastore
from maar.adapters.stores.open import open_store
from maar.app.roles.wiring import RoleStatus
from maar.block.format import dead_letter
from maar.metastore.service import MetastoreService
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import NotFound, Overloaded, Rejected
from maar.model.ids import MAIN_STORE
from maar.model.time import DAY_NS, SECOND_NS
from maar.ports.calls import LocalPort
from maar.ports.metastore.log_time import Now
from maar.ports.operator.dead_letters import GetLetter, LetterRetried, ListLetters, RetryLetter
from maar.ports.operator.operator import GetStatus, Status
from maar.ports.reader.index import IndexView, ViewRequest
from maar.ports.stores.object_store import StoreSettings
from support.lake.whole_lake import WholeLake, letters_of, patient, profile

pytestmark = [pytest.mark.component, pytest.mark.timeout(240)]

A, B, C = profile("a", 1), profile("b", 20), profile("c", 300)
QUICK = patient(
    retire_delay_ns=60 * SECOND_NS,
    expired_delay_ns=60 * SECOND_NS,
    retention_ns=2 * DAY_NS,
    registration_floor_lag_ns=60 * SECOND_NS,
)


@pytest.fixture(params=["directory", "s3"])
def any_lake(request: pytest.FixtureRequest, tmp_path: Path) -> WholeLake:
    if request.param == "s3":
        settings = request.getfixturevalue("s3_server").bucket()
    else:
        settings = StoreSettings(MAIN_STORE, (tmp_path / "store").as_uri())
    return WholeLake(tmp_path, open_store(settings), QUICK)


@pytest.fixture
def lake(tmp_path: Path) -> WholeLake:
    settings = StoreSettings(MAIN_STORE, (tmp_path / "store").as_uri())
    return WholeLake(tmp_path, open_store(settings), QUICK)


async def wait_elected(service: MetastoreService) -> None:
    """Its first look is over: letters from now on wait."""
    await until(service, lambda status: status.letters.drained_s >= 0)


async def until(service: MetastoreService, holds: Callable[[Status], bool]) -> Status:
    async with asyncio.timeout(100):
        while not holds(status := await service.status()):
            await asyncio.sleep(0.02)
        return status


def waiting(lake: WholeLake) -> list[str]:
    return [info.key for info in lake.store.list(keys.DEAD_LETTERS)]


def test_a_letter_is_seen_before_during_and_after_its_delivery(any_lake: WholeLake) -> None:
    lake = any_lake

    async def test() -> None:
        async with (
            lake.running() as service,
            lake.engine(service) as ask,
            lake.engine(service, letters=False) as blind,
        ):
            await wait_elected(service)
            await lake.push(service, [A])
            meta = await lake.write(service, [B])
            await lake.post_letter(service, meta)
            await ask.sees([A, B])
            await blind.sees([A])  # the setting is off: nothing is listed
            await letters_of(service).drain()
            assert await asyncio.to_thread(waiting, lake) == []
            await ask.sees([A, B])
            await blind.sees([A, B])
            await lake.compact_all(service)
            await ask.sees([A, B])

    asyncio.run(test())


def test_a_new_leader_delivers_at_once_what_was_left_while_there_was_none(lake: WholeLake) -> None:
    async def test() -> None:
        async with lake.running() as service:
            metas = [await lake.write(service, [each], shard=n) for n, each in enumerate([A, B], 1)]
            incarnation = (await service.now()).incarnation
        for meta in metas:  # nobody leads
            key = keys.dead_letter(incarnation=incarnation, block=meta.id)
            lake.store.create(key, dead_letter.encode(meta))
        async with lake.running() as service, lake.engine(service, letters=False) as ask:
            status = await until(service, lambda status: status.letters.delivered == 2)
            assert (status.letters.waiting, status.letters.held) == (0, 0)
            assert waiting(lake) == []
            await ask.sees([A, B])

    asyncio.run(test())


# ── races: the letter is delivered while somebody asks ─────────────────────────────────────────


class Meddling(LocalPort):
    """A metastore that does something just before it gives a view, or its time."""

    def __init__(self, service: MetastoreService) -> None:
        self._service = service
        self.before_view: Callable[[], Awaitable[Any]] | None = None
        self.after_view: Callable[[], Awaitable[Any]] | None = None
        self.asked: list[ViewRequest] = []

    async def now(self) -> Now:
        return await self._service.now()

    async def view(self, request: ViewRequest) -> IndexView:
        self.asked.append(request)
        if self.before_view:
            await self.before_view()
        view = await self._service.view(request)
        if self.after_view:
            await self.after_view()
        return view


@pytest.mark.parametrize("when", ["before_view", "after_view"])
@pytest.mark.parametrize("merged", [False, True], ids=["delivered", "delivered_and_merged"])
def test_a_letter_that_is_delivered_while_one_asks_is_seen_once(
    lake: WholeLake, when: str, merged: bool
) -> None:
    async def test() -> None:
        async with lake.running() as service:
            await wait_elected(service)
            meddling = Meddling(service)

            async def deliver() -> None:
                await letters_of(service).drain()
                if merged:
                    await lake.compact_all(service)

            async with lake.engine(meddling) as ask:
                await lake.push(service, [A])
                await lake.post_letter(service, await lake.write(service, [B], shard=2))
                setattr(meddling, when, deliver)
                assert await ask.values() == {"a": 1, "b": 20}
                assert meddling.asked[0].letters
                assert waiting(lake) == []
                setattr(meddling, when, None)
                await ask.sees([A, B])

    asyncio.run(test())


def test_only_letters_that_matter_are_asked_about(lake: WholeLake) -> None:
    async def test() -> None:
        async with lake.running() as service:
            await wait_elected(service)
            meddling = Meddling(service)
            async with lake.engine(meddling) as ask:
                other = profile("x", 5, tenant="globex")
                await lake.post_letter(service, await lake.write(service, [other]))
                mine = await lake.write(service, [A])
                await lake.post_letter(service, mine)
                await ask.sees([A])
                assert {request.letters for request in meddling.asked} == {(mine.id,)}

    asyncio.run(test())


# ── a letter that stays while its block goes all the way ───────────────────────────────────────


async def registered_and_posted(lake: WholeLake, service: MetastoreService) -> BlockMeta:
    """The index took it, and its answer was lost; then the leader looks at no letters for long."""
    meta = await lake.write(service, [A])
    await lake.post_letter(service, meta)
    await lake.announce(service, meta)
    return meta


def test_a_letter_whose_block_was_merged_and_deleted_neither_doubles_nor_breaks_anything(
    lake: WholeLake,
) -> None:
    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            await wait_elected(service)
            meta = await registered_and_posted(lake, service)
            await lake.push(service, [B])
            await lake.compact_all(service)
            await ask.sees([A, B])
            lake.clock.advance(120 * SECOND_NS)  # pins and delays have passed
            await until(service, lambda status: status.retired == 0)
            segment = meta.files[0].locations[0].key
            assert segment not in {info.key for info in lake.store.list("segments/")}
            assert len(waiting(lake)) == 1
            await ask.sees([A, B])
            await letters_of(service).drain()
            assert waiting(lake) == []
            assert (await service.letters()).status.held == 0
            await ask.sees([A, B])

    asyncio.run(test())


def test_a_letter_does_not_bring_back_what_retention_took(lake: WholeLake) -> None:
    """Neither before the block is forgotten, nor after, nor when the floor has passed it."""

    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            await wait_elected(service)
            await registered_and_posted(lake, service)
            lake.clock.advance(3 * DAY_NS)
            await until(service, lambda status: status.profiles_expired == 1)
            await ask.sees([])
            lake.clock.advance(120 * SECOND_NS)
            await until(service, lambda status: status.retired == 0)
            await ask.sees([])
            # the floor waits for the letter: no look has been complete since it was written
            for _ in range(3):
                lake.clock.advance(3600 * SECOND_NS)
                await lake.announce(service, await lake.write(service, [C]))
            assert service.follower is not None
            state = service.follower.state
            assert state.registration_floor < 3 * DAY_NS
            assert state.remembered
            added = (await service.status()).profiles_added
            await letters_of(service).drain()
            assert waiting(lake) == []
            assert (await service.status()).profiles_added == added
            lake.clock.advance(SECOND_NS)
            await until(service, lambda _: not state.remembered)  # now the floor may go
            assert state.registration_floor > 3 * DAY_NS

    asyncio.run(test())


def test_below_the_floor_a_letter_adds_nothing_and_is_held(lake: WholeLake) -> None:
    """A writer that slept for hours and then left its letter: it has acknowledged nothing."""

    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            await wait_elected(service)
            late = await lake.write(service, [A])
            retired = await lake.push(service, [B])
            await lake.compact_all(service)
            lake.clock.advance(3600 * SECOND_NS)
            await until(service, lambda status: status.retired == 0)
            assert retired.id not in {meta.id for meta in await service.blocks()}
            await letters_of(service).drain()
            lake.clock.advance(SECOND_NS)
            await until(service, lambda status: status.state_items["remembered"] == 0)
            await lake.post_letter(service, late)
            await ask.sees([B])
            await letters_of(service).drain()
            found = await service.letters()
            assert [(one.name, one.standing) for one in found.letters] == [(late.id, "held")]
            assert "older than the registration floor" in found.letters[0].cause
            await ask.sees([B])
            # the operator decides that it shall count: then it does, once
            done = await service.retry_letter(late.id)
            assert done.rewritten
            await ask.sees([A, B])
            assert waiting(lake) == []
            await lake.compact_all(service)
            await ask.sees([A, B])

    asyncio.run(test())


# ── what is broken breaks nothing ──────────────────────────────────────────────────────────────


def test_broken_letters_break_no_question_and_are_counted_once(any_lake: WholeLake) -> None:
    lake = any_lake

    async def test() -> None:
        registry = CollectorRegistry()
        async with (
            lake.running() as service,
            lake.engine(service, registry=registry) as ask,
        ):
            await wait_elected(service)
            incarnation = (await service.now()).incarnation
            await lake.push(service, [A])
            await lake.post_letter(service, await lake.write(service, [B]))
            lost = await lake.write(service, [C])
            await lake.post_letter(service, lost)
            lake.store.delete(lost.files[0].locations[0].key)
            for name in ("f" * 32 + ".msgpack", "notes.txt"):
                lake.store.create(f"{keys.dead_letters(incarnation)}{name}", b"junk")

            def counted(name: str) -> float | None:
                return registry.get_sample_value(f"maar_query_letters_{name}_total")

            for _ in range(2):
                assert await ask.values() == {"a": 1, "b": 20}
                assert counted("unreadable") == 3
            assert counted("read") == 2
            await letters_of(service).drain()
            await ask.sees([A, B])
            found = await service.letters()
            assert [one.standing for one in found.letters] == ["held"] * 3
            assert (await service.status()).letters.held == 3

    asyncio.run(test())


def test_too_many_letters_are_an_honest_refusal(lake: WholeLake) -> None:
    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            await wait_elected(service)
            assert ask.engine.letters is not None
            ask.engine.letters.letters_max = 3
            for n in range(4):
                await lake.post_letter(service, await lake.write(service, [profile(f"f{n}", 1)]))
            with pytest.raises(Overloaded, match="wait to be added to the index"):
                await ask.values()
            await letters_of(service).drain()
            assert len(await ask.values()) == 4

    asyncio.run(test())


def test_over_the_wire_letters_are_seen_listed_and_retried(lake: WholeLake, tmp_path: Path) -> None:
    async def test() -> None:
        async with lake.running() as service:
            await wait_elected(service)
            registry = CollectorRegistry()
            address = f"unix:{tmp_path}/metastore.sock"
            server = await serve_metastore(address, service, RoleStatus(registry, service.ready))
            client = MetastoreClient(address)
            try:
                async with lake.engine(client) as ask:
                    await lake.post_letter(service, await lake.write(service, [A]))
                    lost = await lake.write(service, [B])
                    body = lake.store.read(key := lost.files[0].locations[0].key)
                    lake.store.delete(key)
                    await lake.post_letter(service, lost)
                    await ask.sees([A])
                    await letters_of(service).drain()
                    found = await client.call(ListLetters(limit=5))
                    assert found.status == (await client.call(GetStatus())).letters
                    (letter,) = found.letters
                    assert (letter.name, letter.standing, letter.meta) == (lost.id, "held", lost)
                    assert await client.call(GetLetter(lost.id)) == letter
                    with pytest.raises(Rejected, match="is missing from the store"):
                        await client.call(RetryLetter(lost.id))
                    with pytest.raises(NotFound):
                        await client.call(GetLetter("nobody"))
                    lake.store.create(key, body)
                    assert await client.call(RetryLetter(lost.id)) == LetterRetried(
                        lost.id, lost.id, False
                    )
                    await ask.sees([A, B])
            finally:
                await client.close()
                await server.stop()

    asyncio.run(test())


def test_what_is_recovered_tells_placement_nothing(lake: WholeLake) -> None:
    """It was sent long before, perhaps: rates that it would show are not those of now."""

    async def test() -> None:
        async with lake.running() as service:
            await wait_elected(service)
            heard: list[BlockMeta] = []
            placement = service.placement
            plain = placement.hear

            def hear(blocks: Iterable[BlockMeta], effects: Any, now: Any) -> None:
                given = list(blocks)
                heard.extend(given)
                plain(given, effects, now)

            placement.hear = hear  # type: ignore[method-assign]
            await lake.post_letter(service, await lake.write(service, [A]))
            await letters_of(service).drain()
            assert (await service.status()).profiles_added == 1
            pushed = await lake.push(service, [B])
            assert heard == [pushed]

    asyncio.run(test())


def test_letters_are_read_once_and_forgotten_with_their_objects(lake: WholeLake) -> None:
    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            await wait_elected(service)
            await lake.post_letter(service, await lake.write(service, [A]))
            reads: list[str] = []
            plain = lake.store.read

            def counted(key: str) -> bytes:
                reads.append(key)
                return plain(key)

            lake.store.read = counted  # type: ignore[method-assign]
            for _ in range(3):
                await ask.values()
            assert len([key for key in reads if key.startswith(keys.DEAD_LETTERS)]) == 1
            await letters_of(service).drain()
            await ask.values()
            assert ask.engine.letters is not None
            assert ask.engine.letters.remembered == 0

    asyncio.run(test())
