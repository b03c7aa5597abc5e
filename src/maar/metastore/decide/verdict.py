"""Is a failed attempt the plan's own failure, or did something around it fail? (S11)

The leader decides, and the entry carries the verdict: replicas fold it and judge nothing.
"""

from __future__ import annotations

from maar.metastore.state.state import MetaState
from maar.model.plan import Plan
from maar.model.policy import Policy
from maar.model.time import LeaseTime

ALWAYS = LeaseTime(-1)  # before any lease


def expiry_counts(state: MetaState, plan: Plan, *, hearing_since: LeaseTime) -> bool:
    """Does a lease that ran out count against the plan?

    Only if the work had begun, and if the worker had been heard by the leader that now misses it:
    a leader that was not in office, or deaf for a while, cannot know what it did not hear.
    """
    lease = plan.lease
    if lease is None:
        return False
    renewed_at = lease.expires_at - state.kinds[plan.kind].lease_ns(state.policy)
    started = plan.attempts[-1].started_at is not None
    return (started and renewed_at > hearing_since) or is_exhausted(plan, state.policy)


def failure_counts(plan: Plan, *, policy: Policy, plan_at_fault: bool) -> bool:
    """Does a failure that a worker told of count? It saw whether store and engine were well."""
    return plan_at_fault or is_exhausted(plan, policy)


def is_exhausted(plan: Plan, policy: Policy) -> bool:
    """Spared so often that it counts after all: some plans kill whoever takes them up."""
    return plan.excused >= policy.excused_max
