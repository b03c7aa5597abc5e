"""What heartbeats make of a ring, and when a writer is dead; no log, no loop, no clock."""

from __future__ import annotations

import msgspec
import pytest

from maar.metastore.decide import membership
from maar.metastore.decide.membership import Heartbeats, WriterSession
from maar.model.errors import InvalidInput, NotFound, Overloaded, Rejected, Unavailable
from maar.model.ids import HOME, NodeId, Zone
from maar.model.ring import Writer
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.writer.membership import Beat
from support.metastore.fold import SMALL, Fold
from support.metastore.rings import ACTIVE, JOINING, LEAVING, Town, owners, writer

EAST = Zone("east")
DEAD_AFTER_S = membership.DEAD_AFTER_MS / 1000


@pytest.fixture
def town() -> Town:
    return Town()


# ── coming ─────────────────────────────────────────────────────────────────────────────────────


def test_a_joining_writer_is_known_and_takes_nothing_yet(town: Town) -> None:
    assert town.beat(writer("a", JOINING)) == ""
    assert town.state_of("a") is JOINING
    assert town.ring().owners == ()


def test_an_active_writer_takes_its_shards(town: Town) -> None:
    town.join("a", "b", "c")
    assert sorted(owners(town.ring())) == ["a"] * 4 + ["b"] * 4 + ["c"] * 4


def test_writers_that_come_one_by_one_get_the_table_of_the_fixed_shuffle(town: Town) -> None:
    town.join("a", "b", "c")
    assert town.ring().owners == (2, 1, 0, 1, 1, 2, 2, 0, 1, 0, 0, 2)


def test_a_newcomer_moves_no_more_shards_than_it_takes(town: Town) -> None:
    town.join("a", "b", "c")
    before = owners(town.ring())
    town.join("d", shards=3)
    after = owners(town.ring())
    assert len(after) == 15
    assert sum(one != two for one, two in zip(before, after, strict=False)) <= 3


def test_the_same_beat_again_writes_nothing(town: Town) -> None:
    town.join("a")
    index = town.fold.state.index
    for _ in range(3):
        assert town.beat(writer("a"), entries_max=0) == ""
    assert town.fold.state.index == index


def test_zones_are_apart(town: Town) -> None:
    town.join("a")
    town.beat(writer("a"), zone=EAST)
    town.beat(writer("b"), zone=EAST)
    assert owners(town.ring()) == ["a"] * 4
    assert sorted(owners(town.ring(EAST))) == ["a"] * 4 + ["b"] * 4


def test_an_active_writer_that_the_ring_does_not_know_registers(town: Town) -> None:
    """An operator removed it while nobody heard it; now it is back."""
    assert town.beat(writer("a")) == ""
    assert owners(town.ring()) == ["a"] * 4


# ── going ──────────────────────────────────────────────────────────────────────────────────────


def test_a_leaving_writer_keeps_its_shards_and_one_that_leaves_gives_them_away(town: Town) -> None:
    town.join("a", "b", "c")
    before = owners(town.ring())
    assert town.beat(writer("b", LEAVING)) == ""
    assert (owners(town.ring()), town.state_of("b")) == (before, LEAVING)
    assert town.beat(writer("b", LEAVING), leaves=True) == ""
    after = owners(town.ring())
    assert sorted(after) == ["a"] * 4 + ["c"] * 4
    stayed = [(one, two) for one, two in zip(before, after, strict=False) if one != "b"]
    assert all(one == two for one, two in stayed)


def test_leaving_again_and_leaving_unknown_change_nothing(town: Town) -> None:
    town.join("a", "b")
    town.beat(writer("b", LEAVING), leaves=True)
    assert town.beat(writer("b", LEAVING), leaves=True, entries_max=0) == ""
    assert town.beat(writer("b", LEAVING), entries_max=0) == ""
    assert town.beat(writer("x", LEAVING), entries_max=0) == ""
    assert [w.node for w in town.ring().writers] == ["a"]
    assert set(town.heartbeats.heard) == {(HOME, "a")}


