"""A writer's place in the ring: the metastore may be away; a refusal is the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from prometheus_client import CollectorRegistry

from maar.model.errors import InvalidInput, MaarError, TermLost, Unavailable
from maar.model.ids import HOME, NodeId
from maar.model.ring import Writer, WriterState
from maar.ports.calls import LocalPort
from maar.ports.writer.membership import Beat, BeatReply
from maar.segment.membership import TELL_S_MAX, Membership, wait_s
from support.clock.virtual_time import run_virtually as run
from support.clock.virtual_time import until

JOINING, ACTIVE, LEAVING = WriterState


class Ring(LocalPort):
    """Hears beats. `failures` are raised first; `refusal` is the answer; `hangs`: there is none."""

    def __init__(self) -> None:
        self.heard: list[Beat] = []
        self.failures: list[MaarError] = []
        self.refusal = ""
        self.hangs = False

    async def beat(self, beat: Beat) -> BeatReply:
        if self.hangs:
            await asyncio.sleep(60)
        if self.failures:
            raise self.failures.pop(0)
        self.heard.append(beat)
        return BeatReply(7, self.refusal)

    def states(self) -> list[WriterState]:
        return [beat.writer.state for beat in self.heard]


class Member(Membership):
    def __init__(self, ring: Ring, *, every_s: float = 0.01, leaves: bool = False) -> None:
        self.registry = CollectorRegistry()
        super().__init__(
            ring,
            HOME,
            Writer(NodeId("a"), "a:1", "one", 4, JOINING),
            every_s=every_s,
            leaves=leaves,
            random=Random(1),
            registry=self.registry,
        )

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"maar_segment_{name}", labels) or 0.0


def living(
    story: Callable[[Member, Ring, asyncio.Task[None]], Awaitable[None]],
    *,
    every_s: float = 0.01,
    leaves: bool = False,
) -> None:
    async def told() -> None:
        ring = Ring()
        member = Member(ring, every_s=every_s, leaves=leaves)
        life = asyncio.create_task(member.live())
        try:
            await story(member, ring, life)
        finally:
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)

    run(told())


def test_it_joins_becomes_active_and_beats() -> None:
    async def story(member: Member, ring: Ring, life: asyncio.Task[None]) -> None:
        assert "joining" in member.ready()
        await until(lambda: len(ring.heard) >= 4)
        assert ring.states()[:4] == [JOINING, ACTIVE, ACTIVE, ACTIVE]
        assert member.ready() == ""
        assert member.value("active") == 1
        assert not any(beat.leaves for beat in ring.heard)

    living(story)


def test_a_metastore_that_is_away_only_delays() -> None:
    async def story(member: Member, ring: Ring, life: asyncio.Task[None]) -> None:
        ring.failures = [Unavailable("starting")] * 3
        await until(lambda: member.ready() == "")
        assert ring.states()[:2] == [JOINING, ACTIVE]
        ring.failures = [Unavailable("away"), TermLost("another leads"), MaarError("a fault")]
        before = len(ring.heard)
        await until(lambda: len(ring.heard) > before)
        assert not ring.failures
        assert member.ready() == "", "the ring still knows us"
        assert member.value("beats_total", answer="away") == 6

    living(story)


def test_a_beat_that_hangs_is_tried_again() -> None:
    async def story(member: Member, ring: Ring, life: asyncio.Task[None]) -> None:
        ring.hangs = True
        await until(lambda: member.value("beats_total", answer="away") >= 2)
        ring.hangs = False
        await until(lambda: member.ready() == "")

    living(story)


def test_a_refused_writer_ends_and_says_why() -> None:
    async def story(member: Member, ring: Ring, life: asyncio.Task[None]) -> None:
        await until(lambda: member.ready() == "")
        ring.refusal = "another process has registered as a since"
        with pytest.raises(Unavailable, match="another process has registered"):
            await asyncio.wait_for(life, 5)
        assert "ring.node" in member.ready()
        assert member.value("active") == 0
        before = len(ring.heard)
        assert not await member.drain()
        await member.leave()
        assert len(ring.heard) == before, "the place is another's, who must not be sent away"

    living(story, leaves=True)


def test_a_beat_that_will_never_be_taken_ends_the_joining_only() -> None:
    async def story(member: Member, ring: Ring, life: asyncio.Task[None]) -> None:
        ring.failures = [InvalidInput("64 shards are the most")]
        with pytest.raises(InvalidInput, match="64 shards"):
            await asyncio.wait_for(life, 5)

    living(story)

    async def later(member: Member, ring: Ring, life: asyncio.Task[None]) -> None:
        await until(lambda: member.ready() == "")
        ring.failures = [InvalidInput("what is this?")]
        before = len(ring.heard)
        await until(lambda: len(ring.heard) > before)
        assert not life.done()

    living(later)


def test_draining_is_told_at_once_and_goes_on_to_be_told() -> None:
    async def story(member: Member, ring: Ring, life: asyncio.Task[None]) -> None:
        await until(lambda: member.ready() == "")
        assert await asyncio.wait_for(member.drain(), 1)
        assert ring.states()[-1] is LEAVING
        assert "draining" in member.ready()
        await member.leave()
        assert not any(beat.leaves for beat in ring.heard), "its shards wait for its return"

    living(story, every_s=60)

    async def goes_on(member: Member, ring: Ring, life: asyncio.Task[None]) -> None:
        await until(lambda: member.ready() == "")
        await member.drain()
        before = len(ring.heard)
        await until(lambda: len(ring.heard) >= before + 3)
        assert set(ring.states()[before:]) == {LEAVING}, "else it would be taken for dead"

    living(goes_on)


def test_an_older_beat_is_never_the_last_one_heard() -> None:
    class Slow(Ring):
        async def beat(self, beat: Beat) -> BeatReply:
            if beat.writer.state is ACTIVE:
                await asyncio.sleep(0.05)
            return await super().beat(beat)

    async def told() -> None:
        ring = Slow()
        member = Member(ring, every_s=60)
        life = asyncio.create_task(member.live())
        await until(lambda: ring.states() == [JOINING])
        await asyncio.sleep(0)  # the next one is under way
        await member.drain()
        assert ring.states() == [JOINING, ACTIVE, LEAVING]
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)

    run(told())


def test_leaving_for_good_is_said_last() -> None:
    async def story(member: Member, ring: Ring, life: asyncio.Task[None]) -> None:
        await until(lambda: member.ready() == "")
        await member.drain()
        life.cancel()
        await member.leave()
        assert ring.heard[-1].leaves
        assert ring.states()[-1] is LEAVING

    living(story, every_s=60, leaves=True)


def test_an_ending_process_does_not_wait_long_for_the_metastore() -> None:
    async def story(member: Member, ring: Ring, life: asyncio.Task[None]) -> None:
        await until(lambda: member.ready() == "")
        ring.hangs = True
        assert not await asyncio.wait_for(member.drain(), 2 * TELL_S_MAX)
        await asyncio.wait_for(member.leave(), 2 * TELL_S_MAX)

    living(story, every_s=60, leaves=True)


def test_one_that_never_joined_has_nothing_to_leave() -> None:
    async def story(member: Member, ring: Ring, life: asyncio.Task[None]) -> None:
        ring.failures = [Unavailable("away")] * 1_000
        await until(lambda: len(ring.failures) < 999)
        life.cancel()
        ring.failures = []
        assert not await member.drain()
        await member.leave()
        assert ring.heard == []

    living(story, leaves=True)


def test_pauses_double_and_never_exceed_the_interval() -> None:
    waits = [wait_s(2.0, misses, chance=0.0) for misses in range(9)]
    assert waits == [2.0, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0, 2.0]
    assert all(
        wait_s(2.0, misses, chance=0.999) >= 0.75 * wait for misses, wait in enumerate(waits)
    )
