"""The keeper: which plans are ours, until when, and what the next poll says of them."""

from __future__ import annotations

from maar.model.ids import (
    MAIN_STORE,
    NO_TENANT,
    FencingToken,
    Incarnation,
    PlanId,
    Shard,
    WorkerId,
)
from maar.model.plan import Account, LeasedPlan, PlanResult, QueueKey
from maar.ports.plans.board import Kept, Outcome, PollReply, PollRequest
from maar.services.compact.rules import COMPACT
from maar.worker.keeper import LEAVING, OVERDUE, AttemptFailure, Keeper

LEASE = 15_000
POLL = 1_000
PLAN = 100_000
WORKER = WorkerId("w1")
RESULT = PlanResult(kind=COMPACT, outputs=(), account=Account(kept=0, duplicates=0, quarantined=0))
SILENCE = PollReply(granted=(), kept=(), outcomes=())


def leased(index: int = 1, *, token: int = 100) -> LeasedPlan:
    return LeasedPlan(
        id=PlanId(index, 0),
        kind=COMPACT,
        token=FencingToken(Incarnation("0badcafe"), token),
        key=QueueKey(MAIN_STORE, NO_TENANT, Shard(1), 0),
        inputs=(),
        target_block_bytes=1 << 20,
        lease_ns=LEASE,
        limit_ns=PLAN,
    )


def granting(*plans: LeasedPlan) -> PollReply:
    return PollReply(granted=plans, kept=(), outcomes=())


def keeping(*plans: LeasedPlan) -> PollReply:
    kept = tuple(Kept(plan.id, plan.token, plan.lease_ns) for plan in plans)
    return PollReply(granted=(), kept=kept, outcomes=())


def answering(plan: LeasedPlan, *, accepted: bool = True) -> PollReply:
    return PollReply(granted=(), kept=(), outcomes=(Outcome(plan.id, plan.token, accepted),))


def ask(keeper: Keeper, now: int, *, slots: int = 2) -> PollRequest:
    return keeper.request(WORKER, slots=slots, now_ns=now)


def granted(*plans: LeasedPlan, at: int = 0) -> Keeper:
    """A keeper that was granted plans that nobody works on yet."""
    keeper = Keeper(poll_ns=POLL, kinds=(COMPACT,))
    keeper.on_reply(ask(keeper, at), granting(*plans), sent_ns=at, now_ns=at)
    return keeper


def holding(*plans: LeasedPlan, at: int = 0) -> Keeper:
    """A keeper that was granted plans at a time and has told that they began."""
    keeper = granted(*plans, at=at)
    for plan in plans:
        keeper.on_begun(plan, at)
    keeper.on_reply(ask(keeper, at), keeping(*plans), sent_ns=at, now_ns=at)
    return keeper


def test_an_idle_worker_asks_for_as_many_plans_as_it_has_slots() -> None:
    request = ask(Keeper(poll_ns=POLL, kinds=(COMPACT,)), 0)
    assert (request.worker, request.capacity) == (WORKER, 2)
    assert (request.renewals, request.reports) == ((), ())


def test_a_granted_plan_is_started_and_takes_a_slot() -> None:
    keeper = Keeper(poll_ns=POLL, kinds=(COMPACT,))
    decision = keeper.on_reply(ask(keeper, 0), granting(leased()), sent_ns=0, now_ns=5)
    assert decision.start == (leased(),)
    assert ask(keeper, 10).capacity == 1


def test_a_grant_that_arrives_after_its_lease_has_passed_is_not_started() -> None:
    keeper = Keeper(poll_ns=POLL, kinds=(COMPACT,))
    reply = granting(leased())
    assert keeper.on_reply(ask(keeper, 0), reply, sent_ns=0, now_ns=LEASE + 1).start == ()
    assert keeper.busy() == 0


def test_a_grant_that_arrives_twice_is_started_once() -> None:
    keeper = holding(leased())
    assert keeper.on_reply(ask(keeper, 1), granting(leased()), sent_ns=1, now_ns=1).start == ()


