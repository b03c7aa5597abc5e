"""Letters of a former life, what else a leader does while it adopts, and when that ends."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from maar.block.format import dead_letter
from maar.metastore.leader.letters.dead_letters import DeadLetters
from maar.metastore.records.entries import AdoptionEnded, Reincarnated
from maar.metastore.replica import snapshot
from maar.metastore.state.state import Anchor
from maar.model import keys
from maar.model.errors import MaarError, Unavailable
from maar.model.ids import Incarnation
from maar.model.policy import HOUR_NS
from maar.ports.metastore.log import Head
from support.clock.virtual_time import run_virtually, until
from support.lake.lost_log import Lives, tables
from support.metastore.fold import INCARNATION, SMALL, Fold


def test_dead_letters_of_the_old_life_are_delivered_and_the_bad_ones_held() -> None:
    lake = Lives()
    saved = lake.save()
    good, lost = lake.upload([1]), lake.upload([2])
    lake.store.delete(tables(lost)[0])
    for meta in (good, lost):
        key = keys.dead_letter(incarnation=INCARNATION, block=meta.id)
        lake.store.create(key, dead_letter.encode(meta))
    lake.lose(saved)
    lake.adopt()
    assert lake.visible_profiles() == {1}
    assert lake.objects(keys.DEAD_LETTERS) == {
        keys.held_letter(incarnation=INCARNATION, name=f"{lost.id}.msgpack")
    }
    assert any("missing from the store" in sentence for sentence in lake.adoption.blocked)


def test_a_deposed_leader_deletes_no_letter() -> None:
    lake = Lives()
    saved = lake.save()
    meta = lake.upload([1])
    key = keys.dead_letter(incarnation=INCARNATION, block=meta.id)
    lake.store.create(key, dead_letter.encode(meta))
    lake.lose(saved)
    lake.deposed = True
    with pytest.raises(MaarError, match="somebody else leads"):
        lake.adopt()
    assert lake.store.size(key)
    assert lake.state.adopting


def test_a_store_that_fails_postpones_the_end_and_the_next_look_goes_on() -> None:
    lake = Lives()
    saved = lake.save()
    for number in range(5):
        lake.push(number)
    lake.lose(saved)
    read = lake.store.read
    failing = True

    def sometimes(key: str) -> bytes:
        if failing and key.endswith(f"{lake.entropy:016x}-{INCARNATION}.parquet"):
            raise Unavailable("the store does not answer")
        return read(key)

    lake.store.read = sometimes  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        lake.adopt()
    assert lake.state.adopting
    failing = False
    lake.adopt()
    assert lake.visible_profiles() == set(range(5))
    assert not lake.state.adopting


def test_a_full_index_does_not_postpone_the_end() -> None:
    lake = Lives(policy=msgspec.structs.replace(SMALL, blocks_max=2))
    saved = lake.save()
    for number in range(2):
        lake.push(number)
    lake.upload([5])
    lake.lose(saved)
    lake.adopt()
    assert lake.visible_profiles() == {0, 1, 5}
    assert not lake.state.adopting
    lake.merge(lake.live())  # which makes room again
    assert lake.visible_profiles() == {0, 1, 5}


@pytest.mark.parametrize("again", [False, True])
def test_a_late_letter_of_an_old_life_is_delivered(again: bool) -> None:
    """Its writer was cut off while the log was restored, and knows the old incarnation only."""
    lake = Lives()
    lake.push(1)
    saved = lake.save()
    meta = lake.upload([5])
    (key,) = tables(meta)
    body = lake.store.read(key)
    lake.store.delete(key)
    lake.lose(saved)
    lake.adopt()
    if again:
        lake.lose(lake.save())
        lake.adopt()
    assert lake.visible_profiles() == {1}
    lake.store.create(key, body)
    letter = keys.dead_letter(incarnation=INCARNATION, block=meta.id)
    lake.store.create(letter, dead_letter.encode(meta))
    letters = DeadLetters(lake, lake.store, lake.append, lake.metrics, lambda n: bytes(n))
    run_virtually(letters.drain())
    letters.close()
    assert lake.visible_profiles() == {1, 5}
    assert not lake.objects(keys.DEAD_LETTERS)


def test_a_held_letter_of_an_old_life_can_be_retried() -> None:
    lake = Lives()
    saved = lake.save()
    meta = lake.upload([5])
    (key,) = tables(meta)
    body = lake.store.read(key)
    lake.store.delete(key)
    lake.lose(saved)
    lake.adopt()
    letter = keys.dead_letter(incarnation=INCARNATION, block=meta.id)
    lake.store.create(letter, dead_letter.encode(meta))
    letters = DeadLetters(lake, lake.store, lake.append, lake.metrics, lambda n: bytes(n))
    run_virtually(letters.drain())
    held = keys.held_letter(incarnation=INCARNATION, name=f"{meta.id}.msgpack")
    assert lake.objects(keys.DEAD_LETTERS) == {held}
    lake.store.create(key, body)
    run_virtually(letters.retry(meta.id))
    letters.close()
    assert lake.visible_profiles() == {5}
    assert not lake.objects(keys.DEAD_LETTERS)


def test_the_former_lives_are_remembered_and_bounded() -> None:
    fold = Fold()
    for number in range(2, 22):
        fold.put(Reincarnated(Incarnation(f"{number:08x}")))
        fold.put(AdoptionEnded())
    assert fold.state.former == tuple(f"{number:08x}" for number in range(5, 21))
    state, _ = snapshot.decode(snapshot.encode(fold.state, Head(fold.state.index, bytes(32))))
    assert state.former == fold.state.former


def test_the_cleaner_deletes_nothing_while_adopting() -> None:
    lake = Lives(policy=msgspec.structs.replace(SMALL, retention_ns=HOUR_NS))
    lake.merge([lake.push(1), lake.push(2)])
    lake.push(3)
    saved = lake.save()
    lake.lose(saved)
    before = lake.objects()
    lake.pass_time(30_000 * HOUR_NS)
    lake.clean()
    assert run_virtually(lake.cleaner.expire()) == 0
    assert lake.objects() == before
    lake.adopt()
    lake.clean()
    assert lake.objects() < before
    lake.state.anchor = Anchor(lake.clock.wall, lake.now())  # the clocks agree
    assert run_virtually(lake.cleaner.expire())


def test_the_duty_waits_when_there_is_nothing_to_adopt() -> None:
    async def idle() -> None:
        running = asyncio.create_task(lake.adoption.forever())
        await asyncio.sleep(3600)
        assert not running.done()
        running.cancel()
        await asyncio.wait([running])

    lake = Lives()
    run_virtually(idle())
    assert lake.appends == 0
    assert lake.adoption.blocked == ()


def test_the_duty_adopts_and_the_status_says_so_until_then() -> None:
    async def adopted() -> None:
        running = asyncio.create_task(lake.adoption.forever())
        await until(lambda: not lake.state.adopting)
        assert not running.done()
        running.cancel()
        await asyncio.wait([running])

    lake = Lives()
    saved = lake.save()
    lake.push(1)
    lake.lose(saved)
    assert "nothing is merged or deleted" in lake.adoption.blocked[0]
    run_virtually(adopted())
    assert lake.adoption.blocked == ()
    assert lake.visible_profiles() == {1}


def test_a_life_that_is_named_again_counts_once() -> None:
    """A log that was restored again and again, before it had ended its adoption, names most lives
    twice; a refusal would leave the newest one's profiles out.
    """
    fold = Fold()
    lives = [Incarnation(f"{number:08x}") for number in range(1, 12)]
    fold.put(Reincarnated(Incarnation("0000aaaa"), tuple(lives)))
    fold.put(Reincarnated(Incarnation("0000bbbb"), tuple(lives)))
    assert fold.state.incarnation == "0000bbbb"
    assert set(fold.state.adopting) == {INCARNATION, *lives, "0000aaaa"}
