"""A store that hangs, a metastore that is away, a process that was paused: refused, never lost."""

from __future__ import annotations

import asyncio

import pytest

from maar.block.format import dead_letter
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import Overloaded, StoreFull, Unavailable
from maar.model.ids import Incarnation, Shard, block_time_ns
from maar.ports.metastore.log_time import Now
from maar.ports.writer.registrar import AddReply
from maar.segment.memory import held_bytes
from maar.segment.settings import SegmentSettings
from support.clock.virtual_time import LoopClock, until
from support.http.memory_metastore import MemoryMetastore
from support.http.pushed import FailingStore, run
from support.segment.writer_in_memory import ONE, SlowStore, World, in_world, raw_profile

LETTERS = keys.dead_letters(Incarnation("1234abcd"))
PATIENT = SegmentSettings(flush_interval_ms=5, flush_interval_max_ms=5)


class Shifted:
    """The loop's clocks, put forward at will, as a pause of the process would."""

    def __init__(self) -> None:
        self._clock = LoopClock()
        self.monotonic_shift_ns = 0
        self.wall_shift_ns = 0

    def monotonic_ns(self) -> int:
        return self._clock.monotonic_ns() + self.monotonic_shift_ns

    def wall_ns(self) -> int:
        return self._clock.wall_ns() + self.wall_shift_ns


