"""Pushed twice, seen once: at every level, across levels, shards, writers and dead letters (S9)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from maar.adapters.stores.open import open_store
from maar.adapters.system_clock import SystemClock
from maar.metastore.service import MetastoreService
from maar.model.block import BlockMeta
from maar.model.errors import Unavailable
from maar.model.ids import MAIN_STORE, Shard
from maar.ports.calls import Caller, LocalPort
from maar.ports.stores.object_store import StoreSettings
from maar.ports.writer.registrar import AddReply, BlockRegistrar
from maar.segment.service import SegmentService
from maar.segment.settings import SegmentSettings
from support.lake.query_lake import Known
from support.lake.whole_lake import NOON_NS, WholeLake, letters_of, profile

pytestmark = [pytest.mark.component, pytest.mark.timeout(240)]

Way = Callable[[WholeLake, MetastoreService, list[Known]], Awaitable[None]]


@pytest.fixture
def lake(tmp_path: Path) -> WholeLake:
    return WholeLake(tmp_path, open_store(StoreSettings(MAIN_STORE, (tmp_path / "s").as_uri())))


def pushes(seed: int = 0) -> list[Known]:
    """Some profiles, and twins: of one series and one moment, and different all the same."""
    twins = [
        profile(f"twin{seed}a", 1_000, client_id="a", pod="x"),
        profile(f"twin{seed}b", 2_000, client_id="b", pod="x"),
        profile(f"same{seed}", 4_000, client_id="c", pod="x"),
        profile(f"same{seed}", 4_000, client_id="d", pod="x"),  # to the last byte
    ]
    assert len({each.raw.id for each in twins}) == 4
    assert len({(each.raw.labels, each.raw.time_ns) for each in twins}) == 1
    return [
        *(profile(f"f{seed}-{n}", 10 + n, time_ns=NOON_NS + n, pod=f"p{n % 2}") for n in range(6)),
        *twins,
    ]


# ── the ways in which one push comes twice ─────────────────────────────────────────────────────


async def in_one_segment(lake: WholeLake, service: MetastoreService, sent: list[Known]) -> None:
    """The client's retry came before the flush."""
    await lake.push(service, [*sent, *sent])


async def after_a_lost_reply(lake: WholeLake, service: MetastoreService, sent: list[Known]) -> None:
    """The client never heard that it was stored, and sent it again."""
    await lake.push(service, sent)
    await lake.push(service, sent)


async def by_failover(lake: WholeLake, service: MetastoreService, sent: list[Known]) -> None:
    """The first writer was given up in mid-upload, went on, and announced its segment too."""
    slow = await lake.write(service, sent, writer="writer-1")
    await lake.push(service, sent, writer="writer-2")
    await lake.announce(service, slow)


async def to_another_shard(lake: WholeLake, service: MetastoreService, sent: list[Known]) -> None:
    """Round robin sent the retry elsewhere: no merge will ever meet both."""
    await lake.push(service, sent, shard=1)
    await lake.push(service, sent, shard=2)


async def in_three_shards_by_halves(
    lake: WholeLake, service: MetastoreService, sent: list[Known]
) -> None:
    """Batches are cut differently the second time."""
    await lake.push(service, sent[:5], shard=1)
    await lake.push(service, sent[3:], shard=2)
    await lake.push(service, sent[::2], shard=3)


async def as_a_letter_too(lake: WholeLake, service: MetastoreService, sent: list[Known]) -> None:
    """The index took the segment, but its answer was lost: so there is a letter of it."""
    meta = await lake.write(service, sent)
    await lake.post_letter(service, meta)
    await lake.announce(service, meta)


async def as_a_letter_and_elsewhere(
    lake: WholeLake, service: MetastoreService, sent: list[Known]
) -> None:
    """One writer left a letter when the client had gone to another one, with another shard."""
    meta = await lake.write(service, sent, shard=1, writer="writer-1")
    await lake.post_letter(service, meta)
    await lake.push(service, sent, shard=2, writer="writer-2")


async def as_two_letters(lake: WholeLake, service: MetastoreService, sent: list[Known]) -> None:
    for shard in (1, 2):
        meta = await lake.write(service, sent, shard=shard)
        await lake.post_letter(service, meta)


