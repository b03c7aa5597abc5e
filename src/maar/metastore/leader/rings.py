"""The rings at the leader: changes go through the log, heartbeats without a change do not."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol, TypeVar

from maar.metastore.decide import membership
from maar.metastore.decide.membership import MILLISECOND_NS, Heartbeats
from maar.metastore.fold.ring import count_moved, ring_of
from maar.metastore.leader.inbox import Prepare, Reply
from maar.metastore.leader.leader import Leader
from maar.metastore.records.effects import Effect, RingReplaced
from maar.metastore.records.entries import RingChanged
from maar.metastore.replica.metrics import MetastoreMetrics
from maar.model.errors import MaarError
from maar.model.ids import NodeId, Zone
from maar.model.ring import Ring
from maar.ports.operator.operator import ZoneStatus
from maar.ports.writer.membership import Beat, BeatReply, RingView

log_ = logging.getLogger("maar.metastore")

T = TypeVar("T")


class Carry(Protocol):
    """Have the leader's loop prepare, append and fold something, and answer from what it did."""

    async def __call__(self, prepare: Prepare, reply: Reply[T]) -> T: ...


class LeaderRings:
    """The rings of one term; each leader has to hear from the writers again."""

    def __init__(
        self, leader: Leader, carry: Carry, metrics: MetastoreMetrics, *, dead_after_ms: int
    ) -> None:
        self._leader = leader
        self._carry = carry
        self._metrics = metrics
        self._hearing = Heartbeats(dead_after_ms * MILLISECOND_NS, since=leader.state.lease_time)

    def listen(self) -> None:
        """Called at least twice a second and with every heartbeat, so that pauses are noticed."""
        self._hearing.listen(self._leader.now())

    async def beat(self, beat: Beat) -> BeatReply:
        self.listen()
        try:
            return await self._beat(self._leader, beat)
        except MaarError:
            self._metrics.beats.labels("failed").inc()
            raise

    async def _beat(self, leader: Leader, beat: Beat) -> BeatReply:
        """A heartbeat that changes nothing is answered at once, however busy the log is."""
        membership.check(beat)
        found = membership.decide(leader.state, beat, self._hearing)
        outcome = "unchanged"
        if isinstance(found, RingChanged):
            outcome = "changed"
            await self._carry(
                lambda state, _: membership.entries(state, beat, self._hearing),
                lambda effects, _: membership.check_accepted(effects, beat.zone),
            )
            found = membership.decide(leader.state, beat, self._hearing)
        ring = ring_of(leader.state, beat.zone)
        if isinstance(found, membership.Replaced):
            self._metrics.beats.labels("refused").inc()
            log_.warning("heartbeat refused cause=%s", found.refusal)
            return BeatReply(ring.changed_at, found.refusal)
        self._metrics.beats.labels(outcome).inc()
        self._hearing.hear(ring, beat, leader.now())
        return BeatReply(ring.changed_at)

    async def remove(self, zone: Zone, node: NodeId) -> Ring:
        return await self._carry(
            lambda state, now: membership.removal(state, zone, node, self._hearing, now),
            lambda effects, state: membership.ring_after_removal(effects, state, zone),
        )

    def views(self) -> tuple[RingView, ...]:
        """The rings with their live writers; callers keep the last answer while nobody leads."""
        self.listen()
        return membership.views(self._leader.state, self._hearing, self._leader.now())

    def zones(self) -> tuple[ZoneStatus, ...]:
        return tuple(map(membership.zone_status, self.views()))

    def follow(self, effects: Sequence[Effect]) -> None:
        """Note, log and count ring changes that the fold made."""
        for effect in effects:
            if isinstance(effect, RingReplaced):
                self._hearing.follow(effect)
                after = effect.after
                log_.info(
                    "ring changed zone=%s index=%d writers=%d shards=%d moved=%d",
                    *(after.zone, after.changed_at, len(after.writers), len(after.owners)),
                    count_moved(effect.before, after),
                )
