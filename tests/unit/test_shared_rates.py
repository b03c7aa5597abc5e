"""Distributors of one host share a tenant's rate: their sum never exceeds it, one alone has it."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maar.distributor.settings import Rate
from maar.distributor.shared_rates import KeptRates, LeasedRates, spare_bytes
from maar.model.errors import Overloaded, Unreachable
from maar.model.ids import TenantId
from maar.model.time import SECOND_NS
from maar.ports.calls import Call
from maar.ports.writer.rates import RateKeeper
from support.clock.fake_clock import FakeClock
from support.clock.virtual_time import run_virtually

ACME, OTHER = TenantId("acme"), TenantId("other")
RATE = Rate(rate_bytes=10_000, burst_bytes=40_000)
R = TypeVar("R")


async def passed(rates: LeasedRates, size: int, *, tenant: TenantId = ACME) -> bool:
    try:
        await rates.take(tenant, RATE, size)
    except Overloaded:
        return False
    return True


class SlowKeeper:
    """A keeper in another process: it counts when the question arrives and answers later."""

    def __init__(self, keeper: KeptRates) -> None:
        self._keeper = keeper
        self.asked = 0
        self.away = False

    async def call(self, request: Call[RateKeeper, R], /) -> R:
        self.asked += 1
        await asyncio.sleep(0.001)
        if self.away:
            raise Unreachable("the segment writer is starting")
        try:
            return await request.answer(self._keeper)
        finally:
            await asyncio.sleep(0.001)


@given(
    seed=st.integers(0, 10**6),
    sharers=st.integers(2, 4),
    sizes=st.sampled_from([(1, 300), (1, 5_000), (2_000, 30_000)]),
)
def test_in_no_time_do_all_together_take_more_than_one_bucket_allows(
    seed: int, sharers: int, sizes: tuple[int, int]
) -> None:
    random, clock = Random(seed), FakeClock(10**15)
    keeper = KeptRates(clock)
    fronts = [LeasedRates(keeper, sharers=sharers) for _ in range(sharers)]
    taken: list[tuple[int, int]] = []

    async def story() -> None:
        for _ in range(300):
            clock.advance(random.choice((0, 0, 10**7, 10**8, 2 * SECOND_NS)))
            size = random.randint(*sizes)
            if await passed(random.choice(fronts), size):
                taken.append((clock.monotonic, size))

    asyncio.run(story())
    assert taken
    for first, (began, _) in enumerate(taken):
        total = 0
        for when, size in taken[first:]:
            total += size
            allowed = RATE.room_bytes + RATE.rate_bytes * (when - began) / SECOND_NS
            assert total <= allowed + 1, "within a window that begins with a push"


@pytest.mark.parametrize("sharers", [2, 8])
def test_a_tenant_with_all_its_connections_at_one_has_nearly_all_of_its_rate(sharers: int) -> None:
    clock = FakeClock(10**15)
    keeper = KeptRates(clock)
    one, *others = (LeasedRates(keeper, sharers=sharers) for _ in range(sharers))
    seconds, size = 100, 500

    async def story() -> int:
        for other in others:  # each has been pushed to once, and has something left over
            assert await passed(other, 1)
        total = 0
        for _ in range(seconds * 100):
            clock.advance(SECOND_NS // 100)
            while await passed(one, size):
                total += size
        return total

    allowed = RATE.room_bytes + RATE.rate_bytes * seconds
    assert asyncio.run(story()) > 0.98 * allowed


def test_pushes_at_once_ask_for_themselves_and_only_one_of_them_for_more() -> None:
    clock = FakeClock(10**15)
    slow = SlowKeeper(KeptRates(clock))
    one = LeasedRates(slow, sharers=2)

    async def story() -> tuple[int, int]:
        at_once = sum(await asyncio.gather(*(passed(one, 2_000) for _ in range(15))))
        left_over = 0
        slow.away = True
        while left_over < 10**6:
            try:
                await one.take(ACME, RATE, 1)
            except Unreachable:
                break
            left_over += 1
        return at_once, left_over

    at_once, left_over = run_virtually(story())
    assert left_over <= spare_bytes(RATE, 2), "however many pushes asked at the same time"
    assert at_once * 2_000 + left_over <= RATE.room_bytes


def test_many_small_pushes_ask_the_keeper_few_times() -> None:
    slow = SlowKeeper(KeptRates(FakeClock(10**15)))
    one = LeasedRates(slow, sharers=2)

    async def story() -> None:
        for _ in range(300):
            assert await passed(one, 100)

    run_virtually(story())
    assert slow.asked < 40


def test_without_a_rate_nobody_is_asked() -> None:
    slow = SlowKeeper(KeptRates(FakeClock()))
    one = LeasedRates(slow, sharers=2)

    async def story() -> None:
        await one.take(ACME, Rate(), 1 << 40)
        await one.owe(ACME, Rate(), 1 << 40)

    run_virtually(story())
    assert slow.asked == 0


def test_what_shows_after_a_push_was_let_in_is_owed_by_all() -> None:
    keeper = KeptRates(FakeClock(10**15))
    one, other = LeasedRates(keeper, sharers=2), LeasedRates(keeper, sharers=2)

    async def story() -> None:
        assert await passed(one, 10)
        await one.owe(ACME, RATE, 100_000)
        assert not await passed(other, 10)
        assert await passed(other, 10, tenant=OTHER)

    asyncio.run(story())


def test_a_refused_push_loses_nothing_of_what_is_left_over() -> None:
    keeper = KeptRates(FakeClock(10**15))
    one = LeasedRates(keeper, sharers=2)
    spare = spare_bytes(RATE, 2)

    async def story() -> None:
        assert await passed(one, 10)
        assert not await passed(one, RATE.room_bytes)
        assert await passed(one, spare), "without a question"
        assert not await passed(one, RATE.room_bytes)

    asyncio.run(story())


def test_leases_are_forgotten_when_there_are_too_many() -> None:
    keeper = KeptRates(FakeClock(10**15))
    slow = SlowKeeper(keeper)
    one = LeasedRates(slow, sharers=2, leases_max=10)

    async def story() -> None:
        for number in range(11):
            await one.take(TenantId(f"tenant-{number}"), RATE, 10)
        asked = slow.asked
        await one.take(TenantId("tenant-0"), RATE, 10)
        assert slow.asked == asked + 1

    run_virtually(story())
