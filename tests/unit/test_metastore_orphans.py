"""Segments that nobody registered: which go, which stay, and why (S1, S4)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

from maar.block.format import dead_letter
from maar.metastore.leader.deleting.orphans import SWEEP_S, Orphans
from maar.metastore.records.entries import BlocksAdded, RegistrationFloor
from maar.metastore.recovery.verify import verify
from maar.metastore.replica import snapshot
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import NotLeading, Unavailable
from maar.model.ids import BlockId, Incarnation, Shard
from maar.model.policy import MINUTE_NS
from maar.model.time import LeaseTime
from maar.ports.metastore.log import Head
from support.clock.virtual_time import run_virtually, until
from support.lake.fold_and_store import put
from support.lake.lost_log import Lives
from support.metastore.dead_letters import FaultyStore, held_key, letter_key
from support.metastore.fold import INCARNATION, SMALL, segment
from support.metastore.logged import Logged

LAG_NS = 20 * MINUTE_NS
POLICY = msgspec.structs.replace(SMALL, registration_floor_lag_ns=LAG_NS, retire_delay_ns=0)
OTHER = Incarnation("feedbeef")


class Swept(Lives):
    """A lake whose floor is moved by hand."""

    def __init__(self) -> None:
        self.faulty = FaultyStore()
        super().__init__(POLICY, self.faulty)
        self.pass_time(LAG_NS)

    def raise_floor(self) -> LeaseTime:
        self.fold.put(RegistrationFloor(LeaseTime(self.fold.now)))
        return self.state.registration_floor

    def sweep(self) -> int:
        return run_virtually(self.orphans.sweep())

    def segments(self) -> set[str]:
        return self.objects(keys.SEGMENTS)

    def old(self, *numbers: int) -> BlockMeta:
        """A segment that nobody announced, as old as it has to be to go."""
        meta = self.upload(numbers)
        self.pass_time(LAG_NS)
        self.raise_floor()
        return meta

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"maar_metastore_{name}", labels)


@pytest.fixture
def lake() -> Iterator[Swept]:
    made = Swept()
    yield made
    made.orphans.close()
    made.adoption.close()
    made.cleaner.close()


def key_of(meta: BlockMeta) -> str:
    return meta.files[0].locations[0].key


def test_what_nobody_registered_goes_and_is_counted(lake: Swept) -> None:
    known = lake.push(1)
    orphan = lake.old(2)
    assert lake.sweep() == 1
    assert lake.segments() == {key_of(known)}
    assert lake.metric("orphans_swept_total", kind="segment") == 1
    assert lake.metric("orphans_swept_bytes_total", kind="segment") == orphan.size
    assert lake.sweep() == 0


def test_the_boundary_is_the_floor_less_the_grace_and_belongs_to_what_goes(lake: Swept) -> None:
    at = lake.fold.now
    before = lake.upload([1])
    lake.pass_time(1)
    after = lake.upload([2])
    lake.fold.put(RegistrationFloor(LeaseTime(at)))
    assert lake.sweep() == 0, "it cannot be registered any more, but a while has to pass"
    lake.pass_time(LAG_NS)
    lake.fold.put(RegistrationFloor(LeaseTime(at + LAG_NS)))
    assert lake.sweep() == 1
    assert lake.segments() == {key_of(after)}
    assert key_of(before) not in lake.segments()


def test_one_that_was_registered_at_the_floor_stays_and_one_that_came_too_late_goes(
    lake: Swept,
) -> None:
    in_time, late = lake.upload([1]), lake.upload([2])
    lake.fold.put(BlocksAdded((in_time,)))
    lake.raise_floor()  # both ids are at the floor now
    lake.fold.put(BlocksAdded((late,)))
    assert late.id not in lake.state.blocks
    lake.pass_time(LAG_NS)
    lake.raise_floor()
    assert lake.sweep() == 1
    assert lake.segments() == {key_of(in_time)}
    assert lake.visible_profiles() == lake.profiles_in(in_time)


def test_what_a_letter_is_about_stays_waiting_or_held_or_held_twice(lake: Swept) -> None:
    waiting, held, twice = lake.upload([1]), lake.upload([2]), lake.old(3)
    lake.store.create(letter_key(waiting.id), dead_letter.encode(waiting))
    lake.store.create(held_key(held.id), b"damaged, but its name says what it is about")
    name = f"{twice.id}-0123456789abcdef.msgpack"
    lake.store.create(keys.held_letter(incarnation=INCARNATION, name=name), b"")
    assert lake.sweep() == 0
    assert lake.segments() == {key_of(meta) for meta in (waiting, held, twice)}


def test_a_letter_that_does_not_say_what_it_is_about_stops_everything(lake: Swept) -> None:
    lake.old(1)
    key = keys.held_letter(incarnation=INCARNATION, name="notes.txt")
    lake.store.create(key, b"")
    assert lake.sweep() == 0
    assert f"{key}: no segment is swept" in lake.orphans.blocked[0]
    assert lake.metric("orphans_left") == 1
    lake.store.delete(key)
    assert lake.sweep() == 1
    assert lake.orphans.blocked == ()
    assert lake.metric("orphans_left") == 0


def test_a_floor_that_rises_while_letters_are_looked_for_counts_the_next_time(lake: Swept) -> None:
    """A letter that came after the look is none that this sweep has seen."""
    lake.old(1)
    young = lake.upload([2])

    def meanwhile(_operation: str, key: str) -> None:
        if key == keys.held_letters(INCARNATION):
            lake.faulty.heal()
            lake.store.create(letter_key(young.id), dead_letter.encode(young))
            lake.pass_time(LAG_NS)
            lake.raise_floor()

    lake.faulty.fault = meanwhile
    assert lake.sweep() == 1
    assert lake.segments() == {key_of(young)}


def test_other_logs_and_what_is_no_segment_are_let_alone(lake: Swept) -> None:
    lake.old(1)
    foreign = keys.segment(shard=Shard(1), block=BlockId("0" * 32), incarnation=OTHER)
    for key in (foreign, "segments/v1/shard=1/README", "segments/v1/x"):
        lake.store.create(key, b"")
    assert lake.sweep() == 1
    assert lake.segments() == {foreign, "segments/v1/shard=1/README", "segments/v1/x"}


def test_while_the_log_adopts_nothing_goes_and_afterwards_what_was_left_over_does(
    lake: Swept,
) -> None:
    kept = lake.push(1)
    saved = lake.save()
    lake.lose(saved)
    lake.pass_time(3 * LAG_NS)
    lake.raise_floor()
    assert lake.sweep() == 0
    lake.adopt()
    cut_off = key_of(segment(7, at=lake.fold.now))  # by a writer that knows the old life only
    assert INCARNATION in cut_off
    lake.store.create(cut_off, lake.store.read(key_of(kept)))
    lake.pass_time(3 * LAG_NS)
    lake.raise_floor()
    assert lake.sweep() == 1
    assert lake.segments() == {key_of(kept)}
    assert lake.visible_profiles() == lake.profiles_in(kept)


def test_what_adoption_could_not_read_stays_for_a_person(lake: Swept) -> None:
    saved = lake.save()
    damaged = lake.push(1)  # after the snapshot: only its object tells of it
    lake.store.delete(key_of(damaged))
    lake.store.create(key_of(damaged), b"bit rot")
    lake.lose(saved)
    lake.adopt()
    assert damaged.id not in lake.state.blocks
    lake.pass_time(3 * LAG_NS)
    lake.raise_floor()
    assert lake.sweep() == 0
    assert key_of(damaged) in lake.segments()
    assert "it is not swept" in lake.orphans.blocked[0]


def test_a_restore_from_before_a_sweep_finds_nothing_that_it_needs(lake: Swept) -> None:
    saved = lake.save()
    kept, swept = lake.push(1), lake.old(2)
    assert lake.sweep() == 1
    lake.lose(saved)
    lake.adopt()
    assert lake.adoption.blocked == ()
    assert lake.visible_profiles() == lake.profiles_in(kept)
    assert swept.id not in lake.state.blocks


def test_an_upload_that_arrives_after_the_sweep_goes_with_the_next_one(lake: Swept) -> None:
    orphan = lake.old(1)
    body = lake.store.read(key_of(orphan))
    assert lake.sweep() == 1
    lake.store.create(key_of(orphan), body)  # the hedge
    lake.fold.put(BlocksAdded((orphan,)))
    assert orphan.id not in lake.state.blocks, "nobody can refer to what was swept"
    assert lake.sweep() == 1
    assert lake.segments() == set()


def test_a_log_that_lost_entries_sweeps_nothing(lake: Swept) -> None:
    """Somebody put an old copy of it back: it would take for orphans what it has forgotten."""
    lake.old(1)
    later = snapshot.encode(lake.state, Head(lake.state.index, bytes(32)))
    newer = keys.snapshot(incarnation=INCARNATION, index=lake.state.index + 1)
    lake.store.create(newer, later)
    assert lake.sweep() == 0
    assert "The log has lost entries" in lake.orphans.blocked[0]


def test_nobody_sweeps_who_does_not_surely_lead(lake: Swept) -> None:
    orphan = lake.old(1)
    lake.deposed = True
    with pytest.raises(NotLeading):
        lake.sweep()
    assert lake.segments() == {key_of(orphan)}


def test_a_run_is_bounded_and_the_next_goes_on(lake: Swept) -> None:
    lake.orphans.close()
    lake.orphans = Orphans(
        lake, lake.store, lake.clock, lake.metrics, listed_at_once=2, listed_max=4
    )
    live = [lake.push(number) for number in range(10)]
    lake.old(99)
    lists = [lake.sweep() for _ in range(4)]
    assert sum(lists) == 1
    assert lists[0] == 0, "the first run saw only some"
    assert lake.segments() == {key_of(meta) for meta in live}


def test_a_store_that_fails_is_asked_again_from_the_beginning(lake: Swept) -> None:
    lake.old(1)
    lake.faulty.fault = lambda operation, _key: (
        Unavailable("the store is away") if operation == "delete" else None
    )

    async def story() -> None:
        life = asyncio.create_task(lake.orphans.forever())
        await asyncio.sleep(1.5 * SWEEP_S)
        assert len(lake.segments()) == 1
        lake.faulty.heal()
        await until(lambda: not lake.segments())
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)

    run_virtually(story())


def test_without_a_floor_nobody_looks_for_letters(lake: Swept) -> None:
    lake.upload([1])
    lake.faulty.calls.clear()
    assert lake.sweep() == 0
    assert not any(key.startswith(keys.DEAD_LETTERS) for _, key in lake.faulty.calls)


def test_verify_tells_what_would_go_and_touches_nothing() -> None:
    async def test() -> None:
        ours = Logged()
        await ours.begin()
        await ours.add(3)
        lag = ours.state.policy.registration_floor_lag_ns
        young, old, foreign = segment(50, at=3 * lag), segment(51, at=1), segment(52, at=2)
        for meta in (young, old):
            put(ours.store, meta)
        ours.store.create(key_of(foreign).replace(INCARNATION, OTHER), b"")
        ours.now = 3 * lag
        await ours.append(RegistrationFloor(LeaseTime(2 * lag)))
        before = list(ours.store.list(""))
        found = await verify(ours.log, ours.store, objects=True)
        assert (found.orphans.total, found.orphans.due, found.wrong) == (2, 1, [])
        assert found.orphans.by_kind == {"segment": 2, "output": 0, "intent": 0, "commit": 0}
        assert list(ours.store.list("")) == before

    run_virtually(test())
