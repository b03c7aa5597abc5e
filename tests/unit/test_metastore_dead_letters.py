"""Dead letters are delivered once, and the floor never passes one that may still be delivered."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec
import pytest

from maar.block.format import dead_letter
from maar.metastore.decide import dead_letter_rules
from maar.metastore.decide.dead_letter_rules import Fate, FoundLetter, reach, verdict
from maar.metastore.leader.letters.dead_letters import DeadLetters
from maar.metastore.records.entries import BlocksAdded, BlocksExpired, RegistrationFloor
from maar.metastore.state.state import NO_FLOOR
from maar.metastore.views import reads
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import NotLeading, Unavailable
from maar.model.ids import BlockId, Incarnation, segment_id
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.stores.object_store import ObjectInfo
from support.clock.virtual_time import run_virtually, until
from support.lake.fold_and_store import put
from support.metastore.dead_letters import LetterLake, letter_key
from support.metastore.fold import DAY_START_NS, segment
from support.metastore.letter_steps import LAG_NS, POLICY, START, lake

__all__ = ["lake"]


# ── delivery ───────────────────────────────────────────────────────────────────────────────────


def test_a_letter_becomes_a_block_and_goes(lake: LetterLake) -> None:
    metas = [lake.post(number) for number in (1, 2, 3)]
    lake.drain()
    assert lake.fold.live() == {meta.id for meta in metas}
    assert lake.fold.metas((metas[0].id,)) == (metas[0],)
    assert set(lake.state.queue.places) == lake.fold.live()  # like any other, it is merged
    assert lake.waiting() == lake.held_keys() == set()
    status = lake.letters.status()
    assert (status.waiting, status.held, status.delivered, status.trouble) == (0, 0, 3, "")
    assert lake.metric("letters_delivered_total") == 3


def test_a_letter_is_deleted_only_after_its_block_is_in_the_log(lake: LetterLake) -> None:
    """Whatever breaks in between, the letter is still there; and the block comes once."""
    meta = lake.post(1)

    async def lost(prepare: Any) -> int:
        raise Unavailable("the log does not answer")

    broken = DeadLetters(lake, lake.store, lost, lake.metrics, bytes)
    with pytest.raises(Unavailable):
        run_virtually(broken.drain())
    assert lake.waiting() == {letter_key(meta.id)}
    lake.faulty.fault = lambda operation, _key: (
        Unavailable("gone away") if operation == "delete" else None
    )
    with pytest.raises(Unavailable, match="gone away"):
        lake.drain()
    assert lake.fold.live() == {meta.id}
    assert lake.waiting() == {letter_key(meta.id)}
    lake.faulty.heal()
    added, entries = lake.state.tally.profiles_added, lake.state.index
    lake.drain()
    assert lake.waiting() == set()
    assert (lake.state.tally.profiles_added, lake.state.index) == (added, entries)


def test_a_letter_of_a_known_block_goes_and_adds_nothing(lake: LetterLake) -> None:
    """Its registration was stored, only the reply was lost: live, merged, forgotten, expired."""
    live, merged, forgotten, expired = (lake.post(number) for number in (1, 2, 3, 4))
    lake.fold.put(BlocksAdded((live, merged, forgotten, expired)))
    lake.merge([merged, forgotten])
    lake.forget(forgotten)
    lake.fold.put(BlocksExpired(expired.max_time_ns + 1, (expired.id,)))
    known = lake.fold.live()
    added = lake.state.tally.profiles_added
    assert lake.state.remembered
    lake.drain()
    assert lake.waiting() == lake.held_keys() == set()
    assert lake.fold.live() == known
    assert lake.state.tally.profiles_added == added


def test_many_letters_are_delivered_in_bounded_steps(lake: LetterLake) -> None:
    metas = [lake.post(number) for number in range(1, 51)]
    sizes: list[int] = []
    plain = lake.append

    async def counted(prepare: Any) -> int:
        sizes.append(len(prepare(lake.state, lake.now())))
        return await plain(prepare)

    lake.append = counted  # type: ignore[method-assign]
    lake.elect(listed_at_once=7, added_bytes_max=1000)
    lake.drain()
    assert lake.fold.live() == {meta.id for meta in metas}
    assert len(sizes) > 10
    assert lake.waiting() == set()
    letters = [found(meta, size=600) for meta in metas[:5]]
    steps = list(dead_letter_rules.in_steps(letters, bytes_max=1000))
    assert [len(step) for step in steps] == [1] * 5


def test_people_see_how_many_wait_while_they_are_dealt_with(lake: LetterLake) -> None:
    lake.elect(listed_at_once=4)
    for number in range(1, 11):
        lake.post(number)
    lake.pass_time(30 * SECOND_NS)
    seen: list[float | None] = []
    lake.faulty.fault = lambda operation, _key: (
        seen.append(lake.metric("letters_waiting")) if operation == "delete" else None
    )
    lake.drain()
    assert seen[0] == 10
    assert min(value for value in seen if value is not None) < 10
    assert lake.letters.status().oldest_s == 0


# ── what cannot be delivered yet ───────────────────────────────────────────────────────────────


def test_a_full_index_lets_letters_wait_and_the_floor_with_them(lake: LetterLake) -> None:
    full = msgspec.structs.replace(POLICY, blocks_max=2)
    lake = LetterLake(full)
    lake.pass_time(START)
    first, second, third = (lake.post(number) for number in (1, 2, 3))
    lake.drain()
    assert lake.fold.live() == {first.id, second.id}
    assert lake.waiting() == {letter_key(third.id)}
    (listed,) = run_virtually(lake.letters.list_letters(limit=10)).letters
    assert (listed.name, listed.standing) == (third.id, "waiting")
    assert "index is full" in listed.cause
    lake.pass_time(10 * LAG_NS)
    lake.drain()
    assert lake.letters.floor_max == START - 1
    assert lake.letters.status().waiting == 1
    assert lake.letters.status().oldest_s == 10 * LAG_NS / SECOND_NS
    assert lake.metric("letters_oldest_seconds") == 10 * LAG_NS / SECOND_NS
    lake.merge([first, second])
    lake.forget(first)
    lake.forget(second)
    lake.keep_house()
    assert lake.state.registration_floor == START - 1
    lake.state.remembered.drop_below(BlockId("f" * 32))
    lake.drain()
    assert third.id in lake.fold.live()


def test_a_letter_from_beyond_the_logs_time_waits_for_it(lake: LetterLake) -> None:
    """A writer goes on counting while no leader does; a new leader's time is behind."""
    ahead = lake.post(1, at=START + 2 * LAG_NS)
    lake.drain()
    assert lake.waiting() == {letter_key(ahead.id)}
    assert reads.undelivered_blocks(lake.state, [ahead.id]) == (
        ahead.id,
    )  # queries see it meanwhile
    lake.pass_time(LAG_NS)
    lake.fold.put(BlocksAdded(()))
    lake.drain()
    assert lake.fold.live() == {ahead.id}