def test_a_beat_that_was_under_way_when_the_writer_left_does_not_bring_it_back(town: Town) -> None:
    town.join("a", "b")
    town.beat(writer("b", LEAVING), leaves=True)
    assert "has left the ring" in town.beat(writer("b"), entries_max=0)
    assert town.state_of("b") is None


def test_the_last_one_that_leaves_takes_the_zone_with_it(town: Town) -> None:
    town.join("a")
    town.beat(writer("a", LEAVING), leaves=True)
    assert town.fold.state.rings == {}
    town.join("a", session="s2")
    assert owners(town.ring()) == ["a"] * 4


def test_a_beat_that_comes_late_does_not_turn_the_writer_back(town: Town) -> None:
    town.join("a")
    assert town.beat(writer("a", JOINING), entries_max=0) == ""
    assert town.state_of("a") is ACTIVE
    town.beat(writer("a", LEAVING))
    assert town.beat(writer("a"), entries_max=0) == ""
    assert town.state_of("a") is LEAVING


# ── restarts and names ─────────────────────────────────────────────────────────────────────────


def test_a_writer_that_starts_again_keeps_its_shards(town: Town) -> None:
    town.join("a", "b", "c")
    before = town.ring().owners
    assert town.beat(writer("b", JOINING, session="s2")) == ""
    assert (town.ring().owners, town.state_of("b")) == (before, JOINING)
    assert town.beat(writer("b", session="s2")) == ""
    assert town.ring().owners == before


@pytest.mark.parametrize("shards", [1, 2, 7])
def test_one_that_starts_again_with_another_number_has_it_when_it_is_active(
    town: Town, shards: int
) -> None:
    town.join("a", "b", "c")
    before = owners(town.ring())
    town.beat(writer("b", JOINING, session="s2", shards=shards))
    assert owners(town.ring()) == before
    town.beat(writer("b", session="s2", shards=shards))
    after = owners(town.ring())
    assert (after.count("a"), after.count("b"), after.count("c")) == (4, shards, 4)
    moved = sum(one != two for one, two in zip(before, after, strict=False))
    assert moved <= abs(shards - 4)


@pytest.mark.parametrize("late", list(type(ACTIVE)))
def test_the_later_registration_has_the_name_whatever_the_earlier_still_says(
    town: Town, late: object
) -> None:
    town.join("a", "b")
    town.beat(writer("b", JOINING, session="thief"))
    ring = town.ring()
    refusal = town.beat(writer("b", late), entries_max=0)  # type: ignore[arg-type]
    assert "another process, at b.example:4044, has registered as writer b" in refusal
    assert town.ring() == ring


def test_a_leader_that_knows_nothing_of_the_earlier_session_refuses_what_it_goes_on_with(
    town: Town,
) -> None:
    town.join("a")
    town.beat(writer("a", JOINING, session="s2"))
    town.heartbeats = Heartbeats(since=town.now)
    for state in (ACTIVE, LEAVING):
        assert town.beat(writer("a", state), entries_max=0)
    assert town.beat(writer("a", LEAVING), leaves=True, entries_max=0)
    assert town.state_of("a") is JOINING


def test_a_refused_beat_is_not_heard(town: Town) -> None:
    town.join("a")
    town.beat(writer("a", JOINING, session="s2"))
    town.wait(DEAD_AFTER_S - 1)
    town.beat(writer("a"))
    town.wait(2)
    assert town.view().dead == ("a",)


def test_sessions_that_are_gone_are_remembered_up_to_a_bound() -> None:
    heartbeats = Heartbeats()
    for number in range(membership.GONE_MAX + 7):
        heartbeats.part_with(WriterSession(HOME, NodeId("a"), f"s{number}"))
    assert len(heartbeats.gone) == membership.GONE_MAX
    assert WriterSession(HOME, NodeId("a"), f"s{membership.GONE_MAX + 6}") in heartbeats.gone


