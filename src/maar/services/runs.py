"""How a worker finds the task of a plan: `maar.services.<kind>.run`, loaded where it runs.

A driver, and whoever only decides, needs no decoder; so nothing here imports a task before a plan
of its kind is carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from maar.model.errors import Rejected
from maar.model.plan import LeasedPlan, PlanKind, PlanResult
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores
from maar.services.kinds import KINDS, Kinds

PACKAGE = "maar.services"

Guard = Callable[[], None]  # before every write: LeaseLost when the attempt may write no more


class Noted(NamedTuple):
    """A task's result, and what it tells whoever asked for the plan beside that."""

    result: PlanResult
    note: bytes


class CarryOut(Protocol):
    """What is done for a plan; `maar.services.compact.run.run` is one."""

    def __call__(
        self,
        plan: LeasedPlan,
        *,
        store: ObjectStore | Stores,
        attempt: str,
        scratch: Path,
        wall_ns: int,
        guard: Guard,
    ) -> PlanResult: ...


class KindTask(Protocol):
    """The module `run` of a kind."""

    run: CarryOut

    def load(self) -> None:
        """Import and compile all that a plan needs, so that the first one does not wait."""
        ...


def task_of(kind: PlanKind, *, kinds: Kinds = KINDS, package: str = PACKAGE) -> KindTask:
    """The task of a kind of the union, in the folder of its name."""
    if kind not in kinds.on_engine():
        raise Rejected(f"this worker cannot carry out plans of the kind {kind[:60]!r}")
    return cast(KindTask, import_module(f"{package}.{kind}.run"))


def carry_out(
    plan: LeasedPlan,
    *,
    store: ObjectStore | Stores,
    attempt: str,
    scratch: Path,
    wall_ns: int,
    guard: Guard,
) -> PlanResult:
    """The task of the plan's own kind."""
    return task_of(plan.kind).run(
        plan, store=store, attempt=attempt, scratch=scratch, wall_ns=wall_ns, guard=guard
    )


def cut(plan: LeasedPlan) -> tuple[LeasedPlan, ...]:
    """What each task of a plan gets."""
    return KINDS[plan.kind].cut(plan)


def join(plan: LeasedPlan, results: Sequence[PlanResult]) -> PlanResult:
    """What came of a plan, from what came of its tasks."""
    return KINDS[plan.kind].join(plan, results)


def load() -> None:
    """Have the tasks of all kinds ready that run here."""
    for kind in KINDS.on_engine():
        task_of(kind).load()
