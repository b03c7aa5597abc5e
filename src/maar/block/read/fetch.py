"""Objects of a block as local files, each compared with the index before anyone reads it.

The nearest copy is taken, and another one when it is not what was written (S14).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import xxhash

from maar.block.format import checksum
from maar.block.merge.run import Run, open_table
from maar.model.block import TABLES, BlockMeta, File
from maar.model.errors import Corrupt, Missing, NotFound
from maar.ports.stores.object_store import ObjectStore
from maar.ports.stores.stores import Stores, stores_of

_RANGE = 8 << 20  # bytes of one ranged read


def fetch(store: ObjectStore | Stores, meta: BlockMeta, file: File, scratch: Path) -> Path:
    """A local file with the object's bytes; Corrupt names the block when they are not right."""
    read = partial(_fetch_copy, meta=meta, file=file, scratch=scratch)
    return stores_of(store).read(meta.id, file.locations, read)


def _fetch_copy(
    store: ObjectStore, key: str, *, meta: BlockMeta, file: File, scratch: Path
) -> Path:
    try:
        path = store.local_path(key)
        if path is None:
            path = scratch / f"{meta.id}-{file.table}.parquet"
            digest = _download(store, key, path)
        else:
            store.size(key)  # NotFound, in the store's own words, when it is gone
            digest = checksum.of_file(path)
    except NotFound as error:
        raise Missing(
            f"Block {meta.id} is in the index, and its object {key} is missing from the store. "
            f"Restore it from a copy, or give the block up: `maar blocks lose {meta.id}`."
        ) from error
    size = path.stat().st_size
    if size != file.size or digest != file.checksum:
        raise Corrupt(
            f"Block {meta.id}: object {key} has {size} bytes and is not what was written "
            f"({file.size} bytes, compared by checksum). Restore it from a copy, or give the block "
            f"up: `maar blocks lose {meta.id}`."
        )
    return path


def run_of_block(store: ObjectStore | Stores, meta: BlockMeta, scratch: Path) -> Run:
    """A block as a run; every file is checked, and has the rows that the index says."""
    name = f"Block {meta.id}"
    tables = {table: fetch(store, meta, meta.file(table), scratch) for table in TABLES}
    for table, path in tables.items():
        rows = open_table(path, table, name).metadata.num_rows
        if rows != meta.file(table).rows:
            raise Corrupt(
                f"{name}: table {table} has {rows} rows, and the index says "
                f"{meta.file(table).rows}. Restore the object from a copy."
            )
    if meta.file("profiles").rows != meta.profiles:
        raise Corrupt(
            f"{name}: its profiles table has {meta.file('profiles').rows} rows, and the index "
            f"counts {meta.profiles} profiles. The index entry is wrong; remove or rebuild it."
        )
    return Run(name=name, tables=dict(tables))


def _download(store: ObjectStore, key: str, path: Path) -> bytes:
    size = store.size(key)
    digest = xxhash.xxh3_128()
    with path.open("wb") as target:
        for start in range(0, size, _RANGE):
            chunk = store.read_range(key, start=start, length=min(_RANGE, size - start))
            digest.update(chunk)
            target.write(chunk)
    return bytes(digest.digest())
