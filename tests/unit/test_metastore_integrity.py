"""A replica goes by the votes of most: it is sound, in doubt, or stops, and says why."""

from __future__ import annotations

import pytest

from maar.metastore.records.effects import Compared, Voted
from maar.metastore.records.entries import StateHashed, Tick
from maar.metastore.replica.integrity import (
    BALLOTS_MAX,
    CHANGES_MAX,
    REPLICAS_MAX,
    STATE_NS,
    Ballot,
    ReplicaHealth,
    StateVotes,
    judge,
)
from maar.metastore.state.digest import digest
from maar.model.errors import Corrupt
from maar.ports.metastore.replica import Vote
from support.metastore.every_entry import every_kind_of_entry
from support.metastore.fold import Fold

GOOD, BAD, WORSE = b"good", b"bad", b"worse"
SOUND, DOUBT, STOPPED = ReplicaHealth


def a_judge(name: str = "c", *, replicas: int = 3) -> StateVotes:
    return StateVotes(name, replicas=replicas)


def standing(
    ours: bytes,
    stated: bytes,
    votes: dict[str, bytes],
    *,
    replicas: int = 3,
    heard: dict[str, bytes] | None = None,
) -> ReplicaHealth:
    """Of the replica `c`; `a` led."""
    ballot = Ballot("a", stated, ours, {"a": stated, **votes}, heard or {})
    return judge(ballot, name="c", replicas=replicas)


@pytest.mark.parametrize(
    ("ours", "stated", "votes", "expected"),
    [
        (GOOD, GOOD, {}, SOUND),
        (GOOD, GOOD, {"b": BAD}, SOUND),
        (BAD, GOOD, {}, DOUBT),
        (BAD, GOOD, {"b": GOOD}, STOPPED),
        (BAD, GOOD, {"c": BAD}, DOUBT),
        (BAD, GOOD, {"c": BAD, "b": GOOD}, STOPPED),
        (GOOD, BAD, {"b": GOOD}, SOUND),  # the leader is the one
        (GOOD, BAD, {"b": WORSE}, STOPPED),  # three different hashes: the leader's was acted on
        (GOOD, BAD, {"c": BAD}, DOUBT),  # our vote of before we were rebuilt does not count for us
    ],
)
def test_of_three_the_one_that_differs_from_two_stops(
    ours: bytes, stated: bytes, votes: dict[str, bytes], expected: ReplicaHealth
) -> None:
    assert standing(ours, stated, votes) is expected


def test_a_leader_that_the_others_outvote_stops() -> None:
    ballot = Ballot("a", BAD, BAD, {"a": BAD, "b": GOOD})
    assert judge(ballot, name="a", replicas=3) is SOUND  # it is not outvoted yet
    ballot.votes["c"] = GOOD
    assert judge(ballot, name="a", replicas=3) is STOPPED


def test_one_who_is_alone_stops_at_any_difference() -> None:
    assert standing(BAD, GOOD, {}, replicas=1) is STOPPED
    assert standing(GOOD, GOOD, {}, replicas=1) is SOUND
    mine = Ballot("c", GOOD, BAD, {"c": GOOD})  # what it said itself, before it was restarted
    assert judge(mine, name="c", replicas=1) is STOPPED


def test_of_two_the_one_that_did_not_lead_stops() -> None:
    assert standing(BAD, GOOD, {}, replicas=2) is STOPPED
    assert judge(Ballot("a", GOOD, GOOD, {"a": GOOD, "c": BAD}), name="a", replicas=2) is SOUND


def test_replicas_that_do_not_vote_count_too() -> None:
    five = {"b": GOOD}
    assert standing(BAD, GOOD, five, replicas=5) is DOUBT
    assert standing(BAD, GOOD, {**five, "d": GOOD}, replicas=5) is STOPPED
    assert standing(GOOD, BAD, {"b": BAD, "d": GOOD}, replicas=5) is DOUBT
    assert standing(GOOD, BAD, {"b": BAD, "d": GOOD, "e": GOOD}, replicas=5) is SOUND
    # replicas that were replaced have voted too: two of four are not most
    assert standing(BAD, GOOD, {"b": BAD, "gone": GOOD}, replicas=3) is STOPPED
    assert standing(GOOD, GOOD, {"b": BAD, "gone": BAD}, replicas=3) is SOUND


