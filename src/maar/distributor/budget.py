"""How often pushes may be tried again, all together: a sick fleet must not get n times the load.

A bucket of retries: each batch that is handed over adds a share of one, time adds a few a second,
so that a quiet distributor may retry too. What it holds at most is for the moment in which a writer
dies and everything that waited there has to go elsewhere.
"""

from __future__ import annotations

import msgspec

from maar.model.time import SECOND_NS


class BudgetRule(msgspec.Struct, frozen=True):
    share: float  # retries that a batch earns
    per_s: float  # retries that a second earns
    most: float  # that can be saved up


class RetryBudget(msgspec.Struct, frozen=True):
    retries: float
    at_ns: int


def full(rule: BudgetRule, *, now_ns: int) -> RetryBudget:
    return RetryBudget(rule.most, now_ns)


def earned(budget: RetryBudget, rule: BudgetRule, *, now_ns: int, batches: int = 0) -> RetryBudget:
    passed_s = max(0, now_ns - budget.at_ns) / SECOND_NS
    retries = budget.retries + batches * rule.share + passed_s * rule.per_s
    return RetryBudget(min(retries, rule.most), max(now_ns, budget.at_ns))


def spent(budget: RetryBudget, rule: BudgetRule, *, now_ns: int) -> RetryBudget | None:
    """The budget after one retry, or None when there is none to spend."""
    now = earned(budget, rule, now_ns=now_ns)
    return msgspec.structs.replace(now, retries=now.retries - 1) if now.retries >= 1 else None
