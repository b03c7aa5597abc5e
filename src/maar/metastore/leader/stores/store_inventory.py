"""Lists the blocks in a store and reads and checks their metadata (S5). For threads."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import msgspec
import numpy as np
import xxhash

from maar.block.format.segment import segment_meta
from maar.block.read.reread import reread
from maar.metastore.state.state import ANY_STORE
from maar.model import keys
from maar.model.block import TABLES, BlockMeta, Kind
from maar.model.errors import Corrupt, NotFound
from maar.model.ids import BlockId, Incarnation, PlanId, Shard, StoreName
from maar.model.predicate import since
from maar.ports.stores.object_store import ObjectInfo, ObjectStore

CREATED_BY = "adopted from the store"

_manifest = msgspec.msgpack.Decoder(BlockMeta).decode


class StoredBlock(NamedTuple):
    """An object that stands for a block: a segment, a manifest, or a file in quarantine."""

    key: str
    block: BlockId
    incarnation: Incarnation  # of the log that it was written for
    granted_at: int = 0  # the index of the token that it was written under
    plan: PlanId | None = None  # None: a segment, as a writer wrote it
    store: StoreName = ANY_STORE  # where it was found


def candidate(key: str, store: StoreName = ANY_STORE) -> StoredBlock | None:
    """None: the object stands for no block, like the tables that a manifest names."""
    if segment := keys.segment_name(key):
        return StoredBlock(key, segment.block, segment.incarnation, store=store)
    if key.startswith((keys.SEGMENTS, keys.MANIFESTS, keys.QUARANTINES)):
        output = keys.output_name(key)
        if output is None:
            return None
        token = output.token
        return StoredBlock(key, output.block, token.incarnation, token.index, output.plan, store)
    return None


def best_first(found: Iterable[StoredBlock]) -> list[StoredBlock]:
    """The attempts at one block, the last one first: had an earlier one completed the plan, there
    would be no later one; and if the last one is not whole, none did, and the inputs are there.
    """
    return sorted(found, key=lambda one: (-one.granted_at, one.key))


class StoreListing:
    """All objects of blocks, remembered by a number each: there may be millions."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._marks = array("Q")
        self._sorted = np.empty(0, np.uint64)

    def walk(self) -> Iterator[ObjectInfo]:
        parts = (keys.SEGMENTS, keys.LAKE, keys.QUARANTINES)
        for info in chain.from_iterable(map(self._store.list, parts)):
            self._marks.append(_mark(info.key, info.size))
            yield info
        self._sorted = np.sort(np.frombuffer(self._marks, np.uint64))

    def lacks(self, meta: BlockMeta) -> str:
        """The key of a file of which this store has no copy; '' when it has all.

        What the listing did not show is asked for by name: it may have been written since. A file
        of another size is damaged rather than missing: an operator has to look at it.
        """
        name = self._store.settings().name
        for file in meta.files:
            ours = [at.key for at in file.locations if at.store == name]
            shown = any(self._is_listed(key, file.size) for key in ours)
            if ours and not shown and not any(map(self._there, ours)):
                return ours[0]
        return ""

    def whole(self, meta: BlockMeta) -> bool:
        """Every file of this store's copy is there with its size."""
        name = self._store.settings().name
        return all(
            self._is_listed(at.key, file.size) or self._size(at.key) == file.size
            for file in meta.files
            for at in file.locations
            if at.store == name
        )

    def _is_listed(self, key: str, size: int) -> bool:
        mark = np.uint64(_mark(key, size))
        at = int(np.searchsorted(self._sorted, mark))
        return at < len(self._sorted) and bool(self._sorted[at] == mark)

    def _there(self, key: str) -> bool:
        return self._size(key) >= 0

    def _size(self, key: str) -> int:
        try:
            return self._store.size(key)
        except NotFound:
            return -1


def _mark(key: str, size: int) -> int:
    return xxhash.xxh3_64_intdigest(f"{size}/{key}".encode())


class Sibling(NamedTuple):
    """Metadata that a quarantine file lacks, taken from another output of the same plan."""

    shard: Shard
    level: int


UNKNOWN = Sibling(Shard(0), 1)


def read_block(store: ObjectStore, one: StoredBlock, listing: StoreListing) -> BlockMeta | None:
    """The block that a segment or a manifest stands for; None when it is gone or not whole.

    Corrupt when our writers cannot have written it. Blocks of the index are merged and then their
    objects are deleted, so a block must not name objects of others.
    """
    try:
        body = store.read(one.key)
    except NotFound:
        return None
    if one.key.startswith(keys.SEGMENTS):
        return segment_of(store, one, body)
    meta = _check_manifest(one, _decode_manifest(one, body), StoreName(store.settings().name))
    return meta if listing.whole(meta) else None