def test_half_of_them_are_not_most() -> None:
    ballot = Ballot("a", GOOD, GOOD, {"a": GOOD, "c": BAD, "d": BAD})
    assert judge(ballot, name="a", replicas=4) is SOUND
    assert standing(BAD, GOOD, {"d": BAD}, replicas=4) is DOUBT
    assert standing(BAD, GOOD, {"d": BAD, "b": GOOD}, replicas=4) is STOPPED


def test_what_is_only_heard_ends_a_doubt_and_stops_nobody() -> None:
    assert standing(GOOD, BAD, {}, heard={"b": GOOD}) is SOUND
    assert standing(BAD, GOOD, {}, heard={"b": GOOD}) is DOUBT
    assert standing(GOOD, GOOD, {}, heard={"b": BAD, "d": BAD}) is SOUND
    assert standing(GOOD, BAD, {"b": BAD}, heard={"b": GOOD}) is STOPPED  # the log's word stands
    changed = {"b": GOOD, "d": GOOD}
    assert standing(GOOD, BAD, {"b": BAD}, heard=changed, replicas=5) is DOUBT
    assert standing(GOOD, BAD, {"e": BAD}, heard=changed, replicas=5) is SOUND


# ── as entries come ────────────────────────────────────────────────────────────────────────────


def test_a_replica_is_in_doubt_until_votes_settle_it_and_then_stops_for_good() -> None:
    state_votes = a_judge()
    assert (
        state_votes.standing,
        state_votes.trouble,
        state_votes.hashed_at,
        state_votes.digest,
    ) == (SOUND, "", 0, b"")
    state_votes.fold([Compared(7, "a", GOOD, BAD)])
    assert state_votes.standing is DOUBT
    assert "entry 7" in state_votes.trouble
    assert "most of 3 replicas" in state_votes.trouble
    assert (state_votes.hashed_at, state_votes.digest) == (7, BAD)
    with pytest.raises(Corrupt, match=r"entry 7 .*same log gave two states.*metastore rebuild"):
        state_votes.fold([Voted(7, "b", GOOD)])
    assert state_votes.standing is STOPPED
    with pytest.raises(Corrupt):
        state_votes.fold([Compared(9, "a", GOOD, GOOD)])
    assert state_votes.standing is STOPPED
    assert GOOD.hex() in state_votes.trouble


def test_a_doubt_ends_when_most_side_with_us_or_a_later_hash_is_the_same() -> None:
    state_votes = a_judge()
    state_votes.fold([Compared(7, "a", BAD, GOOD), Voted(7, "b", GOOD)])
    assert state_votes.standing is SOUND
    state_votes = a_judge()
    state_votes.fold([Compared(7, "a", BAD, GOOD)])
    state_votes.fold([Compared(9, "b", GOOD, GOOD)])
    assert state_votes.standing is SOUND


def test_a_vote_on_an_older_hash_still_stops_us() -> None:
    state_votes = a_judge()
    state_votes.fold([Compared(7, "a", GOOD, BAD), Compared(9, "a", GOOD, GOOD)])
    assert state_votes.standing is SOUND
    with pytest.raises(Corrupt):
        state_votes.fold([Voted(7, "b", GOOD)])


def test_a_witness_believes_the_newest_statement_and_never_stops() -> None:
    state_votes = StateVotes.witness()
    state_votes.fold([Compared(7, "a", BAD, GOOD), Voted(7, "b", BAD), Voted(7, "c", BAD)])
    assert state_votes.standing is DOUBT
    assert state_votes.trouble.endswith("the same log gave two states")
    assert state_votes.vote() is None
    state_votes.fold([Compared(9, "b", GOOD, GOOD)])
    assert state_votes.standing is SOUND


def test_only_a_few_ballots_and_names_are_kept() -> None:
    state_votes = a_judge()
    state_votes.fold(Compared(at, "a", GOOD, GOOD) for at in range(100))
    state_votes.fold([Voted(0, "a", BAD), Voted(0, "b", BAD)])  # long forgotten
    for number in range(2 * REPLICAS_MAX):
        state_votes.hear(Vote(f"r{number}", 99, GOOD))
        state_votes.fold([Voted(99, f"r{number}", GOOD)])
    assert len(state_votes.ballots) == BALLOTS_MAX
    newest = state_votes.ballots[99]
    assert len(newest.votes) == len(newest.heard) == REPLICAS_MAX


# ── what is reported ───────────────────────────────────────────────────────────────────────────


