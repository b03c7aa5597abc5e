"""Checksums of whole objects, to detect damage."""

from __future__ import annotations

from pathlib import Path

import xxhash

CHUNK = 4 << 20
_TAIL = 8  # length of the footer (4 bytes) and Parquet's magic (4 bytes) end every file


def of_bytes(body: bytes) -> bytes:
    """xxh3-128 of an object in memory."""
    return bytes(xxhash.xxh3_128_digest(body))


def of_file(path: Path) -> bytes:
    """The same of a local file, in bounded memory."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return bytes(digest.digest())


def footer_size(tail: bytes) -> int:
    """Bytes of Parquet footer at the end of an object, its length and the magic included."""
    return int.from_bytes(tail[-_TAIL:-4], "little") + _TAIL


def footer_size_of_file(path: Path) -> int:
    with path.open("rb") as file:
        file.seek(-_TAIL, 2)
        return footer_size(file.read(_TAIL))
