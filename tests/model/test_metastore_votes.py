"""Whatever goes wrong in whichever replica's state, those who are right go on, and it alone stops.

Replicas fold one log, at their own pace, by the real fold. One of them (or one after the other) has
its state damaged. Leaders come and go, replicas restart from a copy of a sound one's state, votes
arrive late, twice or not at all. No sound replica may ever stop, or stay in doubt when most are
there; a damaged one must stop when most have voted; and who folds the same log later agrees.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maar.metastore.fold.apply import Indexed, apply
from maar.metastore.records.effects import Effect
from maar.metastore.records.entries import (
    VERSION,
    Entry,
    Envelope,
    PinsTaken,
    TermStarted,
)
from maar.metastore.replica.integrity import STATE_NS, ReplicaHealth, StateVotes
from maar.metastore.state.state import MetaState
from maar.model.errors import Corrupt
from maar.model.time import LeaseTime, WallTime
from maar.ports.metastore.replica import Vote
from support.metastore.fold import Fold

SOUND, DOUBT, STOPPED = ReplicaHealth


class Shared:
    """The log of a small cluster."""

    def __init__(self) -> None:
        self.entries: list[Indexed] = list(Fold().log)

    def append(self, entry: Entry) -> None:
        envelope = Envelope(VERSION, LeaseTime(0), WallTime(0), entry)
        self.entries.append(Indexed(len(self.entries) + 1, envelope))


class Member:
    """A replica: its state may be damaged; its judge never is."""

    def __init__(self, name: str, log: Shared, replicas: int) -> None:
        self.name = name
        self.log = log
        self.replicas = replicas
        self.damaged = False
        self.rebuild()

    def rebuild(self) -> None:
        self.state = MetaState()
        self.state_votes = StateVotes(self.name, replicas=self.replicas)
        self.damaged = False

    def damage(self) -> None:
        """A field that no entry of this test puts right again."""
        self.state.tally.profiles_added += 1
        self.damaged = True

    def fold(self, most: int = 1 << 30) -> None:
        for item in self.log.entries[self.state.index :][:most]:
            effects: tuple[Effect, ...] = apply(self.state, item)
            try:
                self.state_votes.fold(effects)
            except Corrupt:
                return

    @property
    def standing(self) -> ReplicaHealth:
        return self.state_votes.standing

    def vote(self) -> Vote | None:
        return self.state_votes.vote()


class Cluster:
    def __init__(self, replicas: int) -> None:
        self.log = Shared()
        self.members = [Member(f"r{n}", self.log, replicas) for n in range(replicas)]
        self.term = 1
        self.clock_ns = STATE_NS
        self.leader: Member | None = None

    def elect(self, member: Member) -> bool:
        """As a replica campaigns: when it is sound with all that was written folded."""
        member.fold()
        if member.standing is not SOUND:
            return False
        self.term += 1
        self.log.append(TermStarted(self.term, member.name))
        member.fold()
        self.leader = member
        return True

    def state_hash(self) -> None:
        """The leader does something, and states what it has come to."""
        leader = self._leading()
        if leader is None:
            return
        self.log.append(PinsTaken((f"reader-{self.term}",), LeaseTime(0)))
        leader.fold()
        self.clock_ns += STATE_NS
        self._write(leader)

    def deliver(self, members: list[Member]) -> None:
        """Their votes reach the leader; and each hears the others."""
        leader = self._leading()
        for member in members:
            if member.standing is STOPPED:
                continue
            vote = Vote(member.name, member.state_votes.hashed_at, member.state_votes.digest)
            for other in self.members:
                if vote.at and other is not member:
                    other.state_votes.hear(vote)
        if leader is not None:
            self._write(leader)

    def _leading(self) -> Member | None:
        if self.leader is not None and self.leader.standing is not SOUND:
            self.leader = None  # it resigns
        return self.leader

    def _write(self, leader: Member) -> None:
        for entry in leader.state_votes.entries(leader.state, monotonic_ns=self.clock_ns):
            self.log.append(entry)
        leader.fold()

    def settle(self) -> None:
        """Everybody is there, somebody leads, and all votes arrive."""
        for _ in range(3):
            for member in self.members:
                member.fold()
            self.deliver(self.members)
            if self._leading() is None:
                any(self.elect(member) for member in self.members)
            self.state_hash()
            for member in self.members:
                member.fold()
            self.deliver(self.members)
        for member in self.members:
            member.fold()


@pytest.mark.parametrize("replicas", [2, 3, 4, 5])
def test_without_damage_nobody_ever_doubts(replicas: int) -> None:
    cluster = Cluster(replicas)
    cluster.settle()
    assert {member.standing for member in cluster.members} == {SOUND}
    assert cluster.leader is not None


@pytest.mark.parametrize("replicas", [3, 4, 5])
@pytest.mark.parametrize("leads_first", [True, False])
def test_a_damaged_state_is_found_and_stopped_whichever_replica_it_is(
    replicas: int, leads_first: bool
) -> None:
    for number in range(replicas):
        cluster = Cluster(replicas)
        bad = cluster.members[number]
        leader = bad if leads_first else cluster.members[number - 1]
        assert cluster.elect(leader)
        bad.damage()
        cluster.settle()
        assert bad.standing is STOPPED, number
        others = {member.standing for member in cluster.members if member is not bad}
        assert others == {SOUND}, number
        assert cluster.leader not in (None, bad)
        bad.rebuild()
        cluster.settle()
        assert {member.standing for member in cluster.members} == {SOUND}


def test_replicas_that_a_lost_leader_left_in_doubt_elect_one_of_them() -> None:
    """The damaged leader states its hash and is gone: nobody is there to write votes."""
    cluster = Cluster(3)
    bad, one, two = cluster.members
    assert cluster.elect(bad)
    bad.damage()
    cluster.state_hash()
    cluster.leader = None
    cluster.members = [one, two]
    for member in (one, two):
        assert not cluster.elect(member)
        assert member.standing is DOUBT
    cluster.deliver([one, two])
    assert cluster.elect(one)
    cluster.deliver([one, two])
    late = Member("r9", cluster.log, 3)  # comes later, and hears of nothing but the log
    late.fold()
    assert late.standing is SOUND
    bad.fold()
    assert bad.standing is STOPPED


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["fold", "fold", "some", "elect", "hash", "hash", "deliver", "restart"]),
        st.integers(0, 4),
        st.integers(1, 4),
    ),
    max_size=40,
)


def carry_out(cluster: Cluster, step: tuple[str, int, int]) -> None:
    what, number, count = step
    member = cluster.members[number % len(cluster.members)]
    match what:
        case "fold":
            member.fold()
        case "some":
            member.fold(count)
        case "elect":
            cluster.elect(member)
        case "hash":
            cluster.state_hash()
        case "deliver":
            cluster.deliver([member])
        case _:  # it restarts, by folding the log anew: damage in memory is gone
            if member is not cluster.leader:
                member.rebuild()


@settings(max_examples=120, deadline=None)
@given(replicas=st.sampled_from([3, 5]), before=STEPS, after=STEPS, whom=st.integers(0, 4))
def test_any_order_of_votes_and_restarts_gives_one_judgement(
    replicas: int, before: list[tuple[str, int, int]], after: list[tuple[str, int, int]], whom: int
) -> None:
    cluster = Cluster(replicas)
    for step in before:
        carry_out(cluster, step)
    bad = cluster.members[whom % replicas]
    bad.damage()
    for step in after:
        carry_out(cluster, step)
        for member in cluster.members:
            assert member.damaged or member.standing is not STOPPED
    cluster.settle()
    for member in cluster.members:
        assert member.standing is (STOPPED if member.damaged else SOUND), member.name
    assert cluster.leader is not None
    assert not cluster.leader.damaged
    late = Member("late", cluster.log, replicas)
    late.fold()
    assert late.standing is SOUND
    twin = Member("late", cluster.log, replicas)
    while twin.state.index < late.state.index:
        twin.fold(1)
    assert twin.state_votes.ballots == late.state_votes.ballots
