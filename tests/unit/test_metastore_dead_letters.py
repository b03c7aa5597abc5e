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
from maar.metastore.leader.dead_letters import DeadLetters
from maar.metastore.records.entries import BlocksAdded, BlocksExpired, RegistrationFloor
from maar.metastore.state.state import NO_FLOOR
from maar.metastore.views import reads
from maar.model import keys
from maar.model.block import BlockMeta
from maar.model.errors import NotLeading, Unavailable
from maar.model.ids import BlockId, Incarnation, segment_id
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.object_store import ObjectInfo
from support.clock.virtual_time import run_virtually, until
from support.lake.fold_and_store import put
from support.metastore.dead_letters import PostOffice, letter_key
from support.metastore.fold import DAY_START_NS, segment
from support.metastore.letter_steps import LAG_NS, POLICY, START, office

__all__ = ["office"]


# ── delivery ───────────────────────────────────────────────────────────────────────────────────


def test_a_letter_becomes_a_block_and_goes(office: PostOffice) -> None:
    metas = [office.post(number) for number in (1, 2, 3)]
    office.drain()
    assert office.fold.live() == {meta.id for meta in metas}
    assert office.fold.metas((metas[0].id,)) == (metas[0],)
    assert set(office.state.queue.places) == office.fold.live()  # like any other, it is merged
    assert office.waiting() == office.held() == set()
    status = office.letters.status()
    assert (status.waiting, status.held, status.delivered, status.trouble) == (0, 0, 3, "")
    assert office.metric("letters_delivered_total") == 3


def test_a_letter_is_deleted_only_after_its_block_is_in_the_log(office: PostOffice) -> None:
    """Whatever breaks in between, the letter is still there; and the block comes once."""
    meta = office.post(1)

    async def lost(prepare: Any) -> int:
        raise Unavailable("the log does not answer")

    broken = DeadLetters(office, office.store, lost, office.metrics, bytes)
    with pytest.raises(Unavailable):
        run_virtually(broken.drain())
    assert office.waiting() == {letter_key(meta.id)}
    office.faulty.fault = lambda operation, _key: (
        Unavailable("gone away") if operation == "delete" else None
    )
    with pytest.raises(Unavailable, match="gone away"):
        office.drain()
    assert office.fold.live() == {meta.id}
    assert office.waiting() == {letter_key(meta.id)}
    office.faulty.healed()
    added, entries = office.state.tally.profiles_added, office.state.index
    office.drain()
    assert office.waiting() == set()
    assert (office.state.tally.profiles_added, office.state.index) == (added, entries)


def test_a_letter_of_a_known_block_goes_and_adds_nothing(office: PostOffice) -> None:
    """Its registration was stored, only the reply was lost: live, merged, forgotten, expired."""
    live, merged, forgotten, expired = (office.post(number) for number in (1, 2, 3, 4))
    office.fold.put(BlocksAdded((live, merged, forgotten, expired)))
    office.merge([merged, forgotten])
    office.forget(forgotten)
    office.fold.put(BlocksExpired(expired.max_time_ns + 1, (expired.id,)))
    known = office.fold.live()
    added = office.state.tally.profiles_added
    assert office.state.remembered
    office.drain()
    assert office.waiting() == office.held() == set()
    assert office.fold.live() == known
    assert office.state.tally.profiles_added == added


def test_many_letters_are_delivered_in_bounded_steps(office: PostOffice) -> None:
    metas = [office.post(number) for number in range(1, 51)]
    sizes: list[int] = []
    plain = office.append

    async def counted(prepare: Any) -> int:
        sizes.append(len(prepare(office.state, office.now())))
        return await plain(prepare)

    office.append = counted  # type: ignore[method-assign]
    office.elect(listed_at_once=7, added_bytes_max=1000)
    office.drain()
    assert office.fold.live() == {meta.id for meta in metas}
    assert len(sizes) > 10
    assert office.waiting() == set()
    letters = [found(meta, size=600) for meta in metas[:5]]
    steps = list(dead_letter_rules.in_steps(letters, bytes_max=1000))
    assert [len(step) for step in steps] == [1] * 5


def test_people_see_how_many_wait_while_they_are_dealt_with(office: PostOffice) -> None:
    office.elect(listed_at_once=4)
    for number in range(1, 11):
        office.post(number)
    office.pass_time(30 * SECOND_NS)
    seen: list[float | None] = []
    office.faulty.fault = lambda operation, _key: (
        seen.append(office.metric("letters_waiting")) if operation == "delete" else None
    )
    office.drain()
    assert seen[0] == 10
    assert min(value for value in seen if value is not None) < 10
    assert office.letters.status().oldest_s == 0


# ── what cannot be delivered yet ───────────────────────────────────────────────────────────────