WAYS: list[Way] = [
    in_one_segment,
    after_a_lost_reply,
    by_failover,
    to_another_shard,
    in_three_shards_by_halves,
    as_a_letter_too,
    as_a_letter_and_elsewhere,
    as_two_letters,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_same_push_twice_is_seen_once_at_every_level(lake: WholeLake, way: Way) -> None:
    sent = pushes()

    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            await letters_of(service).drain()
            await way(lake, service, sent)
            await ask.sees(sent)
            for level in (1, 2, 3):
                # letters that nobody has delivered stay and are seen, beside what was merged
                await lake.compact_all(service)
                await ask.sees(sent)
                if level == 1:
                    await letters_of(service).drain()
                    assert (await service.letters()).letters == ()
                    await ask.sees(sent)
            await lake.compact_all(service)
            assert await lake.levels(service) == {3}
            await ask.sees(sent)

    asyncio.run(test())


@pytest.mark.parametrize("shard", [1, 2], ids=["same_shard", "other_shard"])
@pytest.mark.parametrize("first", [1, 2, 3])
def test_a_retry_that_comes_late_is_seen_once_beside_what_was_merged(
    lake: WholeLake, first: int, shard: int
) -> None:
    """Levels 1 to 3 beside 0, then the copy follows through all of them."""
    sent, others = pushes(), pushes(1)

    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            await lake.push(service, sent)
            for _ in range(first):
                await lake.compact_all(service)
            await lake.push(service, [*sent, *others], shard=shard)
            assert await lake.levels(service) == {0, first}
            await ask.sees([*sent, *others])
            for _ in range(3):
                await lake.compact_all(service)
                await ask.sees([*sent, *others])
            assert await lake.levels(service) == {3}

    asyncio.run(test())


class LosesAnswers(LocalPort):
    """A metastore that does what it is asked, and is not heard: how often, the test says."""

    def __init__(self, service: MetastoreService, *, losing: int) -> None:
        self._service = service
        self._losing = losing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)

    async def add_blocks(self, blocks: tuple[BlockMeta, ...]) -> AddReply:
        reply = await self._service.add_blocks(blocks)
        if self._losing:
            self._losing -= 1
            raise Unavailable("the answer was lost")
        return reply


@pytest.mark.parametrize("losing", [1, 10**6], ids=["heard_at_last", "never_heard"])
def test_real_writers_whose_answers_are_lost_store_a_push_once(
    lake: WholeLake, losing: int
) -> None:
    """The first one registers, hears nothing, and leaves a letter; the retry goes to the second."""
    sent = pushes()

    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            await letters_of(service).drain()
            writers = [
                SegmentService(
                    SegmentSettings(flush_interval_ms=10),
                    lake.store,
                    cast(Caller[BlockRegistrar], metastore),
                    SystemClock(),
                    Random(number),
                    CollectorRegistry(),
                    f"writer-{number}",
                    dead_letter_after_ms=300,
                )
                for number, metastore in enumerate([LosesAnswers(service, losing=losing), service])
            ]
            for shard, writer in enumerate(writers, start=1):
                await writer.start()
                await writer.push(Shard(shard), tuple(each.raw for each in sent))
                await writer.stop()
            assert len((await service.letters()).letters) == (losing > 1)
            assert (await service.status()).profiles_added == 2 * len(sent)
            await ask.sees(sent)
            for _ in range(3):
                await lake.compact_all(service)
                await ask.sees(sent)
            await letters_of(service).drain()
            assert (await service.letters()).letters == ()
            assert (await service.status()).profiles_added == 2 * len(sent)
            await ask.sees(sent)

    asyncio.run(test())


def test_merges_remove_the_copies_that_they_meet_and_keep_twins(lake: WholeLake) -> None:
    sent = pushes()

    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            for _ in range(3):
                await lake.push(service, sent)
            await lake.compact_all(service)
            status = await service.status()
            assert status.duplicates_removed == 2 * len(sent)
            (level,) = status.levels
            assert (level.level, level.profiles) == (1, len(sent))
            await lake.push(service, sent)  # level 1 and level 0 meet at level 2
            await lake.compact_all(service)
            await lake.compact_all(service)
            await lake.compact_all(service)
            await ask.sees(sent)

    asyncio.run(test())


def test_tenants_that_send_the_same_bytes_keep_their_own(lake: WholeLake) -> None:
    """Equal profiles of two tenants are two profiles, whatever shard and level they are in."""
    mine = pushes()
    theirs = [
        profile("f0-0", 10, time_ns=NOON_NS, pod="p0", tenant="globex"),
    ]

    async def test() -> None:
        async with lake.running() as service, lake.engine(service) as ask:
            await lake.push(service, [*mine, *theirs])
            await lake.push(service, [*theirs, *mine], shard=2)
            for _ in range(3):
                await ask.sees(mine)
                assert await ask.values(tenant=theirs[0].raw.tenant) == {"f0-0": 10}
                await lake.compact_all(service)

    asyncio.run(test())
