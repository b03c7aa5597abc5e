"""What is rolled back, when, by whom: cleanings and their boundaries, wishes by hand, setbacks."""

from __future__ import annotations

import msgspec
import pytest

from maar.metastore.decide import rollbacks
from maar.metastore.decide.jobs import JobBook, moment
from maar.metastore.decide.rollbacks import AT_ONCE_MAX
from maar.metastore.records.effects import (
    Refused,
    RollbackScheduled,
    RolledBack,
)
from maar.metastore.records.entries import (
    AdoptionEnded,
    AttemptKey,
    BlocksAdopted,
    BlocksExpired,
    Entry,
    PlanFailed,
    Reincarnated,
    RollbacksScheduled,
    RollbackWish,
)
from maar.model.errors import LeaseLost, NotFound, Unavailable
from maar.model.ids import BlockId, FencingToken, Incarnation, PlanId
from maar.model.plan import AttemptEnd, PlanState
from maar.model.refusal import Refusal
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.plan_board import ConfirmDeletes, Report
from maar.services.clean.rules import CLEANING
from maar.services.compact.rules import COMPACT
from maar.services.rules import JobState, PlanScope, Setback
from support.metastore.fold import DAY_START_NS, SMALL, Fold, output, result
from support.metastore.leader_term import W1, W2, W3, LeaderDecisions
from support.metastore.plan_steps import (
    begin,
    execute,
    lease_held,
    rollback_of,
    schedule_plan,
    survey,
    undone,
    why_skipped,
)

LEASE_S = SMALL.lease_ns // SECOND_NS
DELAY_S = 600
HOLD_S = 60
POLICY = msgspec.structs.replace(
    SMALL,
    rollback_delay_ns=DELAY_S * SECOND_NS,
    hold_max_ns=HOLD_S * SECOND_NS,
    clean_interval_ns=60 * SECOND_NS,
)


def leader(**policy: object) -> LeaderDecisions:
    return LeaderDecisions(Fold(policy=msgspec.structs.replace(POLICY, **policy)))


def waiting(one: LeaderDecisions) -> list[BlockId]:
    """The blocks of all lanes, in their order."""
    queue = one.fold.state.queue
    return [item.block for front in queue.oldest_first(0) for item in queue.items(front.key)]


# ── what a cleaning leaves alone ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("started", [None, False, True], ids=["requested", "granted", "inflight"])
def test_a_removable_plan_is_too_young_until_the_delay_is_over(started: bool | None) -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=True)
    if started is not None:
        execute(one, plan)
    if started:
        one.renew(lease_held(one, plan), started=True)
    one.wait(DELAY_S)
    one.fold.now -= 1
    assert why_skipped(one, plan) == "too_young"
    one.fold.now += 1
    (wish,) = survey(one).wishes
    assert wish.target == plan
    assert one.plan(plan).state is PlanState.ROLLED_BACK


def test_a_live_lease_is_left_alone_to_its_last_nanosecond() -> None:
    one = leader(rollback_delay_ns=0)
    plan = schedule_plan(one, 1, 2, removable=True)
    begin(one, plan)
    one.fold.now += POLICY.lease_ns
    assert why_skipped(one, plan) == "live_lease"
    assert survey(one).wishes == ()
    one.fold.now += 1
    assert why_skipped(one, plan) == ""


def test_a_plan_that_stays_is_left_alone_and_only_its_dead_attempts_are_swept() -> None:
    one = leader(rollback_delay_ns=0)
    plan = schedule_plan(one, 1, 2, removable=False)
    one.wait(10_000)
    assert why_skipped(one, plan) == "immutable"
    assert survey(one).wishes == ()
    dead = begin(one, plan)
    assert why_skipped(one, plan) == "live_lease"
    one.fail(lease_held(one, plan))
    (wish,) = survey(one).wishes
    assert (wish.target, wish.tokens) == (plan, (dead,))
    assert one.plan(plan).state is PlanState.REQUESTED
    assert why_skipped(one, plan) == "immutable", "the plan itself stays"
    undone(one, plan)
    assert survey(one).wishes == ()


