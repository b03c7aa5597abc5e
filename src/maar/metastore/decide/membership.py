"""Which writers are in the ring and which are alive: what a heartbeat leads to (S16).

Registrations, states and shards are entries. Liveness is not replicated: the leader tracks in
memory when it last heard each writer, in lease time, and starts over with each term. A leader that
has not listened long enough declares nobody dead. A dead writer keeps its shards: pushes fail over
to other writers until it is back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from maar.metastore.decide.verdict import ALWAYS
from maar.metastore.fold.ring import no_ring, ring_of, shard_counts
from maar.metastore.records.effects import Effect, Refused, RingReplaced
from maar.metastore.records.entries import Entry, RingChanged
from maar.metastore.state.state import MetaState
from maar.model.errors import InvalidInput, NotFound, Overloaded, Rejected, Unavailable
from maar.model.ids import NodeId, Zone
from maar.model.ring import DEAD, Ring, Writer, WriterState
from maar.model.time import SECOND_NS, LeaseTime
from maar.placement import table
from maar.ports.operator.operator import ZoneStatus
from maar.ports.writer.membership import Beat, RingView

MILLISECOND_NS = SECOND_NS // 1000
DEAD_AFTER_MS = 10_000
GONE_MAX = 10_000  # sessions
NAME_MAX = 253  # characters of a zone, a node, an address or a session
SHARDS_MAX = 64  # of one writer
PAUSE_MIN_NS = SECOND_NS  # the leader's loop runs twice as often
STANDINGS = (*(state.value for state in WriterState), DEAD)
UNHEARD = LeaseTime(-2)  # before any time at which a leader began to listen

_ADVANCES = {WriterState.JOINING: 0, WriterState.ACTIVE: 1, WriterState.LEAVING: 2}


class WriterSession(NamedTuple):
    """One run of a writer's process, from start to exit."""

    zone: Zone
    node: NodeId
    session: str


class Replaced(NamedTuple):
    """A heartbeat of a process whose name another process has registered since."""

    refusal: str


Decision = RingChanged | Replaced | None  # None: the ring already matches the heartbeat


# ── liveness: in the leader's memory only ──────────────────────────────────────────────────────


