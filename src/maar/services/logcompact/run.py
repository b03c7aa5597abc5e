"""Joining: many segments are read whole, and one is written; no profile is decoded."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from maar.block.merge.join import join_visible
from maar.block.read.fetch import fetch
from maar.model.block import SEGMENT_TABLE, BlockMeta
from maar.model.plan import Account, LeasedPlan, PlanResult
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores
from maar.services.logcompact.rules import LOGCOMPACT
from maar.services.publish import Publisher, always

log = logging.getLogger("maar.logcompact")

READERS = 8  # threads: a small object is mostly a wait for the store


def run(
    plan: LeasedPlan,
    *,
    store: ObjectStore | Stores,
    attempt: str,
    scratch: Path,
    wall_ns: int,
    guard: Callable[[], None] = always,
) -> PlanResult:
    """Carry a leased plan out; nothing that it writes shows before the result is accepted (S3).

    Corrupt names the input block that cannot be read. Scratch is empty again afterwards. What is
    in memory is a few times what the plan takes (`services.logcompact.plan_bytes`).
    """
    began_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
    publisher = Publisher(plan, level=0, store=store, attempt=attempt, wall_ns=wall_ns, guard=guard)
    work = scratch / f"{plan.id}-{plan.token}-{attempt}"
    work.mkdir(parents=True)
    try:
        masks = {meta.id: plan.masks_of(at) for at, meta in enumerate(plan.inputs)}
        joined = join_visible(_read_all(plan, store, work), zone=plan.key.zone, masks=masks)
        if joined is not None:
            publisher.segment(joined)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    came, kept = (sum(meta.profiles for meta in some) for some in (plan.inputs, publisher.outputs))
    for made in publisher.outputs:
        log.info(
            "segments joined block=%s segments=%d profiles=%d bytes=%d",
            made.id, len(plan.inputs), made.profiles, made.size,
        )  # fmt: skip
    return PlanResult(
        kind=LOGCOMPACT,
        outputs=tuple(publisher.outputs),
        account=Account(kept, duplicates=0, quarantined=0, deleted=came - kept),
        cpu_ms=(time.process_time_ns() - cpu_ns) // 1_000_000,
        wall_ms=(time.perf_counter_ns() - began_ns) // 1_000_000,
    )


def load() -> None:
    """There is nothing to compile."""


def _read_all(
    plan: LeasedPlan, store: ObjectStore | Stores, work: Path
) -> Iterator[tuple[BlockMeta, bytes]]:
    """In queue order, each compared with the index."""
    with ThreadPoolExecutor(READERS, "logcompact") as readers:
        bodies = readers.map(partial(_read, store, work), plan.inputs)
        yield from zip(plan.inputs, bodies, strict=True)


def _read(store: ObjectStore | Stores, work: Path, meta: BlockMeta) -> bytes:
    path = fetch(store, meta, meta.file(SEGMENT_TABLE), work)
    body = path.read_bytes()
    if path.is_relative_to(work):
        path.unlink()
    return body