# ── the floor ──────────────────────────────────────────────────────────────────────────────────


def test_the_floor_goes_as_far_as_a_complete_look_has_seen() -> None:
    at = LeaseTime(100)
    blocks = [segment_id(lease_time_ns=ns, entropy=5) for ns in (70, 30, 95)]
    assert reach(began=at, margin_ns=40, left=[]) == 60
    assert reach(began=at, margin_ns=40, left=blocks) == 29  # not even to the block's own time
    assert reach(began=at, margin_ns=40, left=blocks[2:]) == 60
    assert reach(began=LeaseTime(5), margin_ns=40, left=[]) == NO_FLOOR


def remembering(lake: LetterLake) -> None:
    """Something that a floor would let be forgotten: else none is raised."""
    metas = lake.add(501, 502)
    lake.merge(metas)
    lake.forget(metas[0])
    assert lake.state.remembered


def floors(lake: LetterLake) -> list[int]:
    return [entry.lease_time for entry in lake.keep_house() if isinstance(entry, RegistrationFloor)]


def test_without_a_look_for_letters_there_is_no_floor(lake: LetterLake) -> None:
    remembering(lake)
    lake.pass_time(20 * LAG_NS)
    assert floors(lake) == []
    lake.drain()
    began = lake.fold.now
    assert floors(lake) == [began - LAG_NS]
    lake.pass_time(3 * LAG_NS)
    assert floors(lake) == []  # the look was then, not now