@dataclass(slots=True)
class Heartbeats:
    dead_after_ns: int = DEAD_AFTER_MS * MILLISECOND_NS
    since: LeaseTime = ALWAYS  # listening since then, without a pause that could miss a heartbeat
    listened_at: LeaseTime = ALWAYS
    heard: dict[tuple[Zone, NodeId], LeaseTime] = field(default_factory=dict)
    gone: dict[WriterSession, None] = field(default_factory=dict)  # replaced or left; oldest first

    def listen(self, now: LeaseTime) -> None:
        """Note that the leader runs; after a pause it listens anew, since it missed heartbeats.

        A shorter pause makes nobody seem dead: three heartbeats fit into the time after which a
        writer counts as dead.
        """
        pause_ns = max(PAUSE_MIN_NS, self.dead_after_ns // 2)
        if self.listened_at != ALWAYS and now - self.listened_at >= pause_ns:
            self.since = now
        self.listened_at = now

    def hear(self, ring: Ring, beat: Beat, now: LeaseTime) -> None:
        """Record an accepted heartbeat; `ring` is the ring after it."""
        if beat.leaves:
            self.part_with(WriterSession(beat.zone, beat.writer.node, beat.writer.session))
        elif _find_writer(ring, beat.writer.node):
            self.heard[beat.zone, beat.writer.node] = now

    def part_with(self, session: WriterSession) -> None:
        """Accept no more heartbeats of this session, however late they arrive."""
        self.gone[session] = None
        while len(self.gone) > GONE_MAX:
            del self.gone[next(iter(self.gone))]

    def follow(self, effect: RingReplaced) -> None:
        """Forget writers that left the ring, and those whose name another process took over."""
        zone = effect.before.zone
        stays = {writer.node: writer.session for writer in effect.after.writers}
        for writer in effect.before.writers:
            if writer.node not in stays:
                self.heard.pop((zone, writer.node), None)
            elif stays[writer.node] != writer.session:
                self.part_with(WriterSession(zone, writer.node, writer.session))

    def silent_ns(self, zone: Zone, node: NodeId, now: LeaseTime) -> int:
        """How long the leader has listened without hearing this writer."""
        return now - max(self.heard.get((zone, node), UNHEARD), self.since)

    def is_dead(self, zone: Zone, node: NodeId, now: LeaseTime) -> bool:
        return self.silent_ns(zone, node, now) > self.dead_after_ns

    def is_complete(self, ring: Ring, now: LeaseTime) -> bool:
        """Whether it is known which writers are dead: enough time has passed, or all were heard."""
        if now - self.since > self.dead_after_ns:
            return True
        return all(
            self.heard.get((ring.zone, writer.node), UNHEARD) >= self.since
            for writer in ring.writers
        )


def view(ring: Ring, heartbeats: Heartbeats, now: LeaseTime) -> RingView:
    dead = [w.node for w in ring.writers if heartbeats.is_dead(ring.zone, w.node, now)]
    silent_ms = (
        (now - heard) // MILLISECOND_NS if heard is not None else -1
        for heard in (heartbeats.heard.get((ring.zone, w.node)) for w in ring.writers)
    )
    return RingView(ring, tuple(dead), heartbeats.is_complete(ring, now), tuple(silent_ms))


def views(state: MetaState, heartbeats: Heartbeats, now: LeaseTime) -> tuple[RingView, ...]:
    return tuple(view(ring, heartbeats, now) for _, ring in sorted(state.rings.items()))


def zone_status(found: RingView) -> ZoneStatus:
    ring, dead = found.ring, frozenset(found.dead)
    states = Counter(DEAD if w.node in dead else w.state.value for w in ring.writers)
    return ZoneStatus(ring.zone, dict(states), len(ring.owners), ring.changed_at, found.complete)


# ── what a heartbeat leads to ──────────────────────────────────────────────────────────────────


def check(beat: Beat) -> None:
    """InvalidInput for values that no writer of maar sends."""
    writer = beat.writer
    for what, text in (
        ("zone", beat.zone),
        ("node", writer.node),
        ("address", writer.address),
        ("session", writer.session),
    ):
        if not 1 <= len(text) <= NAME_MAX or not text.isprintable():
            raise InvalidInput(
                f"a writer's {what} has 1 to {NAME_MAX} printable characters, not {text[:60]!r}",
                reason="beat",
            )
    if not 1 <= writer.shards <= SHARDS_MAX:
        raise InvalidInput(
            f"a writer takes 1 to {SHARDS_MAX} shards, not {writer.shards}", reason="beat"
        )


def decide(state: MetaState, beat: Beat, heartbeats: Heartbeats) -> Decision:
    """Decide by the present state; a change is decided again on the leader's loop.

    Of two processes with one name, the one that registered later has it. Only a joining process
    registers under a name that is taken, so no late heartbeat of an earlier session is accepted.
    """
    ring, writer = ring_of(state, beat.zone), beat.writer
    known = _find_writer(ring, writer.node)
    if known is None and (beat.leaves or writer.state is WriterState.LEAVING):
        return None  # there is nothing left to leave
    if WriterSession(beat.zone, writer.node, writer.session) in heartbeats.gone:
        return _replacement(beat, known)
    if known is None:
        return _with(ring, writer)
    if known.session == writer.session:
        if _ADVANCES[writer.state] < _ADVANCES[known.state]:
            writer = msgspec.structs.replace(writer, state=known.state)  # a delayed heartbeat
    elif writer.state is not WriterState.JOINING:
        return _replacement(beat, known)
    if beat.leaves:
        return _without(ring, writer.node)
    return None if writer == known else _with(ring, writer)


def entries(state: MetaState, beat: Beat, heartbeats: Heartbeats) -> list[Entry]:
    """Overloaded, with the reason, when there is no room for the writer."""
    found = decide(state, beat, heartbeats)
    if not isinstance(found, RingChanged):
        return []
    _check_room(state, found)
    return [found]


def check_accepted(effects: Sequence[Effect], zone: Zone) -> None:
    """Unavailable when the fold refused the ring: the next heartbeat is decided again."""
    for effect in effects:
        if isinstance(effect, Refused) and effect.what == zone:
            raise Unavailable(f"the ring of zone {zone} stays as it is: {effect.why}; try again")


def removal(
    state: MetaState, zone: Zone, node: NodeId, heartbeats: Heartbeats, now: LeaseTime
) -> list[Entry]:
    """The entry that removes a writer as an operator asked, or an error that says why not."""
    ring = ring_of(state, zone)
    known = _find_writer(ring, node)
    if known is None:
        raise NotFound(
            f"there is no writer {node[:60]!r} in zone {zone[:60]!r}; `maar ring` lists those "
            "that are"
        )
    if known.state is not WriterState.LEAVING and not heartbeats.is_dead(zone, node, now):
        if (zone, node) not in heartbeats.heard and not heartbeats.is_complete(ring, now):
            raise Unavailable(
                f"the metastore has led for too short a time to know whether writer {node} of "
                f"zone {zone} is alive; ask again in {heartbeats.dead_after_ns / SECOND_NS:.0f} s"
            )
        raise Rejected(
            f"writer {node} of zone {zone} was heard from lately and would be back with its next "
            "heartbeat; stop its process first"
        )
    return [_without(ring, node)]


def ring_after_removal(effects: Sequence[Effect], state: MetaState, zone: Zone) -> Ring:
    check_accepted(effects, zone)
    return state.rings.get(zone) or no_ring(zone, changed_at=state.index)


def _find_writer(ring: Ring, node: NodeId) -> Writer | None:
    place = bisect_left(ring.writers, node, key=lambda writer: writer.node)
    found = ring.writers[place] if place < len(ring.writers) else None
    return found if found is not None and found.node == node else None


def _replacement(beat: Beat, known: Writer | None) -> Replaced:
    who = f"writer {beat.writer.node} of zone {beat.zone}"
    if known is None:
        return Replaced(f"{who} has left the ring")
    return Replaced(f"another process, at {known.address}, has registered as {who} since")


def _with(ring: Ring, writer: Writer) -> RingChanged:
    others = [known for known in ring.writers if known.node != writer.node]
    return _ring_change(ring, [*others, writer])


def _without(ring: Ring, node: NodeId) -> RingChanged:
    return _ring_change(ring, [known for known in ring.writers if known.node != node])


def _ring_change(ring: Ring, writers: Sequence[Writer]) -> RingChanged:
    """Active writers take the number of shards they ask for, the others keep what they have."""
    by_node = sorted(writers, key=lambda writer: writer.node)
    has = {w.node: count for w, count in zip(ring.writers, shard_counts(ring), strict=True)}
    counts = {
        w.node: w.shards if w.state is WriterState.ACTIVE else has.get(w.node, 0) for w in by_node
    }
    owners = _table(ring, {node: count for node, count in counts.items() if count})
    places = {writer.node: place for place, writer in enumerate(by_node)}
    return RingChanged(
        ring.zone, ring.changed_at, tuple(by_node), tuple(places[node] for node in owners)
    )


def _table(ring: Ring, counts: dict[NodeId, int]) -> Sequence[NodeId]:
    owners = ring.nodes()
    if Counter(owners) == counts:
        return owners
    if not counts:
        return ()
    return table.change_table(owners, counts) if owners else table.new_table(counts)


def _check_room(state: MetaState, change: RingChanged) -> None:
    before, policy = ring_of(state, change.zone), state.policy
    if not before.writers and len(state.rings) >= policy.zones_max:
        raise Overloaded(
            f"there are {len(state.rings)} zones already, and no room for {change.zone}; `maar "
            "ring remove` those of writers that are gone"
        )
    if len(change.writers) > max(policy.writers_max, len(before.writers)):
        raise Overloaded(
            f"zone {change.zone} has {len(before.writers)} writers already, and no room for "
            "another; `maar ring remove` those that are gone"
        )
    if len(change.owners) > max(policy.shards_max, len(before.owners)):
        raise Overloaded(
            f"zone {change.zone} has {len(before.owners)} shards, and at most "
            f"{policy.shards_max}; lower ring.shards, or `maar ring remove` writers that are gone"
        )