def test_a_full_index_lets_letters_wait_and_the_floor_with_them(office: PostOffice) -> None:
    full = msgspec.structs.replace(POLICY, blocks_max=2)
    office = PostOffice(full)
    office.pass_time(START)
    first, second, third = (office.post(number) for number in (1, 2, 3))
    office.drain()
    assert office.fold.live() == {first.id, second.id}
    assert office.waiting() == {letter_key(third.id)}
    (listed,) = run_virtually(office.letters.list_letters(limit=10)).letters
    assert (listed.name, listed.standing) == (third.id, "waiting")
    assert "index is full" in listed.cause
    office.pass_time(10 * LAG_NS)
    office.drain()
    assert office.letters.floor_max == START - 1
    assert office.letters.status().waiting == 1
    assert office.letters.status().oldest_s == 10 * LAG_NS / SECOND_NS
    assert office.metric("letters_oldest_seconds") == 10 * LAG_NS / SECOND_NS
    office.merge([first, second])
    office.forget(first)
    office.forget(second)
    office.keep_house()
    assert office.state.registration_floor == START - 1
    office.state.remembered.drop_below(BlockId("f" * 32))
    office.drain()
    assert third.id in office.fold.live()


def test_a_letter_from_beyond_the_logs_time_waits_for_it(office: PostOffice) -> None:
    """A writer goes on counting while no leader does; a new leader's time is behind."""
    ahead = office.post(1, at=START + 2 * LAG_NS)
    office.drain()
    assert office.waiting() == {letter_key(ahead.id)}
    assert reads.undelivered_blocks(office.state, [ahead.id]) == (
        ahead.id,
    )  # queries see it meanwhile
    office.pass_time(LAG_NS)
    office.fold.put(BlocksAdded(()))
    office.drain()
    assert office.fold.live() == {ahead.id}


# ── the floor ──────────────────────────────────────────────────────────────────────────────────


def test_the_floor_goes_as_far_as_a_complete_look_has_seen() -> None:
    at = LeaseTime(100)
    blocks = [segment_id(lease_time_ns=ns, entropy=5) for ns in (70, 30, 95)]
    assert reach(began=at, margin_ns=40, left=[]) == 60
    assert reach(began=at, margin_ns=40, left=blocks) == 29  # not even to the block's own time
    assert reach(began=at, margin_ns=40, left=blocks[2:]) == 60
    assert reach(began=LeaseTime(5), margin_ns=40, left=[]) == NO_FLOOR


def remembering(office: PostOffice) -> None:
    """Something that a floor would let be forgotten: else none is raised."""
    metas = office.add(501, 502)
    office.merge(metas)
    office.forget(metas[0])
    assert office.state.remembered


def floors(office: PostOffice) -> list[int]:
    return [
        entry.lease_time for entry in office.keep_house() if isinstance(entry, RegistrationFloor)
    ]


def test_without_a_look_for_letters_there_is_no_floor(office: PostOffice) -> None:
    remembering(office)
    office.pass_time(20 * LAG_NS)
    assert floors(office) == []
    office.drain()
    began = office.fold.now
    assert floors(office) == [began - LAG_NS]
    office.pass_time(3 * LAG_NS)
    assert floors(office) == []  # the look was then, not now


def test_an_incomplete_look_moves_nothing(office: PostOffice) -> None:
    remembering(office)
    unreadable = office.post(1)
    good = office.post(2)
    office.pass_time(5 * LAG_NS)
    office.faulty.fault = lambda operation, key: (
        Unavailable("away") if (operation, key) == ("read", letter_key(unreadable.id)) else None
    )
    with pytest.raises(Unavailable):
        office.drain()
    assert good.id in office.fold.live()  # the bad one kept nobody
    assert office.letters.floor_max == NO_FLOOR
    assert floors(office) == []
    office.faulty.healed()
    office.drain()
    assert unreadable.id in office.fold.live()
    assert floors(office) == [START + 4 * LAG_NS]


def test_a_listing_that_breaks_off_is_no_look(office: PostOffice) -> None:
    office.pass_time(5 * LAG_NS)
    office.faulty.fault = lambda operation, _key: (
        Unavailable("away") if operation == "list" else None
    )
    with pytest.raises(Unavailable):
        office.drain()
    assert office.letters.floor_max == NO_FLOOR
    assert office.letters.status().drained_s == -1


def test_a_new_office_begins_without_a_floor(office: PostOffice) -> None:
    office.pass_time(5 * LAG_NS)
    office.drain()
    assert office.letters.floor_max > 0
    office.elect()
    assert office.letters.floor_max == NO_FLOOR
    assert office.letters.status().drained_s == -1


def test_whoever_was_deposed_deletes_no_letter_and_moves_none(office: PostOffice) -> None:
    office.post(1)
    office.drop(segment(2, at=office.fold.now), body=b"not a letter")
    before = office.waiting()
    office.deposed = True
    with pytest.raises(NotLeading):
        office.drain()
    assert office.waiting() == before
    assert office.held() == set()
    assert office.letters.floor_max == NO_FLOOR
    office.deposed = False
    office.drain()
    assert office.waiting() == set()
    assert len(office.held()) == 1