def test_an_expired_lease_of_a_plan_that_stays_is_fenced_and_its_attempt_rolled_back() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    dead = begin(one, plan)
    former = lease_held(one, plan)
    one.wait(LEASE_S + 1)
    (wish,) = survey(one).wishes
    assert wish.tokens == (dead,)
    inputs = one.metas(*one.plan(plan).inputs)
    (effect,) = one.report(former, Report(plan, dead, result(plan, dead, inputs)))
    assert isinstance(effect, Refused)


def test_a_plan_that_kills_its_workers_is_not_spared_because_a_cleaning_comes_first() -> None:
    """Else nobody would ever count its failures (S11)."""
    one = leader(failure_limit=2)
    plan = schedule_plan(one, 1, 2, removable=False)
    for failures in (1, 2):
        begin(one, plan)
        one.wait(LEASE_S + 1)
        survey(one)
        last = one.plan(plan).attempts[-1]
        assert (last.end, last.counted) == (AttemptEnd.EXPIRED, True)
        assert one.plan(plan).failures == failures
        undone(one, plan)
    (entry,) = one.set_aside()
    assert type(entry).__name__ == "PlanBisected"


def test_a_worker_that_could_not_be_heard_is_not_to_blame() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    begin(one, plan)
    one.wait(LEASE_S + 1)
    one.worker_registry.hearing_since = one.now
    survey(one)
    assert (one.plan(plan).failures, one.plan(plan).excused) == (0, 1)


def test_dead_attempts_of_a_plan_that_has_ended_are_swept() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    dead = begin(one, plan, W1)
    one.wait(LEASE_S + 1)
    one.put([PlanFailed(plan, dead, "x", LeaseTime(0))])
    begin(one, plan, W2)
    blocks = one.plan(plan).inputs
    one.put([BlocksExpired(DAY_START_NS + 10**15, blocks)])
    assert one.plan(plan).state is PlanState.CANCELLED
    undone(one, plan)  # the one that came with the second grant
    (wish,) = survey(one).wishes
    assert wish.target == plan
    assert wish.tokens == (one.plan(plan).attempts[-1].token,), "a later token gets another one"
    undone(one, plan)
    assert one.fold.state.leftovers.dead == {}


def test_an_entry_of_a_cleaning_has_a_bound_and_the_next_takes_the_rest() -> None:
    one = leader(rollback_delay_ns=0)
    count = AT_ONCE_MAX + 3
    for number in range(count):
        schedule_plan(one, number, removable=True)
    one.wait(1)
    assert len(survey(one).wishes) == AT_ONCE_MAX
    assert len(survey(one).wishes) == 3
    assert len(one.fold.state.plans.rollbacks) == count


# ── when a cleaning is due ─────────────────────────────────────────────────────────────────────


def due(one: LeaderDecisions) -> bool:
    state, at = one.fold.state, moment(one.fold.state, one.now)
    return any(
        JobBook().let_through(state, spec, at) for spec in CLEANING.due(state, 0, now=one.now)
    )


def test_a_cleaning_is_due_when_there_is_something_to_clean() -> None:
    one = leader()
    assert not due(one)
    schedule_plan(one, 1, 2, removable=True)
    one.wait(DELAY_S - 1)
    assert not due(one)
    one.wait(1)
    assert due(one)
    survey(one)
    assert due(one), "the rollback waits to be executed"


def test_a_plan_that_stays_is_cleaned_up_after_when_no_worker_comes_any_more() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    execute(one, plan)
    one.wait(LEASE_S + 1000)
    assert not due(one), "it had not begun to write"
    begin(one, plan, W2)
    one.wait(LEASE_S + 60)
    one.fold.now -= 1
    assert not due(one), "a worker may still come"
    one.fold.now += 1
    assert due(one)
    (wish,) = survey(one).wishes
    assert wish.target == plan
    undone(one, plan)
    assert not due(one)


def test_a_rollback_that_rests_after_a_failure_is_nothing_to_clean() -> None:
    """Else a cleaning would come in vain, minute by minute, for as long as it is excluded."""
    one = leader(rollback_delay_ns=0)
    plan = schedule_plan(one, 1, 2, removable=True)
    survey(one)
    rollback = rollback_of(one, plan)
    execute(one, rollback.id)
    until = LeaseTime(one.fold.now + 100 * SECOND_NS)
    one.put([PlanFailed(rollback.id, lease_held(one, rollback.id).token, "x", until)])
    assert not due(one)
    one.wait(100)
    assert due(one)


