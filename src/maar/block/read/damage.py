"""Examines the objects of a block for damage: missing, truncated, or changed."""

from __future__ import annotations

from collections.abc import Iterator

import xxhash

from maar.model.block import BlockMeta, Damage, File, Location
from maar.model.errors import NotFound, Retryable
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores, stores_of

MISSING = "is missing"
_RANGE = 8 << 20  # bytes of one ranged read


def damages(
    store: ObjectStore | Stores, meta: BlockMeta, *, bytes_max: int = 1 << 62
) -> Iterator[Damage]:
    """Every object of a block that is not as it was written, of all its copies.

    Bytes are read and compared only as far as all of them are no more than `bytes_max`.
    """
    stores, compare = stores_of(store), meta.size <= bytes_max
    for file in meta.files:
        for at in file.locations:
            if what := wrong(stores.open(at.store), file, at, compare=compare):
                yield Damage(meta.id, at.key, what)


def is_readable(stores: Stores, meta: BlockMeta) -> bool:
    """Whether each file of a block has a whole copy, every byte compared. Retryable when there is
    none and a store is away: it may have one.
    """
    return all(_has_whole_copy(stores, file) for file in meta.files)


def _has_whole_copy(stores: Stores, file: File) -> bool:
    away: Retryable | None = None
    for at in file.locations:
        try:
            if not wrong(stores.open(at.store), file, at, compare=True):
                return True
        except Retryable as error:
            away = error
    if away is not None:
        raise away
    return False


def wrong(store: ObjectStore, file: File, at: Location, *, compare: bool) -> str:
    """What is wrong with one copy, in words that follow its key; '' when it is whole, or when only
    its size was asked for and is right.
    """
    try:
        size = store.size(at.key)
        if size != file.size:
            return f"has {size:,} bytes, and {file.size:,} were written"
        if compare and _checksum(store, at.key, size) != file.checksum:
            return "has other bytes than were written: its checksum differs"
    except NotFound:
        return MISSING
    return ""


def _checksum(store: ObjectStore, key: str, size: int) -> bytes:
    digest = xxhash.xxh3_128()
    for start in range(0, size, _RANGE):
        digest.update(store.read_range(key, start=start, length=min(_RANGE, size - start)))
    return bytes(digest.digest())
