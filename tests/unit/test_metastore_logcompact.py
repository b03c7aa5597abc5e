"""When segments are joined, which of them, what the fold accepts, and where the result waits."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from maar.metastore.decide import rollbacks, wishes
from maar.metastore.decide.schedule import Wish
from maar.metastore.records.effects import Completed, Leased, Refused
from maar.metastore.records.entries import PlansScheduled
from maar.metastore.replica import snapshot
from maar.metastore.state.state import MetaState
from maar.metastore.views.explain import explain
from maar.model.block import BlockMeta, Kind
from maar.model.ids import BlockId, PlanId, Shard, StoreName, TenantId, Zone, block_time_ns
from maar.model.plan import Account, PlanKind, PlanResult, PlanSpec, PlanState
from maar.model.policy import KindTerms, LogcompactRule, Policy
from maar.model.refusal import Refusal
from maar.model.time import SECOND_NS
from maar.ports.metastore.log import Head
from maar.ports.plans.board import Report, SchedulePlan
from maar.services.compact.rules import COMPACT, COMPACTION
from maar.services.logcompact.rules import LOGCOMPACT, LOGCOMPACTION
from support.metastore.fold import SMALL, TENANT, Fold, segment
from support.metastore.joins import joined_result
from support.metastore.leader_term import W1, LeaderDecisions

LEASE_NS = 20 * SECOND_NS
COUNT, AGE_S = 8, 30
RULE = LogcompactRule(
    depth_count=COUNT, depth_age_ns=AGE_S * SECOND_NS, plan_count=100, plan_bytes=1 << 20
)
REMOVABLE = KindTerms(LOGCOMPACT, LEASE_NS, 900 * SECOND_NS, removable=True)
POLICY = msgspec.structs.replace(SMALL, logcompact=RULE, kinds=(REMOVABLE,))
FRONT = POLICY.levels[0].count  # of a lane, left to compaction
ONLY = (LOGCOMPACT,)  # what a worker can do that carries out nothing else


def leader(policy: Policy = POLICY) -> LeaderDecisions:
    return LeaderDecisions(Fold(policy=policy))


def with_rule(**how: int) -> Policy:
    return msgspec.structs.replace(POLICY, logcompact=msgspec.structs.replace(RULE, **how))


def due(term: LeaderDecisions) -> list[PlanSpec]:
    return list(LOGCOMPACTION.due(term.fold.state, 0, now=term.now))


def deep(term: LeaderDecisions, count: int = 20, *, shard: int = 1) -> list[BlockId]:
    """As many segments, each of an entry of its own, that have waited for long."""
    found = [block for n in range(count) for block in term.add(100 * shard + n, shard=shard)]
    term.wait(AGE_S + 1)
    return found


def begin(term: LeaderDecisions) -> Leased:
    (lease,) = term.hand_out(Wish(W1, 1, ONLY))
    term.renew(lease, started=True)
    return lease


def finish(term: LeaderDecisions, lease: Leased) -> BlockMeta:
    made = joined_result(lease.plan, lease.token, term.metas(*term.plan(lease.plan).inputs))
    (effect,) = term.report(lease, Report(lease.plan, lease.token, made))
    assert isinstance(effect, Completed), effect
    return made.outputs[0]


def lane(term: LeaderDecisions, meta: BlockMeta) -> list[BlockId]:
    return [item.block for item in term.fold.state.queue.items(COMPACTION.lane(meta))]


# ── when it is due ─────────────────────────────────────────────────────────────────────────────


def test_a_lane_is_deep_from_so_many_segments_on() -> None:
    term = leader()
    deep(term, COUNT - 1)
    assert due(term) == []
    term.add(99)
    assert len(due(term)) == 1


def test_a_lane_is_deep_when_its_oldest_has_waited_longer_than_so_long() -> None:
    term = leader()
    term.add(*range(COUNT))
    term.wait(AGE_S)
    assert due(term) == []
    term.fold.now += 1
    assert len(due(term)) == 1


def test_what_compaction_takes_next_is_left_to_it() -> None:
    term = leader()
    blocks = deep(term)
    (spec,) = due(term)
    assert spec.inputs == tuple(blocks[FRONT:])
    assert spec.key == COMPACTION.lane(term.metas(blocks[0])[0])
    assert (spec.kind, spec.removable) == (LOGCOMPACT, True)


def test_compaction_goes_first_and_joining_has_its_share() -> None:
    term = leader()
    for shard in range(1, 13):
        deep(term, shard=shard)
    kinds = [term.plan(each.plan).kind for each in term.hand_out(Wish(W1, 16, (COMPACT, *ONLY)))]
    assert kinds[0] == COMPACT
    assert kinds.count(LOGCOMPACT) == 2, "one plan in eight, as for a level that waits"


def test_an_idle_worker_compacts_all_and_joins_nothing() -> None:
    """With as many slots as there are batches, nothing is left to be joined."""
    term = leader()
    deep(term, 12)
    kinds = [term.plan(each.plan).kind for each in term.hand_out(Wish(W1, 4, (COMPACT, *ONLY)))]
    assert kinds == [COMPACT] * 4
    assert term.hand_out(Wish(W1, 4, (COMPACT, *ONLY))) == []


def test_a_plan_takes_no_more_than_it_may_by_count() -> None:
    term = leader(with_rule(plan_count=9))
    blocks = deep(term, FRONT + 20)
    first, second = due(term)
    assert [*first.inputs, *second.inputs] == blocks[FRONT : FRONT + 18]
    assert [len(first.inputs), len(second.inputs)] == [9, 9], "what is left is not deep any more"


def test_a_plan_takes_no_more_than_it_may_by_size() -> None:
    term = leader(with_rule(plan_bytes=5_999))  # they have 1,000 bytes each
    deep(term, FRONT + 12)
    assert [len(spec.inputs) for spec in due(term)] == [5, 5]


def test_a_segment_that_fills_a_plan_alone_is_passed_by() -> None:
    term = leader(with_rule(plan_bytes=5_000))
    deep(term)
    (large,) = term.add(50, size=5_001)
    term.add(*range(51, 71))
    assert large not in {block for spec in due(term) for block in spec.inputs}


def test_what_is_too_far_apart_to_be_merged_is_not_joined() -> None:
    term = leader()
    early = deep(term)
    term.fold.now += POLICY.span_ns
    late = [block for n in range(200, 220) for block in term.add(n)]
    first, second = due(term)
    assert first.inputs == tuple(early[FRONT:])
    assert second.inputs == tuple(late)
    for spec in (first, second):
        times = [block_time_ns(block) for block in spec.inputs]
        assert max(times) - min(times) <= POLICY.span_ns


def test_lanes_of_other_shards_and_zones_stay_apart() -> None:
    term = leader()
    ones, twos = deep(term, shard=1), deep(term, shard=2)
    elsewhere = [
        msgspec.structs.replace(segment(n, at=term.fold.now), zone=Zone("eu"))
        for n in range(500, 520)
    ]
    term.put_blocks(*elsewhere)
    term.wait(AGE_S + 1)
    found = [set(spec.inputs) for spec in due(term)]
    assert [len(each) for each in found] == [17, 17, 17]
    for own in (ones, twos, [meta.id for meta in elsewhere]):
        assert set(own[FRONT:]) in found


def test_a_round_offers_few_plans_since_each_names_many_inputs() -> None:
    term = leader()
    for shard in range(1, 9):
        deep(term, shard=shard)
    assert len(due(term)) == 4


def test_a_plan_is_removable_unless_it_is_set_otherwise() -> None:
    term = leader(msgspec.structs.replace(POLICY, kinds=()))
    deep(term)
    (spec,) = due(term)
    assert not spec.removable


# ── not again ──────────────────────────────────────────────────────────────────────────────────


def test_what_was_joined_takes_the_place_of_its_oldest_input() -> None:
    term = leader()
    blocks = deep(term)
    state = term.fold.state
    first = state.queue.place(blocks[FRONT])
    assert first is not None
    lease = begin(term)
    (late,) = term.add(999)
    made = finish(term, lease)
    assert lane(term, made) == [*blocks[:FRONT], made.id, late]
    place = state.queue.place(made.id)
    assert place is not None
    assert place[:3] == first[:3], "as old as it, and not as old as its own completion"
    assert place.size == made.size
    assert term.fold.live() == {*blocks[:FRONT], made.id, late}
    assert set(state.retired) == set(blocks[FRONT:])


def test_what_was_joined_is_never_joined_again() -> None:
    term = leader()
    deep(term)
    made = finish(term, begin(term))
    deep(term, COUNT - 1 - FRONT, shard=1)
    assert term.fold.state.queue.count_unjoined(COMPACTION.lane(made)) == COUNT - 1
    assert due(term) == [], "it does not count"
    term.add(*range(300, 310))
    (spec,) = due(term)
    assert made.id not in spec.inputs
    both = (made.id, spec.inputs[0])
    (effect,) = term.put([PlansScheduled((msgspec.structs.replace(spec, inputs=both),))])
    assert isinstance(effect, Refused)
    assert effect.why is Refusal.INPUT_KEY


def test_a_snapshot_knows_what_was_joined() -> None:
    term = leader()
    deep(term)
    made = finish(term, begin(term))
    key = COMPACTION.lane(made)
    body = snapshot.encode(term.fold.state, Head(term.fold.state.index, bytes(32)))
    state, _ = snapshot.decode(body)
    assert state.queue.count_unjoined(key) == term.fold.state.queue.count_unjoined(key) == FRONT
    assert state.queue.count_joined() == term.fold.state.queue.count_joined() == 1
    assert state.queue.place(made.id) == term.fold.state.queue.place(made.id)


def test_compaction_takes_it_with_its_neighbours() -> None:
    term = leader()
    blocks = deep(term)
    made = finish(term, begin(term))
    first, second = (term.plan(each.plan) for each in term.hand_out(Wish(W1, 2, (COMPACT,))))
    assert first.inputs == tuple(blocks[:FRONT])
    assert second.inputs == (made.id,), "its age closes the batch: it is as old as its oldest input"
    assert term.fold.state.queue.count_unjoined(COMPACTION.lane(made)) == 0
    assert term.fold.state.queue.count_joined() == 0


# ── what the fold accepts ──────────────────────────────────────────────────────────────────────


def refusal_of(change: dict[str, Any], account: Account | None = None) -> Refusal:
    term = leader()
    deep(term)
    lease = begin(term)
    made = joined_result(lease.plan, lease.token, term.metas(*term.plan(lease.plan).inputs))
    output = msgspec.structs.replace(made.outputs[0], **change)
    changed = PlanResult(LOGCOMPACT, (output,), account or made.account)
    (effect,) = term.report(lease, Report(lease.plan, lease.token, changed))
    assert isinstance(effect, Refused), effect
    assert len(term.fold.live()) == 20, "nothing changed"
    return effect.why


@pytest.mark.parametrize(
    "change",
    [
        {"kind": Kind.QUARANTINE},
        {"level": 1},
        {"tenant": TENANT},
        {"day": 20_000},
        {"shard": Shard(2)},
        {"store": StoreName("other")},
        {"zone": Zone("eu")},
        {"plan": None},
        {"plan": PlanId(1, 0)},
        {"id": BlockId("0" * 32)},
    ],
)
def test_a_result_that_is_no_segment_of_the_lane_is_refused(change: dict[str, Any]) -> None:
    assert refusal_of(change) is Refusal.OUTPUT


def test_a_result_that_does_not_account_for_every_input_is_refused() -> None:
    came = 17 * 10
    assert refusal_of({}, Account(came - 1, 1, 0)) is Refusal.ACCOUNT
    assert refusal_of({}, Account(came - 1, 0, 1)) is Refusal.ACCOUNT
    assert refusal_of({}, Account(came + 1, 0, 0)) is Refusal.ACCOUNT
    assert refusal_of({"profiles": came - 1}) is Refusal.ACCOUNT


@pytest.mark.parametrize(
    "change",
    [
        {"profiles": 169},
        {"tenant": TenantId("other")},
        {"service": "other"},
        {"min_time_ns": 2},
        {"max_time_ns": 2},
    ],
)
def test_a_result_that_shows_a_service_otherwise_is_refused(change: dict[str, Any]) -> None:
    """Queries choose by what the index says of each service."""
    term = leader()
    deep(term)
    lease = begin(term)
    made = joined_result(lease.plan, lease.token, term.metas(*term.plan(lease.plan).inputs))
    (dataset,) = made.outputs[0].datasets
    datasets = (msgspec.structs.replace(dataset, **change),)
    assert refusal_of({"datasets": datasets}) is Refusal.SHARE
    assert refusal_of({"datasets": ()}) is Refusal.SHARE


def test_a_result_of_two_segments_or_none_is_refused() -> None:
    term = leader()
    deep(term)
    lease = begin(term)
    made = joined_result(lease.plan, lease.token, term.metas(*term.plan(lease.plan).inputs))
    for outputs in ((), (*made.outputs, *made.outputs)):
        result = msgspec.structs.replace(made, outputs=outputs)
        (effect,) = term.report(lease, Report(lease.plan, lease.token, result))
        assert isinstance(effect, Refused)
        assert effect.why is Refusal.OUTPUT
    finish(term, lease)


def test_objects_of_another_attempt_are_refused() -> None:
    term = leader()
    deep(term)
    lease = begin(term)
    inputs = term.metas(*term.plan(lease.plan).inputs)
    token = msgspec.structs.replace(lease.token, index=lease.token.index + 1)
    other = joined_result(lease.plan, token, inputs)
    (effect,) = term.report(lease, Report(lease.plan, lease.token, other))
    assert isinstance(effect, Refused)
    assert effect.why is Refusal.OUTPUT_KEY


def test_no_other_plan_makes_a_segment() -> None:
    """Compaction decodes, and says so by the level of what it makes."""
    term = leader()
    term.add(1, 2, 3)
    (lease,) = term.hand_out(Wish(W1, 1, (COMPACT,)))
    inputs = term.metas(*term.plan(lease.plan).inputs)
    made = msgspec.structs.replace(joined_result(lease.plan, lease.token, inputs), kind=COMPACT)
    (effect,) = term.report(lease, Report(lease.plan, lease.token, made))
    assert isinstance(effect, Refused)
    levelled = msgspec.structs.replace(made.outputs[0], level=1, tenant=TENANT)
    again = msgspec.structs.replace(made, outputs=(levelled,))
    (effect,) = term.report(lease, Report(lease.plan, lease.token, again))
    assert isinstance(effect, Refused)


@pytest.mark.parametrize("inputs", [0, 1])
def test_a_plan_of_fewer_than_two_segments_is_refused(inputs: int) -> None:
    term = leader()
    blocks = deep(term)
    key = COMPACTION.lane(term.metas(blocks[0])[0])
    spec = PlanSpec(LOGCOMPACT, True, key, tuple(blocks[:inputs]), 2)
    (effect,) = term.put([PlansScheduled((spec,))])
    assert isinstance(effect, Refused)


# ── when it fails ──────────────────────────────────────────────────────────────────────────────


def roll_back(term: LeaderDecisions, plan: PlanId) -> None:
    term.put(rollbacks.by_hand(term.fold.state, plan, now=term.now))
    assert term.plan(plan).state is PlanState.ROLLED_BACK


def fail_once(term: LeaderDecisions) -> PlanId:
    lease = begin(term)
    term.fail(lease)
    assert term.plan(lease.plan).state is PlanState.INFLIGHT, "it waits for its rollback"
    roll_back(term, lease.plan)
    return lease.plan


def test_a_plan_that_is_rolled_back_gives_its_segments_back_to_compaction() -> None:
    term = leader()
    blocks = deep(term)
    meta = term.metas(blocks[0])[0]
    before = lane(term, meta)
    fail_once(term)
    assert lane(term, meta) == before
    due_to_compaction = COMPACTION.due(term.fold.state, 0, now=term.now)
    assert {block for spec in due_to_compaction for block in spec.inputs} == set(blocks)


def test_after_a_failure_the_lane_rests_and_twice_as_long_after_the_next() -> None:
    term = leader(msgspec.structs.replace(POLICY, failure_limit=9))
    deep(term)
    rests = []
    for _ in range(3):
        fail_once(term)
        began = term.now
        setback = term.fold.state.setback(LOGCOMPACT, due_key(term))
        assert setback is not None
        term.fold.now = setback.until - 1
        assert due(term) == []
        term.fold.now += 1
        assert len(due(term)) == 1
        rests.append(term.now - began)
    assert rests == [POLICY.probe_ns, 2 * POLICY.probe_ns, 4 * POLICY.probe_ns]


def due_key(term: LeaderDecisions) -> Any:
    return next(iter(term.fold.state.queue.lanes))


def test_at_the_limit_its_segments_are_left_to_compaction_for_good() -> None:
    term = leader()
    old = deep(term)
    for _ in range(POLICY.failure_limit):
        term.fold.now += POLICY.probe_max_ns
        fail_once(term)
    term.fold.now += 10 * POLICY.probe_max_ns
    assert due(term) == []
    new = [block for n in range(500, 500 + COUNT - 1) for block in term.add(n)]
    term.wait(AGE_S + 1)
    assert due(term) == [], "those that came since are not deep yet"
    new += term.add(600)
    (spec,) = due(term)
    assert spec.inputs == tuple(new)
    assert not set(old) & set(spec.inputs)


def test_a_success_ends_the_rests() -> None:
    term = leader()
    deep(term)
    fail_once(term)
    term.fold.now += POLICY.probe_max_ns
    finish(term, begin(term))
    deep(term)
    assert len(due(term)) == 1


def test_a_plan_that_is_not_removable_is_divided_like_one_of_compaction() -> None:
    term = leader(msgspec.structs.replace(POLICY, kinds=()))
    deep(term)
    for _ in range(POLICY.failure_limit):
        lease, *_ = term.hand_out(Wish(W1, 1, ONLY))  # with it, the rollback of what failed
        term.renew(lease, started=True)
        term.fail(lease)
        term.pass_rest()
    term.set_aside()
    children = [p for p in term.fold.state.plans.values() if p.kind == LOGCOMPACT]
    assert sorted(len(each.inputs) for each in children) == [8, 9]


# ── on demand, and in words ────────────────────────────────────────────────────────────────────


def ask(term: LeaderDecisions, kind: PlanKind = LOGCOMPACT, **scope: Any) -> Any:
    request = SchedulePlan(kind, **scope)
    effects = term.put(wishes.entries(term.fold.state, request, now=term.now))
    return wishes.answer(effects, term.fold.state, request, now=term.now)


def test_a_shard_is_joined_on_demand_deep_or_not() -> None:
    term = leader()
    term.add(1, 2)
    term.add(3, 4, 5, shard=2)
    found = ask(term, shard=2)
    assert found.created
    assert len(term.plan(found.plan).inputs) == 3
    again = ask(term, shard=2)
    assert (again.plan, again.created) == (found.plan, False), "the same wish is the same plan"
    assert ask(term, shard=2, tenant="acme").plan == found.plan, "segments are of all tenants"
    assert ask(term, shard=2, level=1).plan is None
    other = ask(term, shard=1)
    assert other.plan not in (None, found.plan)


def test_where_nothing_can_be_joined_the_answer_says_so() -> None:
    term = leader()
    term.add(1)
    assert ask(term, shard=1).plan is None
    assert "fewer than two segments" in ask(term, shard=1).why
    assert "name one" in ask(term).why


def test_a_block_says_that_it_is_being_joined_and_that_it_was() -> None:
    term = leader()
    blocks = deep(term)
    lease = begin(term)
    state: MetaState = term.fold.state
    words = " ".join(explain(state, blocks[-1], now=term.now).sentences)
    assert f"Plan {lease.plan} (logcompact, level 0) owns it, with 16 other blocks." in words
    made = finish(term, lease)
    words = " ".join(explain(state, made.id, now=term.now).sentences)
    assert f"Plan {lease.plan} joined it from other segments" in words
    assert f"replaced by {made.id}" in " ".join(explain(state, blocks[-1], now=term.now).sentences)


def words(term: LeaderDecisions, block: BlockId) -> str:
    return " ".join(explain(term.fold.state, block, now=term.now).sentences)


def test_a_block_of_a_plan_that_failed_says_that_it_is_rolled_back() -> None:
    term = leader()
    blocks = deep(term)
    lease = begin(term)
    assert "holds it under token" in words(term, blocks[-1])
    term.fail(lease, cause="the disk is full")
    said = words(term, blocks[-1])
    assert "nobody works on it any more; last: the disk is full. It is not tried again" in said
    assert f"`maar plans rollback {lease.plan}`" in said
    assert "is tried again in" not in said


def test_a_block_of_a_plan_whose_worker_is_gone_says_the_same() -> None:
    term = leader()
    blocks = deep(term)
    begin(term)
    term.fold.now += LEASE_NS
    assert "holds it under token" in words(term, blocks[-1]), "until the lease has expired"
    term.fold.now += 1
    assert "a cleaning rolls it back" in words(term, blocks[-1])
    assert "the next worker that asks gets the plan" not in words(term, blocks[-1])


def test_a_block_in_its_lane_says_what_failed_there() -> None:
    term = leader()
    blocks = deep(term)
    fail_once(term)
    said = words(term, blocks[-1])
    assert "Plans of the kind logcompact failed 1 time in a row in this lane; none is due" in said
    term.fold.now += POLICY.probe_ns
    assert "failed 1 time in a row in this lane." in words(term, blocks[-1])
