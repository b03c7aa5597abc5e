"""Nobody is acknowledged before the segment is in the store and in the index."""

from __future__ import annotations

import asyncio

import pytest

from maar.block.read.reread import reread
from maar.model.errors import (
    Draining,
    InvalidInput,
    MaarError,
    OutcomeUnknown,
    Overloaded,
    Rejected,
    StoreFull,
    Unavailable,
)
from maar.model.ids import HOME, Shard, block_time_ns
from maar.segment.pace import Arrivals
from maar.segment.settings import SegmentSettings
from support.clock.fake_clock import FakeClock
from support.clock.virtual_time import until
from support.http.pushed import FailingStore, run
from support.segment.writer_in_memory import ONE, SlowStore, World, in_world, raw_profile


def test_an_acknowledged_profile_is_in_the_store_and_in_the_index() -> None:
    async def story(world: World) -> None:
        await world.service.push(ONE, (raw_profile(1),))
        assert world.stored_profiles() == [raw_profile(1)]

    world = in_world(story)
    (block,) = world.metastore.index.values()
    assert (block.shard, block.level, block.created_by) == (1, 0, "here")
    assert block.zone == HOME
    found = reread(world.store.objects[block.files[0].locations[0].key])
    assert found.zone == HOME, "who finds the segment in the store must know it too"
    assert block.files[0].locations[0].key.startswith("segments/v1/shard=1/")
    assert world.value("profiles_total") == 1


def test_pushes_of_one_interval_share_a_segment_and_shards_do_not() -> None:
    async def story(world: World) -> None:
        await asyncio.gather(
            *(world.service.push(ONE, (raw_profile(n),)) for n in range(10)),
            world.service.push(Shard(2), (raw_profile(10),)),
        )

    settings = SegmentSettings(flush_interval_ms=200, flush_interval_max_ms=200)
    world = in_world(story, settings)
    assert sorted(block.profiles for block in world.metastore.index.values()) == [1, 10]


def test_segment_ids_carry_the_logs_time() -> None:
    async def story(world: World) -> None:
        world.metastore.lease_time += 10**15  # type: ignore[assignment]
        await world.service.push(ONE, (raw_profile(),))

    (block,) = in_world(story).metastore.index.values()
    assert block_time_ns(block.id) < 10**12, "it was read at the start and measured from there"


def test_a_full_segment_does_not_wait_for_the_interval() -> None:
    settings = SegmentSettings(flush_interval_ms=60_000, segment_bytes_max=10_000)

    async def story(world: World) -> None:
        await asyncio.wait_for(world.service.push(ONE, (raw_profile(size=10_000),)), 5)

    in_world(story, settings)


def test_a_push_larger_than_a_segment_waits_for_all_of_its_segments() -> None:
    async def story(world: World) -> None:
        await world.service.push(ONE, tuple(raw_profile(n, size=6_000) for n in range(5)))
        assert len(world.stored_profiles()) == 5

    settings = SegmentSettings(
        flush_interval_ms=5, flush_interval_max_ms=5, segment_bytes_max=10_000
    )
    assert len(in_world(story, settings).metastore.index) == 3


def test_beyond_the_memory_bound_pushes_are_refused_and_the_rest_goes_on() -> None:
    settings = SegmentSettings(
        flush_interval_ms=5, flush_interval_max_ms=5, buffered_bytes_max=50_000
    )

    async def story(world: World) -> None:
        first = asyncio.create_task(world.service.push(ONE, (raw_profile(1, size=40_000),)))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await world.service.push(ONE, (raw_profile(2, size=40_000),))
        await first
        await world.service.push(ONE, (raw_profile(2, size=40_000),))

    assert [one.id[-1] for one in in_world(story, settings).stored_profiles()] == [1, 2]


@pytest.mark.parametrize("failure", [Unavailable("away"), OutcomeUnknown("who knows")])
def test_a_store_that_falters_is_asked_again(failure: MaarError) -> None:
    async def story(world: World) -> None:
        world.store.failures = [failure]
        await world.service.push(ONE, (raw_profile(),))

    world = in_world(story)
    assert len(world.store.objects) == 1
    assert world.value("retries_total") == 1


def test_a_create_whose_outcome_was_unknown_and_that_happened_is_not_repeated() -> None:
    class Forgetful(FailingStore):
        """Stores the first object and does not say so."""

        def create(self, key: str, body: bytes) -> None:
            first = not self.objects
            super().create(key, body)
            if first:
                raise OutcomeUnknown("the answer was lost")

    async def story(world: World) -> None:
        await world.service.push(ONE, (raw_profile(),))

    world = in_world(story, store=Forgetful())
    assert len(world.store.objects) == 1
    assert world.stored_profiles() == [raw_profile()]


