"""The engine that carries out leased plans."""

from __future__ import annotations

from typing import Protocol

from maar.model.plan import LeasedPlan, PlanKind, PlanResult


class AttemptFailed(Exception):
    """The attempt failed; `stopped` says whether its tasks were seen to have ended.

    `own` is False when the store or the engine was at fault: the next plan would fail too (S11).
    """

    def __init__(self, cause: str, *, stopped: bool, plan_at_fault: bool = True) -> None:
        super().__init__(cause)
        self.cause = cause
        self.stopped = stopped
        self.plan_at_fault = plan_at_fault


class RunnerDied(Exception):
    """The engine itself is gone (the JVM was killed): this process must restart."""


class JobRunner(Protocol):
    """Blocking calls, made from threads."""

    def warm(self) -> None:
        """Return when the first plan would not have to wait for start-up or compilation."""
        ...

    def kinds(self) -> tuple[PlanKind, ...]:
        """The kinds of plans that it can carry out."""
        ...

    def slots(self) -> int:
        """How many plans can run at once; RunnerDied when the engine is gone."""
        ...

    def run(self, plan: LeasedPlan) -> PlanResult:
        """Carry it out, or raise AttemptFailed or RunnerDied."""
        ...

    def cancel(self, plan: LeasedPlan) -> None:
        """Ask a running plan to stop; `run` then raises AttemptFailed."""
        ...

    def close(self) -> None: ...