def test_an_incomplete_look_moves_nothing(lake: LetterLake) -> None:
    remembering(lake)
    unreadable = lake.post(1)
    good = lake.post(2)
    lake.pass_time(5 * LAG_NS)
    lake.faulty.fault = lambda operation, key: (
        Unavailable("away") if (operation, key) == ("read", letter_key(unreadable.id)) else None
    )
    with pytest.raises(Unavailable):
        lake.drain()
    assert good.id in lake.fold.live()  # the bad one kept nobody
    assert lake.letters.floor_max == NO_FLOOR
    assert floors(lake) == []
    lake.faulty.heal()
    lake.drain()
    assert unreadable.id in lake.fold.live()
    assert floors(lake) == [START + 4 * LAG_NS]


def test_a_listing_that_breaks_off_is_no_look(lake: LetterLake) -> None:
    lake.pass_time(5 * LAG_NS)
    lake.faulty.fault = lambda operation, _key: Unavailable("away") if operation == "list" else None
    with pytest.raises(Unavailable):
        lake.drain()
    assert lake.letters.floor_max == NO_FLOOR
    assert lake.letters.status().drained_s == -1


def test_a_new_term_begins_without_a_floor(lake: LetterLake) -> None:
    lake.pass_time(5 * LAG_NS)
    lake.drain()
    assert lake.letters.floor_max > 0
    lake.elect()
    assert lake.letters.floor_max == NO_FLOOR
    assert lake.letters.status().drained_s == -1


def test_whoever_was_deposed_deletes_no_letter_and_moves_none(lake: LetterLake) -> None:
    lake.post(1)
    lake.drop(segment(2, at=lake.fold.now), body=b"not a letter")
    before = lake.waiting()
    lake.deposed = True
    with pytest.raises(NotLeading):
        lake.drain()
    assert lake.waiting() == before
    assert lake.held_keys() == set()
    assert lake.letters.floor_max == NO_FLOOR
    lake.deposed = False
    lake.drain()
    assert lake.waiting() == set()
    assert len(lake.held_keys()) == 1


def test_the_floor_never_passes_a_letter_written_in_time(lake: LetterLake) -> None:
    """Named, uploaded and left as a letter within a writer's deadline, while looks go on."""
    deadline = LAG_NS // 6
    remembering(lake)
    for number in range(40):
        named_at = lake.fold.now
        meta = segment(number, at=named_at)
        put(lake.store, meta)
        lake.pass_time(deadline)
        lake.drain()
        lake.keep_house()
        lake.drop(meta)
        lake.pass_time(deadline * (number % 5))
        lake.drain()
        lake.keep_house()
        assert meta.id in lake.fold.live()
    assert lake.state.registration_floor > START
    assert lake.held_keys() == set()


# ── other logs ─────────────────────────────────────────────────────────────────────────────────


def test_letters_of_other_logs_are_left_alone_and_shown(lake: LetterLake) -> None:
    other = Incarnation("deadbeef")
    key = keys.dead_letter(incarnation=other, block=segment(9).id)
    held = keys.held_letter(incarnation=other, name="x.msgpack")
    lake.store.create(key, dead_letter.encode(segment(9)))
    lake.store.create(held, b"junk")
    lake.drain()
    assert lake.objects("dlq/") == {key, held}
    assert lake.fold.live() == set()
    assert lake.letters.status().foreign == lake.metric("letters_foreign") == 2
    listed = run_virtually(lake.letters.list_letters(limit=10)).letters
    assert [letter.standing for letter in listed] == ["foreign", "foreign"]
    assert all("belongs to log deadbeef" in letter.cause for letter in listed)


