"""A letter that can never be delivered is held with its cause, until an operator retries it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from maar.block.format import dead_letter
from maar.metastore.leader.dead_letters import DeadLetters
from maar.metastore.records.entries import RegistrationFloor
from maar.metastore.state.state import NO_FLOOR
from maar.model import keys
from maar.model.block import BlockMeta, Kind, Location
from maar.model.errors import MaarError, NotFound, Rejected, StoreFull, Unavailable
from maar.model.ids import StoreName, TenantId
from maar.model.time import SECOND_NS, LeaseTime
from support.clock.virtual_time import run_virtually
from support.lake.fold_and_store import put
from support.metastore.dead_letters import PostOffice, held_key, letter_key
from support.metastore.fold import INCARNATION, segment
from support.metastore.letter_steps import LAG_NS, START, office

__all__ = ["office"]


# ── what can never be delivered ────────────────────────────────────────────────────────────────

Poison = Callable[[PostOffice, BlockMeta], str]


def _drop(office: PostOffice, meta: BlockMeta, **changes: Any) -> str:
    put(office.store, meta)
    return office.drop(meta, body=dead_letter.encode(msgspec.structs.replace(meta, **changes)))


def _flipped(office: PostOffice, meta: BlockMeta) -> str:
    body = bytearray(dead_letter.encode(meta))
    body[-3] ^= 1
    return office.drop(meta, body=bytes(body))


def _of_version(office: PostOffice, meta: BlockMeta) -> str:
    body = bytearray(dead_letter.encode(meta))
    assert body[1] == dead_letter.VERSION
    body[1] = 9
    return office.drop(meta, body=bytes(body))


def _at_another_key(office: PostOffice, meta: BlockMeta) -> str:
    other = segment(99, at=office.fold.now)
    put(office.store, other)
    return _drop(office, meta, files=other.files)


def _in_another_store(office: PostOffice, meta: BlockMeta) -> str:
    (file,) = meta.files
    elsewhere = Location(StoreName("elsewhere"), file.locations[0].key)
    files = (msgspec.structs.replace(file, locations=(elsewhere,)),)
    return _drop(office, meta, files=files)


def _cut_short(office: PostOffice, meta: BlockMeta) -> str:
    office.store.create(meta.files[0].locations[0].key, b"short")
    return office.drop(meta)


def _below_the_floor(office: PostOffice, meta: BlockMeta) -> str:
    put(office.store, meta)
    office.fold.put(RegistrationFloor(LeaseTime(office.fold.now)))
    return office.drop(meta)


def _named(office: PostOffice, name: str) -> str:
    key = f"{keys.dead_letters(INCARNATION)}{name}"
    office.store.create(key, b"whatever")
    return key


POISONS: dict[str, tuple[Poison, str]] = {
    "empty": (lambda office, meta: office.drop(meta, body=b""), "is not a dead letter"),
    "no msgpack": (
        lambda office, meta: office.drop(meta, body=b"\xc1\xff"),
        "is not a dead letter",
    ),
    "other msgpack": (lambda office, meta: office.drop(meta, body=b"\x01"), "is not a dead letter"),
    "flipped bit": (_flipped, "its checksum differs"),
    "newer version": (_of_version, "a dead letter of version 9"),
    "other block": (
        lambda office, meta: _drop(office, meta, id=segment(77).id),
        "which its name does not say",
    ),
    "not a segment": (lambda office, meta: _drop(office, meta, kind=Kind.BLOCK), "no segment"),
    "of a level": (lambda office, meta: _drop(office, meta, level=1), "no segment"),
    "of a tenant": (
        lambda office, meta: _drop(office, meta, tenant=TenantId("acme")),
        "no segment",
    ),
    "others' object": (_at_another_key, "does not name the one object"),
    "other store": (_in_another_store, "does not name the one object"),
    "no object": (lambda office, meta: _drop(office, meta, files=()), "does not name the one"),
    "missing": (lambda office, meta: office.drop(meta), "is missing from the store"),
    "cut short": (_cut_short, "has 5 bytes, not 1000"),
    "malformed": (
        lambda office, meta: _drop(office, meta, min_time_ns=meta.max_time_ns + 1),
        "ends before it begins",
    ),
    "below the floor": (_below_the_floor, "older than the registration floor"),
    "no letter's name": (lambda office, _meta: _named(office, "notes.txt"), "not named like"),
    "in a folder": (lambda office, _meta: _named(office, "a/b.msgpack"), "not named like"),
}


@pytest.mark.parametrize("poison", POISONS)
def test_what_is_poisoned_is_held_with_its_cause_and_nobody_waits_for_it(
    office: PostOffice, poison: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, cause = POISONS[poison]
    before, after = office.post(1), segment(3, at=office.fold.now)
    key = make(office, segment(2, at=office.fold.now))
    body = office.store.read(key)
    put(office.store, after)
    registration_floor = office.state.registration_floor
    if poison != "below the floor":
        office.drop(after)
    else:
        office.store.delete(letter_key(before.id))
    office.drain()
    assert office.waiting() == set()
    assert office.fold.live() == (
        set() if registration_floor != NO_FLOOR else {before.id, after.id}
    )
    (held,) = office.held()
    assert held.rpartition("-held/")[2] == key.partition(f"{INCARNATION}/")[2]
    assert office.store.read(held) == body  # moved, not changed
    (letter,) = run_virtually(office.letters.list_letters(limit=10)).letters
    assert (letter.key, letter.standing) == (held, "held")
    assert cause in letter.cause
    assert run_virtually(office.letters.one(letter.name)) == letter
    assert office.letters.status().held == office.metric("letters_held") == 1
    assert cause in caplog.text
    office.drain()
    assert office.held() == {held}
    # once more by another leader, who has seen nothing of this
    again = DeadLetters(office, office.store, office.append, office.metrics, bytes)
    run_virtually(again.drain())
    assert again.status().held == 1


def test_a_move_that_was_broken_off_is_finished(office: PostOffice) -> None:
    meta = segment(1, at=office.fold.now)
    key = office.drop(meta, body=b"junk")
    office.faulty.fault = lambda operation, _key: (
        Unavailable("away") if operation == "delete" else None
    )
    with pytest.raises(Unavailable):
        office.drain()
    assert (office.waiting(), office.held()) == ({key}, {held_key(meta.id)})
    office.faulty.healed()
    office.drain()
    assert (office.waiting(), office.held()) == (set(), {held_key(meta.id)})
    # another one of the same name, with other bytes: neither is lost
    office.drop(meta, body=b"other junk")
    office.drain()
    bodies = {office.store.read(held) for held in office.held()}
    assert bodies == {b"junk", b"other junk"}
    assert len(run_virtually(office.letters.list_letters(limit=10)).letters) == 2


def test_a_store_without_room_keeps_the_letter_where_it_is(office: PostOffice) -> None:
    key = office.drop(segment(1, at=office.fold.now), body=b"junk")
    good = office.post(2)
    office.faulty.fault = lambda operation, _key: (
        StoreFull("no room") if operation == "create" else None
    )
    with pytest.raises(StoreFull):
        office.drain()
    assert office.waiting() == {key}
    assert office.fold.live() == {good.id}  # the bad one kept nobody
    assert office.letters.floor_max == NO_FLOOR


def test_what_is_too_large_is_neither_read_nor_moved(office: PostOffice) -> None:
    key = office.drop(segment(1, at=office.fold.now), body=bytes(dead_letter.BYTES_MAX + 1))
    good = office.post(2)
    office.pass_time(2 * LAG_NS)
    office.drain()
    assert office.waiting() == {key}
    assert ("read", key) not in office.faulty.calls
    assert office.fold.live() == {good.id}
    assert office.letters.status().held == 1
    assert office.letters.floor_max == START + LAG_NS  # no writer wrote it: it stops nothing
    (letter,) = run_virtually(office.letters.list_letters(limit=10)).letters
    assert "too many for a dead letter" in letter.cause


def test_what_has_a_name_that_no_key_has_stops_nothing(office: PostOffice) -> None:
    key = f"{keys.dead_letters(INCARNATION)}a\\b"  # a file system takes it
    office.faulty.smuggle(key, b"whatever")
    good = office.post(2)
    office.pass_time(2 * LAG_NS)
    office.drain()
    assert office.waiting() == {key}
    assert office.fold.live() == {good.id}
    assert office.letters.status().held == 1
    assert office.letters.floor_max == START + LAG_NS
    (letter,) = run_virtually(office.letters.list_letters(limit=10)).letters
    assert "not named like" in letter.cause


# ── an operator's second chance ────────────────────────────────────────────────────────────────


def retry(office: PostOffice, name: str) -> Any:
    return run_virtually(office.letters.retry(name))


def test_a_mended_letter_is_delivered_on_request(office: PostOffice) -> None:
    meta = segment(1, at=office.fold.now)
    office.drop(meta)
    office.drain()
    assert office.held() == {held_key(meta.id)}
    with pytest.raises(Rejected, match="is missing from the store"):
        retry(office, meta.id)
    put(office.store, meta)
    shown = run_virtually(office.letters.one(meta.id))
    assert "dead-letters retry" in shown.cause
    done = retry(office, meta.id)
    assert (done.block, done.rewritten) == (meta.id, False)
    assert office.fold.live() == {meta.id}
    assert office.held() == set()
    assert office.letters.status().held == 0
    with pytest.raises(NotFound, match="no held dead letter"):
        retry(office, meta.id)
    with pytest.raises(NotFound, match="no dead letter"):
        run_virtually(office.letters.one(meta.id))


def test_below_the_floor_the_segment_is_written_again_as_another_block(office: PostOffice) -> None:
    meta = segment(1, at=office.fold.now)
    put(office.store, meta)
    old_key = meta.files[0].locations[0].key
    body = office.store.read(old_key)
    office.pass_time(SECOND_NS)
    office.fold.put(RegistrationFloor(LeaseTime(office.fold.now)))
    office.pass_time(SECOND_NS)
    office.drop(meta)
    office.drain()
    assert office.held() == {held_key(meta.id)}
    done = retry(office, meta.id)
    assert done.rewritten
    assert office.fold.live() == {done.block}
    (made,) = office.fold.metas((done.block,))
    key = keys.segment(shard=meta.shard, block=done.block, incarnation=INCARNATION)
    assert [at.key for at in made.files[0].locations] == [key]
    assert office.store.read(key) == body
    assert (made.profiles, made.datasets) == (meta.profiles, meta.datasets)
    assert old_key not in office.objects()
    assert office.held() == set()


def test_a_retry_that_breaks_off_loses_nothing_and_shares_no_object(office: PostOffice) -> None:
    meta = segment(1, at=office.fold.now)
    put(office.store, meta)
    office.pass_time(SECOND_NS)
    office.fold.put(RegistrationFloor(LeaseTime(office.fold.now)))
    office.pass_time(SECOND_NS)
    office.drop(meta)
    office.drain()
    office.faulty.fault = lambda operation, _key: (
        Unavailable("away") if operation == "delete" else None
    )
    with pytest.raises(Unavailable):
        retry(office, meta.id)
    assert office.held() == {held_key(meta.id)}
    office.faulty.healed()
    retry(office, meta.id)
    blocks = office.fold.metas(tuple(office.fold.live()))
    objects = [at.key for block in blocks for file in block.files for at in file.locations]
    assert len(objects) == len(set(objects)) == 2  # both show once: their profiles are the same
    assert set(objects) <= office.objects()


def test_what_cannot_be_delivered_is_refused_with_its_cause_and_stays(office: PostOffice) -> None:
    meta = segment(1, at=office.fold.now)
    office.drop(meta, body=b"junk")
    office.drain()
    with pytest.raises(Rejected, match="is not a dead letter"):
        retry(office, meta.id)
    malformed = segment(2, at=office.fold.now)
    _drop(office, malformed, min_time_ns=malformed.max_time_ns + 1)
    office.drain()
    office.fold.put(RegistrationFloor(LeaseTime(office.fold.now)))
    objects = office.objects()
    with pytest.raises(Rejected, match="ends before it begins"):
        retry(office, malformed.id)
    assert office.objects() == objects  # nor was anything written in vain
    assert len(office.held()) == 2
    with pytest.raises(MaarError):
        retry(office, "../../etc/passwd")
