"""The task of a stamp: the profiles are written again, each with the stamp as its cause."""

from __future__ import annotations

from pathlib import Path

from maar.block.format.segment import open_segment, read_groups
from maar.block.read.fetch import fetch
from maar.model.block import SEGMENT_TABLE
from maar.model.plan import Account, LeasedPlan, PlanResult
from maar.ports.stores.object_store import ObjectStore
from maar.services.publish import Publisher
from maar.services.runs import Guard
from support.kinds.stamp.rules import STAMP


def load() -> None:
    """There is nothing to compile."""


def run(
    plan: LeasedPlan,
    *,
    store: ObjectStore,
    attempt: str,
    scratch: Path,
    wall_ns: int,
    guard: Guard,
) -> PlanResult:
    publisher = Publisher(plan, level=9, store=store, attempt=attempt, wall_ns=wall_ns, guard=guard)
    (meta,) = plan.inputs
    segment = open_segment(fetch(store, meta, meta.file(SEGMENT_TABLE), scratch))
    profiles = list(read_groups(segment, range(segment.num_row_groups)))
    publisher.quarantine([(each, "stamped") for each in profiles], tenant=profiles[0].tenant)
    return PlanResult(STAMP, tuple(publisher.outputs), Account(0, 0, len(profiles)))
