"""A segment's metadata as an object, for when the index cannot take it: a dead letter (S20)."""

from __future__ import annotations

import msgspec
import xxhash

from maar.model import keys
from maar.model.block import SEGMENT_TABLE, BlockMeta, Kind
from maar.model.errors import Corrupt, NotFound
from maar.model.ids import NO_TENANT, Incarnation, StoreName
from maar.ports.stores.object_store import ObjectStore

VERSION = 1
BYTES_MAX = 4 << 20  # far more than the metadata of the largest segment


class _Letter(msgspec.Struct, frozen=True, array_like=True):
    version: int
    checksum: bytes  # xxh3-128 of the body
    body: bytes  # the metadata in msgpack


_encode = msgspec.msgpack.Encoder().encode
_open = msgspec.msgpack.Decoder(_Letter).decode
_read = msgspec.msgpack.Decoder(BlockMeta).decode


def encode(meta: BlockMeta) -> bytes:
    body = _encode(meta)
    return _encode(_Letter(VERSION, xxhash.xxh3_128_digest(body), body))


def decode(letter: bytes, *, key: str) -> BlockMeta:
    """The metadata, or Corrupt: an operator must look."""
    try:
        opened = _open(letter)
        if opened.version != VERSION:
            raise Corrupt(f"{key} is a dead letter of version {opened.version}, not {VERSION}")
        if xxhash.xxh3_128_digest(opened.body) != opened.checksum:
            raise Corrupt(f"{key} is damaged: its checksum differs")
        return _read(opened.body)
    except (msgspec.DecodeError, ValueError) as error:
        raise Corrupt(f"{key} is not a dead letter: {error}") from error


def check(
    meta: BlockMeta, *, key: str, name: str, incarnation: Incarnation, store: StoreName
) -> BlockMeta:
    """The metadata of a letter, if a segment writer can have written it under this name; else
    Corrupt. What is registered is merged, and then its objects are deleted: a letter must not be
    able to name the objects of others.
    """
    if keys.letter_block(name) != meta.id:
        raise Corrupt(f"{key} is about block {meta.id[:40]!r}, which its name does not say")
    if (meta.kind, meta.level, meta.tenant) != (Kind.SEGMENT, 0, NO_TENANT):
        raise Corrupt(f"{key} is about a block that is no segment")
    segment = keys.segment(shard=meta.shard, block=meta.id, incarnation=incarnation)
    named = [(file.table, at.store, at.key) for file in meta.files for at in file.locations]
    if meta.store != store or named != [(SEGMENT_TABLE, store, segment)]:
        raise Corrupt(f"{key} does not name the one object of its segment, {segment} in {store!r}")
    return meta


def absent(store: ObjectStore, meta: BlockMeta) -> str:
    """What is wrong with the segment that a letter is about; '' when it is intact."""
    file = meta.files[0]
    key = file.locations[0].key
    try:
        size = store.size(key)
    except NotFound:
        return f"its segment {key} is missing from the store"
    return "" if size == file.size else f"its segment {key} has {size} bytes, not {file.size}"
