"""A letter that can never be delivered is held with its cause, until an operator retries it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from maar.block.format import dead_letter
from maar.metastore.leader.letters.dead_letters import DeadLetters
from maar.metastore.records.entries import RegistrationFloor
from maar.metastore.state.state import NO_FLOOR
from maar.model import keys
from maar.model.block import BlockMeta, Kind, Location
from maar.model.errors import MaarError, NotFound, Rejected, StoreFull, Unavailable
from maar.model.ids import StoreName, TenantId
from maar.model.time import SECOND_NS, LeaseTime
from support.clock.virtual_time import run_virtually
from support.lake.fold_and_store import put
from support.metastore.dead_letters import LetterLake, held_key, letter_key
from support.metastore.fold import INCARNATION, segment
from support.metastore.letter_steps import LAG_NS, START, lake

__all__ = ["lake"]


# ── what can never be delivered ────────────────────────────────────────────────────────────────

Poison = Callable[[LetterLake, BlockMeta], str]


def _drop(lake: LetterLake, meta: BlockMeta, **changes: Any) -> str:
    put(lake.store, meta)
    return lake.drop(meta, body=dead_letter.encode(msgspec.structs.replace(meta, **changes)))


def _flipped(lake: LetterLake, meta: BlockMeta) -> str:
    body = bytearray(dead_letter.encode(meta))
    body[-3] ^= 1
    return lake.drop(meta, body=bytes(body))


def _of_version(lake: LetterLake, meta: BlockMeta) -> str:
    body = bytearray(dead_letter.encode(meta))
    assert body[1] == dead_letter.VERSION
    body[1] = 9
    return lake.drop(meta, body=bytes(body))


def _at_another_key(lake: LetterLake, meta: BlockMeta) -> str:
    other = segment(99, at=lake.fold.now)
    put(lake.store, other)
    return _drop(lake, meta, files=other.files)


def _in_another_store(lake: LetterLake, meta: BlockMeta) -> str:
    (file,) = meta.files
    elsewhere = Location(StoreName("elsewhere"), file.locations[0].key)
    files = (msgspec.structs.replace(file, locations=(elsewhere,)),)
    return _drop(lake, meta, files=files)


def _cut_short(lake: LetterLake, meta: BlockMeta) -> str:
    lake.store.create(meta.files[0].locations[0].key, b"short")
    return lake.drop(meta)


def _below_the_floor(lake: LetterLake, meta: BlockMeta) -> str:
    put(lake.store, meta)
    lake.fold.put(RegistrationFloor(LeaseTime(lake.fold.now)))
    return lake.drop(meta)


def _named(lake: LetterLake, name: str) -> str:
    key = f"{keys.dead_letters(INCARNATION)}{name}"
    lake.store.create(key, b"whatever")
    return key


POISONS: dict[str, tuple[Poison, str]] = {
    "empty": (lambda lake, meta: lake.drop(meta, body=b""), "is not a dead letter"),
    "no msgpack": (
        lambda lake, meta: lake.drop(meta, body=b"\xc1\xff"),
        "is not a dead letter",
    ),
    "other msgpack": (lambda lake, meta: lake.drop(meta, body=b"\x01"), "is not a dead letter"),
    "flipped bit": (_flipped, "its checksum differs"),
    "newer version": (_of_version, "a dead letter of version 9"),
    "other block": (
        lambda lake, meta: _drop(lake, meta, id=segment(77).id),
        "which its name does not say",
    ),
    "not a segment": (lambda lake, meta: _drop(lake, meta, kind=Kind.BLOCK), "no segment"),
    "of a level": (lambda lake, meta: _drop(lake, meta, level=1), "no segment"),
    "of a tenant": (
        lambda lake, meta: _drop(lake, meta, tenant=TenantId("acme")),
        "no segment",
    ),
    "others' object": (_at_another_key, "does not name the one object"),
    "other store": (_in_another_store, "does not name the one object"),
    "no object": (lambda lake, meta: _drop(lake, meta, files=()), "does not name the one"),
    "missing": (lambda lake, meta: lake.drop(meta), "is missing from the store"),
    "cut short": (_cut_short, "has 5 bytes, not 1000"),
    "malformed": (
        lambda lake, meta: _drop(lake, meta, min_time_ns=meta.max_time_ns + 1),
        "ends before it begins",
    ),
    "below the floor": (_below_the_floor, "older than the registration floor"),
    "no letter's name": (lambda lake, _meta: _named(lake, "notes.txt"), "not named like"),
    "in a folder": (lambda lake, _meta: _named(lake, "a/b.msgpack"), "not named like"),
}


@pytest.mark.parametrize("poison", POISONS)
def test_what_is_poisoned_is_held_with_its_cause_and_nobody_waits_for_it(
    lake: LetterLake, poison: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, cause = POISONS[poison]
    before, after = lake.post(1), segment(3, at=lake.fold.now)
    key = make(lake, segment(2, at=lake.fold.now))
    body = lake.store.read(key)
    put(lake.store, after)
    registration_floor = lake.state.registration_floor
    if poison != "below the floor":
        lake.drop(after)
    else:
        lake.store.delete(letter_key(before.id))
    lake.drain()
    assert lake.waiting() == set()
    assert lake.fold.live() == (set() if registration_floor != NO_FLOOR else {before.id, after.id})
    (held,) = lake.held_keys()
    assert held.rpartition("-held/")[2] == key.partition(f"{INCARNATION}/")[2]
    assert lake.store.read(held) == body  # moved, not changed
    (letter,) = run_virtually(lake.letters.list_letters(limit=10)).letters
    assert (letter.key, letter.standing) == (held, "held")
    assert cause in letter.cause
    assert run_virtually(lake.letters.one(letter.name)) == letter
    assert lake.letters.status().held == lake.metric("letters_held") == 1
    assert cause in caplog.text
    lake.drain()
    assert lake.held_keys() == {held}
    # once more by another leader, who has seen nothing of this
    again = DeadLetters(lake, lake.store, lake.append, lake.metrics, bytes)
    run_virtually(again.drain())
    assert again.status().held == 1


def test_a_move_that_was_broken_off_is_finished(lake: LetterLake) -> None:
    meta = segment(1, at=lake.fold.now)
    key = lake.drop(meta, body=b"junk")
    lake.faulty.fault = lambda operation, _key: (
        Unavailable("away") if operation == "delete" else None
    )
    with pytest.raises(Unavailable):
        lake.drain()
    assert (lake.waiting(), lake.held_keys()) == ({key}, {held_key(meta.id)})
    lake.faulty.heal()
    lake.drain()
    assert (lake.waiting(), lake.held_keys()) == (set(), {held_key(meta.id)})
    # another one of the same name, with other bytes: neither is lost
    lake.drop(meta, body=b"other junk")
    lake.drain()
    bodies = {lake.store.read(held) for held in lake.held_keys()}
    assert bodies == {b"junk", b"other junk"}
    assert len(run_virtually(lake.letters.list_letters(limit=10)).letters) == 2


def test_a_store_without_room_keeps_the_letter_where_it_is(lake: LetterLake) -> None:
    key = lake.drop(segment(1, at=lake.fold.now), body=b"junk")
    good = lake.post(2)
    lake.faulty.fault = lambda operation, _key: (
        StoreFull("no room") if operation == "create" else None
    )
    with pytest.raises(StoreFull):
        lake.drain()
    assert lake.waiting() == {key}
    assert lake.fold.live() == {good.id}  # the bad one kept nobody
    assert lake.letters.floor_max == NO_FLOOR


def test_what_is_too_large_is_neither_read_nor_moved(lake: LetterLake) -> None:
    key = lake.drop(segment(1, at=lake.fold.now), body=bytes(dead_letter.BYTES_MAX + 1))
    good = lake.post(2)
    lake.pass_time(2 * LAG_NS)
    lake.drain()
    assert lake.waiting() == {key}
    assert ("read", key) not in lake.faulty.calls
    assert lake.fold.live() == {good.id}
    assert lake.letters.status().held == 1
    assert lake.letters.floor_max == START + LAG_NS  # no writer wrote it: it stops nothing
    (letter,) = run_virtually(lake.letters.list_letters(limit=10)).letters
    assert "too many for a dead letter" in letter.cause


def test_what_has_a_name_that_no_key_has_stops_nothing(lake: LetterLake) -> None:
    key = f"{keys.dead_letters(INCARNATION)}a\\b"  # a file system takes it
    lake.faulty.smuggle(key, b"whatever")
    good = lake.post(2)
    lake.pass_time(2 * LAG_NS)
    lake.drain()
    assert lake.waiting() == {key}
    assert lake.fold.live() == {good.id}
    assert lake.letters.status().held == 1
    assert lake.letters.floor_max == START + LAG_NS
    (letter,) = run_virtually(lake.letters.list_letters(limit=10)).letters
    assert "not named like" in letter.cause


# ── an operator's second chance ────────────────────────────────────────────────────────────────


def retry(lake: LetterLake, name: str) -> Any:
    return run_virtually(lake.letters.retry(name))


def test_a_mended_letter_is_delivered_on_request(lake: LetterLake) -> None:
    meta = segment(1, at=lake.fold.now)
    lake.drop(meta)
    lake.drain()
    assert lake.held_keys() == {held_key(meta.id)}
    with pytest.raises(Rejected, match="is missing from the store"):
        retry(lake, meta.id)
    put(lake.store, meta)
    shown = run_virtually(lake.letters.one(meta.id))
    assert "dead-letters retry" in shown.cause
    done = retry(lake, meta.id)
    assert (done.block, done.rewritten) == (meta.id, False)
    assert lake.fold.live() == {meta.id}
    assert lake.held_keys() == set()
    assert lake.letters.status().held == 0
    with pytest.raises(NotFound, match="no held dead letter"):
        retry(lake, meta.id)
    with pytest.raises(NotFound, match="no dead letter"):
        run_virtually(lake.letters.one(meta.id))


def test_below_the_floor_the_segment_is_written_again_as_another_block(lake: LetterLake) -> None:
    meta = segment(1, at=lake.fold.now)
    put(lake.store, meta)
    old_key = meta.files[0].locations[0].key
    body = lake.store.read(old_key)
    lake.pass_time(SECOND_NS)
    lake.fold.put(RegistrationFloor(LeaseTime(lake.fold.now)))
    lake.pass_time(SECOND_NS)
    lake.drop(meta)
    lake.drain()
    assert lake.held_keys() == {held_key(meta.id)}
    done = retry(lake, meta.id)
    assert done.rewritten
    assert lake.fold.live() == {done.block}
    (made,) = lake.fold.metas((done.block,))
    key = keys.segment(shard=meta.shard, block=done.block, incarnation=INCARNATION)
    assert [at.key for at in made.files[0].locations] == [key]
    assert lake.store.read(key) == body
    assert (made.profiles, made.datasets) == (meta.profiles, meta.datasets)
    assert old_key not in lake.objects()
    assert lake.held_keys() == set()


def test_a_retry_that_breaks_off_loses_nothing_and_shares_no_object(lake: LetterLake) -> None:
    meta = segment(1, at=lake.fold.now)
    put(lake.store, meta)
    lake.pass_time(SECOND_NS)
    lake.fold.put(RegistrationFloor(LeaseTime(lake.fold.now)))
    lake.pass_time(SECOND_NS)
    lake.drop(meta)
    lake.drain()
    lake.faulty.fault = lambda operation, _key: (
        Unavailable("away") if operation == "delete" else None
    )
    with pytest.raises(Unavailable):
        retry(lake, meta.id)
    assert lake.held_keys() == {held_key(meta.id)}
    lake.faulty.heal()
    retry(lake, meta.id)
    blocks = lake.fold.metas(tuple(lake.fold.live()))
    objects = [at.key for block in blocks for file in block.files for at in file.locations]
    assert len(objects) == len(set(objects)) == 2  # both show once: their profiles are the same
    assert set(objects) <= lake.objects()


def test_what_cannot_be_delivered_is_refused_with_its_cause_and_stays(lake: LetterLake) -> None:
    meta = segment(1, at=lake.fold.now)
    lake.drop(meta, body=b"junk")
    lake.drain()
    with pytest.raises(Rejected, match="is not a dead letter"):
        retry(lake, meta.id)
    malformed = segment(2, at=lake.fold.now)
    _drop(lake, malformed, min_time_ns=malformed.max_time_ns + 1)
    lake.drain()
    lake.fold.put(RegistrationFloor(LeaseTime(lake.fold.now)))
    objects = lake.objects()
    with pytest.raises(Rejected, match="ends before it begins"):
        retry(lake, malformed.id)
    assert lake.objects() == objects  # nor was anything written in vain
    assert len(lake.held_keys()) == 2
    with pytest.raises(MaarError):
        retry(lake, "../../etc/passwd")
