"""Plans on a board, for tests that execute them by hand."""

from __future__ import annotations

from maar.metastore.records.entries import (
    BlocksAdded,
    Grant,
    PlansLeased,
    PlansScheduled,
    PlansStarted,
    Start,
)
from maar.model import keys
from maar.model.ids import FencingToken, PlanId, WorkerId
from maar.model.plan import PlanSpec
from maar.model.time import SECOND_NS, LeaseTime
from maar.ports.stores.object_store import ObjectStore
from maar.services.compact.rules import COMPACT
from support.metastore.board import FoldBoard
from support.metastore.fold import output, segment

LEASE_S = 15
OTHER = WorkerId("somebody-else")


def add_segments(board: FoldBoard, *numbers: int) -> None:
    board.fold.put(BlocksAdded(tuple(segment(n, at=board.fold.now) for n in numbers)))


def compact_plan(board: FoldBoard, first: int = 1, *, removable: bool = False) -> PlanId:
    """A plan over two segments. Whether it may be removed is fixed when it is scheduled, so a
    compaction can stand for any removable kind.
    """
    metas = (segment(first, at=board.fold.now), segment(first + 1, at=board.fold.now))
    board.fold.put(BlocksAdded(metas))
    key = board.fold.state.queue.places[metas[0].id].key
    inputs = tuple(meta.id for meta in metas)
    board.fold.put(PlansScheduled((PlanSpec(COMPACT, removable, key, inputs, 2),)))
    return board.fold.state.owners[metas[0].id]


def lease(board: FoldBoard, plan: PlanId, *, started: bool = False) -> FencingToken:
    """Somebody else gets it."""
    held = board.fold.state.plans[plan].lease
    until = LeaseTime(board.fold.now + LEASE_S * SECOND_NS)
    board.fold.put(PlansLeased((Grant(plan, OTHER, until, held.token if held else None),)))
    now_held = board.fold.state.plans[plan].lease
    assert now_held is not None
    if started:
        board.fold.put(PlansStarted((Start(plan, now_held.token),)))
    return now_held.token


def leave_object(store: ObjectStore, plan: PlanId, token: FencingToken) -> str:
    """What a dead attempt wrote, and the intent that names it."""
    made = output(plan, token, (segment(1), segment(2)), profiles=20)
    written = made.files[0].locations[0].key
    store.create(keys.intent(plan=plan, token=token, attempt="a1", ordinal=0), written.encode())
    store.create(written, b"half")
    return written