def test_a_replica_votes_until_the_log_holds_its_vote() -> None:
    state_votes = a_judge()
    assert state_votes.vote() is None
    state_votes.fold([Compared(7, "a", GOOD, GOOD)])
    assert state_votes.vote() == Vote("c", 7, GOOD)
    state_votes.fold([Voted(7, "c", BAD)])  # before it was rebuilt
    assert state_votes.vote() == Vote("c", 7, GOOD)
    state_votes.fold([Voted(7, "c", GOOD)])
    assert state_votes.vote() is None
    alone = a_judge(replicas=1)
    alone.fold([Compared(7, "a", GOOD, GOOD)])
    assert alone.vote() is None


def told(state_votes: StateVotes, fold: Fold, *, at_ns: int = 0) -> list[StateHashed]:
    entries = state_votes.entries(fold.state, monotonic_ns=at_ns)
    assert all(isinstance(entry, StateHashed) for entry in entries)
    return entries  # type: ignore[return-value]


def carried_out(state_votes: StateVotes, fold: Fold, *, at_ns: int) -> list[StateHashed]:
    entries = told(state_votes, fold, at_ns=at_ns)
    for entry in entries:
        state_votes.fold(fold.put(entry))
    return entries


def test_a_leader_states_its_hash_while_entries_come_and_not_when_only_hashes_do() -> None:
    fold, state_votes = Fold(), a_judge("one")
    now = STATE_NS
    stated = carried_out(state_votes, fold, at_ns=now)
    assert stated == [StateHashed(fold.state.index - 1, digest(fold.state))]
    state_votes.hear(Vote("b", state_votes.hashed_at, digest(fold.state)))
    assert [entry.replica for entry in carried_out(state_votes, fold, at_ns=now)] == ["b"]
    assert carried_out(state_votes, fold, at_ns=now + STATE_NS) == []
    state_votes.fold(fold.put(StateHashed(0, b"", "x")))  # of a ballot that we do not know
    fold.put(Tick())
    assert carried_out(state_votes, fold, at_ns=now + STATE_NS - 1) == []
    (again,) = carried_out(state_votes, fold, at_ns=now + STATE_NS)
    assert (again.at, again.replica) == (fold.state.index - 1, "")


def test_a_leader_writes_what_it_heard_once_and_its_own_on_anothers_statement() -> None:
    fold, state_votes = Fold(), a_judge("c", replicas=5)
    fold.put(StateHashed(fold.state.index, BAD))
    at = fold.state.index - 1
    state_votes.fold([Compared(at, "one", BAD, GOOD)])
    state_votes.hear(Vote("b", at, GOOD))
    state_votes.hear(Vote("b", at + 1, GOOD))  # nobody has stated one there
    state_votes.hear(Vote("", at, BAD))
    state_votes.hear(Vote("c", at, BAD))  # somebody has our name
    assert carried_out(state_votes, fold, at_ns=1) == [
        StateHashed(at, GOOD, "b"),
        StateHashed(at, GOOD, "c"),
    ]
    assert carried_out(state_votes, fold, at_ns=2) == []
    state_votes.hear(Vote("b", at, BAD))  # rebuilt, and with another hash
    assert carried_out(state_votes, fold, at_ns=3) == [StateHashed(at, BAD, "b")]


def test_a_replica_that_changes_its_vote_all_the_time_does_not_fill_the_log() -> None:
    fold, state_votes = Fold(), a_judge("one")
    carried_out(state_votes, fold, at_ns=STATE_NS)
    written = 0
    for number in range(100):
        state_votes.hear(Vote("b", state_votes.hashed_at, bytes([number])))
        written += len(carried_out(state_votes, fold, at_ns=STATE_NS))
    assert 2 <= written < CHANGES_MAX * 3


def test_nothing_of_this_is_written_by_a_lone_replica() -> None:
    fold, state_votes = Fold(), a_judge("one", replicas=1)
    state_votes.hear(Vote("b", 1, GOOD))
    assert told(state_votes, fold, at_ns=10 * STATE_NS) == []


def test_the_hash_of_a_state_is_that_before_its_entry() -> None:
    """So the fold of whoever reads it finds the same, though index and times have moved on."""
    fold = every_kind_of_entry()
    fold.now += 5
    state_votes = a_judge("two")
    (entry,) = told(state_votes, fold, at_ns=STATE_NS)
    (effect,) = fold.put(entry)
    assert effect == Compared(entry.at, "two", entry.digest, entry.digest)
