"""Two executors, a cleaner and time, in every order, over the real decisions and the real fold.

In every state that can be reached the promises hold (ARCHITECTURE.md): profiles are there exactly
once; the plan completes at most once, and only by its newest token; a snapshot changes nothing; no
object is deleted that the index lists or that its writer could still complete; and if everybody
dies at that point, cleanings, whoever finishes the plan and the last sweep leave nothing behind.
Mistakes that were planted, and are caught, are in the second half.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from maar.metastore.fold.apply import fold_entry
from maar.metastore.records.effects import Effect, Effects
from maar.metastore.records.entries import (
    BlocksOutlined,
    Entry,
    PlanCompleted,
    PlansStarted,
    RollbacksScheduled,
)
from maar.metastore.state.state import MetaState
from maar.model.plan import PlanState
from maar.ports.plans.board import ConfirmDeletes
from support.oracles.interleaved_log import POLICY, Broken, Planted
from support.oracles.interleavings import (
    PLANNER,
    Actor,
    Faults,
    Visited,
    World,
    visit_all,
)

pytestmark = pytest.mark.timeout(120)

X, Y, CLEANER, OTHER = Actor("x"), Actor("y"), Actor("cleaner"), Actor("cleaner two")
# A plan that stays has no delay to wait for, so one jump shows it all; `make soak-plans` takes two.
SHORT = {False: Faults(jumps=1), True: Faults(jumps=2)}
UNGUARDED = msgspec.structs.replace(POLICY, execution_guard=False)


def _tell(visited: Visited) -> None:
    folds = f"{visited.folds} states of the fold"
    print(f"\n{visited.states} states, {folds}, {visited.ends} ends", end=" ")  # noqa: T201


@pytest.mark.parametrize("removable", [False, True], ids=["immutable", "removable"])
def test_two_executors_and_a_cleaner(removable: bool) -> None:
    visited = visit_all(World(removable=removable), (X, Y, CLEANER), SHORT[removable])
    _tell(visited)
    assert visited.states > 3_000
    assert visited.ends > 1_000


@pytest.mark.parametrize("removable", [False, True], ids=["immutable", "removable"])
def test_two_cleaners_and_an_executor(removable: bool) -> None:
    jumps = 2 if removable else 1  # a plan that stays has no delay to wait for
    visited = visit_all(World(removable=removable), (X, CLEANER, OTHER), Faults(jumps))
    _tell(visited)
    assert visited.states > 1_000


@pytest.mark.parametrize("removable", [False, True], ids=["immutable", "removable"])
def test_without_the_guard_executors_fence_each_other(removable: bool) -> None:
    world = World(removable=removable, policy=UNGUARDED)
    visited = visit_all(world, (X, Y), Faults(jumps=2))
    _tell(visited)
    assert visited.states > 100


@pytest.mark.parametrize("other", [Y, CLEANER], ids=["executor", "cleaner"])
@pytest.mark.parametrize("removable", [False, True], ids=["immutable", "removable"])
def test_a_leader_is_killed_and_an_answer_is_lost(removable: bool, other: Actor) -> None:
    faults = Faults(jumps=2 if removable else 1, leaders=1, answers=1)
    visited = visit_all(World(removable=removable), (X, other), faults)
    _tell(visited)
    assert visited.states > 500


@pytest.mark.parametrize("other", [Y, CLEANER], ids=["executor", "cleaner"])
def test_the_planner_takes_what_a_removable_plan_holds(other: Actor) -> None:
    visited = visit_all(World(removable=True), (X, other, Actor(PLANNER)), Faults(jumps=2))
    _tell(visited)
    assert visited.states > 500


# ── planted mistakes ───────────────────────────────────────────────────────────────────────────

Folded = Entry | BlocksOutlined


def without_a_fence(state: MetaState, entry: Folded) -> Effects:
    """A rollback leaves the lease of the attempt that it undoes as it is."""
    before = dict(state.plans.items())
    effects = fold_entry(state, entry)
    for wish in entry.rollbacks if isinstance(entry, RollbacksScheduled) else ():
        if wish.target in state.plans:
            plan, lease = state.plans[wish.target], before[wish.target].lease
            state.plans[plan.id] = msgspec.structs.replace(plan, lease=lease)
    return effects


def with_any_token(state: MetaState, entry: Folded) -> Effects:
    """Whoever completes a plan that is held holds it."""
    plan = state.plans.get(entry.plan) if isinstance(entry, PlanCompleted) else None
    if isinstance(entry, PlanCompleted) and plan and plan.lease:
        lease = msgspec.structs.replace(plan.lease, token=entry.token)
        state.plans[plan.id] = msgspec.structs.replace(plan, lease=lease)
    return fold_entry(state, entry)


def requested_again(state: MetaState, entry: Folded) -> Effects:
    """A removable plan that has started can be granted like any other."""
    effects = fold_entry(state, entry)
    for plan in list(state.plans.values()):
        if plan.removable and plan.state is PlanState.INFLIGHT:
            state.plans[plan.id] = msgspec.structs.replace(plan, state=PlanState.REQUESTED)
    return effects


def starts_nowhere(state: MetaState, entry: Folded) -> Effects:
    """A start is answered, and not remembered."""
    before = dict(state.plans.items())
    effects = fold_entry(state, entry)
    for start in entry.starts if isinstance(entry, PlansStarted) else ():
        if start.plan in before:
            state.plans[start.plan] = before[start.plan]
    return effects


def whatever_is_asked(
    _: Sequence[Effect], __: MetaState, request: ConfirmDeletes
) -> tuple[str, ...]:
    return request.keys


MISTAKES = {
    "a rollback does not fence": (False, Planted(fold=without_a_fence)),
    "a stale token completes": (False, Planted(fold=with_any_token)),
    "a started removable plan is granted again": (True, Planted(fold=requested_again)),
    "a start is forgotten": (False, Planted(fold=starts_nowhere)),
    "a rollback takes what later tokens wrote": (
        False,
        Planted(greedy=True, deletable=whatever_is_asked),
    ),
    "an executor writes before it has said so": (False, Planted(announces=False)),
    "a rollback completes and has deleted nothing": (True, Planted(looks=False)),
    "a cleaner deletes without an entry": (False, Planted(fences=False)),
    "the last sweep takes what is listed": (
        False,
        Planted(unlisted=lambda _, written: list(written)),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_planted(mistake: str) -> None:
    removable, planted = MISTAKES[mistake]
    with pytest.raises(Broken):
        visit_all(World(removable=removable, planted=planted), (X, Y, CLEANER), SHORT[removable])


def test_a_rollback_that_wants_too_much_is_held_back_by_the_metastore() -> None:
    """The executor's word is not trusted: what may be deleted is decided where the tokens are."""
    visit_all(World(removable=False, planted=Planted(greedy=True)), (X, CLEANER), Faults(jumps=2))