def test_a_granted_plan_that_nobody_works_on_yet_is_renewed_but_not_said_to_have_begun() -> None:
    keeper = granted(leased())
    assert ask(keeper, 1).renewals == ()
    assert keeper.next_poll_ns(slots=1, last_poll_ns=0) == LEASE // 3
    assert [renewal.started for renewal in ask(keeper, LEASE // 3).renewals] == [False]


def test_a_renewal_may_say_that_the_work_should_end_after_its_task() -> None:
    keeper, plan = holding(leased()), leased()
    assert keeper.why_stop(plan) == ""
    stop = PollReply((), (Kept(plan.id, plan.token, LEASE, "a window closed"),), ())
    decision = keeper.on_reply(ask(keeper, LEASE // 3), stop, sent_ns=LEASE // 3, now_ns=LEASE // 3)
    assert keeper.why_stop(plan) == "a window closed"
    assert decision.stop == (), "its task is not cancelled"
    assert keeper.holds(plan)
    at = LEASE * 2 // 3
    keeper.on_reply(ask(keeper, at), keeping(plan), sent_ns=at, now_ns=at)
    assert keeper.why_stop(plan) == "", "what held it back is over"


def test_the_first_renewal_after_the_work_began_says_so_until_it_was_heard() -> None:
    keeper = granted(leased())
    keeper.on_begun(leased(), 0)
    assert keeper.next_poll_ns(slots=1, last_poll_ns=7) == 7, "at once: it waits to write"
    first = ask(keeper, 1)
    assert [renewal.started for renewal in first.renewals] == [True]
    keeper.on_sent(first)  # and no reply comes
    second = ask(keeper, 2)
    assert [renewal.started for renewal in second.renewals] == [True]
    assert keeper.on_reply(second, keeping(leased()), sent_ns=2, now_ns=2).told == (leased(),)
    assert keeper.on_reply(second, keeping(leased()), sent_ns=2, now_ns=2).told == ()
    assert [renewal.started for renewal in ask(keeper, LEASE).renewals] == [False]


def test_renewals_are_due_after_a_third_of_the_lease_and_then_go_all_at_once() -> None:
    old, young = leased(1), leased(2, token=101)
    keeper = holding(old, at=0)
    keeper.on_reply(ask(keeper, 4000), granting(young), sent_ns=4000, now_ns=4000)
    keeper.on_begun(young, 4000)
    keeper.on_reply(ask(keeper, 4000), keeping(old, young), sent_ns=4000, now_ns=4000)
    assert ask(keeper, 4000 + LEASE // 3 - 1).renewals == ()
    assert len(ask(keeper, 4000 + LEASE // 3).renewals) == 2


def test_a_lease_counts_from_when_its_request_was_sent() -> None:
    keeper = Keeper(poll_ns=POLL, kinds=(COMPACT,))
    keeper.on_reply(ask(keeper, 0), granting(leased()), sent_ns=0, now_ns=4000)
    assert keeper.on_expiry(LEASE).stop == ()
    assert keeper.on_expiry(LEASE + 1).stop == (leased(),)


def test_a_renewal_extends_the_lease() -> None:
    keeper = holding(leased())
    keeper.on_reply(ask(keeper, 5000), keeping(leased()), sent_ns=5000, now_ns=5100)
    assert keeper.on_expiry(LEASE + 1).stop == ()
    assert keeper.on_expiry(5000 + LEASE + 1).stop == (leased(),)


def test_a_plan_that_runs_too_long_is_given_up_however_faithfully_it_is_renewed() -> None:
    keeper = holding(leased())
    for now in range(LEASE // 3, PLAN + 1, LEASE // 3):
        assert keeper.on_expiry(now).overdue == ()
        keeper.on_reply(ask(keeper, now), keeping(leased()), sent_ns=now, now_ns=now)
    assert keeper.on_expiry(PLAN + 1).overdue == (leased(),)
    assert not keeper.holds(leased())
    assert ask(keeper, PLAN + LEASE).renewals == (), "its lease expires, and others may try"
    assert keeper.busy() == 1


def test_the_time_that_faults_of_others_took_does_not_make_a_plan_overdue() -> None:
    keeper = holding(leased())
    for now in (PLAN // 2, PLAN):  # a fault each time, and then it is begun again
        keeper.on_reply(ask(keeper, now), keeping(leased()), sent_ns=now, now_ns=now)
        keeper.on_begun(leased(), now)
    assert keeper.on_expiry(PLAN + LEASE).overdue == ()
    keeper.on_reply(ask(keeper, 2 * PLAN), keeping(leased()), sent_ns=2 * PLAN, now_ns=2 * PLAN)
    assert keeper.on_expiry(2 * PLAN + 1).overdue == (leased(),)


def test_a_plan_that_ran_too_long_is_blamed_for_it_once_its_tasks_were_seen_to_stop() -> None:
    keeper = holding(leased())
    keeper.on_reply(ask(keeper, PLAN), keeping(leased()), sent_ns=PLAN, now_ns=PLAN)
    keeper.on_expiry(PLAN + 1)
    assert keeper.on_end(leased(), AttemptFailure("The plan was cancelled"), now_ns=PLAN + 2)
    assert [(r.failure, r.plan_at_fault) for r in ask(keeper, PLAN + 3).reports] == [
        (OVERDUE.cause, True)
    ]


def test_a_plan_that_the_metastore_does_not_keep_is_stopped_and_never_reported() -> None:
    keeper = holding(leased())
    assert keeper.on_reply(ask(keeper, 5000), SILENCE, sent_ns=5000, now_ns=5000).stop == (
        leased(),
    )
    assert not keeper.on_end(leased(), RESULT, now_ns=5001)
    assert ask(keeper, 5002).reports == ()


def test_the_slot_of_a_lost_plan_is_busy_until_its_run_has_returned() -> None:
    keeper = holding(leased())
    keeper.on_reply(ask(keeper, 5000), SILENCE, sent_ns=5000, now_ns=5000)
    assert ask(keeper, 5001).capacity == 1
    assert ask(keeper, 5001 + LEASE).renewals == ()
    keeper.on_end(leased(), None, now_ns=5002)
    assert ask(keeper, 5003).capacity == 2


def test_only_plans_that_the_request_named_can_be_lost_by_its_reply() -> None:
    keeper = Keeper(poll_ns=POLL, kinds=(COMPACT,))
    early = ask(keeper, 0)
    keeper.on_reply(early, granting(leased()), sent_ns=0, now_ns=0)
    assert keeper.on_reply(early, SILENCE, sent_ns=0, now_ns=1).stop == ()


def test_a_plan_that_comes_back_under_a_newer_token_is_another_plan() -> None:
    old, new = leased(token=100), leased(token=200)
    keeper = holding(old)
    request = ask(keeper, 5000)
    decision = keeper.on_reply(request, granting(new), sent_ns=5000, now_ns=5000)
    assert (decision.stop, decision.start) == ((old,), (new,))
    assert not keeper.on_end(old, RESULT, now_ns=5001)
    assert keeper.on_end(new, RESULT, now_ns=5002)
    assert [report.token for report in ask(keeper, 5003).reports] == [new.token]


def test_a_result_is_reported_with_its_token_until_it_is_answered() -> None:
    keeper = holding(leased())
    assert keeper.on_end(leased(), RESULT, now_ns=10)
    first = ask(keeper, 11)
    keeper.on_sent(first)
    assert [(r.plan, r.token, r.result) for r in first.reports] == [
        (leased().id, leased().token, RESULT)
    ]
    assert ask(keeper, 12).reports == first.reports
    decision = keeper.on_reply(first, answering(leased()), sent_ns=11, now_ns=13)
    assert [outcome.accepted for outcome in decision.settled] == [True]
    assert ask(keeper, 14).reports == ()


def test_a_refused_report_is_settled_too() -> None:
    keeper = holding(leased())
    keeper.on_end(leased(), RESULT, now_ns=10)
    reply = answering(leased(), accepted=False)
    keeper.on_reply(ask(keeper, 11), reply, sent_ns=11, now_ns=12)
    assert keeper.reports_left() == 0


def test_a_report_without_an_answer_is_dropped_one_lease_after_its_lease() -> None:
    keeper = holding(leased())
    keeper.on_end(leased(), RESULT, now_ns=10)
    assert keeper.on_expiry(2 * LEASE).dropped == ()
    assert [report.plan for report in keeper.on_expiry(2 * LEASE + 1).dropped] == [leased().id]
    assert keeper.reports_left() == 0


def test_a_failure_is_reported_with_its_cause_and_whose_it_is() -> None:
    for own in (True, False):
        keeper = holding(leased())
        keeper.on_end(leased(), AttemptFailure("It broke.", plan_at_fault=own), now_ns=10)
        reports = ask(keeper, 11).reports
        assert [(report.failure, report.plan_at_fault) for report in reports] == [
            ("It broke.", own)
        ]


def test_a_long_cause_is_cut() -> None:
    keeper = holding(leased())
    keeper.on_end(leased(), AttemptFailure("x" * 1_000_000), now_ns=10)
    assert len(ask(keeper, 11).reports[0].failure) == 1000


def test_an_attempt_that_was_not_seen_to_stop_ends_in_silence() -> None:
    keeper = holding(leased())
    assert keeper.on_end(leased(), None, now_ns=10)
    assert (ask(keeper, LEASE).reports, ask(keeper, LEASE).renewals) == ((), ())
    assert keeper.busy() == 0


def test_a_result_that_comes_after_the_lease_by_our_own_clock_is_not_reported() -> None:
    keeper = holding(leased())
    assert not keeper.on_end(leased(), RESULT, now_ns=LEASE + 1)
    assert ask(keeper, LEASE + 2).reports == ()


def test_a_worker_with_free_slots_polls_at_its_interval() -> None:
    assert (
        Keeper(poll_ns=POLL, kinds=(COMPACT,)).next_poll_ns(slots=2, last_poll_ns=50) == 50 + POLL
    )


def test_a_full_worker_polls_only_to_renew() -> None:
    keeper = holding(leased(1), leased(2))
    assert keeper.next_poll_ns(slots=2, last_poll_ns=0) == LEASE // 3


def test_a_worker_that_wants_nothing_and_has_nothing_is_silent() -> None:
    assert Keeper(poll_ns=POLL, kinds=(COMPACT,)).next_poll_ns(slots=0, last_poll_ns=50) is None


def test_a_new_report_is_sent_at_once_and_then_at_the_interval() -> None:
    keeper = holding(leased())
    keeper.on_end(leased(), RESULT, now_ns=10)
    assert keeper.next_poll_ns(slots=0, last_poll_ns=50) == 50
    keeper.on_sent(ask(keeper, 60))
    assert keeper.next_poll_ns(slots=0, last_poll_ns=60) == 60 + POLL


def test_giving_up_stops_all_that_runs_and_tells_of_what_was_seen_to_stop() -> None:
    stops, strays, late, done = leased(1), leased(2), leased(3), leased(4)
    keeper = holding(stops, strays, late, done)
    assert set(keeper.give_up()) == {stops, strays, late, done}
    assert keeper.give_up() == ()
    assert keeper.busy() == 4
    assert ask(keeper, LEASE).renewals == ()
    assert keeper.on_end(stops, AttemptFailure("The plan was cancelled"), now_ns=1)
    assert keeper.on_end(strays, None, now_ns=1)
    assert keeper.on_end(done, RESULT, now_ns=1)
    assert not keeper.on_end(late, AttemptFailure("The plan was cancelled"), now_ns=LEASE + 1)
    told = [(r.plan, r.failure, r.plan_at_fault, r.result) for r in ask(keeper, 2).reports]
    assert told == [(stops.id, LEAVING.cause, False, None), (done.id, "", True, RESULT)]


def test_a_plan_that_is_lost_while_it_is_given_up_is_not_mentioned() -> None:
    keeper = holding(leased())
    request = ask(keeper, LEASE // 3)
    keeper.give_up()
    assert keeper.on_reply(request, SILENCE, sent_ns=5000, now_ns=5000).stop == (leased(),)
    assert not keeper.on_end(leased(), AttemptFailure("The plan was cancelled"), now_ns=5001)
    assert ask(keeper, 5002).reports == ()