class Away(MemoryMetastore):
    """A metastore that hangs, or refuses, or says nothing but lets things happen."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = False
        self.asked = 0

    async def now(self) -> Now:
        await self._hang()
        return await super().now()

    async def add_blocks(self, blocks: tuple[BlockMeta, ...]) -> AddReply:
        self.asked += 1
        await self._hang()
        return await super().add_blocks(blocks)

    async def _hang(self) -> None:
        if self.hangs:
            await asyncio.sleep(60)


# ── the store ──────────────────────────────────────────────────────────────────────────────────


def test_a_store_that_hangs_fills_no_memory_and_refuses_quickly() -> None:
    one = held_bytes(raw_profile(size=10_000))
    settings = SegmentSettings(
        flush_interval_ms=1,
        flush_interval_max_ms=1,
        buffered_bytes_max=20 * one,
        writes_in_flight_max=2,
        hedge_after_ms=1,
        ack_deadline_ms=400,
    )
    store = SlowStore(lambda _: True)

    async def story(world: World) -> None:
        outcomes: list[str] = []

        async def push(number: int) -> None:
            try:
                await world.service.push(Shard(1 + number % 4), (raw_profile(number, size=10_000),))
            except Overloaded:
                outcomes.append("429")
            except Unavailable:
                outcomes.append("503")

        most = 0.0
        pushes = []
        for number in range(200):
            pushes.append(asyncio.create_task(push(number)))
            await asyncio.sleep(0.002)
            most = max(most, world.value("buffered_bytes"))
        await asyncio.gather(*pushes)
        assert most <= 20 * one
        assert outcomes.count("503") <= 20
        assert outcomes.count("429") >= 180
        assert world.value("buffered_bytes") > 0, "threads that hang hold what they were given"

        with pytest.raises(Overloaded, match="hangs"):
            world.service.push(ONE, (raw_profile(),)).send(None)  # at once: it never waits
        assert world.value("refusals_total", reason="store") > 0
        store.gate.set()
        await until(lambda: world.value("buffered_bytes") == 0)
        await world.service.push(ONE, (raw_profile(1_000),))

    assert raw_profile(1_000) in in_world(story, settings, store).stored_profiles()


def test_a_tenant_that_floods_is_refused_before_the_others() -> None:
    one = held_bytes(raw_profile(size=10_000, tenant="loud"))
    settings = SegmentSettings(
        flush_interval_ms=60_000, flush_interval_max_ms=60_000, buffered_bytes_max=20 * one
    )

    async def told() -> None:
        world = World(settings)
        pushes = [
            asyncio.create_task(
                world.service.push(ONE, (raw_profile(number, size=10_000, tenant=tenant),))
            )
            for number, tenant in enumerate(["quiet"] + ["loud"] * 15 + ["quiet"] * 3)
        ]
        await until(lambda: world.value("refusals_total", reason="fair_share") == 5)
        assert world.value("tenants_held") == 2
        assert world.value("buffered_profiles") == 14
        await world.service.stop()
        outcomes = await asyncio.gather(*pushes, return_exceptions=True)
        refused = [number for number, outcome in enumerate(outcomes) if outcome is not None]
        assert refused == list(range(11, 16))
        assert all(isinstance(outcomes[number], Overloaded) for number in refused)

    run(told())


def test_profiles_in_memory_have_a_bound() -> None:
    settings = SegmentSettings(
        flush_interval_ms=60_000, flush_interval_max_ms=60_000, buffered_profiles_max=3
    )

    async def told() -> None:
        world = World(settings)
        waiting = asyncio.create_task(
            world.service.push(ONE, tuple(raw_profile(number) for number in range(3)))
        )
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="3 profiles"):
            await world.service.push(ONE, (raw_profile(9),))
        await world.service.stop()
        await waiting

    run(told())


# ── a pause of the process ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("which", ["monotonic_shift_ns", "wall_shift_ns"])
@pytest.mark.parametrize("letter_after_ms", [None, 50])
def test_after_a_pause_past_the_deadline_nothing_is_acknowledged(
    which: str, letter_after_ms: int | None
) -> None:
    clock = Shifted()

    class Pausing(MemoryMetastore):
        """The process sleeps while the answer is under way."""

        async def add_blocks(self, blocks: tuple[BlockMeta, ...]) -> AddReply:
            setattr(clock, which, 11 * 10**9)
            return await super().add_blocks(blocks)

    async def story(world: World) -> None:
        with pytest.raises(Unavailable, match="not acknowledged within"):
            await world.service.push(ONE, (raw_profile(1),))
        setattr(clock, which, 0)

    world = in_world(
        story, PATIENT, metastore=Pausing(), clock=clock, letter_after_ms=letter_after_ms
    )
    assert world.value("written_total") == 0
    assert len(world.stored_profiles()) == 1, "it is there, and the same push again shows once"


def test_a_dead_letter_written_too_late_is_not_acknowledged() -> None:
    clock, metastore = Shifted(), Away()

    class Pausing(FailingStore):
        def create(self, key: str, body: bytes) -> None:
            if key.startswith(LETTERS):
                clock.wall_shift_ns = 11 * 10**9
            super().create(key, body)

    async def story(world: World) -> None:
        metastore.hangs = True
        with pytest.raises(Unavailable, match="not acknowledged within"):
            await world.service.push(ONE, (raw_profile(1),))

    in_world(story, PATIENT, Pausing(), metastore, clock, letter_after_ms=20)


# ── dead letters ───────────────────────────────────────────────────────────────────────────────


def letters(world: World) -> list[BlockMeta]:
    return [
        dead_letter.decode(body, key=key)
        for key, body in world.store.objects.items()
        if key.startswith(LETTERS)
    ]


def test_without_dead_letters_a_metastore_that_is_away_is_a_refusal() -> None:
    metastore = Away()

    async def story(world: World) -> None:
        metastore.hangs = True
        with pytest.raises(Unavailable):
            await world.service.push(ONE, (raw_profile(1),))
        assert letters(world) == []

    settings = SegmentSettings(flush_interval_ms=5, flush_interval_max_ms=5, ack_deadline_ms=100)
    in_world(story, settings, metastore=metastore)


def test_a_push_is_acknowledged_by_a_letter_that_names_its_segment() -> None:
    metastore = Away()

    async def story(world: World) -> None:
        metastore.hangs = True
        await world.service.push(ONE, (raw_profile(1),))
        (letter,) = letters(world)
        assert letter.files[0].locations[0].key in world.store.objects
        assert (letter.profiles, letter.shard) == (1, ONE)
        assert list(world.store.objects)[-1] == keys.dead_letter(
            incarnation=Incarnation("1234abcd"), block=letter.id
        )
        metastore.hangs = False
        await world.service.push(ONE, (raw_profile(2),))
        assert len(letters(world)) == 1

    world = in_world(story, PATIENT, metastore=metastore, letter_after_ms=30)
    assert world.value("dead_letters_total") == 1
    assert world.value("written_total") == 2
    assert len(world.metastore.index) == 1


def test_a_metastore_that_fails_again_and_again_makes_a_letter_too() -> None:
    async def story(world: World) -> None:
        world.metastore.failures = [Unavailable("no leader")] * 1_000
        await world.service.push(ONE, (raw_profile(1),))
        world.metastore.failures = []
        assert len(letters(world)) == 1

    in_world(story, PATIENT, letter_after_ms=30)


def test_a_refusal_never_becomes_a_letter() -> None:
    async def story(world: World) -> None:
        world.metastore.refusal = "it is at or below the floor"
        with pytest.raises(Unavailable, match="below the floor"):
            await world.service.push(ONE, (raw_profile(1),))
        assert letters(world) == []

    in_world(story, PATIENT, letter_after_ms=30)


def test_a_letter_that_cannot_be_written_is_no_acknowledgement() -> None:
    metastore = Away()

    class NoLetters(FailingStore):
        def create(self, key: str, body: bytes) -> None:
            if key.startswith("dlq/"):
                raise StoreFull("no room")
            super().create(key, body)

    async def story(world: World) -> None:
        metastore.hangs = True
        with pytest.raises(StoreFull):
            await world.service.push(ONE, (raw_profile(1),))

    in_world(story, PATIENT, NoLetters(), metastore, letter_after_ms=30)


def test_while_the_metastore_is_away_segments_are_named_by_our_own_measure_of_its_time() -> None:
    clock, metastore = Shifted(), Away()

    async def story(world: World) -> None:
        metastore.hangs = True
        clock.monotonic_shift_ns = 20 * 60 * 10**9
        await world.service.push(ONE, (raw_profile(1),))
        (letter,) = letters(world)
        assert block_time_ns(letter.id) >= 20 * 60 * 10**9
        assert metastore.asked == 0, "its patience was spent on the time"
        clock.monotonic_shift_ns = 31 * 60 * 10**9
        with pytest.raises(Unavailable, match="not even a dead letter"):
            await world.service.push(ONE, (raw_profile(2),))

    in_world(story, PATIENT, metastore=metastore, clock=clock, letter_after_ms=30)


def test_after_a_suspension_our_own_measure_of_the_logs_time_is_not_trusted() -> None:
    """The monotonic clock stood still, the log went on: a name by it may be below the floor, and
    a letter of that name would be acknowledged and never delivered.
    """
    clock, metastore = Shifted(), Away()

    async def story(world: World) -> None:
        metastore.hangs = True
        clock.wall_shift_ns = 31 * 60 * 10**9
        with pytest.raises(Unavailable, match="not even a dead letter"):
            await world.service.push(ONE, (raw_profile(1),))
        assert letters(world) == []
        metastore.hangs = False
        await world.service.push(ONE, (raw_profile(2),))
        assert len(metastore.index) == 1

    in_world(story, PATIENT, metastore=metastore, clock=clock, letter_after_ms=30)


def test_a_metastore_that_was_never_heard_cannot_be_written_to() -> None:
    async def told() -> None:
        world = World(PATIENT, letter_after_ms=30)
        world.metastore.failures = [Unavailable("not yet")] * 1_000
        with pytest.raises(Unavailable, match="not yet"):
            await world.service.push(ONE, (raw_profile(1),))
        await world.service.stop()
        assert world.store.objects == {}

    run(told())
