"""What a job's status is called on the wire by the peers, row by row, and what it is here.

A job is a plan. Its status is UNSPECIFIED while nobody holds it, IN_PROGRESS while somebody does,
or did; SUCCESS and FAILURE are only ever said by a worker, and CANCELLED is said by nobody.
"""

from __future__ import annotations

import msgspec
import pytest

from maar.metastore.fold.plans import plan as plans
from maar.metastore.records.effects import AttemptEnded, Completed, Leased, Refused, Renewed
from maar.metastore.records.entries import PlanExcluded
from maar.model.ids import PlanId
from maar.model.plan import AttemptEnd, PlanState
from maar.ports.plans.board import Report
from support.metastore.fold import SMALL, Fold
from support.metastore.leader_term import W1, W2, LeaderDecisions


def one_job(limit: int = 2) -> tuple[LeaderDecisions, Leased]:
    """A single block that became old: a job that cannot be divided."""
    leader_term = LeaderDecisions(Fold(policy=msgspec.structs.replace(SMALL, failure_limit=limit)))
    leader_term.add(1)
    leader_term.wait(11)
    (lease,) = leader_term.poll(W1)
    return leader_term, lease


def standing(leader_term: LeaderDecisions, plan: PlanId) -> tuple[PlanState, str]:
    """The state of a plan, and of its lease."""
    found = leader_term.plan(plan)
    if found.lease is None:
        return found.state, "no lease"
    return found.state, "expired" if found.lease.is_expired(leader_term.now) else "live"


# ── the states of a plan ───────────────────────────────────────────────────────────────────────


def test_unspecified_is_requested_without_a_lease() -> None:
    leader_term, lease = one_job()
    leader_term.fail(lease, own=False)
    assert standing(leader_term, lease.plan) == (PlanState.REQUESTED, "no lease")


def test_in_progress_is_requested_and_leased_until_the_work_begins() -> None:
    leader_term, lease = one_job()
    assert standing(leader_term, lease.plan) == (PlanState.REQUESTED, "live")


def test_in_progress_is_inflight_once_the_work_has_begun_also_when_the_lease_has_expired() -> None:
    leader_term, lease = one_job()
    leader_term.renew(lease, started=True)
    assert standing(leader_term, lease.plan) == (PlanState.INFLIGHT, "live")
    leader_term.wait(15)
    assert standing(leader_term, lease.plan) == (PlanState.INFLIGHT, "live")  # exceeds, not reaches
    leader_term.wait(0.000_001)
    assert standing(leader_term, lease.plan) == (PlanState.INFLIGHT, "expired")


def test_in_progress_over_the_limit_or_cancelled_is_excluded_and_stays_visible() -> None:
    leader_term, lease = one_job(limit=1)
    leader_term.renew(lease, started=True)
    leader_term.wait(16)
    leader_term.set_aside()
    assert standing(leader_term, lease.plan) == (PlanState.EXCLUDED, "no lease")
    assert lease.plan in leader_term.fold.state.plans
    assert leader_term.poll(W2) == []


def test_success_is_completed_and_kept_for_repeated_reports_and_then_archived() -> None:
    leader_term, lease = one_job()
    inputs = leader_term.fold.metas(leader_term.plan(lease.plan).inputs)
    leader_term.complete(lease)
    assert standing(leader_term, lease.plan) == (PlanState.COMPLETED, "no lease")
    assert lease.plan not in leader_term.fold.state.plans
    assert leader_term.plan(lease.plan).result is not None
    assert inputs[0].id not in leader_term.fold.live()
    leader_term.fold.now += SMALL.finished_ns + 1
    leader_term.keep_house()
    assert lease.plan not in leader_term.fold.state.finished


def test_failure_is_the_end_of_the_lease_and_one_failure_more() -> None:
    leader_term, lease = one_job()
    leader_term.renew(lease, started=True)
    (ended,) = leader_term.fail(lease, cause="out of disk")
    assert isinstance(ended, AttemptEnded)
    assert ended.end is AttemptEnd.FAILED
    assert standing(leader_term, lease.plan) == (PlanState.REQUESTED, "no lease")
    assert leader_term.plan(lease.plan).failures == 1


def test_cancelled_is_off_the_schedule_and_its_inputs_are_free() -> None:
    leader_term, lease = one_job()
    (block,) = leader_term.plan(lease.plan).inputs
    plans.cancel(leader_term.fold.state, lease.plan, gone=frozenset(), cause="x")
    assert standing(leader_term, lease.plan) == (PlanState.CANCELLED, "no lease")
    assert block in leader_term.fold.state.queue


# ── from one status to the next ────────────────────────────────────────────────────────────────


def test_create_job_then_assign_job() -> None:
    """Unassigned and in progress follow in one round: jobs are made for free slots only."""
    leader_term = LeaderDecisions()
    leader_term.add(1, 2, 3)
    assert len(leader_term.fold.state.plans) == 0
    (lease,) = leader_term.poll(W1)
    plan = leader_term.plan(lease.plan)
    assert plan.scheduled_at == plan.attempts[0].granted_at
    assert plan.lease is not None
    assert plan.lease.expires_at == leader_term.now + SMALL.lease_ns


def test_in_progress_stays_so_by_a_lease_refresh() -> None:
    leader_term, lease = one_job()
    leader_term.wait(14)
    assert leader_term.renew(lease) == [Renewed(lease.plan, lease.token)]
    held = leader_term.plan(lease.plan).lease
    assert held is not None
    assert held.expires_at == leader_term.now + SMALL.lease_ns
    assert held.token == lease.token