def test_the_job_of_cleaning_counts_from_when_there_was_something_to_clean() -> None:
    one = leader()
    (tenant,) = CLEANING.job_tenants(one.fold.state)
    (job,) = CLEANING.job_ids(one.fold.state, tenant)
    schedule = CLEANING.default_schedule(one.fold.policy, job)
    assert schedule.interval_ns == one.fold.policy.clean_interval_ns

    def found() -> JobState:
        state = CLEANING.job(one.fold.state, job, schedule, now=one.now)
        assert state is not None
        return state

    one.wait(10 * DELAY_S)
    assert found().nothing, "no alarm, however long ago the last cleaning was"
    schedule_plan(one, 1, 2, removable=True)
    since = one.now
    one.wait(DELAY_S)
    assert (found().nothing, found().waiting_since) == ("", since)


def test_on_demand_only_means_never_by_itself() -> None:
    one = leader(clean_interval_ns=0)
    schedule_plan(one, 1, 2, removable=True)
    one.wait(100 * DELAY_S)
    assert not due(one)
    assert not isinstance(CLEANING.on_request(one.fold.state, PlanScope(), now=one.now), str)


# ── the fencing entry ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("started", [False, True])
def test_inputs_return_to_their_old_places_in_the_fencing_entry(started: bool) -> None:
    one = leader(rollback_delay_ns=0)
    before = one.add(1, 2)
    plan = schedule_plan(one, 3, 4, removable=True)
    inputs = one.plan(plan).inputs
    after = one.add(5, 6)
    assert waiting(one) == [*before, *after]
    if started:
        begin(one, plan)
        one.wait(LEASE_S + 1)
    index = one.fold.state.index
    survey(one)
    assert one.fold.state.index == index + 1
    assert waiting(one) == [*before, *inputs, *after]
    assert one.fold.state.owners == {}
    assert plan not in one.fold.state.plans
    assert one.plan(plan).state is PlanState.ROLLED_BACK, "history keeps it"


def test_nobody_who_was_fenced_completes_or_renews() -> None:
    one = leader(rollback_delay_ns=0)
    plan = schedule_plan(one, 1, 2, removable=True)
    token = begin(one, plan)
    former = lease_held(one, plan)
    inputs = one.metas(*one.plan(plan).inputs)
    one.wait(LEASE_S + 1)
    survey(one)
    (effect,) = one.report(former, Report(plan, token, result(plan, token, inputs)))
    assert effect == Refused(Refusal.STALE_TOKEN, plan, token)
    assert one.fold.live() == {meta.id for meta in inputs}
    assert all(isinstance(each, Refused) for each in one.renew(former, started=True))


def test_a_wish_that_saw_another_lease_is_refused() -> None:
    """It was prepared before somebody came, or before a renewal arrived."""
    one = leader(rollback_delay_ns=0)
    plan = schedule_plan(one, 1, 2, removable=True)
    (stale,) = rollbacks.survey(one.fold.state, now=one.now).entries()
    begin(one, plan)
    assert one.put([stale]) == [Refused(Refusal.OUTDATED, plan)]
    one.wait(LEASE_S + 1)
    (late,) = rollbacks.survey(one.fold.state, now=one.now).entries()
    one.renew(lease_held(one, plan))
    assert one.put([late]) == [Refused(Refusal.LEASE_LIVE, plan)]


def test_one_rollback_for_a_plan_at_a_time() -> None:
    one = leader(rollback_delay_ns=0)
    plan = schedule_plan(one, 1, 2, removable=True)
    (entry,) = rollbacks.survey(one.fold.state, now=one.now).entries()
    assert [type(each) for each in one.put([entry])] == [RolledBack, RollbackScheduled]
    assert one.put([entry]) == [Refused(Refusal.ROLLBACK_PENDING, plan)]


def test_a_rollback_that_nothing_has_to_be_done_for_is_not_made() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    token = FencingToken(one.fold.incarnation, 4)
    wish = RollbackWish(plan, (token,), None, "x")
    assert one.put([RollbacksScheduled((wish,))]) == [Refused(Refusal.NOT_DEAD, plan)]


# ── by hand ────────────────────────────────────────────────────────────────────────────────────