def test_the_floor_never_passes_a_letter_written_in_time(office: PostOffice) -> None:
    """Named, uploaded and left as a letter within a writer's deadline, while looks go on."""
    deadline = LAG_NS // 6
    remembering(office)
    for number in range(40):
        named_at = office.fold.now
        meta = segment(number, at=named_at)
        put(office.store, meta)
        office.pass_time(deadline)
        office.drain()
        office.keep_house()
        office.drop(meta)
        office.pass_time(deadline * (number % 5))
        office.drain()
        office.keep_house()
        assert meta.id in office.fold.live()
    assert office.state.registration_floor > START
    assert office.held() == set()


# ── other logs ─────────────────────────────────────────────────────────────────────────────────


def test_letters_of_other_logs_are_left_alone_and_shown(office: PostOffice) -> None:
    other = Incarnation("deadbeef")
    key = keys.dead_letter(incarnation=other, block=segment(9).id)
    held = keys.held_letter(incarnation=other, name="x.msgpack")
    office.store.create(key, dead_letter.encode(segment(9)))
    office.store.create(held, b"junk")
    office.drain()
    assert office.objects("dlq/") == {key, held}
    assert office.fold.live() == set()
    assert office.letters.status().foreign == office.metric("letters_foreign") == 2
    listed = run_virtually(office.letters.list_letters(limit=10)).letters
    assert [letter.standing for letter in listed] == ["foreign", "foreign"]
    assert all("belongs to log deadbeef" in letter.cause for letter in listed)


def test_a_list_has_a_limit_and_begins_with_what_wants_a_person(office: PostOffice) -> None:
    office.drop(segment(1, at=office.fold.now), body=b"junk")
    office.drain()
    waiting = [office.post(number) for number in (2, 3)]
    office.store.create("dlq/v1/deadbeef/x", b"junk")
    listed = run_virtually(office.letters.list_letters(limit=4))
    assert [one.standing for one in listed.letters] == ["held", "waiting", "waiting", "foreign"]
    assert [one.meta for one in listed.letters[1:3]] == waiting
    assert not listed.more
    listed = run_virtually(office.letters.list_letters(limit=2))
    assert (len(listed.letters), listed.more) == (2, True)


# ── decisions ──────────────────────────────────────────────────────────────────────────────────


def found(meta: BlockMeta, *, size: int = 600, absent: str = "") -> FoundLetter:
    name = f"{meta.id}.msgpack"
    return FoundLetter(ObjectInfo(letter_key(meta.id), size), name, meta, absent=absent)


def test_a_known_block_is_delivered_even_if_its_segment_is_gone(office: PostOffice) -> None:
    (meta,) = office.add(1)
    letter = found(meta, absent="its segment is missing")
    assert verdict(office.state, letter, now=office.now()).fate is Fate.DELIVERED
    unknown = found(segment(2, at=office.fold.now), absent="its segment is missing")
    assert verdict(office.state, unknown, now=office.now()) == (Fate.HELD, "its segment is missing")


def test_the_index_says_which_letters_it_has_never_seen(office: PostOffice) -> None:
    live, merged, forgotten, expired = office.add(1, 2, 3, 4)
    office.merge([merged, forgotten])
    office.forget(forgotten)
    office.fold.put(BlocksExpired(DAY_START_NS * 2, (expired.id,)))
    unseen = segment(5, at=office.fold.now)
    asked = [meta.id for meta in (live, merged, forgotten, expired, unseen)]
    assert reads.undelivered_blocks(office.state, [*asked, BlockId("nonsense")]) == (unseen.id,)
    office.fold.put(RegistrationFloor(LeaseTime(office.fold.now)))
    assert reads.undelivered_blocks(office.state, asked) == ()  # too late: nor will it be added


# ── the loop ───────────────────────────────────────────────────────────────────────────────────


def added(office: PostOffice, meta: BlockMeta) -> bool:
    return meta.id in office.fold.live()


def test_it_looks_at_once_and_again_and_heals_with_the_store(office: PostOffice) -> None:
    first = office.post(1)
    office.faulty.fault = lambda _operation, _key: Unavailable("the store is away")

    async def test() -> None:
        life = asyncio.create_task(office.letters.forever())
        await until(lambda: "the store is away" in office.letters.status().trouble)
        office.faulty.healed()
        await until(lambda: office.fold.live() == {first.id})
        await until(lambda: office.letters.status().drained_s >= 0)
        assert office.letters.status().trouble == ""
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)

    run_virtually(test())


def test_it_looks_again_after_a_while(office: PostOffice) -> None:
    async def test() -> None:
        life = asyncio.create_task(office.letters.forever())
        for number in (1, 2, 3):
            meta = office.post(number)
            await until(partial(added, office, meta))
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)

    run_virtually(test())


def test_a_fault_of_our_own_is_told_and_does_not_end_the_loop(office: PostOffice) -> None:
    meta = office.post(1)

    def broken(_operation: str, _key: str) -> None:
        raise ZeroDivisionError

    office.faulty.fault = broken

    async def test() -> None:
        life = asyncio.create_task(office.letters.forever())
        await until(lambda: "a bug in maar (ZeroDivisionError)" in office.letters.status().trouble)
        office.faulty.healed()
        await until(lambda: meta.id in office.fold.live())
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)

    run_virtually(test())
