"""However writers come, go, die and start again: each has its shards, and the fewest have moved."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from maar.metastore.decide.membership import Heartbeats
from maar.metastore.fold.apply import apply
from maar.metastore.replica.snapshot import decode, encode
from maar.metastore.state.digest import digest
from maar.metastore.state.state import MetaState
from maar.model.errors import Rejected, Unavailable
from maar.model.ids import HOME, Zone
from maar.model.ring import Ring, Writer, WriterState
from maar.ports.metastore.log import Head
from support.metastore.rings import ACTIVE, JOINING, LEAVING, Town, owners, writer

pytestmark = pytest.mark.timeout(1200)  # on a machine that has much else to do

NODES = st.sampled_from([f"n{number}" for number in range(9)])
ZONES = st.sampled_from([HOME, Zone("east")])
COUNTS = st.sampled_from([1, 2, 4, 4, 4, 5, 8])


class Rings(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.town = Town()
        self.running: dict[tuple[Zone, str], Writer] = {}
        self.former: list[tuple[Zone, Writer]] = []  # what earlier lives have said
        self.lives = 0

    def beat(self, zone: Zone, one: Writer, *, leaves: bool = False) -> None:
        before = self.town.ring(zone)
        assert self.town.beat(one, leaves=leaves, zone=zone) == ""
        self.moved_no_more_than_came_or_went(before, self.town.ring(zone))

    def moved_no_more_than_came_or_went(self, before: Ring, after: Ring) -> None:
        was, now = owners(before), owners(after)
        difference = Counter(now)
        difference.subtract(Counter(was))
        came_or_went = sum(map(abs, difference.values()))
        assert sum(one != two for one, two in zip(was, now, strict=False)) <= came_or_went
        if before.changed_at == after.changed_at:
            assert before == after

    @rule(zone=ZONES, node=NODES, shards=COUNTS)
    def start(self, zone: Zone, node: str, shards: int) -> None:
        """For the first time, or again after a death that nobody need have noticed."""
        if (zone, node) in self.running:
            self.former.append((zone, self.running[zone, node]))
        self.lives += 1
        held = owners(self.town.ring(zone))
        one = writer(node, JOINING, session=f"life-{self.lives}", shards=shards)
        self.running[zone, node] = one
        self.beat(zone, one)
        assert owners(self.town.ring(zone)) == held

    @rule(zone=ZONES, node=NODES, state=st.sampled_from([ACTIVE, ACTIVE, ACTIVE, LEAVING]))
    def go_on(self, zone: Zone, node: str, state: WriterState) -> None:
        assume((zone, node) in self.running)
        said = self.running[zone, node]
        assume(not (said.state is LEAVING and state is ACTIVE))
        one = writer(node, state, session=said.session, shards=said.shards)
        self.running[zone, node] = one
        self.beat(zone, one)

    @rule(zone=ZONES, node=NODES)
    def leave_for_good(self, zone: Zone, node: str) -> None:
        assume((zone, node) in self.running)
        one = self.running.pop((zone, node))
        self.former.append((zone, one))
        self.beat(zone, one, leaves=True)
        assert node not in owners(self.town.ring(zone))

    @rule(seconds=st.sampled_from([1, 5, 11]))
    def wait(self, seconds: int) -> None:
        """Death is nothing but this."""
        before = dict(self.town.fold.state.rings)
        self.town.wait(seconds)
        assert self.town.fold.state.rings == before

    @rule(zone=ZONES, node=NODES)
    def remove(self, zone: Zone, node: str) -> None:
        before = self.town.ring(zone)
        try:
            after = self.town.remove(node, zone)
        except (Rejected, Unavailable):
            assert self.town.ring(zone) == before
            return
        self.moved_no_more_than_came_or_went(before, after)
        self.running.pop((zone, node), None)

    @rule(data=st.data())
    def an_earlier_life_says_something_late(self, data: st.DataObject) -> None:
        """The names are taken over or given up; whatever it says, nothing changes."""
        assume(self.former)
        zone, one = data.draw(st.sampled_from(self.former))
        known = [w for w in self.town.ring(zone).writers if w.node == one.node]
        assume(known)  # else a leader that remembers nothing of it lets it register
        before = self.town.ring(zone)
        state = data.draw(st.sampled_from([ACTIVE, LEAVING]))
        late = writer(one.node, state, session=one.session, shards=one.shards)
        assert self.town.beat(late, leaves=data.draw(st.booleans()), zone=zone)
        assert self.town.ring(zone) == before

    @rule()
    def another_leader(self) -> None:
        state, _ = decode(encode(self.town.fold.state, Head(self.town.fold.state.index, b"h" * 32)))
        assert digest(state) == digest(self.town.fold.state)
        self.town.fold.state = state
        self.town.heartbeats = Heartbeats(since=self.town.now)
        for ring in state.rings.values():
            view = self.town.view(ring.zone)
            assert (view.dead, view.complete) == ((), False)

    @invariant()
    def who_is_active_has_its_shards_and_every_shard_has_an_owner(self) -> None:
        for ring in self.town.fold.state.rings.values():
            held = Counter(owners(ring))
            assert held.keys() <= {w.node for w in ring.writers}
            for one in ring.writers:
                if one.state is ACTIVE:
                    assert held[one.node] == one.shards

    @invariant()
    def the_ring_says_what_its_writers_said_last(self) -> None:
        said = {
            (ring.zone, one.node): one
            for ring in self.town.fold.state.rings.values()
            for one in ring.writers
        }
        assert said.items() <= self.running.items()

    def teardown(self) -> None:
        fresh = MetaState()
        for item in self.town.fold.log:
            apply(fresh, item)
        assert digest(fresh) == digest(self.town.fold.state)
        assert fresh.rings == self.town.fold.state.rings


Rings.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestRings = Rings.TestCase
