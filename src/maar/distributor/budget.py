"""How often pushes may be tried again, all together: a sick fleet must not get n times the load.

A bucket of retries: each batch that is handed over adds a share of one, time adds a few a second,
so that a quiet distributor may retry too. What it holds at most is for the moment in which a writer
dies and everything that waited there has to go elsewhere.
"""

from __future__ import annotations

import msgspec

from maar.distributor.settings import RouterSettings
from maar.model.time import SECOND_NS


class RetryBudget(msgspec.Struct, frozen=True):
    retries: float
    at_ns: int


def full(settings: RouterSettings, *, now_ns: int) -> RetryBudget:
    return RetryBudget(settings.retries_saved_max, now_ns)


def earned(
    budget: RetryBudget, settings: RouterSettings, *, now_ns: int, batches: int = 0
) -> RetryBudget:
    passed_s = max(0, now_ns - budget.at_ns) / SECOND_NS
    more = batches * settings.retry_share + passed_s * settings.retries_per_s
    return RetryBudget(
        min(budget.retries + more, settings.retries_saved_max), max(now_ns, budget.at_ns)
    )


def spent(budget: RetryBudget, settings: RouterSettings, *, now_ns: int) -> RetryBudget | None:
    """The budget after one retry, or None when there is none to spend."""
    now = earned(budget, settings, now_ns=now_ns)
    return msgspec.structs.replace(now, retries=now.retries - 1) if now.retries >= 1 else None