def test_a_key_that_somebody_else_took_is_never_acknowledged() -> None:
    class Squatted(FailingStore):
        def create(self, key: str, body: bytes) -> None:
            self.objects.setdefault(key, b"not ours")
            super().create(key, body)

    async def story(world: World) -> None:
        with pytest.raises(Unavailable):
            await world.service.push(ONE, (raw_profile(),))

    assert in_world(story, store=Squatted()).metastore.index == {}


def test_a_metastore_that_falters_is_asked_again() -> None:
    async def story(world: World) -> None:
        world.metastore.failures = [Unavailable("restarting")]
        await world.service.push(ONE, (raw_profile(),))

    assert len(in_world(story).stored_profiles()) == 1


def test_a_full_store_refuses_at_once_and_recovers() -> None:
    async def story(world: World) -> None:
        world.store.failures = [StoreFull("no space left")]
        with pytest.raises(StoreFull):
            await world.service.push(ONE, (raw_profile(1),))
        assert world.metastore.index == {}
        await world.service.push(ONE, (raw_profile(1),))

    world = in_world(story)
    assert len(world.stored_profiles()) == 1
    assert world.value("failures_total", cause="storefull") == 1


def test_all_waiters_of_a_failed_segment_hear_of_it() -> None:
    async def story(world: World) -> None:
        world.store.failures = [StoreFull("no space left")]
        answers = await asyncio.gather(
            *(world.service.push(ONE, (raw_profile(n),)) for n in range(5)), return_exceptions=True
        )
        assert [type(answer) for answer in answers] == [StoreFull] * 5

    in_world(story)


def test_a_segment_that_the_index_refuses_is_never_acknowledged() -> None:
    async def story(world: World) -> None:
        world.metastore.refusal = "it is at or below the floor"
        with pytest.raises(Unavailable, match="below the floor"):
            await world.service.push(ONE, (raw_profile(),))

    in_world(story)


def test_an_error_that_nobody_foresaw_is_still_an_answer() -> None:
    async def story(world: World) -> None:
        world.store.failures = [Rejected("odd")]
        with pytest.raises(Unavailable, match="odd"):
            await world.service.push(ONE, (raw_profile(),))

    in_world(story)


def test_past_the_deadline_the_answer_is_no_and_names_the_trouble() -> None:
    async def story(world: World) -> None:
        world.metastore.failures = [Unavailable("no leader")] * 100
        with pytest.raises(Unavailable, match="no leader"):
            await world.service.push(ONE, (raw_profile(),))
        world.metastore.failures = []

    in_world(
        story, SegmentSettings(flush_interval_ms=5, flush_interval_max_ms=5, ack_deadline_ms=120)
    )


def test_a_slow_write_does_not_hold_up_the_next() -> None:
    store = SlowStore(lambda number: number == 1)

    async def story(world: World) -> None:
        slow = asyncio.create_task(world.service.push(ONE, (raw_profile(1),)))
        await until(lambda: store.entered > 0)
        await asyncio.wait_for(world.service.push(ONE, (raw_profile(2),)), 2)
        assert not slow.done()
        store.gate.set()
        await slow

    assert len(in_world(story, store=store).metastore.index) == 2


def test_a_client_that_hangs_up_takes_nobody_along() -> None:
    async def story(world: World) -> None:
        gone = asyncio.create_task(world.service.push(ONE, (raw_profile(1),)))
        stays = asyncio.create_task(world.service.push(ONE, (raw_profile(2),)))
        await asyncio.sleep(0)
        gone.cancel()
        await stays

    assert len(in_world(story).stored_profiles()) == 2


def test_stopping_writes_what_is_buffered_and_refuses_what_is_new() -> None:
    async def told() -> None:
        world = World(SegmentSettings(flush_interval_ms=60_000))
        waiting = asyncio.create_task(world.service.push(ONE, (raw_profile(1),)))
        await asyncio.sleep(0)
        stopping = asyncio.create_task(world.service.stop())
        await asyncio.sleep(0)
        with pytest.raises(Draining, match="shutting down"):
            await world.service.push(ONE, (raw_profile(2),))
        await asyncio.gather(waiting, stopping)
        assert world.stored_profiles() == [raw_profile(1)]

    run(told())


def test_starting_without_a_metastore_only_warns() -> None:
    async def told() -> None:
        world = World()
        world.metastore.failures = [Unavailable("not yet")]
        await world.service.start()
        await world.service.push(ONE, (raw_profile(),))
        await world.service.stop()
        assert len(world.stored_profiles()) == 1

    run(told())


