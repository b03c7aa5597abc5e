"""Whether a copy of a block is what the index says: size, checksum and footer of every file.

The index is right, whatever the copies say: the checksums in it were computed by whoever wrote the
block, before anybody could read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from maar.block.format import checksum
from maar.model.block import BlockMeta, File
from maar.model.errors import NotFound
from maar.model.ids import StoreName
from maar.ports.stores.object_store import ObjectStore

RANGE = 8 << 20  # bytes of one ranged read
_MAGIC = b"PAR1"


class CopyCheck:
    """Reads copies, and counts what it read."""

    def __init__(self) -> None:
        self.copies = 0
        self.bytes = 0

    def copy(self, store: ObjectStore, meta: BlockMeta, name: StoreName) -> dict[str, str]:
        """What is wrong with the files of the copy in a store, by table; {}: nothing. What a store
        that is away raises is the caller's.
        """
        self.copies += 1
        found = {}
        for file in meta.files:
            at = next((each for each in file.locations if each.store == name), None)
            if at is None:
                found[file.table] = f"{file.table} is not there"
            elif what := self.file(store, file, at.key):
                found[file.table] = f"{at.key} {what}"
        return found

    def file(self, store: ObjectStore, file: File, key: str, into: Path | None = None) -> str:
        """The same of one file; `into` gets its bytes."""
        try:
            size = store.size(key)
            if size != file.size:
                return f"has {size:,} bytes, and {file.size:,} were written"
            digest, tail = self._digest(store, key, file, into)
        except NotFound:
            return "is missing"
        if digest != file.checksum:
            return "has other bytes than were written: its checksum differs"
        return wrong_with_footer(tail, file)

    def _digest(
        self, store: ObjectStore, key: str, file: File, into: Path | None
    ) -> tuple[bytes, bytes]:
        """The checksum of an object, and its last bytes, where the footer is."""
        digest, tail = xxhash.xxh3_128(), b""
        keep = max(file.footer_size, len(_MAGIC))
        out = into.open("wb") if into is not None else None
        try:
            for chunk in _chunks(store, key, file.size):
                digest.update(chunk)
                tail = (tail + chunk)[-keep:] if len(chunk) < keep else chunk[-keep:]
                self.bytes += len(chunk)
                if out is not None:
                    out.write(chunk)
        finally:
            if out is not None:
                out.close()
        return bytes(digest.digest()), tail


def wrong_with_footer(tail: bytes, file: File) -> str:
    """Whether readers would understand the end of a file; '' when they would."""
    if tail[-len(_MAGIC) :] != _MAGIC or checksum.footer_size(tail) != file.footer_size:
        return "does not end as Parquet does"
    try:
        rows = pq.read_metadata(pa.BufferReader(tail)).num_rows
    except (pa.ArrowException, OSError) as error:
        return f"has a footer that cannot be read: {error}"
    return "" if rows == file.rows else f"has {rows:,} rows, and {file.rows:,} were written"


def _chunks(store: ObjectStore, key: str, size: int) -> Iterator[bytes]:
    path = store.local_path(key)
    if path is None:
        for start in range(0, size, RANGE):
            yield store.read_range(key, start=start, length=min(RANGE, size - start))
        return
    try:
        with path.open("rb") as file:
            while chunk := file.read(RANGE):
                yield chunk
    except FileNotFoundError as error:
        raise NotFound(f"object {key} does not exist") from error