def by_hand(one: LeaderDecisions, plan: PlanId) -> tuple[str, PlanId | None]:
    one.put(rollbacks.by_hand(one.fold.state, plan, now=one.now))
    reply = rollbacks.by_hand_reply(one.fold.state, plan, now=one.now)
    return reply.outcome, reply.rollback


def test_by_hand_the_delay_is_passed_by_and_a_second_wish_finds_the_first() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=True)
    outcome, rollback = by_hand(one, plan)
    assert outcome == "scheduled"
    assert by_hand(one, plan) == ("scheduled", rollback)
    assert survey(one).wishes == (), "a cleaning finds it too"
    undone(one, plan)
    assert by_hand(one, plan) == ("nothing_to_do", None)


def test_by_hand_a_live_lease_is_respected() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=True)
    begin(one, plan)
    assert by_hand(one, plan) == ("lease_live", None)
    assert one.plan(plan).state is PlanState.INFLIGHT


def test_by_hand_of_a_plan_that_stays_only_its_dead_attempts() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    assert by_hand(one, plan) == ("nothing_to_do", None)
    begin(one, plan)
    one.fail(lease_held(one, plan))
    assert by_hand(one, plan)[0] == "scheduled"
    assert one.plan(plan).state is PlanState.REQUESTED


def test_by_hand_a_plan_that_never_was_is_not_found() -> None:
    with pytest.raises(NotFound):
        by_hand(leader(), PlanId(99, 0))


# ── what a rollback may delete ─────────────────────────────────────────────────────────────────


def confirm(one: LeaderDecisions, plan: PlanId, token: FencingToken, *keys: str) -> tuple[str, ...]:
    request = ConfirmDeletes(plan, token, keys)
    effects = one.put(rollbacks.confirm_entries(one.fold.state, request, now=one.now))
    return rollbacks.deletable(effects, one.fold.state, request)


def written(one: LeaderDecisions, plan: PlanId, token: FencingToken) -> str:
    inputs = one.metas(*one.plan(plan).inputs)
    return output(plan, token, inputs, profiles=20).files[0].locations[0].key


@pytest.fixture
def undoing() -> tuple[LeaderDecisions, PlanId, FencingToken]:
    """A leader, a plan with a dead attempt whose rollback w2 holds, and the dead token."""
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    dead = begin(one, plan, W1)
    one.fail(lease_held(one, plan))
    survey(one)
    assert execute(one, rollback_of(one, plan).id, W2).answer == "granted"
    return one, plan, dead


Undoing = tuple[LeaderDecisions, PlanId, FencingToken]


def test_only_keys_of_its_own_tokens_may_go(undoing: Undoing) -> None:
    one, plan, dead = undoing
    rollback = rollback_of(one, plan)
    token = lease_held(one, rollback.id).token
    later = FencingToken(dead.incarnation, dead.index + 1)
    other = PlanId(plan.index, 1)
    asked = (
        written(one, plan, dead),
        written(one, plan, later),
        written(one, plan, dead).replace(f"-{plan}-", f"-{other}-"),
        "segments/v1/anything.parquet",
    )
    assert confirm(one, rollback.id, token, *asked) == asked[:1]


def test_a_confirmation_renews_and_a_lost_lease_confirms_nothing(undoing: Undoing) -> None:
    one, plan, dead = undoing
    rollback = rollback_of(one, plan)
    token = lease_held(one, rollback.id).token
    key = written(one, plan, dead)
    one.wait(LEASE_S)
    assert confirm(one, rollback.id, token, key) == (key,)
    one.wait(LEASE_S)
    assert execute(one, rollback.id, W3).answer == "lease_live"
    one.wait(1)
    assert execute(one, rollback.id, W3).answer == "granted"
    with pytest.raises(LeaseLost):
        confirm(one, rollback.id, token, key)
    foreign = FencingToken(Incarnation("feedface"), token.index)
    with pytest.raises(LeaseLost):
        confirm(one, rollback.id, foreign, key)


def test_a_plan_that_is_no_rollback_deletes_nothing() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    token = begin(one, plan)
    with pytest.raises(LeaseLost, match="no rollback"):
        confirm(one, plan, token, written(one, plan, token))


