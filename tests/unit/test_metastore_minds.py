"""Replicas fold what a leader decided, and decide nothing: leaders may be of different minds."""

from __future__ import annotations

import random

import pytest

from maar.metastore.decide import schedule, verdict
from maar.metastore.fold import plan as plans
from maar.metastore.fold.apply import apply
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
from maar.model.plan import PlanSpec, Service
from maar.model.time import SECOND_NS, LeaseTime
from support.metastore.fold import Fold
from support.metastore.leader_term import W1, W2, Office


class Contrarian:
    """Another version of the leader: newest blocks first, large jobs first, pairs, long leases."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def plan(self, state: MetaState) -> list[Entry]:
        specs = []
        for key in sorted(state.queue.lanes, key=lambda key: -key.level):
            blocks = [item.block for item in state.queue.items(key)][::-1]
            pairs = zip(blocks[::2], blocks[1::2], strict=False)
            specs += [PlanSpec(Service.COMPACT, False, key, pair, 1) for pair in pairs]
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
    office, odd = Office(), Contrarian(seed)
    chance = random.Random(seed)
    for term in range(2, 8):
        office.fold.put(TermStarted(term, "odd" if term % 2 else "even"))
        for _ in range(5):
            office.add(*(chance.randrange(10**6) for _ in range(9)), shard=chance.randint(1, 3))
            state = office.fold.state
            if term % 2:
                office.put(odd.plan(state) + odd.divide(state))
                office.put(odd.hand_out(state, office.now))
                leases = leases_of(office)[::2]
            else:
                office.set_aside()
                leases = office.begun(W1, 3) + office.begun(W2, 2)
            for lease in leases:
                if chance.random() < 0.4:
                    office.fail(lease, own=chance.random() < 0.5)
                elif chance.random() < 0.7:
                    office.complete(lease)
            office.wait(chance.randint(1, 20))
        office.fold.put(StateHashed(office.fold.state.index, digest(office.fold.state)))
    return office.fold


def leases_of(office: Office) -> list[Leased]:
    held = [p for p in office.fold.state.plans.values() if p.lease]
    return [Leased(p.id, p.lease.token, p.lease.worker) for p in held if p.lease]


@pytest.mark.parametrize("seed", range(5))
def test_a_replica_of_another_mind_folds_the_same_plans(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fold = history(seed)

    def decide(*_: object, **__: object) -> None:
        raise AssertionError("the fold decided something")

    for module, names in (
        (plans, ("batches", "cut", "probe_delay")),
        (schedule, ("assign", "set_aside", "healthy", "failing", "probes")),
        (verdict, ("expired", "reported")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, decide)
    replica = MetaState()
    for item in fold.log:
        for effect in apply(replica, item):
            assert type(effect).__name__ != "Diverged"
    assert digest(replica) == digest(fold.state)
    assert replica.plans.by_id == fold.state.plans.by_id


def test_the_other_mind_really_decides_otherwise() -> None:
    office = Office()
    office.add(*range(9))
    ours = schedule.assign(office.fold.state, [schedule.Wish(W1, 9)], now=office.now)
    theirs = Contrarian(1).plan(office.fold.state)
    assert isinstance(ours[0], PlansScheduled)
    assert isinstance(theirs[0], PlansScheduled)
    assert {spec.inputs for spec in ours[0].plans}.isdisjoint(
        spec.inputs for spec in theirs[0].plans
    )
    (first, *_) = office.put(theirs)
    assert first == Scheduled(PlanId(office.fold.state.index, 0), 0)


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
