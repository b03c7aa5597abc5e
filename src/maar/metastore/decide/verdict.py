"""Whether a failed attempt was the plan's fault, or that of its environment (S11).

The leader decides, and the entry carries the decision: replicas only apply it.
"""

from __future__ import annotations

from maar.metastore.state.state import MetaState
from maar.model.plan import Plan
from maar.model.policy import Policy
from maar.model.time import LeaseTime

ALWAYS = LeaseTime(-1)  # before any lease


def expiry_counts(state: MetaState, plan: Plan, *, hearing_since: LeaseTime) -> bool:
    """Whether an expired lease counts as a failure of the plan.

    Only if the work had begun and this leader could have heard the worker's renewals. A leader that
    was elected since, or was paused for a while, may have missed them.
    """
    lease = plan.lease
    if lease is None:
        return False
    renewed_at = lease.expires_at - lease.lease_ns
    started = plan.attempts[-1].started_at is not None
    return (started and renewed_at > hearing_since) or is_exhausted(plan, state.policy)


def failure_counts(plan: Plan, *, policy: Policy, plan_at_fault: bool) -> bool:
    """Whether a reported failure counts: the worker says if store and engine were healthy."""
    return plan_at_fault or is_exhausted(plan, policy)


def is_exhausted(plan: Plan, policy: Policy) -> bool:
    """Whether it was excused so often that it counts after all: some plans kill every worker."""
    return plan.excused >= policy.excused_max