def test_what_is_listed_is_never_deleted() -> None:
    """The lost end of a log had completed the attempt, and the restored one adopts its block."""
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=False)
    dead = begin(one, plan)
    adopted = output(plan, dead, one.metas(*one.plan(plan).inputs), profiles=20)
    one.put([Reincarnated(Incarnation("feedface"), ()), BlocksAdopted((adopted,)), AdoptionEnded()])
    assert adopted.id in one.fold.state.blocks
    (wish,) = survey(one).wishes
    assert wish.tokens == (dead,)
    rollback = rollback_of(one, plan)
    execute(one, rollback.id)
    keys = tuple(file.locations[0].key for file in adopted.files)
    stray = tuple(key.replace("-a1.", "-a2.") for key in keys)
    token = lease_held(one, rollback.id).token
    assert confirm(one, rollback.id, token, *keys, *stray) == stray, "another task's are not listed"


def test_what_is_not_remembered_any_more_is_not_deleted(undoing: Undoing) -> None:
    """A restore may have found that the attempt was completed after all, and spared it."""
    one, plan, dead = undoing
    rollback = rollback_of(one, plan)
    one.fold.state.leftovers.pop(AttemptKey(plan, dead))
    assert (
        confirm(one, rollback.id, lease_held(one, rollback.id).token, written(one, plan, dead))
        == ()
    )


def test_while_adopting_nothing_is_rolled_back() -> None:
    """Which attempts were completed after all is not known yet (S5)."""
    one = leader(rollback_delay_ns=0)
    plan = schedule_plan(one, 1, 2, removable=False)
    dead = begin(one, plan)
    one.put([Reincarnated(Incarnation("feedface"), ())])
    wish = RollbacksScheduled((RollbackWish(plan, (dead,), None, "x"),))
    assert one.put([wish]) == [Refused(Refusal.ADOPTING, plan)]
    with pytest.raises(Unavailable):
        rollbacks.by_hand(one.fold.state, plan, now=one.now)


def test_dead_attempts_are_remembered_until_the_rollback_has_ended(undoing: Undoing) -> None:
    one, plan, dead = undoing
    assert AttemptKey(plan, dead) in one.fold.state.leftovers.dead
    undone(one, plan)
    assert one.fold.state.leftovers.dead == {}
    assert AttemptKey(plan, dead) in one.fold.state.leftovers, "a late listing has the last word"


# ── plans that hold blocks too long ────────────────────────────────────────────────────────────


def overheld(one: LeaderDecisions) -> list[Entry]:
    entries = rollbacks.overheld(one.fold.state, now=one.now)
    one.put(entries)
    return entries


@pytest.mark.parametrize("started", [False, True])
def test_a_plan_that_nobody_works_on_holds_its_blocks_no_longer_than_the_bound(
    started: bool,
) -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=True)
    execute(one, plan)
    if started:
        one.renew(lease_held(one, plan), started=True)
    one.wait(LEASE_S + HOLD_S)
    assert overheld(one) == []
    one.fold.now += 1
    assert len(overheld(one)) == 1
    assert one.plan(plan).state is PlanState.ROLLED_BACK
    (taker,) = set(one.fold.state.owners.values())
    assert one.plan(taker).inputs == one.plan(plan).inputs
    assert (taker.index, one.plan(taker).kind) == (one.fold.state.index, COMPACT)


def test_what_a_plan_held_is_at_no_index_free_for_anybody_else() -> None:
    """One entry ends the holder and begins the taker: every prefix of the log has an owner."""
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=True)
    begin(one, plan)
    one.wait(LEASE_S + HOLD_S + 1)
    (entry,) = rollbacks.overheld(one.fold.state, now=one.now)
    assert isinstance(entry, RollbacksScheduled)
    inputs = one.plan(plan).inputs
    effects = one.put([entry])
    assert [type(effect).__name__ for effect in effects] == [
        "AttemptEnded",
        "RolledBack",
        "RollbackScheduled",
        "Scheduled",
    ]
    assert set(one.fold.state.owners) == set(inputs)
    assert one.fold.state.queue.queued == 0
    assert rollback_of(one, plan).id == PlanId(one.fold.state.index, 0)
    assert one.fold.state.owners[inputs[0]] == PlanId(one.fold.state.index, 1)
    assert not one.plan(one.fold.state.owners[inputs[0]]).removable