def read_quarantine(store: ObjectStore, one: StoredBlock, sibling: Sibling) -> BlockMeta | None:
    """The block that a file in quarantine stands for."""
    try:
        segment = reread(store.read(one.key))
    except NotFound:
        return None
    except Corrupt as error:
        raise Corrupt(f"{one.key} is not adopted: {error}") from error
    tenants = {dataset.tenant for dataset in segment.datasets}
    stem = one.key.rpartition("/")[2].removesuffix(".parquet")
    if [keys.quarantine(tenant=tenant, stem=stem) for tenant in tenants] != [one.key]:
        raise Corrupt(f"{one.key} is not adopted: it holds profiles of other tenants")
    return segment_meta(
        segment,
        block=one.block,
        key=one.key,
        shard=sibling.shard,
        store=StoreName(store.settings().name),
        created_by=CREATED_BY,
        created_at_ns=segment.max_time_ns,
        kind=Kind.QUARANTINE,
        tenant=tenants.pop(),
        level=sibling.level,
        plan=one.plan,
    )


def segment_of(store: ObjectStore, one: StoredBlock, body: bytes) -> BlockMeta:
    """The block that a segment of these bytes is; Corrupt when it is none."""
    name = keys.segment_name(one.key)
    shard = name.shard if name else keys.joined_shard(one.key)
    assert shard is not None
    try:
        segment = reread(body)
    except Corrupt as error:
        raise Corrupt(f"{one.key} is not adopted: {error}") from error
    return segment_meta(
        segment,
        block=one.block,
        key=one.key,
        shard=shard,
        store=StoreName(store.settings().name),
        created_by=CREATED_BY,
        created_at_ns=segment.max_time_ns,
        plan=one.plan,
    )


def _decode_manifest(one: StoredBlock, body: bytes) -> BlockMeta:
    try:
        return _manifest(body)
    except (msgspec.DecodeError, ValueError) as error:
        raise Corrupt(f"{one.key} is not adopted: it is not a manifest ({error})") from error


def _check_manifest(one: StoredBlock, meta: BlockMeta, store: StoreName) -> BlockMeta:
    """The block of a manifest, if it names its own place and files, and no others."""
    place = one.key.removeprefix(keys.MANIFESTS).removesuffix(".msgpack")
    own = {(table, store, f"{keys.LAKE}{table}/{place}.parquet") for table in TABLES}
    named = [(file.table, at.store, at.key) for file in meta.files for at in file.locations]
    if (
        (meta.id, meta.kind, meta.store) != (one.block, Kind.BLOCK, store)
        or meta.plan is None  # a copy is of the plan that made the block, under a key of its own
        or (len(named), set(named)) != (len(own), own)
        or one.key != _manifest_key(meta, place.rpartition("/")[2])
        or meta.level < 1
    ):
        raise Corrupt(f"{one.key} is not adopted: it does not name the files of its own block")
    return meta


def _manifest_key(meta: BlockMeta, stem: str) -> str:
    """The day as text; '' when there is no such day, since the value is not trusted yet."""
    try:
        return keys.manifest(tenant=meta.tenant, day=meta.day, stem=stem)
    except OverflowError:
        return ""


def whole_copies(
    candidates: Sequence[StoredBlock], *, make: Callable[[StoredBlock], BlockMeta | None]
) -> BlockMeta | None:
    """Of the attempts at a block, the best that is whole, with all its copies; Corrupt when there
    is only damage.

    A copy was made of a block that was in the index, so what it says is what was acknowledged;
    without one, the last attempt is. Others with the same bytes are copies of it.
    """
    damage: Corrupt | None = None
    found: list[tuple[StoredBlock, BlockMeta]] = []
    several = len({one.store for one in candidates}) > 1
    for one in candidates:
        try:
            made = make(one)
        except Corrupt as error:
            damage = damage or error
            continue
        if made is not None:
            found.append((one, made))
            if not several:
                break
    if not found:
        if damage is not None:
            raise damage
        return None
    best = next((meta for one, meta in found if _is_copy(one, meta)), found[0][1])
    return _join_copies(best, found) if several else best


def _is_copy(one: StoredBlock, meta: BlockMeta) -> bool:
    return meta.plan is not None and meta.plan != one.plan


def _join_copies(best: BlockMeta, found: Sequence[tuple[StoredBlock, BlockMeta]]) -> BlockMeta:
    """The home is where the plan that made it wrote it, if that is whole. Manifests did not always
    tell how old a block is: then the oldest keys do.
    """
    same = [(one, meta) for one, meta in found if _content(meta) == _content(best)]
    ordered = sorted(same, key=lambda each: _is_copy(*each))
    by_store = {meta.store: meta for _, meta in reversed(ordered)}
    home = ordered[0][1].store
    names = [home, *sorted(name for name in by_store if name != home)]
    files = tuple(
        msgspec.structs.replace(
            file, locations=tuple(by_store[name].file(file.table).locations[0] for name in names)
        )
        for file in best.files
    )
    oldest = min(since(meta) for _, meta in same)
    return msgspec.structs.replace(best, store=home, files=files, since=oldest)


def _content(meta: BlockMeta) -> dict[str, tuple[int, bytes]]:
    return {file.table: (file.size, file.checksum) for file in meta.files}
