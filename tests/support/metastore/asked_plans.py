"""Plans on a board, for tests that execute them by hand."""

from __future__ import annotations

from maar.metastore.records.entries import BlocksAdded, PlansScheduled
from maar.model.ids import PlanId
from maar.model.plan import PlanSpec
from maar.services.compact.rules import COMPACT
from support.metastore.board import FoldBoard
from support.metastore.fold import segment


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
