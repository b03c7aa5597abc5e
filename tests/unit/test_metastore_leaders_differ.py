"""Replicas apply what a leader decided, and decide nothing: leaders may run different versions."""

from __future__ import annotations

import random

import pytest

from maar.metastore.decide import schedule, verdict
from maar.metastore.fold.apply import apply
from maar.metastore.fold.plans import plan as plans
from maar.metastore.records.effects import Leased, Scheduled
from maar.metastore.records.entries import (
    Entry,
    Grant,
    PlanBisected,
    PlansLeased,
    PlansScheduled,
    StateHashed,
    TermStarted,
)
from maar.metastore.state.digest import digest
from maar.metastore.state.state import MetaState
from maar.model.ids import PlanId, WorkerId
from maar.model.plan import PlanSpec
from maar.model.time import SECOND_NS, LeaseTime
from maar.services.compact.rules import COMPACT, Compaction
from support.metastore.fold import Fold
from support.metastore.leader_term import W1, W2, LeaderDecisions


class Contrarian:
    """Another version of the leader: newest blocks first, large jobs first, pairs, long leases."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def plan(self, state: MetaState) -> list[Entry]:
        specs = []
        for key in sorted(state.queue.lanes, key=lambda key: -key.level):
            blocks = [item.block for item in state.queue.items(key)][::-1]
            pairs = zip(blocks[::2], blocks[1::2], strict=False)
            specs += [PlanSpec(COMPACT, False, key, pair, 1) for pair in pairs]
        return [PlansScheduled(tuple(specs))]

    def hand_out(self, state: MetaState, now: LeaseTime) -> list[Entry]:
        grants = []
        for plan in reversed(list(state.plans.values())):
            seen = plan.lease.token if plan.lease else None
            worker = self.random.choice([W1, W2, WorkerId("odd")])
            until = LeaseTime(now + self.random.randint(1, 100) * SECOND_NS)
            grants.append(Grant(plan.id, worker, until, seen, self.random.random() < 0.5))
        return [PlansLeased(tuple(grants))]

    def divide(self, state: MetaState) -> list[Entry]:
        """Without any failure: it does not like pairs after all."""
        return [PlanBisected(p.id, None, 1) for p in list(state.plans.values())[:3] if not p.lease]


def history(seed: int) -> Fold:
    """A log that two kinds of leaders wrote by turns."""
    leader_term, odd = LeaderDecisions(), Contrarian(seed)
    chance = random.Random(seed)
    for term in range(2, 8):
        leader_term.fold.put(TermStarted(term, "odd" if term % 2 else "even"))
        for _ in range(5):
            leader_term.add(
                *(chance.randrange(10**6) for _ in range(9)), shard=chance.randint(1, 3)
            )
            state = leader_term.fold.state
            if term % 2:
                leader_term.put(odd.plan(state) + odd.divide(state))
                leader_term.put(odd.hand_out(state, leader_term.now))
                leases = leases_of(leader_term)[::2]
            else:
                leader_term.set_aside()
                leases = leader_term.start_plans(W1, 3) + leader_term.start_plans(W2, 2)
            for lease in leases:
                if chance.random() < 0.4:
                    leader_term.fail(lease, own=chance.random() < 0.5)
                elif chance.random() < 0.7:
                    leader_term.complete(lease)
            leader_term.wait(chance.randint(1, 20))
        leader_term.fold.put(
            StateHashed(leader_term.fold.state.index, digest(leader_term.fold.state))
        )
    return leader_term.fold


def leases_of(leader_term: LeaderDecisions) -> list[Leased]:
    held = [p for p in leader_term.fold.state.plans.values() if p.lease and p.inputs]
    return [Leased(p.id, p.lease.token, p.lease.worker) for p in held if p.lease]


@pytest.mark.parametrize("seed", range(5))
def test_a_replica_of_another_mind_folds_the_same_plans(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fold = history(seed)

    def decide(*_: object, **__: object) -> None:
        raise AssertionError("the fold decided something")

    owner: object
    for owner, names in (
        (plans, ("probe_delay",)),
        (Compaction, ("due", "divides_at", "lines")),
        (schedule, ("assign", "set_aside", "healthy", "failing", "probes")),
        (verdict, ("expiry_counts", "failure_counts")),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, decide)
    replica = MetaState()
    for item in fold.log:
        for effect in apply(replica, item):
            assert type(effect).__name__ != "Diverged"
    assert digest(replica) == digest(fold.state)
    assert replica.plans.by_id == fold.state.plans.by_id


def test_the_other_mind_really_decides_otherwise() -> None:
    leader_term = LeaderDecisions()
    leader_term.add(*range(9))
    ours = schedule.assign(leader_term.fold.state, [schedule.Wish(W1, 9)], now=leader_term.now)
    theirs = Contrarian(1).plan(leader_term.fold.state)
    assert isinstance(ours[0], PlansScheduled)
    assert isinstance(theirs[0], PlansScheduled)
    assert {spec.inputs for spec in ours[0].plans}.isdisjoint(
        spec.inputs for spec in theirs[0].plans
    )
    (first, *_) = leader_term.put(theirs)
    assert first == Scheduled(PlanId(leader_term.fold.state.index, 0))


@pytest.mark.parametrize("seed", range(3))
def test_folding_every_entry_twice_is_folding_it_once(seed: int) -> None:
    fold = history(seed)
    twice = MetaState()
    for item in fold.log:
        apply(twice, item)
        before = digest(twice)
        assert apply(twice, item) == ()
        assert digest(twice) == before
    assert digest(twice) == digest(fold.state)


@pytest.mark.parametrize("seed", range(3))
def test_the_lines_of_the_timeline_follow_from_its_plans(seed: int) -> None:
    """Whatever the order of changes was, and so also after a snapshot."""
    kept = history(seed).state.plans
    anew = MetaState().plans
    for plan_id, plan in sorted(kept.items()):
        anew[plan_id] = plan
    assert {line: list(places) for line, places in anew.lines.items()} == {
        line: list(places) for line, places in kept.lines.items()
    }
    assert (anew.held, anew.leases) == (kept.held, kept.leases)
    for plan_id in list(anew):
        del anew[plan_id]
    assert (anew.lines, anew.held, anew.leases, len(anew)) == ({}, {}, 0, 0)
