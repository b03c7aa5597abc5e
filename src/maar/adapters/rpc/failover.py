"""Which replica of the metastore to ask next, given the answers so far. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from maar.model.addresses import addresses_in
from maar.model.errors import NotLeading, OutcomeUnknown, Retryable, Unavailable, Unreachable

PAUSE_FIRST_S = 0.05
PAUSE_MAX_S = 0.4
SUSPECT_S = 2.0  # how long a silent replica is skipped while others answer
SHARE = 0.5  # of the time that is left, for one try: a replica that hangs must not eat it all
SHARE_MIN_S = 1.0
LEARNED_MAX = 8  # leaders that were named to us and are not in our settings


class Replicas:
    """What one client knows of the replicas; shared by its calls."""

    def __init__(self, addresses: str) -> None:
        self._given = addresses_in(addresses)
        self._learned: list[str] = []  # the newest last
        self._suspects: dict[str, float] = {}  # until when
        self._reader = ""  # the one that answered a read last
        self.leader = ""

    @property
    def alone(self) -> bool:
        """Whether there is no other replica to ask."""
        return len(self._given) == 1 and not self._learned

    def addresses(self) -> set[str]:
        return {*self._given, *self._learned}

    def in_order(self, *, leads: bool) -> list[str]:
        """The one to ask first comes first: the leader; or for reads, the nearest that answers."""
        first = self.leader if leads else self._reader
        known = [*self._given, *reversed(self._learned)]
        return [first, *(each for each in known if each != first)] if first else known

    def is_suspect(self, address: str, now: float) -> bool:
        return self._suspects.get(address, now) > now

    def suspect(self, address: str, now: float) -> None:
        self._suspects[address] = now + SUSPECT_S
        if self.leader == address:
            self.leader = ""
        if self._reader == address:
            self._reader = ""

    def trust(self, address: str, *, leads: bool) -> None:
        self._suspects.pop(address, None)
        if leads:
            self.leader = address
        else:
            self._reader = address

    def learn(self, leader: str) -> None:
        if leader not in self._given:
            self._learned = [each for each in self._learned if each != leader][-LEARNED_MAX + 1 :]
            self._learned.append(leader)
        self.leader = leader


@dataclass(slots=True)
class Search:
    """The tries of one call: every replica once, then a pause, then all again."""

    replicas: Replicas
    leads: bool
    asked: set[str] = field(default_factory=set)
    pause_s: float = PAUSE_FIRST_S

    def next(self, now: float) -> str:
        order = self.replicas.in_order(leads=self.leads)
        waiting = [each for each in order if each not in self.asked]
        if not waiting:
            self.asked.clear()
            waiting = order
        awake = [each for each in waiting if not self.replicas.is_suspect(each, now)]
        return (awake or waiting)[0]

    def note_refusal(self, address: str, error: Retryable, now: float) -> float:
        """How long to wait before the next try."""
        self.asked.add(address)
        if isinstance(error, Unreachable):
            self.replicas.suspect(address, now)
        elif isinstance(error, NotLeading):
            if self.replicas.leader == address:
                self.replicas.leader = ""
            if error.leader:
                self.replicas.learn(error.leader)
        order = self.replicas.in_order(leads=self.leads)
        if any(
            each not in self.asked and not self.replicas.is_suspect(each, now) for each in order
        ):
            return 0.0
        self.asked.clear()
        pause_s, self.pause_s = self.pause_s, min(PAUSE_MAX_S, self.pause_s * 2)
        return pause_s


def passes(error: Retryable, *, alone: bool) -> bool:
    """Whether another try, of another replica or a little later, may succeed by itself."""
    if isinstance(error, NotLeading):
        return True
    return not alone and isinstance(error, Unavailable | OutcomeUnknown)


def share_s(left_s: float, *, alone: bool) -> float:
    """How much of the time that is left one try may take."""
    return left_s if alone else min(left_s, max(SHARE_MIN_S, left_s * SHARE))