def test_who_comes_back_in_time_keeps_what_he_holds() -> None:
    """The leader's belief was old: the fold refuses the fence, and with it whoever would take."""
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=True)
    execute(one, plan)
    one.wait(LEASE_S + HOLD_S + 1)
    entries = rollbacks.overheld(one.fold.state, now=one.now)
    assert execute(one, plan, W2).answer == "granted"
    refused = [effect.why for effect in one.put(entries) if isinstance(effect, Refused)]
    assert refused == [Refusal.OUTDATED, Refusal.INPUT_OWNED]
    assert set(one.fold.state.owners.values()) == {plan}


def test_a_plan_whose_blocks_are_not_due_to_be_merged_holds_nobody_up() -> None:
    one = LeaderDecisions(Fold(policy=msgspec.structs.replace(POLICY, hold_max_ns=0)))
    plan = schedule_plan(one, 1, 2, removable=True)  # three make a batch, or ten seconds
    begin(one, plan)
    one.fail(lease_held(one, plan))
    one.fold.now += 1
    assert overheld(one) == []
    one.wait(10)
    assert len(overheld(one)) == 1


def test_what_makes_no_batch_waits_again_where_it_waited() -> None:
    one = LeaderDecisions(Fold(policy=msgspec.structs.replace(POLICY, hold_max_ns=0)))
    plan = schedule_plan(one, 1, 2, 3, 4, removable=True)
    begin(one, plan)
    one.fail(lease_held(one, plan))
    one.fold.now += 1
    overheld(one)
    *batch, last = one.plan(plan).inputs
    assert set(one.fold.state.owners) == set(batch)
    (lane,) = one.fold.state.queue.lanes
    assert [item.block for item in one.fold.state.queue.items(lane)] == [last]


def test_the_bound_counts_from_a_reported_end() -> None:
    one = leader()
    plan = schedule_plan(one, 1, 2, removable=True)
    begin(one, plan)
    one.wait(3)
    one.fail(lease_held(one, plan))
    one.wait(HOLD_S)
    assert overheld(one) == []
    one.fold.now += 1
    assert len(overheld(one)) == 1


def test_a_plan_that_was_never_leased_is_taken_after_the_delay() -> None:
    one = leader()
    schedule_plan(one, 1, 2, removable=True)
    one.wait(DELAY_S)
    assert overheld(one) == []
    one.fold.now += 1
    assert len(overheld(one)) == 1


def test_a_live_lease_and_a_plan_that_stays_hold_their_blocks() -> None:
    one = leader()
    stays = schedule_plan(one, 1, 2, removable=False)
    begin(one, stays)
    one.wait(10_000)
    works = schedule_plan(one, 3, 4, removable=True)
    begin(one, works)
    for _ in range(100):
        one.wait(LEASE_S)
        one.renew(lease_held(one, works))
    assert overheld(one) == []


# ── plans that always fail ─────────────────────────────────────────────────────────────────────


def setback_of(one: LeaderDecisions, plan: PlanId) -> Setback | None:
    found = one.plan(plan)
    return one.fold.state.setback(found.kind, found.key)


@pytest.mark.parametrize("how", ["after it started", "before it started"])
def test_a_removable_plan_that_always_fails_comes_back_ever_more_slowly(how: str) -> None:
    one = leader(rollback_delay_ns=0, probe_ns=60 * SECOND_NS, probe_max_ns=3600 * SECOND_NS)
    pauses = []
    for number in range(8):
        plan = schedule_plan(one, 2 * number, 2 * number + 1, removable=True)
        if how == "after it started":
            begin(one, plan)
        else:
            execute(one, plan)
        one.fail(lease_held(one, plan))
        survey(one)
        undone(one, plan)
        setback = setback_of(one, plan)
        assert setback is not None
        pauses.append((setback.until - one.fold.now) // SECOND_NS)
        one.fold.now = setback.until
    assert pauses == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    plan = schedule_plan(one, 100, 101, removable=True)
    begin(one, plan)
    one.complete(lease_held(one, plan))
    assert setback_of(one, plan) is None, "a success ends it"


def test_a_plan_that_nobody_came_for_is_no_setback() -> None:
    one = leader(rollback_delay_ns=0)
    plan = schedule_plan(one, 1, 2, removable=True)
    survey(one)
    assert setback_of(one, plan) is None
