"""Whether this replica's state is the one that most replicas computed from the same log (S13).

A leader states its hash at an entry, and the others' hashes follow as votes. A replica that is
outvoted stops. A replica that differs from the leader and is not outvoted yet is in doubt: it keeps
applying entries, but neither answers nor campaigns until votes settle it. Stopping depends on the
votes in the log alone, so every replica comes to the same conclusion. Votes that were heard outside
the log can end a doubt, so that replicas that agree with each other can elect a leader after a
wrong one was lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from maar.metastore.records.effects import Compared, Effect, Voted
from maar.metastore.records.entries import Entry, StateHashed
from maar.metastore.state.digest import digest
from maar.metastore.state.state import MetaState
from maar.model.errors import Corrupt
from maar.model.time import SECOND_NS
from maar.ports.metastore.replica import Vote

STATE_NS = 120 * SECOND_NS  # a leader states its hash at least this often, while entries come
BALLOTS_MAX = 8  # the newest ones, in which votes still count
REPLICAS_MAX = 64  # names in a ballot: more are no replicas of ours
CHANGES_MAX = 4  # votes of one replica in one ballot, on average: it may have been rebuilt


class ReplicaHealth(StrEnum):
    SOUND = "sound"
    DOUBT = "in doubt"
    STOPPED = "stopped"


@dataclass(slots=True)
class Ballot:
    """What replicas hashed at one entry; of each, the last vote counts."""

    leader: str  # who stated it
    stated: bytes
    ours: bytes
    votes: dict[str, bytes] = field(default_factory=dict)  # in the log, including the leader's
    heard: dict[str, bytes] = field(default_factory=dict)  # told by a replica itself
    counted: int = 0  # votes in the log, repeated ones too


def judge(ballot: Ballot, *, name: str, replicas: int) -> ReplicaHealth:
    """The verdict on the replica of this name, one of so many."""
    if replicas == 1:
        return ReplicaHealth.SOUND if ballot.ours == ballot.stated else ReplicaHealth.STOPPED
    votes = ballot.votes | ({name: ballot.ours} if name else {})
    if _majority(votes, replicas) not in (None, ballot.ours):
        return ReplicaHealth.STOPPED
    if ballot.ours in (ballot.stated, _majority(ballot.heard | votes, replicas)):
        return ReplicaHealth.SOUND
    # When all have voted and no hash has a majority, the leader's counts: it was acted on already.
    return ReplicaHealth.STOPPED if len(votes) >= replicas else ReplicaHealth.DOUBT


def _majority(votes: dict[str, bytes], replicas: int) -> bytes | None:
    """The hash of more than half of all replicas, those that have not voted included."""
    for found, count in Counter(votes.values()).most_common(1):
        if 2 * count > max(replicas, len(votes)):
            return found
    return None


class StateVotes:
    """Judges one replica as it applies entries; a rebuild starts with a new one.

    By default it is that of a single replica, which has nobody to ask: it stops at any difference.
    """

    def __init__(self, name: str = "", *, replicas: int = 1) -> None:
        """`replicas`: how many are configured, this one included."""
        self._name = name
        self._replicas = replicas
        self._ballots: dict[int, Ballot] = {}  # by entry, oldest first
        self._fault = ""
        self._stated_ns = 0  # when we last stated a hash, as a leader

    @classmethod
    def witness(cls) -> StateVotes:
        """For a process without a vote, which trusts the newest statement (the snapshot maker)."""
        return cls(replicas=REPLICAS_MAX + 1)

    @property
    def standing(self) -> ReplicaHealth:
        """Not SOUND: do not answer, do not campaign, and resign if this replica leads."""
        if self._fault:
            return ReplicaHealth.STOPPED
        for ballot in reversed(self._ballots.values()):
            return judge(ballot, name=self._name, replicas=self._replicas)
        return ReplicaHealth.SOUND

    @property
    def trouble(self) -> str:
        """Why this replica must not answer; '' while it is sound."""
        if self._fault or self.standing is ReplicaHealth.SOUND:
            return self._fault
        at, ballot = self._newest()
        differs = (
            f"the state at entry {at} has the hash {_short(ballot.ours)} here, and that of "
            f"{ballot.leader}, which led, had {_short(ballot.stated)}"
        )
        if not self._name:
            return f"{differs}: the same log gave two states"
        return (
            f"{differs}: this replica waits until the votes of most of {self._replicas} replicas "
            "say who is right"
        )

    @property
    def ballots(self) -> Mapping[int, Ballot]:
        """By entry, oldest first."""
        return self._ballots

    @property
    def hashed_at(self) -> int:
        """The newest entry whose state was compared; 0: none was."""
        return self._newest()[0] if self._ballots else 0

    @property
    def digest(self) -> bytes:
        """This replica's, there."""
        return self._newest()[1].ours if self._ballots else b""

    def fold(self, effects: Iterable[Effect]) -> None:
        """Note votes among the effects of entries. Corrupt once this replica is found wrong."""
        for effect in effects:
            match effect:
                case Compared():
                    self._compare(effect)
                case Voted():
                    self._count(effect)
                case _:
                    continue
        if self._fault:
            raise Corrupt(self._fault)

    def hear(self, vote: Vote) -> None:
        """Note another replica's own vote; a leader appends it to the log with its `entries`."""
        ballot = self._ballots.get(vote.at)
        if ballot is None or not vote.replica or vote.replica == self._name:
            return
        if vote.replica in ballot.heard or len(ballot.heard) < REPLICAS_MAX:
            ballot.heard[vote.replica] = vote.digest

    def vote(self) -> Vote | None:
        """The vote that the leader needs from this replica; None when the log has it already."""
        if not self._ballots or not self._name or self._replicas == 1:
            return None
        at, ballot = self._newest()
        if ballot.votes.get(self._name) == ballot.ours:
            return None
        return Vote(self._name, at, ballot.ours)

    def entries(self, state: MetaState, *, monotonic_ns: int) -> list[Entry]:
        """Entries that a leader appends before anything else: its own hash when due, and votes."""
        if self._replicas == 1:
            return []
        due = monotonic_ns - self._stated_ns >= STATE_NS and self._has_moved(state.index)
        if due:
            self._stated_ns = monotonic_ns
        return [*(hash_entries(state) if due else ()), *self._unwritten()]

    def _has_moved(self, index: int) -> bool:
        """Whether anything but hashes came behind the newest statement."""
        if not self._ballots:
            return True
        at, ballot = self._newest()
        return index - at > ballot.counted

    def _unwritten(self) -> Iterator[StateHashed]:
        """Votes that were heard, our own too, and that the log does not hold."""
        for at, ballot in self._ballots.items():
            for name, found in sorted((ballot.heard | {self._name: ballot.ours}).items()):
                room = ballot.counted < CHANGES_MAX * max(self._replicas, len(ballot.votes))
                if room and ballot.votes.get(name) != found:
                    yield StateHashed(at, found, name)

    def _compare(self, effect: Compared) -> None:
        ballot = Ballot(effect.leader, effect.theirs, effect.ours)
        self._ballots[effect.at] = ballot
        while len(self._ballots) > BALLOTS_MAX:
            del self._ballots[next(iter(self._ballots))]
        self._count(Voted(effect.at, effect.leader, effect.theirs))

    def _count(self, vote: Voted) -> None:
        ballot = self._ballots.get(vote.at)
        if ballot is None:
            return  # too old, or this replica began with a later state: it cannot vote there
        ballot.counted += 1
        if vote.replica in ballot.votes or len(ballot.votes) < REPLICAS_MAX:
            ballot.votes[vote.replica] = vote.digest
        if judge(ballot, name=self._name, replicas=self._replicas) is ReplicaHealth.STOPPED:
            others = sorted(ballot.votes.items())
            had = ", ".join(f"{_short(found)} ({who})" for who, found in others)
            self._stop(vote.at, ballot.ours, f"others had {had}")

    def _stop(self, at: int, ours: bytes, others: str) -> None:
        self._fault = self._fault or (
            f"this replica's state at entry {at} has the hash {_short(ours)}, {others}: the same "
            "log gave two states. This replica stops; keep its log and host for an inspection, "
            "then run `maar metastore rebuild`"
        )

    def _newest(self) -> tuple[int, Ballot]:
        at = next(reversed(self._ballots))
        return at, self._ballots[at]


def hash_entries(state: MetaState) -> list[Entry]:
    """A leader's own hash; it must be the next entry."""
    return [StateHashed(state.index, digest(state))]


def _short(found: bytes) -> str:
    return found.hex()[:16]