# ── hearing ────────────────────────────────────────────────────────────────────────────────────


def test_who_is_silent_is_dead_and_keeps_its_shards(town: Town) -> None:
    town.join("a", "b")
    before = town.ring()
    for _ in range(int(DEAD_AFTER_S) + 1):
        town.wait(1)
        town.beat(writer("a"), entries_max=0)
    assert town.view().dead == ("b",)
    assert town.view().complete
    assert town.ring() == before
    assert town.beat(writer("b"), entries_max=0) == ""
    assert town.view().dead == ()


def test_dead_is_who_was_not_heard_for_longer_than_the_setting(town: Town) -> None:
    town.join("a")
    town.wait(DEAD_AFTER_S)
    assert town.view().dead == ()
    assert town.view().silent_ms == (membership.DEAD_AFTER_MS,)
    town.fold.now += 1
    assert town.view().dead == ("a",)


def test_a_new_leader_calls_nobody_dead_and_no_ring_complete_until_it_has_listened(
    town: Town,
) -> None:
    town.join("a", "b")
    town.wait(100)
    town.heartbeats = Heartbeats(since=town.now)
    town.beat(writer("a"))
    assert (town.view().dead, town.view().complete) == ((), False)
    assert town.view().silent_ms == (0, -1)
    town.wait(DEAD_AFTER_S)
    town.beat(writer("a"))
    assert not town.view().complete
    town.wait(1)
    assert (town.view().dead, town.view().complete) == (("b",), True)


def test_a_new_leader_that_has_heard_everybody_need_not_wait(town: Town) -> None:
    town.join("a", "b")
    town.wait(100)
    town.heartbeats = Heartbeats(since=town.now)
    for node in "ab":
        assert not town.view().complete
        town.beat(writer(node))
    assert (town.view().dead, town.view().complete) == ((), True)


def test_a_pause_of_the_leader_is_nobodys_silence(town: Town) -> None:
    town.join("a", "b")
    town.wait(6)
    town.fold.now += SMALL.stall_ns  # all that lease time counts of a pause, however long
    town.heartbeats.listen(town.now)
    assert (town.view().dead, town.view().complete) == ((), False)
    town.beat(writer("a"))
    town.wait(DEAD_AFTER_S + 1)
    assert set(town.view().dead) == {"a", "b"}


