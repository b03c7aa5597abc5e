"""Segment writers that beat, and the ring that a leader's decisions make of it; no log, no loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from maar.metastore.decide import membership
from maar.metastore.decide.membership import Heartbeats, Replaced
from maar.metastore.fold.apply import apply
from maar.metastore.fold.ring import ring_of
from maar.metastore.records.effects import Effects, RingReplaced
from maar.metastore.records.entries import Entry
from maar.model.ids import HOME, NodeId, Zone
from maar.model.ring import Ring, Writer, WriterState
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.writer.membership import Beat, RingView
from support.metastore.fold import Fold

JOINING, ACTIVE, LEAVING = WriterState


def writer(
    node: str, state: WriterState = ACTIVE, *, session: str = "s1", shards: int = 4
) -> Writer:
    return Writer(NodeId(node), f"{node}.example:4044", session, shards, state)


def owners(ring: Ring) -> list[str]:
    """The node of each shard."""
    return list(ring.nodes())


@dataclass
class Town:
    fold: Fold = field(default_factory=Fold)
    heartbeats: Heartbeats = field(default_factory=lambda: Heartbeats(since=LeaseTime(0)))

    @property
    def now(self) -> LeaseTime:
        return LeaseTime(self.fold.now)

    def wait(self, seconds: float) -> None:
        """The leader goes on listening meanwhile."""
        for _ in range(int(seconds)):
            self.fold.now += SECOND_NS
            self.heartbeats.listen(self.now)

    def beat(
        self, one: Writer, *, leaves: bool = False, zone: Zone = HOME, entries_max: int = 1
    ) -> str:
        """'' when it was taken, else the refusal; at most so many entries were written."""
        beat = Beat(zone, one, leaves)
        membership.check(beat)
        entries = membership.entries(self.fold.state, beat, self.heartbeats)
        assert len(entries) <= entries_max
        membership.check_accepted(self.put(entries), zone)
        found = membership.decide(self.fold.state, beat, self.heartbeats)
        if isinstance(found, Replaced):
            return found.refusal
        assert found is None, "what was decided is not what the fold made"
        self.heartbeats.hear(self.ring(zone), beat, self.now)
        return ""

    def join(self, *nodes: str, session: str = "s1", shards: int = 4) -> None:
        for node in nodes:
            for state in (JOINING, ACTIVE):
                assert self.beat(writer(node, state, session=session, shards=shards)) == ""

    def remove(self, node: str, zone: Zone = HOME) -> Ring:
        found = membership.removal(self.fold.state, zone, NodeId(node), self.heartbeats, self.now)
        return membership.ring_after_removal(self.put(found), self.fold.state, zone)

    def ring(self, zone: Zone = HOME) -> Ring:
        return ring_of(self.fold.state, zone)

    def view(self, zone: Zone = HOME) -> RingView:
        return membership.view(self.ring(zone), self.heartbeats, self.now)

    def state_of(self, node: str) -> WriterState | None:
        found = [w.state for w in self.ring().writers if w.node == node]
        return found[0] if found else None

    def put(self, entries: list[Entry]) -> Effects:
        effects: Effects = ()
        for entry in entries:
            made = self.fold.put(entry)
            assert apply(self.fold.state, self.fold.log[-1]) == ()
            effects += made
        for effect in effects:
            if isinstance(effect, RingReplaced):
                self.heartbeats.follow(effect)
        return effects