def test_an_abandoned_job_is_reassigned_with_a_new_lease_and_a_greater_token() -> None:
    leader_term, lease = one_job()
    leader_term.wait(16)
    (again,) = leader_term.poll(W2)
    assert (again.plan, again.worker) == (lease.plan, W2)
    assert again.token > lease.token
    assert again.token.index == leader_term.fold.state.index
    held = leader_term.plan(lease.plan).lease
    assert held is not None
    assert held.expires_at == leader_term.now + SMALL.lease_ns


def test_a_failed_job_is_reassigned_and_rather_to_another_worker() -> None:
    leader_term, lease = one_job()
    leader_term.poll(W2)
    leader_term.fail(lease)
    leader_term.pass_rest()
    leader_term.poll(W2, 0)
    assert [again.plan for again in leader_term.poll(W2)] == [lease.plan]


def test_past_the_limit_a_job_is_not_reassigned_until_the_cause_is_resolved() -> None:
    leader_term, lease = one_job(limit=2)
    leader_term.fail(lease)
    assert leader_term.set_aside() == []
    leader_term.pass_rest()
    (again,) = leader_term.poll(W2)
    leader_term.fail(again)
    (entry,) = leader_term.set_aside()
    assert isinstance(entry, PlanExcluded)
    assert leader_term.poll(W1) == []


def test_a_job_in_success_is_removed_from_the_schedule_immediately() -> None:
    leader_term, lease = one_job()
    (done,) = leader_term.complete(lease)
    assert isinstance(done, Completed)
    assert len(leader_term.fold.state.plans) == 0


# ── scheduler to worker ────────────────────────────────────────────────────────────────────────


def test_a_refreshed_lease_is_told_to_its_worker() -> None:
    leader_term, lease = one_job()
    assert leader_term.renew(lease) == [Renewed(lease.plan, lease.token)]


@pytest.mark.parametrize("lost_by", ["taken", "completed", "excluded", "failed", "unknown"])
def test_no_refresh_means_that_the_worker_should_stop(lost_by: str) -> None:
    leader_term, lease = one_job(limit=1 if lost_by == "excluded" else 2)
    leader_term.renew(lease, started=True)
    match lost_by:
        case "taken":
            leader_term.wait(16)
            (again,) = leader_term.poll(W2)
            assert again.token > lease.token
        case "completed":
            leader_term.complete(lease)
        case "excluded":
            leader_term.wait(16)
            leader_term.set_aside()
        case "failed":
            leader_term.fail(lease)
        case _:
            lease = Leased(PlanId(0, 0), lease.token, W1)
    assert [type(effect) for effect in leader_term.renew(lease)] == [Refused]


def test_only_in_progress_jobs_are_ever_handed_to_a_worker() -> None:
    """UNSPECIFIED, SUCCESS, FAILURE and CANCELLED are never sent: a grant is a live lease."""
    leader_term = LeaderDecisions()
    leader_term.add(*range(9))
    for lease in leader_term.poll(W1, 3):
        assert standing(leader_term, lease.plan) == (PlanState.REQUESTED, "live")


# ── worker to scheduler ────────────────────────────────────────────────────────────────────────


def test_in_progress_extends_the_lease_if_the_worker_still_owns_the_job() -> None:
    leader_term, lease = one_job()
    before = leader_term.plan(lease.plan).lease
    leader_term.wait(20)
    leader_term.renew(lease)  # expired, and nobody took it: it is still the owner
    after = leader_term.plan(lease.plan).lease
    assert before is not None
    assert after is not None
    assert after.expires_at == before.expires_at + 20 * 10**9


def test_success_removes_the_job_and_tells_the_planner() -> None:
    leader_term, lease = one_job()
    (effect,) = leader_term.complete(lease)
    assert isinstance(effect, Completed)
    assert effect.added[0] in leader_term.fold.state.queue  # the next level can go on
    assert effect.retired[0] not in leader_term.fold.state.queue.places


def test_failure_counts_and_below_the_limit_the_job_is_reassigned() -> None:
    leader_term, lease = one_job(limit=3)
    for failures in (1, 2):
        leader_term.fail(lease)
        assert leader_term.plan(lease.plan).failures == failures
        leader_term.pass_rest()
        (lease,) = leader_term.poll(W2 if failures == 1 else W1)
    leader_term.fail(lease)
    leader_term.set_aside()
    assert leader_term.plan(lease.plan).state is PlanState.EXCLUDED


def test_a_report_that_says_nothing_is_a_failure_without_a_cause() -> None:
    """UNSPECIFIED and CANCELLED are not for workers to say."""
    leader_term, lease = one_job()
    (ended,) = leader_term.report(lease, Report(lease.plan, lease.token))
    assert isinstance(ended, AttemptEnded)
    assert ended.cause == "the worker gave no cause"


def test_silence_is_enough_no_report_is_relied_upon() -> None:
    """A job that kills its workers says nothing, and is set aside all the same."""
    leader_term, lease = one_job(limit=2)
    leader_term.renew(lease, started=True)
    for worker in (W2, W1):
        leader_term.wait(16)
        for again in leader_term.start_plans(worker):
            assert again.plan == lease.plan
    assert leader_term.plan(lease.plan).state is PlanState.EXCLUDED


def test_success_and_failure_are_never_stored_on_the_schedule() -> None:
    leader_term = LeaderDecisions()
    leader_term.add(*range(9))
    first, second, third = leader_term.start_plans(W1, 3)
    leader_term.complete(first)
    leader_term.fail(second)
    stored = [plan.state for plan in leader_term.fold.state.plans.values()]
    assert stored == [PlanState.REQUESTED, PlanState.INFLIGHT]
    assert third.plan in leader_term.fold.state.plans


def test_a_late_success_is_accepted_while_nobody_else_has_the_job() -> None:
    leader_term, lease = one_job()
    leader_term.wait(3600)
    assert isinstance(leader_term.complete(lease)[0], Completed)
