"""Draws ARCHITECTURE.md's pictures from the code (`make docs`): the imports, and a plan's states.

The imports are those that Python would carry out, and the states are those that the fold itself
goes through: every entry about a plan is tried in every state that was reached, and what changed
the plan is an arrow. A test compares the page with what is drawn.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import grimp
import msgspec

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from maar.metastore.records.effects import Refused  # noqa: E402
from maar.metastore.records.entries import (  # noqa: E402
    AttemptFenced,
    BlocksExpired,
    BlocksLost,
    Entry,
    Grant,
    PlanBisected,
    PlanCompleted,
    PlanExcluded,
    PlanFailed,
    PlanRequeued,
    PlansLeased,
    PlansParked,
    PlansStarted,
    PlansUnparked,
    Reincarnated,
    Start,
)
from maar.model.ids import FencingToken, Incarnation, PlanId, WorkerId  # noqa: E402
from maar.model.plan import Plan, PlanState  # noqa: E402
from maar.model.policy import Policy  # noqa: E402
from maar.model.time import LeaseTime  # noqa: E402
from support.metastore.fold import SMALL, Fold, result, segment  # noqa: E402
from support.metastore.plans import add_plan  # noqa: E402

PAGE = ROOT / "ARCHITECTURE.md"
DEPTH = 8  # entries in a row; no state is further from the first
SOON = 1_000_000_000
FULL = msgspec.structs.replace(SMALL, plans_max=1)  # one plan fills the schedule, and can be parked

Edge = tuple[str, str, str]


def page(before: str) -> str:
    """The page with its pictures drawn anew, each between its marks."""
    for name, draw in (("imports", imports), ("plan states", plan_states)):
        begin, end = f"<!-- drawn: {name} -->\n", "<!-- end -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        before, found = pattern.subn(f"{begin}```mermaid\n{draw()}```\n{end}", before)
        if found != 1:
            raise SystemExit(f"{PAGE.name} has {found} places for the picture of {name}, not one")
    return before


def imports() -> str:
    """Who imports whom; an arrow that follows from two others is left out."""
    graph = grimp.build_graph("maar")
    packages = sorted({name.split(".")[1] for name in graph.modules if name.count(".")})
    packages = [name for name in packages if not name.startswith("_")]
    edges = {
        (one, other)
        for one in packages
        for other in packages
        if one != other and _imports(graph, f"maar.{one}", f"maar.{other}")
    }
    lines = [f"  {one} --> {other}\n" for one, other in sorted(_reduce(edges))]
    return "flowchart TD\n" + "".join(lines)


def _imports(graph: grimp.ImportGraph, one: str, other: str) -> bool:
    return graph.direct_import_exists(importer=one, imported=other, as_packages=True)


def _reduce(edges: set[tuple[str, str]]) -> set[tuple[str, str]]:
    reach: dict[str, set[str]] = {}

    def below(node: str) -> set[str]:
        if node not in reach:
            reach[node] = set()
            for one, other in edges:
                if one == node:
                    reach[node] |= {other} | below(other)
        return reach[node]

    return {
        (one, other)
        for one, other in edges
        if not any(other in below(middle) for start, middle in edges if start == one != middle)
    }


def plan_states() -> str:
    """The states of a plan, by trying every entry about it in every state."""
    labels: dict[tuple[str, str], list[str]] = {}
    for one, entry, other in sorted({*_edges(SMALL), *_edges(FULL)}):
        labels.setdefault((one, other), []).append(entry)
    lines = [
        f"  {one} --> {other}: {', '.join(entries)}\n" for (one, other), entries in labels.items()
    ]
    return "stateDiagram-v2\n  [*] --> requested: PlansScheduled\n" + "".join(lines)


def _edges(policy: Policy) -> Iterator[Edge]:
    """Breadth first; a history goes on only from a state that it was first to reach."""
    seen = {_key(*_after((), policy))}
    histories: list[tuple[Try, ...]] = [()]
    for _ in range(DEPTH):
        longer: list[tuple[Try, ...]] = []
        for history in histories:
            for attempt in TRIES:
                fold, plan = _after(history, policy)
                before = _state(fold, plan)
                entry = attempt(fold, plan)
                if entry is None:
                    continue
                effects = fold.put(entry)
                after = _state(fold, plan)
                if any(isinstance(effect, Refused) for effect in effects):
                    continue
                if after != before:
                    yield before, type(entry).__name__, after
                if (key := _key(fold, plan)) not in seen:
                    seen.add(key)
                    longer.append((*history, attempt))
        histories = longer


Try = Callable[[Fold, PlanId], Entry | None]


def _after(history: tuple[Try, ...], policy: Policy) -> tuple[Fold, PlanId]:
    fold = Fold(policy)
    plan = add_plan(fold, *(segment(number) for number in range(1, 4)))
    for attempt in history:
        entry = attempt(fold, plan)
        assert entry is not None
        fold.put(entry)
    return fold, plan


def _find_plan(fold: Fold, plan: PlanId) -> Plan:
    state = fold.state
    return state.plans.get(plan) or state.parked.get(plan) or state.finished[plan]


def _state(fold: Fold, plan: PlanId) -> str:
    found = _find_plan(fold, plan)
    if found.state is PlanState.REQUESTED and found.lease is not None:
        return "leased"
    return found.state.name.lower()


def _key(fold: Fold, plan: PlanId) -> tuple[str, int]:
    """What decides what may come next: the state, and failures up to the limit."""
    found = _find_plan(fold, plan)
    return _state(fold, plan), min(found.failures, found.failure_limit)


def _token(fold: Fold, plan: PlanId) -> FencingToken | None:
    lease = _find_plan(fold, plan).lease
    return lease.token if lease else None


def _lease(fold: Fold, plan: PlanId) -> Entry:
    fold.now += 100 * SOON  # a lease that somebody holds has run out
    return PlansLeased(
        (Grant(plan, WorkerId("w"), LeaseTime(fold.now + SOON), _token(fold, plan)),)
    )


def _start(fold: Fold, plan: PlanId) -> Entry | None:
    token = _token(fold, plan)
    return PlansStarted((Start(plan, token),)) if token else None


def _fail(fold: Fold, plan: PlanId) -> Entry | None:
    token = _token(fold, plan)
    return PlanFailed(plan, token, "it failed", LeaseTime(fold.now)) if token else None


def _complete(fold: Fold, plan: PlanId) -> Entry | None:
    token = _token(fold, plan)
    if token is None:
        return None
    inputs = fold.metas(_find_plan(fold, plan).inputs)
    return PlanCompleted(plan, token, result(plan, token, inputs))


def _fence(fold: Fold, plan: PlanId) -> Entry | None:
    token = _token(fold, plan)
    return AttemptFenced(plan, token, "fenced") if token else None


def _exclude(fold: Fold, plan: PlanId) -> Entry:
    return PlanExcluded(plan, _token(fold, plan), LeaseTime(fold.now), note="by an operator")


def _bisect(fold: Fold, plan: PlanId) -> Entry:
    return PlanBisected(plan, _token(fold, plan), 1)


def _lose(fold: Fold, plan: PlanId) -> Entry:
    return BlocksLost(_find_plan(fold, plan).inputs[:1], "gone")


def _expire(fold: Fold, plan: PlanId) -> Entry:
    return BlocksExpired(2**62, _find_plan(fold, plan).inputs[:1])


def _restore(_fold: Fold, _plan: PlanId) -> Entry:
    return Reincarnated(Incarnation("0000cafe"))


TRIES: tuple[Try, ...] = (
    _lease,
    _start,
    _fail,
    _complete,
    _fence,
    _exclude,
    _bisect,
    _lose,
    _expire,
    _restore,
    lambda _, plan: PlanRequeued(plan),
    lambda _, plan: PlansParked((plan,)),
    lambda _, plan: PlansUnparked((plan,)),
)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