def test_a_loop_that_comes_round_in_time_makes_no_pause_however_short_lives_are() -> None:
    heartbeats = Heartbeats(SECOND_NS, since=LeaseTime(0))
    for half in range(9):
        heartbeats.listen(LeaseTime(half * SECOND_NS // 2))
    assert heartbeats.since == 0


def test_the_numbers_of_a_zone_count_the_dead_as_dead_alone(town: Town) -> None:
    town.join("a", "b", "c")
    town.beat(writer("c", LEAVING))
    town.wait(DEAD_AFTER_S - 1)
    town.beat(writer("a"))
    town.wait(2)
    town.beat(writer("d", JOINING))
    found = membership.zone_status(town.view())
    assert found.writers == {"active": 1, "dead": 2, "joining": 1}
    assert (found.zone, found.shards, found.complete) == (HOME, 12, True)


# ── an operator removes one ────────────────────────────────────────────────────────────────────


def test_a_dead_writer_can_be_removed_and_its_shards_go_to_others(town: Town) -> None:
    town.join("a", "b", "c")
    before = owners(town.ring())
    town.wait(DEAD_AFTER_S + 1)
    after = owners(town.remove("b"))
    assert sorted(after) == ["a"] * 4 + ["c"] * 4
    assert all(x == y for x, y in zip(before, after, strict=False) if x != "b")
    assert (HOME, "b") not in town.heartbeats.heard


def test_one_that_is_heard_from_cannot_be_removed(town: Town) -> None:
    town.join("a", "b")
    with pytest.raises(Rejected, match=r"heard from lately.*stop its process first"):
        town.remove("b")
    town.wait(DEAD_AFTER_S)
    with pytest.raises(Rejected, match="heard from lately"):
        town.remove("b")


def test_one_that_is_stuck_while_it_leaves_can_be_removed(town: Town) -> None:
    town.join("a", "b")
    town.beat(writer("b", LEAVING))
    assert owners(town.remove("b")) == ["a"] * 4
    assert town.beat(writer("b", LEAVING), entries_max=0) == ""
    assert town.state_of("b") is None


def test_a_new_leader_removes_nobody_before_it_knows_the_dead(town: Town) -> None:
    town.join("a", "b")
    town.heartbeats = Heartbeats(since=town.now)
    with pytest.raises(Unavailable, match="ask again in 10 s"):
        town.remove("b")
    town.wait(DEAD_AFTER_S + 1)
    assert owners(town.remove("b")) == ["a"] * 4


def test_the_last_one_removed_leaves_a_ring_without_writers(town: Town) -> None:
    town.join("a")
    town.wait(DEAD_AFTER_S + 1)
    ring = town.remove("a")
    assert (ring.writers, ring.owners, ring.changed_at) == ((), (), town.fold.state.index)
    assert town.fold.state.rings == {}


def test_who_is_not_there_cannot_be_removed(town: Town) -> None:
    town.join("a")
    for node, zone in (("x", HOME), ("a", EAST)):
        with pytest.raises(NotFound, match="maar ring"):
            town.remove(node, zone)


def test_one_that_was_removed_and_lives_after_all_registers_anew(town: Town) -> None:
    town.join("a", "b")
    town.wait(DEAD_AFTER_S + 1)
    town.remove("b")
    assert town.beat(writer("b")) == ""
    assert sorted(owners(town.ring())) == ["a"] * 4 + ["b"] * 4


# ── what is no beat, and what there is no room for ─────────────────────────────────────────────


@pytest.mark.parametrize(
    ("zone", "odd"),
    [
        ("", writer("a")),
        (HOME, writer("")),
        (HOME, writer("a" * 254)),
        (HOME, writer("a\n")),
        (HOME, writer("a", session="")),
        (HOME, writer("a", shards=0)),
        (HOME, writer("a", shards=65)),
        (HOME, Writer(NodeId("a"), "", "s", 4, ACTIVE)),
    ],
)
def test_what_no_writer_says_is_refused(town: Town, zone: str, odd: Writer) -> None:
    with pytest.raises(InvalidInput):
        town.beat(odd, zone=Zone(zone))
    assert town.fold.state.rings == {}


@pytest.mark.parametrize(
    ("bound", "sentence"),
    [
        ({"zones_max": 1}, "1 zones already"),
        ({"writers_max": 1}, "1 writers already"),
        ({"shards_max": 7}, "4 shards, and at most 7"),
    ],
)
def test_what_there_is_no_room_for_is_told_and_may_come_later(
    bound: dict[str, int], sentence: str
) -> None:
    town = Town(Fold(policy=msgspec.structs.replace(SMALL, **bound)))
    town.join("a")
    zone = EAST if "zones_max" in bound else HOME
    with pytest.raises(Overloaded, match=sentence):
        town.beat(writer("b"), zone=zone)
    town.beat(writer("a", LEAVING), leaves=True)
    assert town.beat(writer("b"), zone=zone) == ""


def test_a_ring_that_has_changed_meanwhile_is_decided_anew(town: Town) -> None:
    town.join("a")
    beat = Beat(HOME, writer("b"))
    stale = membership.entries(town.fold.state, beat, town.heartbeats)
    town.join("c")
    with pytest.raises(Unavailable, match="the state has moved on; try again"):
        membership.check_accepted(town.put(stale), HOME)
    assert town.beat(beat.writer) == ""
