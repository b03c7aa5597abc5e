"""The fold of rings: an entry replaces one whole, or finds something amiss and changes nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from maar.metastore.fold.ring import count_moved
from maar.metastore.records.effects import Effects, Refused, RingReplaced
from maar.metastore.records.entries import RingChanged
from maar.metastore.state.digest import digest
from maar.model.ids import HOME, Zone
from maar.model.refusal import Refusal
from maar.model.ring import Ring
from support.metastore.fold import SMALL, Fold
from support.metastore.rings import JOINING, LEAVING, writer

A, B = writer("a", shards=2), writer("b", shards=1)
GOOD = RingChanged(HOME, 0, (A, B), (0, 1, 0))
EAST = Zone("east")


def change(**other: Any) -> RingChanged:
    return msgspec.structs.replace(GOOD, **other)


def test_a_ring_is_what_the_entry_says_and_known_by_the_entrys_index() -> None:
    fold = Fold()
    (effect,) = fold.put(GOOD)
    ring = fold.state.rings[HOME]
    assert ring == Ring(HOME, fold.state.index, (A, B), (0, 1, 0))
    assert effect == RingReplaced(Ring(HOME, 0, (), ()), ring)


def test_zones_have_rings_of_their_own() -> None:
    fold = Fold()
    fold.put(GOOD)
    fold.put(change(zone=EAST, writers=(B,), owners=(0,)))
    assert sorted(fold.state.rings) == [EAST, HOME]
    assert fold.state.rings[HOME].owners == (0, 1, 0)


def test_an_entry_that_presumes_another_ring_changes_nothing() -> None:
    fold = Fold()
    fold.put(GOOD)
    made_at = fold.state.index
    for presumes in (0, made_at - 1, made_at + 1):
        assert fold.put(change(presumes=presumes)) == (Refused(Refusal.OUTDATED, what=HOME),)
    assert fold.state.rings[HOME].changed_at == made_at
    assert isinstance(fold.put(change(presumes=made_at))[0], RingReplaced)


def test_a_ring_without_writers_is_gone_and_the_zone_can_begin_anew() -> None:
    fold = Fold()
    fold.put(GOOD)
    (effect,) = fold.put(RingChanged(HOME, fold.state.index, (), ()))
    assert isinstance(effect, RingReplaced)
    assert fold.state.rings == {}
    assert isinstance(fold.put(GOOD)[0], RingReplaced)


@pytest.mark.parametrize(
    "broken",
    [
        change(zone=""),
        change(owners=(0, 1, 2)),
        change(owners=(0, -1, 0)),
        change(writers=(B, A)),
        change(writers=(A, A), owners=(0, 0, 1, 1)),
        change(writers=(), owners=(0,)),
        change(owners=(0, 1)),  # a is active and wants two
        change(owners=(0, 1, 0, 1)),
        change(writers=(writer("", shards=1),), owners=(0,)),
        change(writers=(writer("a", JOINING, shards=0),), owners=()),
    ],
)
def test_what_is_no_ring_is_refused(broken: RingChanged) -> None:
    fold = Fold()
    before = digest(fold.state)
    assert fold.put(broken) == (Refused(Refusal.RING, what=broken.zone),)
    assert digest(fold.state) == before


def test_only_who_is_active_has_to_hold_its_number() -> None:
    fold = Fold()
    writers = (writer("a", JOINING), writer("b", shards=1), writer("c", LEAVING))
    assert isinstance(fold.put(change(writers=writers, owners=(1, 2)))[0], RingReplaced)


def test_zones_writers_and_shards_are_bounded() -> None:
    policy = msgspec.structs.replace(SMALL, zones_max=1, writers_max=2, shards_max=3)
    fold = Fold(policy=policy)
    c = writer("c", JOINING)
    assert too_many(fold.put(change(writers=(A, B, c))), HOME)
    more = writer("b", shards=2)
    assert too_many(fold.put(change(writers=(A, more), owners=(0, 1, 0, 1))), HOME)
    fold.put(GOOD)
    assert too_many(fold.put(change(zone=EAST)), EAST)


def too_many(effects: Effects, zone: Zone) -> bool:
    return effects == (Refused(Refusal.TOO_MANY, what=zone),)


def test_a_bound_that_was_lowered_lets_a_ring_shrink_and_change() -> None:
    fold = Fold()
    c, d = writer("c", JOINING), writer("d", JOINING)
    fold.put(change(writers=(A, B, c, d)))
    fold.state.policy = msgspec.structs.replace(SMALL, zones_max=1, writers_max=1, shards_max=1)
    for writers in ((A, B, d), (A, writer("b", LEAVING, shards=1), d)):
        (effect,) = fold.put(change(presumes=fold.state.index, writers=writers))
        assert isinstance(effect, RingReplaced)
    assert too_many(fold.put(change(presumes=fold.state.index, writers=(A, B, c, d))), HOME)


def test_moved_shards_are_those_that_stay_and_have_another_owner() -> None:
    c = writer("c", shards=1)
    before = Ring(HOME, 1, (A, B), (0, 1, 0))
    assert count_moved(before, before) == 0
    assert count_moved(before, Ring(HOME, 2, (A, B, c), (0, 2, 0, 1))) == 1
    assert count_moved(before, Ring(HOME, 2, (B, c), (0, 0))) == 1  # the second is b's still
    assert count_moved(Ring(HOME, 0, (), ()), before) == 0
