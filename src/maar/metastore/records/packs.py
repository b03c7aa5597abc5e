"""Encoded block metadata: single, or many in one compressed pack to save memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import msgspec
import pyarrow as pa

from maar.model.block import BlockMeta, BlockOutline

OPENED_MAX = 8  # packs that are kept decompressed: a plan's inputs are often in the same pack

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(BlockMeta).decode
_outline = msgspec.msgpack.Decoder(BlockOutline).decode
_decode_rows = msgspec.msgpack.Decoder(tuple[bytes, ...]).decode
_zstd = pa.Codec("zstd", compression_level=3)


class Pack(NamedTuple):
    """Immutable, and shared by whoever keeps some of its rows."""

    zstd: bytes  # of a msgpack array of byte strings
    size: int  # of that array
    rows: int


class Packed(msgspec.Struct, frozen=True, gc=False):
    """A block that is a row of a pack."""

    pack: Pack
    row: int


Bytes: TypeAlias = bytes | Packed


def pack(meta: BlockMeta) -> bytes:
    """As the state keeps it. Hashes go over these bytes, so a field that a later version of the
    log brings must not be kept before that version is active.
    """
    return _encode(meta)


def unpack(packed: Bytes) -> BlockMeta:
    return _decode(alone(packed))


def outline(packed: Bytes) -> BlockOutline:
    """All but its datasets, for a third of what unpacking costs."""
    return _outline(alone(packed))


def alone(packed: Bytes) -> bytes:
    """The bytes of the block itself."""
    return packed if isinstance(packed, bytes) else opened(packed.pack)[packed.row]


def seal(rows: Sequence[bytes]) -> Pack:
    raw = _encode(rows)
    return Pack(_zstd.compress(raw).to_pybytes(), len(raw), len(rows))


def content(pack: Pack) -> tuple[bytes, ...]:
    """For callers that read many packs once, in any thread; nothing is cached."""
    return _decode_rows(_zstd.decompress(pack.zstd, pack.size, asbytes=True))


opened = lru_cache(maxsize=OPENED_MAX)(content)