def test_shards_count_from_one() -> None:
    async def story(world: World) -> None:
        with pytest.raises(InvalidInput, match="shard 0"):
            await world.service.push(Shard(0), (raw_profile(),))

    in_world(story)


def test_a_refused_writer_takes_nothing_new_and_finishes_what_it_has() -> None:
    async def told() -> None:
        world = World(SegmentSettings(flush_interval_ms=50))
        waiting = asyncio.create_task(world.service.push(ONE, (raw_profile(1),)))
        await asyncio.sleep(0)
        world.service.refuse("another process has the name")
        with pytest.raises(Draining, match="another process"):
            await world.service.push(ONE, (raw_profile(2),))
        await waiting
        await world.service.stop()
        assert world.stored_profiles() == [raw_profile(1)]
        assert world.value("refusals_total", reason="draining") == 1

    run(told())


def test_pushes_that_trickle_in_share_segments() -> None:
    settings = SegmentSettings(flush_interval_ms=20, flush_interval_max_ms=1_000)

    async def story(world: World) -> None:
        pushes = []
        for number in range(24):
            pushes.append(asyncio.create_task(world.service.push(ONE, (raw_profile(number),))))
            await asyncio.sleep(0.025)  # each would have a segment of its own
        await world.service.stop()
        await asyncio.gather(*pushes)

    world = in_world(story, settings)
    assert len(world.stored_profiles()) == 24
    assert len(world.metastore.index) < 16


def test_the_interval_is_told() -> None:
    async def story(world: World) -> None:
        await world.service.push(ONE, (raw_profile(),))
        assert 0.02 <= world.value("flush_interval_seconds") < 10

    settings = SegmentSettings(flush_interval_ms=20, flush_interval_max_ms=20_000)
    assert in_world(story, settings).value("cuts_total", cause="interval") == 1


def test_a_busy_shard_is_cut_at_the_lower_bound() -> None:
    settings = SegmentSettings(
        flush_interval_ms=20, flush_interval_max_ms=20_000, flush_bytes=5_000
    )

    async def story(world: World) -> None:
        for number in range(10):
            async with asyncio.timeout(5):
                await world.service.push(ONE, (raw_profile(number, size=6_000),))

    in_world(story, settings)


def test_a_segment_that_becomes_worth_its_put_does_not_wait_for_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Arrivals, "on_open", lambda *_: True)  # it would wait for a minute
    settings = SegmentSettings(
        flush_interval_ms=200, flush_interval_max_ms=60_000, flush_bytes=5_000
    )

    async def story(world: World) -> None:
        small = asyncio.create_task(world.service.push(ONE, (raw_profile(1),)))
        await asyncio.sleep(0)
        async with asyncio.timeout(20):
            await asyncio.gather(small, world.service.push(ONE, (raw_profile(2, size=5_000),)))

    assert len(in_world(story, settings).metastore.index) == 1


def test_after_a_failure_the_logs_time_is_asked_again() -> None:
    async def story(world: World) -> None:
        world.metastore.lease_time += 10**15  # type: ignore[assignment]
        world.store.failures = [StoreFull("no space left")]
        with pytest.raises(StoreFull):
            await world.service.push(ONE, (raw_profile(1),))
        await world.service.push(ONE, (raw_profile(1),))

    (block,) = in_world(story).metastore.index.values()
    assert block_time_ns(block.id) > 10**15


def test_what_is_remembered_of_shards_has_a_bound() -> None:
    async def story(world: World) -> None:
        for number in range(20):
            await world.service.push(Shard(number + 1), (raw_profile(number),))
            await asyncio.sleep(3600)  # what is silent is forgotten first
        assert world.service.shards_known <= 5

    assert len(in_world(story, shards_remembered=4).stored_profiles()) == 20


def test_a_segment_that_is_late_to_be_cut_is_cut_though_its_shard_seems_silent() -> None:
    """The process stood still, and pushes to other shards came before the timer had its turn."""
    settings, clock = SegmentSettings(), FakeClock()

    async def story(world: World) -> None:
        late = asyncio.create_task(world.service.push(ONE, (raw_profile(1),)))
        await asyncio.sleep(0)
        clock.advance(settings.flush_interval_ns * 101 // 100)
        async with asyncio.timeout(5):
            await asyncio.gather(late, world.service.push(Shard(2), (raw_profile(2),)))

    world = in_world(story, settings, clock=clock, shards_remembered=1)
    assert len(world.stored_profiles()) == 2