def test_a_list_has_a_limit_and_begins_with_what_needs_attention(lake: LetterLake) -> None:
    lake.drop(segment(1, at=lake.fold.now), body=b"junk")
    lake.drain()
    waiting = [lake.post(number) for number in (2, 3)]
    lake.store.create("dlq/v1/deadbeef/x", b"junk")
    listed = run_virtually(lake.letters.list_letters(limit=4))
    assert [one.standing for one in listed.letters] == ["held", "waiting", "waiting", "foreign"]
    assert [one.meta for one in listed.letters[1:3]] == waiting
    assert not listed.more
    listed = run_virtually(lake.letters.list_letters(limit=2))
    assert (len(listed.letters), listed.more) == (2, True)


# ── decisions ──────────────────────────────────────────────────────────────────────────────────


def found(meta: BlockMeta, *, size: int = 600, absent: str = "") -> FoundLetter:
    name = f"{meta.id}.msgpack"
    return FoundLetter(ObjectInfo(letter_key(meta.id), size), name, meta, absent=absent)


def test_a_known_block_is_delivered_even_if_its_segment_is_gone(lake: LetterLake) -> None:
    (meta,) = lake.add(1)
    letter = found(meta, absent="its segment is missing")
    assert verdict(lake.state, letter, now=lake.now()).fate is Fate.DELIVERED
    unknown = found(segment(2, at=lake.fold.now), absent="its segment is missing")
    assert verdict(lake.state, unknown, now=lake.now()) == (Fate.HELD, "its segment is missing")


def test_the_index_says_which_letters_it_has_never_seen(lake: LetterLake) -> None:
    live, merged, forgotten, expired = lake.add(1, 2, 3, 4)
    lake.merge([merged, forgotten])
    lake.forget(forgotten)
    lake.fold.put(BlocksExpired(DAY_START_NS * 2, (expired.id,)))
    unseen = segment(5, at=lake.fold.now)
    asked = [meta.id for meta in (live, merged, forgotten, expired, unseen)]
    assert reads.undelivered_blocks(lake.state, [*asked, BlockId("nonsense")]) == (unseen.id,)
    lake.fold.put(RegistrationFloor(LeaseTime(lake.fold.now)))
    assert reads.undelivered_blocks(lake.state, asked) == ()  # too late: nor will it be added


# ── the loop ───────────────────────────────────────────────────────────────────────────────────


def added(lake: LetterLake, meta: BlockMeta) -> bool:
    return meta.id in lake.fold.live()


def test_it_looks_at_once_and_again_and_heals_with_the_store(lake: LetterLake) -> None:
    first = lake.post(1)
    lake.faulty.fault = lambda _operation, _key: Unavailable("the store is away")

    async def test() -> None:
        life = asyncio.create_task(lake.letters.forever())
        await until(lambda: "the store is away" in lake.letters.status().trouble)
        lake.faulty.heal()
        await until(lambda: lake.fold.live() == {first.id})
        await until(lambda: lake.letters.status().drained_s >= 0)
        assert lake.letters.status().trouble == ""
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)

    run_virtually(test())


def test_it_looks_again_after_a_while(lake: LetterLake) -> None:
    async def test() -> None:
        life = asyncio.create_task(lake.letters.forever())
        for number in (1, 2, 3):
            meta = lake.post(number)
            await until(partial(added, lake, meta))
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)

    run_virtually(test())


def test_a_fault_of_our_own_is_told_and_does_not_end_the_loop(lake: LetterLake) -> None:
    meta = lake.post(1)

    def broken(_operation: str, _key: str) -> None:
        raise ZeroDivisionError

    lake.faulty.fault = broken

    async def test() -> None:
        life = asyncio.create_task(lake.letters.forever())
        await until(lambda: "a bug in maar (ZeroDivisionError)" in lake.letters.status().trouble)
        lake.faulty.heal()
        await until(lambda: meta.id in lake.fold.live())
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)

    run_virtually(test())
