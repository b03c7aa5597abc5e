"""What replicas know of each other: versions, clocks, votes, and which are silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from maar.metastore.fold.deleting.trust import Clocks
from maar.metastore.leader.peers import CLOCK_FRESH_NS, FRESH_NS, Peers
from maar.metastore.records.effects import Compared
from maar.metastore.records.entries import StateHashed, VersionActivated
from maar.metastore.replica.integrity import ReplicaHealth, StateVotes
from maar.model.errors import Unavailable
from maar.model.time import SECOND_NS
from maar.ports.calls import LocalPort
from maar.ports.metastore.replica import ReplicaStatus, Vote
from support.clock.fake_clock import FakeClock
from support.clock.virtual_time import run_virtually, until
from support.metastore.fold import Fold

OWN = ReplicaStatus("a", "a:1", "leader", knows=4, version=3, incarnation="0badcafe")
GOOD, BAD = b"good", b"bad"


class Other(LocalPort):
    """Another replica: what it says, or what goes wrong when it is asked."""

    def __init__(self, name: str, clock: FakeClock, **status: Any) -> None:
        self.status = ReplicaStatus(name, f"{name}:1", "follower", knows=4, incarnation="0badcafe")
        self.status = msgspec.structs.replace(self.status, **status)
        self.clock = clock
        self.ahead_ns = 0
        self.answers: Callable[[], Any] = lambda: None
        self.votes: list[Vote] = []

    async def replica(self) -> ReplicaStatus:
        waiting = self.answers()
        if waiting is not None:
            await waiting
        wall_ns = self.clock.wall_ns() + self.ahead_ns
        return msgspec.structs.replace(self.status, wall_ns=wall_ns)

    async def vote(self, vote: Vote) -> None:
        self.votes.append(vote)

    async def pin(self, reader: str) -> int:
        raise NotImplementedError

    async def snapshot(self) -> int:
        raise NotImplementedError

    async def rebuild(self) -> ReplicaStatus:
        raise NotImplementedError


class World:
    """Replica `a`, and others that it asks."""

    def __init__(self, *others: str, own: ReplicaStatus = OWN) -> None:
        self.clock = FakeClock()
        self.others = {f"{name}:1": Other(name, self.clock) for name in others}
        self.own = own
        self.state_votes = StateVotes(own.name, replicas=1 + len(others))
        self.peers = Peers(
            list(self.others),
            self.others.__getitem__,
            self.clock,
            own=lambda: self.own,
            state_votes=lambda: self.state_votes,
        )

    def __getitem__(self, name: str) -> Other:
        return self.others[f"{name}:1"]

    def ask(self) -> World:
        run_virtually(self.peers.round())
        return self


def silence() -> Any:
    raise Unavailable("nobody is at home")


# ── versions ───────────────────────────────────────────────────────────────────────────────────


def test_a_version_is_activated_when_every_replica_says_that_it_knows_it() -> None:
    world = World("b", "c")
    assert world.peers.activation(3) == []  # nobody was asked yet
    world["c"].answers = silence
    assert world.ask().peers.activation(3) == []
    world["c"].answers = lambda: None
    world["c"].status = msgspec.structs.replace(world["c"].status, knows=3)
    assert world.ask().peers.activation(3) == []
    assert world.peers.activation(2) == [VersionActivated(3)]  # the newest that all know
    world["c"].status = msgspec.structs.replace(world["c"].status, knows=5)
    assert world.ask().peers.activation(3) == [VersionActivated(4)]
    assert world.peers.activation(4) == []
    world.own = msgspec.structs.replace(OWN, knows=3)
    assert world.peers.activation(3) == []


def test_a_lone_replica_asks_nobody() -> None:
    assert World().peers.activation(1) == [VersionActivated(4)]
    assert World().peers.activation(4) == []
    run_virtually(World().peers.forever())  # which ends at once


def test_what_a_replica_said_a_while_ago_activates_nothing() -> None:
    """It may have been replaced by an older program since."""
    world = World("b").ask()
    world.clock.advance(FRESH_NS + 1)
    assert world.peers.activation(3) == []
    assert world.ask().peers.activation(3) == [VersionActivated(4)]


def test_a_replica_of_another_log_has_no_say() -> None:
    world = World("b")
    world["b"].status = msgspec.structs.replace(
        world["b"].status, incarnation="deadbeef", hashed_at=7, digest=BAD
    )
    world.state_votes.fold([Compared(7, "a", GOOD, GOOD)])
    assert world.ask().peers.activation(3) == []
    assert world.peers.clocks() == Clocks(2, ())
    assert "of another log" in world.peers.trouble()
    assert world.state_votes.entries(Fold().state, monotonic_ns=0) == []
    starting = msgspec.structs.replace(world["b"].status, incarnation="")
    world["b"].status = starting  # it has read nothing, but its program is known
    assert world.ask().peers.activation(3) == [VersionActivated(4)]
    assert world.peers.trouble() == ""


# ── clocks ─────────────────────────────────────────────────────────────────────────────────────


def test_clocks_are_compared_at_the_moment_of_the_answer() -> None:
    world = World("b", "c", "d")
    world["b"].ahead_ns, world["c"].ahead_ns = 5 * SECOND_NS, -3 * SECOND_NS
    world["d"].answers = silence
    assert sorted(world.ask().peers.clocks().ahead_ns) == [-3 * SECOND_NS, 5 * SECOND_NS]
    world.clock.advance(CLOCK_FRESH_NS)  # nobody is asked for a while: they have not drifted
    assert world.peers.clocks().replicas == 4
    assert len(world.peers.clocks().ahead_ns) == 2
    world.clock.advance(1)
    assert world.peers.clocks() == Clocks(4, ())


def test_a_clock_that_is_set_after_the_answers_is_seen_at_once() -> None:
    world = World("b", "c").ask()
    world.clock.advance(SECOND_NS)
    assert world.peers.clocks() == Clocks(3, (0, 0))
    world.clock.wall += 3600 * SECOND_NS
    assert world.peers.clocks() == Clocks(3, (-3600 * SECOND_NS, -3600 * SECOND_NS))


def test_a_slow_answer_shifts_a_clock_by_no_more_than_half_its_time() -> None:
    world = World("b")

    async def slow() -> None:
        world.clock.advance(2 * SECOND_NS)

    world["b"].answers = slow
    assert world.ask().peers.clocks().ahead_ns == (SECOND_NS,)


# ── votes ──────────────────────────────────────────────────────────────────────────────────────


def test_a_leader_hears_the_hashes_that_others_tell_of() -> None:
    world = World("b", "c")
    world.state_votes.fold([Compared(7, "a", GOOD, GOOD)])
    for name, found in (("b", GOOD), ("c", BAD)):
        other = world[name]
        other.status = msgspec.structs.replace(other.status, hashed_at=7, digest=found)
    world.ask()
    written = world.state_votes.entries(Fold().state, monotonic_ns=0)
    assert written == [StateHashed(7, GOOD, "b"), StateHashed(7, BAD, "c")]


def test_a_follower_gives_the_leader_its_vote_until_it_is_in_the_log() -> None:
    own = msgspec.structs.replace(OWN, standing="follower", leader="b:1")
    world = World("b", "c", own=own)
    world.state_votes.fold([Compared(7, "b", GOOD, BAD)])
    world.ask().ask()
    assert world["b"].votes == [Vote("a", 7, BAD)] * 2
    assert world["c"].votes == []
    world.own = msgspec.structs.replace(own, leader="")
    world.ask()
    world.own = msgspec.structs.replace(own, leader="a:1")  # itself
    world.ask()
    assert len(world["b"].votes) == 2


def test_a_doubt_ends_by_what_the_others_say() -> None:
    world = World("b", "c", own=msgspec.structs.replace(OWN, standing="in doubt"))
    world.state_votes.fold([Compared(7, "c", BAD, GOOD)])
    assert "waits until" in world.state_votes.trouble
    world["c"].answers = silence
    world["b"].status = msgspec.structs.replace(world["b"].status, hashed_at=7, digest=GOOD)
    world.ask()
    assert world.state_votes.standing is ReplicaHealth.SOUND


def test_votes_of_two_with_one_name_do_not_count_and_people_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World("b", "c")
    world.state_votes.fold([Compared(7, "a", GOOD, GOOD)])
    for name in "bc":
        other = world[name]
        other.status = msgspec.structs.replace(other.status, name="twin", hashed_at=7, digest=BAD)
    world.ask().ask()
    assert world.state_votes.entries(Fold().state, monotonic_ns=0) == []
    assert "b:1 and c:1 are both called twin" in world.peers.trouble()
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1
    world["b"].status = msgspec.structs.replace(world["b"].status, name="a")
    assert "a:1 and b:1 are both called a" in world.ask().peers.trouble()


# ── for people ─────────────────────────────────────────────────────────────────────────────────


def test_replicas_are_shown_as_they_were_last_heard_and_silence_is_said() -> None:
    world = World("b", "c")
    world["c"].answers = silence
    own, b, c = world.ask().peers.replicas()
    assert own is OWN
    assert (b.name, b.standing, b.fault) == ("b", "follower", "")
    assert (c.name, c.address, c.standing) == ("c:1", "c:1", "unreachable")
    assert c.fault == "nobody is at home"
    world["b"].answers = silence
    _, b, _ = world.ask().peers.replicas()
    assert (b.name, b.standing, b.fault) == ("b", "unreachable", "nobody is at home")
    world["b"].answers = world["c"].answers = lambda: None
    standings = [one.standing for one in world.ask().peers.replicas()]
    assert standings == ["leader", "follower", "follower"]
    world.clock.advance(FRESH_NS + 1)
    assert [one.standing for one in world.peers.replicas()][1:] == ["unreachable"] * 2


def test_one_that_hangs_holds_nobody_up() -> None:
    world = World("b", "c")
    world["b"].answers = lambda: asyncio.sleep(3600)
    _, b, c = world.ask().peers.replicas()
    assert (b.standing, b.fault) == ("unreachable", "it did not answer in time")
    assert c.standing == "follower"


def test_rounds_go_on_whatever_goes_wrong() -> None:
    world = World("b")
    asked = 0

    def defect() -> Any:
        nonlocal asked
        asked += 1
        raise KeyError("a defect")

    world["b"].answers = defect

    async def test() -> None:
        rounds = asyncio.create_task(world.peers.forever())
        await until(lambda: asked >= 3)
        rounds.cancel()
        await asyncio.wait([rounds])
        assert rounds.cancelled()

    run_virtually(test())
