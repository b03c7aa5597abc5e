"""Checks of a state that no hash makes: sums against the blocks, and derived data against records.

Whoever makes a snapshot calls both, so that a mistake in what the fold keeps up to date is found
before anybody starts from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from maar.metastore.records.packs import unpack
from maar.metastore.state.index import Chunk, Index, PartitionKey, partition_of
from maar.metastore.state.marks import add_mark, bulk_mark
from maar.metastore.state.rows import raw_id
from maar.metastore.state.state import MetaState
from maar.model.block import BlockMeta
from maar.model.errors import Corrupt

T = TypeVar("T")


def check_sums(state: MetaState) -> None:
    """Check that places and sums match the blocks; Corrupt when they do not."""
    again = Index()
    again.copies.stores = state.stores
    queue, placed, places_hash = state.queue, 0, 0
    for partition in state.blocks.partitions():
        for chunk in partition.chunks:
            kept = chunk.packed
            metas = list(map(unpack, kept))
            _audit_chunk(partition.key, chunk, metas)
            for meta, packed in zip(metas, kept, strict=True):
                again.count(meta, packed, +1)
                item = queue.places.at(raw_id(meta.id))
                if item is None:
                    continue
                if (item.size, item.key) != (meta.size, queue.rules.lane(meta)):
                    raise Corrupt(f"the queued place of block {meta.id} does not match the block")
                placed, places_hash = placed + 1, add_mark(places_hash, bulk_mark(item))
    if (again.hash, again.totals) != (state.blocks.hash, state.blocks.totals):
        raise Corrupt("its totals do not match its blocks")
    if again.windows.by_key != state.blocks.windows.by_key:
        raise Corrupt("its sums of days do not match its blocks")
    if _copies(again) != _copies(state.blocks):
        raise Corrupt("its sums of copies do not match its blocks")
    if (placed, places_hash) != (len(queue.places), queue.hash):
        raise Corrupt("its queue does not hold exactly the blocks that wait to be merged")


def check_derived(state: MetaState, again: MetaState) -> None:
    """Check derived data against `again`, rebuilt from the same records; Corrupt if it differs.

    No hash covers derived data, though it decides what is merged next, which worker may work, and
    what a query reads.
    """
    for name, told in _KEPT.items():
        if told(state) != told(again):
            raise Corrupt(
                f"the derived data on {name} does not match the records; this is a bug in maar, "
                "please report it"
            )


_KEPT: dict[str, Callable[[MetaState], object]] = {
    "time": lambda state: (state.index, state.lease_time, state.wall_time),
    "owners": lambda state: state.owners,
    "partitions": lambda state: [
        (key, [(chunk.raw_ids, chunk.levels) for chunk in chunks])
        for key, chunks in state.blocks.partitions()
    ],
    "blocks": lambda state: list(state.blocks.where.items()),
    "lanes": lambda state: {
        key: (b"".join(lane.items.raw()), lane.bytes, lane.joined, lane.front, lane.full)
        for key, lane in state.queue.lanes.items()
    },
    "full lanes": lambda state: _as_lists(state.queue.full),
    "oldest blocks": lambda state: _as_lists(state.queue.fronts),
    "what waits": lambda state: (state.queue.waiting, state.queue.queued),
    "windows": lambda state: (
        {key: sorted(some) for key, some in state.blocks.windows.mixed.items()},
        {key: sorted(some) for key, some in state.blocks.windows.of_tenant.items()},
        state.blocks.windows.by_key,
        state.queue.placed,
    ),
    "plans that wait": lambda state: _as_lists(state.plans.lines),
    "leases": lambda state: (state.plans.held, state.plans.leases),
    "removable plans": lambda state: sorted(state.plans.removable),
    "urgent plans": lambda state: sorted(state.plans.urgent),
    "rollbacks": lambda state: state.plans.rollbacks,
    "resources": lambda state: {
        resource: sorted(plans) for resource, plans in state.plans.occupied.items()
    },
    "plans of jobs": lambda state: {
        job: sorted(plans) for job, plans in state.plans.of_job.items()
    },
    "dead attempts": lambda state: list(state.leftovers.dead),
    "copies": lambda state: _copies(state.blocks),
    "tombstones": lambda state: list(state.tombstones.derived_views()),
}


def _copies(index: Index) -> object:
    copies = index.copies
    lacking = {
        (tenant, stores): b"".join(ids.raw())
        for tenant, lists in copies.lacking.items()
        for stores, ids in lists.items()
    }
    return copies.stores, copies.sums, lacking, copies.of_tenant, copies.of_store


def _as_lists(lists: Mapping[T, Iterable[object]]) -> dict[T, list[object]]:
    return {key: list(some) for key, some in lists.items()}


def _audit_chunk(key: PartitionKey, chunk: Chunk, metas: list[BlockMeta]) -> None:
    bounds = chunk.bounds
    same = (
        chunk.ids == tuple(meta.id for meta in metas)
        and chunk.levels == bytes(min(meta.level, 255) for meta in metas)
        and all(partition_of(meta) == key for meta in metas)
        and all(bounds.min_time_ns <= meta.min_time_ns for meta in metas)
        and all(bounds.max_time_ns >= meta.max_time_ns for meta in metas)
        and all(bounds.largest >= meta.size for meta in metas)
    )
    if not same:
        raise Corrupt(f"its outline of the blocks from {chunk.ids[0]} on does not match them")
