"""After a query failed, finds out which objects are damaged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from maar.block.read.damage import damages
from maar.model.block import BlockMeta, Damage
from maar.model.errors import Corrupt, Damaged
from maar.ports.object_store import ObjectStore
from maar.query.decide.select import Parts

COMPARED_BYTES_MAX = 512 << 20  # of objects that are read for one error: its query waits
TOLD_MAX = 3  # objects
NAMED_MAX = 20  # blocks

Found = tuple[BlockMeta, list[Damage]]


def name_damage(store: ObjectStore, parts: Parts, error: Exception) -> Corrupt:
    """The error, with the names of the damaged objects."""
    metas = (*(meta for meta, _ in parts.raw), *parts.blocks, *parts.quarantined)
    found = list(_by_size(store, metas)) or list(_by_bytes(store, metas))
    if not found:
        return Corrupt(str(error))
    wrong = [str(each) for _, some in found for each in some]
    more = f", and {len(wrong) - TOLD_MAX} more" if len(wrong) > TOLD_MAX else ""
    return Damaged(
        f"{'; '.join(wrong[:TOLD_MAX])}{more}. Restore it from a copy, or see what giving it up "
        f"would cost: maar blocks lose {found[0][0].id} --dry-run (met as: {error})",
        blocks=tuple((m.id, m.min_time_ns, m.max_time_ns) for m, _ in found[:NAMED_MAX]),
    )


def _by_size(store: ObjectStore, metas: Iterable[BlockMeta]) -> Iterator[Found]:
    for meta in metas:
        if wrong := list(damages(store, meta, bytes_max=0)):
            yield meta, wrong


def _by_bytes(store: ObjectStore, metas: Iterable[BlockMeta]) -> Iterator[Found]:
    left = COMPARED_BYTES_MAX
    for meta in metas:
        left -= meta.size
        if left < 0:
            return
        if wrong := list(damages(store, meta)):
            yield meta, wrong
