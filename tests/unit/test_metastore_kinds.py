"""A kind of plan is its folder and its place in the union: all others ask it, and know no name."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from maar.metastore.decide import schedule
from maar.metastore.decide.schedule import Wish
from maar.metastore.records.effects import Completed, Leased, Refused, Scheduled
from maar.metastore.records.entries import PlanFailed, PlansScheduled
from maar.metastore.state.state import MetaState
from maar.metastore.views import reads
from maar.metastore.views.explain import explain
from maar.model.errors import Corrupt, Rejected
from maar.model.ids import BlockId, WorkerId
from maar.model.plan import Plan, PlanKind, PlanResult, PlanSpec
from maar.model.refusal import Refusal
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.operator.operator import ListPlans
from maar.ports.plans.board import Report
from maar.services.compact.rules import COMPACT, COMPACTION
from maar.services.kinds import KINDS, Kinds, PlanLine
from maar.services.publish import always
from maar.services.runs import task_of
from support.kinds.stamp.rules import STAMP, STAMPING
from support.metastore.fold import Fold, result, segment
from support.metastore.leader_term import W1, W2, LeaderDecisions
from support.spark.plans import segment as real_segment
from support.stores.memory_store import MemoryStore

BOTH = Kinds(
    COMPACTION,
    STAMPING,
)


def leader_of_both() -> LeaderDecisions:
    return LeaderDecisions(Fold(state=MetaState(kinds=BOTH)))


def stamps(leader_term: LeaderDecisions, worker: WorkerId = W1) -> list[Leased]:
    return leader_term.hand_out(Wish(worker, 1, (STAMP,)))


def words(leader_term: LeaderDecisions, block: BlockId) -> str:
    return " ".join(explain(leader_term.fold.state, block, now=leader_term.now).sentences)


def test_a_trivial_kind_is_scheduled_leased_run_completed_and_explained(tmp_path: Path) -> None:
    leader_term, store = leader_of_both(), MemoryStore()
    meta = real_segment(store, 1)
    leader_term.put_blocks(meta)
    leader_term.wait(6)
    (lease,) = stamps(leader_term)
    state = leader_term.fold.state
    assert state.plans[lease.plan].kind == STAMP
    assert "(stamp, one segment) owns it" in words(leader_term, meta.id)

    granted = reads.leased_plan(state, lease.plan)
    assert granted.lease_ns == 60 * SECOND_NS, "the lease is as long as the kind says"
    assert granted.title == f"stamp {lease.plan} one segment shard 1 all tenants"
    task = task_of(granted.kind, kinds=BOTH, package="support.kinds")
    task.load()
    made = task.run(granted, store=store, attempt="a1", scratch=tmp_path, wall_ns=1, guard=always)
    done = leader_term.report(lease, Report(lease.plan, lease.token, made))
    assert done == [Completed(lease.plan, lease.token, (meta.id,), (made.outputs[0].id,))]
    assert leader_term.fold.live() == {made.outputs[0].id}
    assert reads.plans(state, ListPlans(service=STAMP)) == (state.finished[lease.plan],)
    assert f"replaced by {made.outputs[0].id}" in words(leader_term, meta.id)


def test_the_fold_refuses_a_result_of_another_kind() -> None:
    leader_term = leader_of_both()
    (block,) = leader_term.add(1)
    leader_term.wait(6)
    (lease,) = stamps(leader_term)
    inputs = leader_term.fold.metas((block,))
    other = result(lease.plan, lease.token, inputs)
    assert other.kind == COMPACT
    refused = Refused(Refusal.RESULT_KIND, lease.plan, lease.token)
    assert leader_term.report(lease, Report(lease.plan, lease.token, other)) == [refused]
    assert leader_term.fold.live() == {block}, "nothing changed"
    own = msgspec.structs.replace(other, kind=STAMP)
    assert isinstance(leader_term.report(lease, Report(lease.plan, lease.token, own))[0], Completed)


def test_a_kind_refuses_what_cannot_be_its_result() -> None:
    leader_term = leader_of_both()
    (block,) = leader_term.add(1)
    leader_term.wait(6)
    (lease,) = stamps(leader_term)
    nothing = PlanResult(
        STAMP, (), result(lease.plan, lease.token, leader_term.metas(block)).account
    )
    (effect,) = leader_term.report(lease, Report(lease.plan, lease.token, nothing))
    assert effect == Refused(Refusal.ACCOUNT, lease.plan, lease.token)


# ── who gets it ────────────────────────────────────────────────────────────────────────────────


def test_a_plan_goes_only_to_a_worker_that_can_carry_it_out() -> None:
    leader_term = leader_of_both()
    leader_term.add(1)
    leader_term.wait(6)
    assert leader_term.hand_out(Wish(W1, 4, (COMPACT,))) == [], "its batch is open still"
    assert leader_term.hand_out(Wish(W1, 4, ())) == [], "who can do nothing gets nothing"
    leases = leader_term.hand_out(Wish(W1, 4, (COMPACT,)), Wish(W2, 4, (STAMP,)))
    assert [lease.worker for lease in leases] == [W2]


def test_a_plan_that_failed_goes_to_the_same_worker_when_no_other_can() -> None:
    leader_term = leader_of_both()
    leader_term.add(1)
    leader_term.wait(6)
    (lease,) = stamps(leader_term)
    leader_term.put([PlanFailed(lease.plan, lease.token, "x", LeaseTime(0))])
    leader_term.wait(1)
    assert leader_term.hand_out(Wish(W2, 1, (COMPACT,))) == []
    (again,) = stamps(leader_term)
    assert (again.plan, again.worker) == (lease.plan, W1), "w2 is there, and cannot"


def test_a_plan_that_was_excluded_is_tried_by_a_worker_that_can() -> None:
    leader_term = leader_of_both()
    leader_term.add(1)
    leader_term.wait(6)
    (first,) = stamps(leader_term)
    leader_term.put([PlanFailed(first.plan, first.token, "x", LeaseTime(0))])
    (last,) = stamps(leader_term)
    leader_term.put([PlanFailed(last.plan, last.token, "x", LeaseTime(0))])
    leader_term.set_aside()
    leader_term.pass_rest()
    leader_term.pass_rest()
    assert leader_term.hand_out(Wish(W2, 1, (COMPACT,))) == []
    assert [again.plan for again in stamps(leader_term)] == [first.plan]


def test_two_kinds_that_want_one_block_do_not_both_get_it() -> None:
    leader_term = leader_of_both()
    leader_term.add(1, 2, 3)  # a full lane: compaction wants all, a stamp the oldest
    leader_term.wait(6)
    entries = schedule.assign(
        leader_term.fold.state, [Wish(W1, 4, tuple(BOTH))], now=leader_term.now
    )
    effects = leader_term.put(entries)
    assert not [effect for effect in effects if isinstance(effect, Refused)]
    assert [leader_term.plan(e.plan).kind for e in effects if isinstance(e, Leased)] == [COMPACT]


def test_each_kind_has_its_share_of_the_slots() -> None:
    leader_term = leader_of_both()
    for shard in range(1, 21):
        leader_term.add(*range(shard * 10, shard * 10 + 4), shard=shard)
    leader_term.wait(6)
    kinds = [
        leader_term.plan(lease.plan).kind
        for lease in leader_term.hand_out(Wish(W1, 16, tuple(BOTH)))
    ]
    assert kinds.count(STAMP) == 2, "one plan in eight, as for a level that waits"
    assert kinds[0] == COMPACT, "the union's first goes first"


# ── the union ──────────────────────────────────────────────────────────────────────────────────


def test_a_plan_of_a_kind_that_the_program_does_not_know_stops_it() -> None:
    fold = Fold()
    meta = segment(1)
    spec = PlanSpec(PlanKind("brew"), False, COMPACTION.lane(meta), (meta.id,), 2)
    with pytest.raises(Corrupt, match="'brew', and this program knows compact, "):
        fold.put(PlansScheduled((spec,)))


def test_a_worker_that_is_given_another_kind_all_the_same_says_so() -> None:
    with pytest.raises(Rejected, match="cannot carry out plans of the kind 'brew'"):
        task_of(PlanKind("brew"))


@pytest.mark.parametrize("kind", KINDS.on_engine())
def test_every_kind_of_the_union_has_its_task_in_the_folder_of_its_name(kind: PlanKind) -> None:
    task = task_of(kind)
    assert callable(task.run)
    assert callable(task.load)
    assert type(KINDS[kind]).__module__ == f"maar.services.{kind}.rules"


def test_kinds_go_in_the_order_of_the_union_and_their_lines_in_their_own() -> None:
    key = COMPACTION.lane(segment(1))
    levels = [PlanLine(0, level) for level in range(3)]
    assert list(BOTH.lines(Fold().policy)) == [*levels, PlanLine(1, 0)]
    assert BOTH.line(STAMP, key) == PlanLine(1, 0) > BOTH.line(COMPACT, key)


def test_a_kind_may_own_nothing() -> None:
    class Idle(type(STAMPING)):  # type: ignore[misc]
        kind = PlanKind("idle")

        def misfit(self, _board: object, spec: PlanSpec) -> Refusal | None:
            return Refusal.INPUT_KEY if spec.inputs else None

    fold = Fold(state=MetaState(kinds=Kinds(COMPACTION, Idle())))
    key = COMPACTION.lane(segment(1))
    (effect,) = fold.put(PlansScheduled((PlanSpec(PlanKind("idle"), True, key, (), 2),)))
    assert isinstance(effect, Scheduled)
    plan: Plan = fold.state.plans[effect.plan]
    assert (plan.kind, plan.inputs) == ("idle", ())
