"""Why profiles are in quarantine, read from their object, since the index does not know."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from maar.block.format.segment import count_causes
from maar.block.read.copies import read_copy
from maar.model.block import SEGMENT_TABLE, BlockMeta
from maar.model.errors import MaarError
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores, stores_of

CAUSES_MAX = 5  # sentences
CAUSE_LENGTH_MAX = 300  # characters

Causes = Callable[[BlockMeta], Awaitable[tuple[str, ...]]]


def causes_in(store: ObjectStore | Stores) -> Causes:
    """The causes as sentences; one of them may be that the object cannot be read."""

    async def causes(meta: BlockMeta) -> tuple[str, ...]:
        try:
            return await asyncio.to_thread(_causes, stores_of(store), meta)
        except (MaarError, OSError) as error:
            return (f"The causes cannot be read now: {error}",)

    return causes


def _causes(stores: Stores, meta: BlockMeta) -> tuple[str, ...]:
    counts = read_copy(stores, meta, SEGMENT_TABLE, count_causes)
    listed = counts.most_common(CAUSES_MAX)
    sentences = [f"{count} of them: {cause[:CAUSE_LENGTH_MAX]}" for cause, count in listed]
    rest = counts.total() - sum(count for _, count in listed)
    return (*sentences, f"{rest} of them: other causes.") if rest else tuple(sentences)
