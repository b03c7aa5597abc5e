"""What the replicas of a metastore know of each other; kept in memory only.

Nothing here decides who leads. It tells a leader which version of the log all replicas can read,
whether its clock agrees with most others, and the hashes of the others' states; and it tells
operators how the replicas are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from maar.background import Loop
from maar.metastore.fold.deleting.trust import Clocks
from maar.metastore.records.entries import Entry, VersionActivated
from maar.metastore.replica.integrity import StateVotes
from maar.metastore.replica.timing import TIMING, Timing
from maar.model.errors import MaarError
from maar.model.time import SECOND_NS
from maar.ports.calls import Caller
from maar.ports.clock import Clock
from maar.ports.metastore.replica import GetReplica, MetastoreReplica, ReplicaStatus, Vote

log_ = logging.getLogger("maar.metastore")

ANSWER_S = 2.0  # a replica that takes longer is unreachable
FRESH_NS = 10 * SECOND_NS  # an answer that is older says nothing of the present
CLOCK_FRESH_NS = 600 * SECOND_NS  # clocks do not drift apart in this time


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """The last answer of a replica."""

    status: ReplicaStatus
    at_ns: int  # by our monotonic clock, in the middle between question and answer


class Peers:
    """Polls the other replicas for their status all the time, as leader or follower."""

    def __init__(
        self,
        addresses: Sequence[str],
        connect: Callable[[str], Caller[MetastoreReplica]],
        clock: Clock,
        *,
        own: Callable[[], ReplicaStatus],
        state_votes: Callable[[], StateVotes],
        timing: Timing = TIMING,
    ) -> None:
        """`addresses` are the others'; `own` and `judge` tell of this replica as it is now."""
        self._addresses = tuple(dict.fromkeys(addresses))
        self._connect = connect
        self._clock = clock
        self._own = own
        self._state_votes = state_votes
        self._timing = timing
        self._heard: dict[str, PeerAnswer] = {}  # by address
        self._silence: dict[str, str] = {}  # why those do not answer
        self._told = ""

    async def forever(self) -> None:
        """Rounds without end, if there is anybody to ask; only cancelling ends them."""
        failed, every_s = "polling the other replicas failed", self._timing.ask_peers_s
        if self._addresses:
            await Loop(self.round, failed=failed, log=log_, every_s=every_s).run()

    async def round(self) -> None:
        """Ask every replica once, note their votes, and send ours to the leader."""
        await asyncio.gather(*map(self._ask, self._addresses))
        state_votes, own = self._state_votes(), self._own()
        for heard in self._fresh(FRESH_NS):
            if heard.status.hashed_at and self._has_own_name(heard.status, own):
                found = heard.status
                state_votes.hear(Vote(found.name, found.hashed_at, found.digest))
        self._tell(self.trouble())
        await self._vote(state_votes.vote(), own)

    def replicas(self) -> tuple[ReplicaStatus, ...]:
        """This one first, then the others as last heard; silent ones are 'unreachable'."""
        return (self._own(), *map(self._status_of, self._addresses))

    def activation(self, version: int) -> list[Entry]:
        """A newer version than the active one, once every replica has just said it knows it."""
        heard = self._fresh(FRESH_NS)
        if len(heard) < len(self._addresses):
            return []
        known = min([self._own().knows, *(one.status.knows for one in heard)])
        return [VersionActivated(known)] if known > version else []

    def clocks(self) -> Clocks:
        """The replicas' wall clocks, for the check of ours.

        Our monotonic clock is added to older answers: our wall clock may have been set since, and
        older answers must not confirm it.
        """
        since_ns = self._clock.monotonic_ns() - self._clock.wall_ns()
        fresh = self._fresh(CLOCK_FRESH_NS)
        ahead = tuple(one.status.wall_ns - one.at_ns + since_ns for one in fresh)
        return Clocks(1 + len(self._addresses), ahead)

    def trouble(self) -> str:
        """What is wrong with the set-up: two of one name, or one of another log; '' if nothing."""
        own = self._own()
        names = {own.name: own.address}
        for address in self._addresses:
            heard = self._heard.get(address)
            if heard is None or self._is_stale(heard, FRESH_NS):
                continue
            found = heard.status
            if _foreign(found, own):
                return (
                    f"the replica at {address} is of another log (incarnation {found.incarnation}, "
                    f"not {own.incarnation}); check the addresses and the log of both"
                )
            if found.name in names:
                return (
                    f"the replicas at {names[found.name]} and {address} are both called "
                    f"{found.name}: their votes cannot be told apart; give each its own name"
                )
            names[found.name] = address
        return ""

    async def _ask(self, address: str) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                before_ns = self._clock.monotonic_ns()
                status = await self._connect(address).call(GetReplica())
        except (MaarError, OSError, TimeoutError) as error:
            self._silence[address] = str(error) or "it did not answer in time"
            return
        between_ns = (before_ns + self._clock.monotonic_ns()) // 2
        self._heard[address] = PeerAnswer(status, between_ns)
        self._silence.pop(address, None)

    async def _vote(self, vote: Vote | None, own: ReplicaStatus) -> None:
        """The leader polls us too; sending the vote helps a leader that cannot reach us."""
        if vote is None or not own.leader or own.leader == own.address:
            return
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._connect(own.leader).call(vote)
        except (MaarError, OSError, TimeoutError) as error:
            log_.debug("vote not delivered leader=%s cause=%s", own.leader, error)

    def _fresh(self, age_ns: int) -> list[PeerAnswer]:
        """Answers of replicas of this log that are not older than this."""
        own = self._own()
        return [
            heard
            for heard in self._heard.values()
            if not self._is_stale(heard, age_ns) and not _foreign(heard.status, own)
        ]

    def _is_stale(self, heard: PeerAnswer, age_ns: int) -> bool:
        return self._clock.monotonic_ns() - heard.at_ns > age_ns

    def _status_of(self, address: str) -> ReplicaStatus:
        heard = self._heard.get(address)
        silence = self._silence.get(address, "")
        if heard is None:
            return ReplicaStatus(address, address, "unreachable", fault=silence)
        if silence or self._is_stale(heard, FRESH_NS):
            return msgspec.structs.replace(heard.status, standing="unreachable", fault=silence)
        return heard.status

    def _has_own_name(self, status: ReplicaStatus, own: ReplicaStatus) -> bool:
        """Whether a vote can be told from those of all others."""
        names = [own.name, *(one.status.name for one in self._heard.values())]
        return names.count(status.name) == 1

    def _tell(self, trouble: str) -> None:
        if trouble and trouble != self._told:
            log_.error("replicas misconfigured cause=%s", trouble)
        self._told = trouble


def _foreign(status: ReplicaStatus, own: ReplicaStatus) -> bool:
    """Whether it follows another log; a replica that has read nothing yet does not."""
    return bool(status.incarnation and own.incarnation) and status.incarnation != own.incarnation
